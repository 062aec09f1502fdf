"""Hostile messages beside those of workers on hostile machines: values that no honest one sends, in every field.

`alter` puts values into a sync that are of the right type, of a wrong one, or lies; all is drawn from generators of
random numbers, so a seed gives the same messages again.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final, final, get_type_hints

from gridml.protocol import bundle
from gridml.protocol.codec import InProcessPayload
from gridml.protocol.messages import Failure, Push, Sync, to_json
from gridml.protocol.push import Array

Tensors = Mapping[str, Array]
FieldPath = tuple[str, ...]  # of a field: its name, or that of the part which has it and its name there


def nested(depth: int) -> list[Any]:
    """Return lists within lists."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


INTEGERS: Final = (-1, 0, 1, 2**31, 2**53 - 1, 2**53, -(2**63), 2**63 - 1, 2**63, 2**64, -(2**70), 10**400)
SECONDS: Final = (-1.0, -0.0, -1e-320, 5e-324, 1e-320, 1e-300, 1e-9, 1e12, 1e15, 1e300, 1e308, -1e308,
                  math.nan, math.inf, -math.inf)  # fmt: skip
TEXTS: Final = (
    "caf\udce9.txt",  # as os.fsdecode gives a name that is no UTF-8: no encoder takes the lone surrogate
    "\ud800\udfff",
    "\x1b[2J\x1b]0;title\x07\x1b[31m",  # clears a terminal and renames its window
    "\r\x08\x7f\x9b1A",
    "\x00",
    "\u202etxt.exe\u2066",
    "[bold]markup[/] [/] [link=file:///etc/passwd]",
    "\n" * 200,
    "'; DROP TABLE leases; --",
    "../../ledger.db",
    "",
    "w1",
    "x" * 65_536,
    "\U0010ffff" * 1_000,
)
LEASES: Final[tuple[Any, ...]] = ([], [-1], [2**63], [1, 1, 1], list(range(1_000)), ["1"], [None], [True], [1.5],
                                  [math.nan], [[1]], "123", nested(60))  # fmt: skip
WRONG_TYPES: Final[tuple[Any, ...]] = (None, True, False, 7, 1.5, "7", "", [], [7], {}, {"lease": 1}, nested(60))
NEAR: Final = (-64, -2, -1, 1, 2, 64)  # added to an honest number, a lie that fits almost

_PARTS: Final = {"push": Push, "failure": Failure}
_BY_TYPE: Final[dict[Any, tuple[Any, ...]]] = {int: INTEGERS, float: SECONDS, str: TEXTS, bool: (True, False)}
FIELDS: Final[dict[FieldPath, Any]] = {(name,): declared for name, declared in get_type_hints(Sync).items()} | {
    (part, name): declared for part, of in _PARTS.items() for name, declared in get_type_hints(of).items()
}
"""Every field of a sync, of its push and of its failure, with the type that is declared."""


def value_for(path: FieldPath, honest: object, rng: random.Random) -> object:
    """Draw a value for the field at `path`, whose honest value is given."""
    chance, declared = rng.random(), FIELDS[path]
    if chance < 0.2:
        return rng.choice(WRONG_TYPES)
    if chance < 0.4 and type(honest) is int:
        return honest + rng.choice(NEAR)
    if declared in _BY_TYPE:
        return rng.choice(_BY_TYPE[declared])
    return rng.choice(LEASES if path == ("holds",) else WRONG_TYPES)


def alter(sync: Sync, rng: random.Random, fields: int = 1) -> dict[str, Any]:
    """Return the JSON of a sync with `fields` hostile values; at times one is missing, or there is one more. A sync
    without a push or a failure gets one where a field of it is drawn."""
    message = to_json(sync)
    for path in rng.sample(list(FIELDS), fields):
        holder = message
        if len(path) == 2:
            if not isinstance(message.get(path[0]), dict):
                message[path[0]] = _made_up(path[0], rng)
            holder = message[path[0]]
        chance, name = rng.random(), path[-1]
        if chance < 0.03:
            holder.pop(name, None)
        elif chance < 0.06:
            holder[rng.choice(TEXTS)] = rng.choice(WRONG_TYPES)
        else:
            value = value_for(path, holder.get(name), rng)
            holder[name] = dict(value) if isinstance(value, dict) else value  # fields may be put into that
    return message


def altered(sync: Sync, rng: random.Random, fields: int = 1, tensors: Tensors | None = None) -> bytes:
    """Return `alter`'s message as a payload."""
    return bundle.encode(alter(sync, rng, fields), dict(tensors or {}))


def _made_up(part: str, rng: random.Random) -> dict[str, Any]:
    """Return a push or a failure under some lease, as JSON."""
    lease, at = rng.randrange(1, 200), rng.randrange(1_000)
    if part == "push":
        return Push(lease, rng.choice((1, 1_000_000)), rng.randrange(1, 4), rng.randrange(-1, 20), at, at)._asdict()
    return dataclasses.asdict(Failure(lease, 1_000_000, rng.choice(TEXTS), rng.choice(TEXTS), at, at))


def nonsense(rng: random.Random) -> bytes:
    """Return bytes that are no message."""
    return rng.randbytes(rng.choice((0, 1, 7, 8, 9, 100, 4_000)))


SHARE = 0.5  # of the messages and heartbeats from a hostile machine
MOST = 4  # hostile messages beside one that is honest
MOST_FIELDS = 4  # altered in one of them
# Numbers that they come under, after that of the honest message: for the most part its own, whose place they take or
# which takes theirs; a number far off makes those that follow late copies.
OFFSETS = (0,) * 20 + (-1, -1, 1, 1, 1_000)
_HEARTBEATS = tuple(value for value in INTEGERS if -(2**63) <= value < 2**63)  # what its file can hold


@final
class Hostility:
    """Draws hostile messages from a seed. `values` counts what was put into fields, or in place of a whole message."""

    def __init__(self, seed: int) -> None:
        self.values = 0
        self._rng = random.Random(f"hostile/{seed}")

    def messages(self, number: int, payload: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (number, payload) of the hostile messages that come beside a worker's message."""
        rng = self._rng
        if rng.random() >= SHARE or not isinstance(payload, InProcessPayload):
            return
        assert isinstance(payload.message, Sync), "workers send syncs"
        for _ in range(rng.randint(1, MOST)):
            fields = rng.randint(0, MOST_FIELDS)
            self.values += max(1, fields)
            hostile = altered(payload.message, rng, fields) if fields else nonsense(rng)
            yield max(0, number + rng.choice(OFFSETS)), hostile

    def heartbeat(self, lease: int, upto: int) -> tuple[int, int]:
        """Return a heartbeat, at times a hostile one."""
        if self._rng.random() >= SHARE:
            return lease, upto
        self.values += 1
        return self._rng.choice(((lease, self._rng.choice(_HEARTBEATS)), (self._rng.choice(_HEARTBEATS), upto)))
