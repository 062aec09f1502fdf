"""Attacks of a hostile worker: `ATTACKS` by name, each a function of random numbers and of the worker's state.

    raw         nothing, raw bytes, torn and altered messages; headers that declare false lengths, shapes, offsets and
                dtypes, or are no JSON, or nest deeper than any parser goes
    fields      hostile values in every field of a sync, a push and a failure; fields that are missing, or too many
    leases      pushes under the leases of others, in wrong terms, sequences and bases, too short, too long, of nothing;
                claims to hold the leases of others; goodbye messages of a worker that stays
    failures    for the lease that is held and for those of others, with texts that no terminal should see
    tensors     wrong names, shapes, dtypes, ids, compressed steps and moments; missing ones and thousands
    replicas    well-formed pushes that spoil a model: NaN, infinity, zeros, 1e30, the largest number, noise, a step
                backwards, and the replica as it came, for credits without work
    order       messages again, and out of order

Attacks on the files of a mailbox are in `hostile_files.py`.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from gridml.protocol import bundle
from gridml.protocol.compression import FORMATS
from gridml.protocol.messages import Failure, Lease, Push, Sync, to_json
from gridml.protocol.push import Array
from master.simulation.workers import TEXTS, altered, nonsense

MAX_TEXT_CHARS = 1 << 22


@dataclass
class Stance:
    """The state of a hostile worker, from its answers: version `have` with its replica, and a lease, of which
    `sequence` pushes up to position `upto` were merged. `last` is its last message."""

    worker: str
    have: int = -1
    replica: dict[str, Array] = field(default_factory=dict)
    lease: Lease | None = None
    upto: int = 0
    sequence: int = 0
    trained: int = 0
    last: bytes = b""

    def sync(self, push: Push | None = None) -> Sync:
        """Return an honest worker's message: its push or, without a lease, a request for one."""
        lease = self.lease
        return Sync(
            self.worker,
            have=self.have,
            holds=() if lease is None else (lease.id,),
            wants=lease is None,
            push=push,
            trained=self.trained,
            train_s=1e-4 * self.trained,
        )

    def push(self) -> Push:
        """Return an honest push of the rest of the lease; without a lease, of an invented one."""
        lease = self.lease
        if lease is None:
            return Push(1, 1, 1, self.have, 64, 64)
        return Push(lease.id, lease.term, self.sequence + 1, self.have, lease.stop, lease.stop - self.upto)


class Sent(NamedTuple):
    """A payload with the next number, or with one that differs by an offset."""

    payload: bytes
    skip: int = 0


Attack = Callable[[random.Random, Stance], Iterable[Sent]]


def pushed(stance: Stance, tensors: Mapping[str, Array] | None = None, **altered: Any) -> Sent:
    """Return an honest push with other tensors, or other fields."""
    push = stance.push()._replace(**altered)
    return Sent(bundle.encode(to_json(stance.sync(push)), stance.replica if tensors is None else tensors))


def honest(stance: Stance) -> bytes:
    """Return an honest message, but without any training."""
    return bundle.encode(to_json(stance.sync()), {})


# --- raw bytes and headers


def framed(header: bytes, data: bytes = b"", length: int | None = None) -> Sent:
    """Return a safetensors payload with a given header, which declares the length `length`."""
    return Sent((len(header) if length is None else length).to_bytes(8, "little") + header + data)


def with_message(text: str, tensors: str = "") -> Sent:
    """Return a payload whose message is this text, and whose tensors are this part of a JSON object."""
    return framed(f'{{"__metadata__":{{"gridml":{json.dumps(text)}}}{tensors}}}'.encode(), bytes(64))


def raw(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    yield Sent(nonsense(rng))


def torn(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    payload = pushed(stance).payload
    yield Sent(payload[: rng.randrange(len(payload))])


def bits_altered(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    """Flip some bits, with a correct digest, mostly in the header, where they change the meaning."""
    payload = bytearray(pushed(stance).payload)
    for _ in range(rng.choice((1, 1, 2, 20))):
        payload[rng.randrange(min(len(payload), rng.choice((8, 600, len(payload)))))] ^= 1 << rng.randrange(8)
    yield Sent(bytes(payload))


def lengths(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    yield framed(b'{"__metadata__":{}}', length=rng.choice((0, 1, 2**31, 2**63 - 1, 2**64 - 1, 10**9)))


JSON_TEXTS: Final = (
    "", "null", "[]", "1", '"text"', "{", "nul", "{}", "NaN", '{"worker":NaN}', '{"worker":1e999}', "[" * 100_000,
    '{"a":' * 50_000, "9" * 5_000, '{"worker":"w1","worker":"w2"}', "\ufeff{}", '{"push":{"push":{"push":null}}}',
    '{"__proto__":{},"constructor":1}', '"' + "\\ud800" * 1_000 + '"',
)  # fmt: skip


def no_message(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    """Send JSON that is no message, as the metadata's text or as the header itself."""
    text = rng.choice(JSON_TEXTS)
    yield with_message(text) if rng.random() < 0.5 else framed(text.encode("utf-8", "surrogatepass"))


def no_metadata(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    headers = (b"{}", b'{"__metadata__":null}', b'{"__metadata__":{"gridml":7}}', b'{"__metadata__":{"gridml":null}}',
               b'{"__metadata__":[]}', b'\xff\xfe{}', b'{"__metadata__":{"gridml":"\xff"}}',
               b'{"gridml":"{}"}')  # fmt: skip
    yield framed(rng.choice(headers))


TENSOR_HEADERS: Final = tuple(
    f',"Network/0/model/weight":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}'
    for dtype, shape, offsets in (
        ('"F32"', "[16]", "[0,64]"),
        ('"F32"', "[-16]", "[0,64]"),
        ('"F32"', "[4611686018427387904,4]", "[0,64]"),
        ('"F32"', "[0,18446744073709551615]", "[0,0]"),
        ('"F32"', "[1e3]", "[0,64]"),
        ('"F32"', "[16]", "[0,640000000000]"),
        ('"F32"', "[16]", "[64,0]"),
        ('"F32"', "[16]", "[-64,0]"),
        ('"F32"', "[16]", "null"),
        ('"F8_E4M3"', "[64]", "[0,64]"),
        ('"BF16"', "[32]", "[0,64]"),
        ('"C64"', "[8]", "[0,64]"),
        ('"F4"', "[128]", "[0,64]"),
        ('"O"', "[8]", "[0,64]"),
        ("7", "[16]", "[0,64]"),
        ('"F32"', "[" + ",".join(["1"] * 70) + ",16]", "[0,64]"),  # more dimensions than an array can have
        ('"F32"', "[[16]]", "[0,64]"),
    )
)


def tensor_headers(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    """Send a valid push with tensors whose header is false."""
    tensors = rng.choice(TENSOR_HEADERS)
    if rng.random() < 0.2:
        tensors += tensors.replace("weight", "bias")  # the same bytes twice
    yield with_message(json.dumps(to_json(stance.sync(stance.push()))), tensors)


# --- fields


def fields(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    push = stance.push() if rng.random() < 0.7 else None
    yield Sent(altered(stance.sync(push), rng, rng.choice((1, 1, 2, 3)), stance.replica if push else None))


def times(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    """Send measures at the limits of a float, which later overflow in arithmetic."""
    said = {name: rng.choice((0.0, 1e-320, 5e-324, 1e-9, 1e15, 9e15)) for name in ("train_s", "push_s", "travel_s",
            "begin_s", "end_s")}  # fmt: skip
    counts = {name: rng.choice((0, 1, 2, 2**31, 2**53 - 1)) for name in ("trained", "begun", "begun_vertices")}
    yield Sent(bundle.encode(to_json(stance.sync()) | said | counts, {}))


# --- leases


def leases_of_others(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    near = 1 if stance.lease is None else stance.lease.id
    yield pushed(stance, lease=max(0, near + rng.choice((-3, -2, -1, 1, 2))))


def wrong_fences(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    name = rng.choice(("term", "sequence", "base"))
    yield pushed(stance, **{name: getattr(stance.push(), name) + rng.choice((-2, -1, 1, 2, 1_000))})


def wrong_ends(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    """Push beyond the lease, nothing, fewer vertices than declared, or backwards."""
    push, by = stance.push(), rng.choice((1, 64, 100_000))
    upto, vertices = rng.choice(((push.upto + by, push.vertices + by), (stance.upto, 0), (push.upto, push.vertices - 1),
                                 (push.upto, 2 * push.vertices), (stance.upto - 1, -1), (push.upto, 0)))  # fmt: skip
    yield pushed(stance, upto=upto, vertices=vertices)


def holds_of_others(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    holds = range(200) if rng.random() < 0.5 else [rng.randrange(1, 500) for _ in range(5)]
    yield Sent(bundle.encode(to_json(stance.sync()._replace(holds=tuple(holds), wants=rng.random() < 0.5)), {}))


def goodbye(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    push = stance.push() if rng.random() < 0.3 else None
    yield Sent(bundle.encode(to_json(stance.sync(push)._replace(leaving=True)), stance.replica if push else {}))


def another_name(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    worker = rng.choice(("w1", "w2", f"{stance.worker}.1", "", *TEXTS))
    yield Sent(bundle.encode(to_json(stance.sync()._replace(worker=worker)), {}))


# --- failures


def failures(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    """Report failures of the own lease, of another, or of none, mostly with short texts."""
    push = stance.push()
    length = int(math.exp(rng.uniform(0, math.log(MAX_TEXT_CHARS)))) if rng.random() < 0.1 else 1
    text = rng.choice(TEXTS[:8]) * length
    lease = push.lease + rng.choice((0, 0, 0, -1, 1))
    at = rng.choice((-1, 0, push.upto - 1, 2**53 - 1, -5))
    failure = Failure(lease, push.term, text[:MAX_TEXT_CHARS], rng.choice(TEXTS), at, at + rng.choice((0, -1, 10**6)))
    yield Sent(bundle.encode(to_json(stance.sync()._replace(failure=failure)), {}))


# --- tensors


NAMES: Final = ("", "/", "//", "a", "a/b", "a/b/c/d/e", "@rows/", "@ids/", "@ids/Network", "@rows/Nothing", "Network/0",
                "Network/-1/model/x", "Network/99/model/x", "Network/\u0660/model/x", "../../x", "\x1b[2J",
                "x" * 100_000, "Network/" + "9" * 5_000 + "/model/x", "__metadata__/0/x/y")  # fmt: skip


def names(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    """Push an additional tensor, one too few, or one with another name."""
    tensors, some = dict(stance.replica), np.zeros(rng.choice((0, 1, 16)), rng.choice(("f4", "i8", "u1", "?")))
    if tensors and rng.random() < 0.6:
        values = tensors.pop(rng.choice(sorted(tensors)))
        some = values if rng.random() < 0.5 else some
    if rng.random() < 0.8:
        tensors[rng.choice(NAMES)] = some
    yield pushed(stance, tensors)


def many_tensors(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    yield pushed(stance, {f"Network/{i}/model/x": np.zeros(0, "f4") for i in range(rng.choice((100, 20_000)))})


def shapes(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    def of(tensor: Array) -> Array:
        return rng.choice((tensor[:0] if tensor.ndim else tensor.reshape(1), tensor.reshape(-1), tensor.T,
                           np.stack([tensor, tensor]), tensor[None], tensor.ravel()[:1].reshape(())
                           if tensor.size else tensor))  # fmt: skip

    yield pushed(stance, _one_altered(rng, stance, of))


def dtypes(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    def of(tensor: Array) -> Array:
        with np.errstate(all="ignore"):
            return tensor.astype(rng.choice(("f2", "f8", "i8", "u1", "?", "i4", "u8")))

    yield pushed(stance, _one_altered(rng, stance, of))


def steps(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    """Push compressed steps of arbitrary bytes and length, of known, unknown or repeated tensors."""
    form, tensors = rng.choice([*FORMATS.values()]), dict(stance.replica) if rng.random() < 0.3 else {}
    name = rng.choice([*stance.replica, "Network/0/model/x", "Network/0", ""])
    size = stance.replica[name].size if name in stance.replica else 64
    length = rng.choice((form.nbytes(size), form.nbytes(size), form.nbytes(size) + 1, 0))
    dtype, other = rng.choice(("u1", "u1", "i1", "f4")), rng.choice((form.name, form.name, "int3", ""))
    yield pushed(stance, tensors | {f"@{other}/{name}": np.frombuffer(rng.randbytes(length), "u1").astype(dtype)})


def moments(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    """Send second moments that mislead workers that start with them: arbitrary bits, the smallest, the largest, of
    existing or missing tensors."""
    modules = sorted(name for name in stance.replica if name.count("/") > 2 and not name.startswith("@"))
    name = rng.choice([*modules, "Network/0/model/x", "Network/0", ""])
    shape = stance.replica[name].shape if name in stance.replica and rng.random() < 0.8 else (4,)
    bits = np.full(shape, rng.choice((0, 1, 0x3F80, 0x7F7F, 0x7F80, 0x7FC0, 0xBF80, rng.randrange(2**16))), np.uint16)
    entry = rng.choice(("exp_avg_sq", "exp_avg_sq", "sum", "exp_avg", "step", "", *TEXTS[:2]))
    yield pushed(stance, stance.replica | {f"@moments/{entry}/{name}": bits if bits.ndim else bits.astype("f4")})


def ids(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    """Push ids of rows that do not exist, are repeated, or are no row ids; without ids, invented ones."""
    tensors, at = dict(stance.replica), [name for name in stance.replica if name.startswith("@")]
    name = rng.choice(at) if at else rng.choice(("@ids/Image", "@rows/Image", "@ids/Network", "@rows/Network"))
    rows = tensors.get(name, np.arange(4))
    far = rows.astype("i8") + 2**62  # rows may be int32
    rng_rows = (rows + 10**6, -1 - rows, rows * 0, rows[::-1], rows.astype("f8"), far, rows[:0], rows[None])
    tensors[name] = np.ascontiguousarray(rng.choice(rng_rows))
    if not at:
        tensors[f"{name.split('/')[1]}/label"] = np.full(4, 7)
    yield pushed(stance, tensors)


def _one_altered(rng: random.Random, stance: Stance, alter: Callable[[Array], Array]) -> dict[str, Array]:
    tensors = dict(stance.replica)
    if tensors:
        name = rng.choice(sorted(tensors))
        tensors[name] = np.ascontiguousarray(alter(tensors[name]))
    return tensors


# --- replicas that damage a model


def replica_attack(alter: Callable[[random.Random, Array], Array]) -> Attack:
    """Return an attack that pushes the replica with all its floating-point tensors altered."""

    def attack(rng: random.Random, stance: Stance) -> Iterator[Sent]:
        with np.errstate(all="ignore"):
            tensors = {
                n: alter(rng, t).astype(t.dtype) if t.dtype.kind == "f" else t for n, t in stance.replica.items()
            }
        yield pushed(stance, tensors)

    return attack


def _one_spoilt(rng: random.Random, tensor: Array) -> Array:
    spoilt = np.array(tensor)
    if spoilt.size:
        spoilt.flat[rng.randrange(spoilt.size)] = rng.choice((math.nan, math.inf, -math.inf))
    return spoilt


def _noise(rng: random.Random, tensor: Array) -> Array:
    return np.random.default_rng(rng.randrange(2**32)).normal(0, rng.choice((0.1, 1.0, 100.0)), tensor.shape)


REPLICAS: Final[dict[str, Attack]] = {
    "not finite": replica_attack(_one_spoilt),
    "all NaN": replica_attack(lambda rng, tensor: np.full_like(tensor, math.nan)),
    "zeros": replica_attack(lambda rng, tensor: np.zeros_like(tensor)),
    "1e30": replica_attack(lambda rng, tensor: np.full_like(tensor, 1e30)),
    "largest": replica_attack(lambda rng, tensor: np.full_like(tensor, np.finfo(tensor.dtype).max)),
    "denormal": replica_attack(lambda rng, tensor: np.full_like(tensor, np.finfo(tensor.dtype).smallest_subnormal)),
    "noise": replica_attack(_noise),
    "backwards": replica_attack(lambda rng, tensor: -tensor),
    "unchanged": replica_attack(lambda rng, tensor: tensor),
}


# --- order


def again(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    yield Sent(stance.last)


def reordered(rng: random.Random, stance: Stance) -> Iterator[Sent]:
    """Send messages out of order."""
    payloads = [pushed(stance).payload, honest(stance), stance.last, pushed(stance, sequence=2).payload]
    rng.shuffle(payloads)
    yield from (Sent(payload, skip) for payload, skip in zip(payloads, (2, -2, 1, -5), strict=True))


ATTACKS: Final[dict[str, Attack]] = {
    "raw": raw,
    "torn": torn,
    "bits altered": bits_altered,
    "lengths": lengths,
    "no message": no_message,
    "no metadata": no_metadata,
    "tensor headers": tensor_headers,
    "fields": fields,
    "times": times,
    "leases of others": leases_of_others,
    "wrong fences": wrong_fences,
    "wrong ends": wrong_ends,
    "holds of others": holds_of_others,
    "goodbye": goodbye,
    "another name": another_name,
    "failures": failures,
    "names": names,
    "many tensors": many_tensors,
    "shapes": shapes,
    "dtypes": dtypes,
    "steps": steps,
    "moments": moments,
    "ids": ids,
    **REPLICAS,
    "again": again,
    "reordered": reordered,
}
