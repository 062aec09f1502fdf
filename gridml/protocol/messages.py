"""The words of the one verb between worker and master, `sync`: what a worker says and what the master answers.

Each travels as the JSON message of a bundle; tensors travel beside it. Positions are places in the order of an epoch.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, cast, get_type_hints

from gridml.protocol.compression import NONE
from gridml.protocol.foreign import (
    MAX_INTEGER,
    MAX_MESSAGE_CHARS,
    MAX_TRACEBACK_CHARS,
    MIN_VERTEX_S,
    Bound,
    boolean,
    integer,
    list_of,
    object_of,
    optional,
    seconds,
    text,
    unexpected,
)

MAX_PUSH_INTERVAL_S = 30.0  # a slow f pushes by the clock: what a kill may cost is bounded
NO_PUSH = 2**40  # as Pace.push_every, which no chunk has: push where a lease ends, and not before
MAX_CACHED, CACHED_DIGITS = 256, 16  # payloads of chunks that a worker names, and digits of each one's SHA-256
MAX_LOGGED, MAX_LOGGED_NAME_CHARS = 32, 64  # names of what f logs that a push takes along, and characters of one
MAX_LOGGED_MEAN = 1e40  # of a mean: a float32 holds no more


class Verdict(StrEnum):
    """What became of a push."""

    MERGED = "merged"  # merged and credited in the version that the reply names
    REPEATED = "repeated"  # was merged before; nothing was merged again
    REFUSED = "refused"  # not merged, never will be; the reason says why


class Logged(NamedTuple):
    """What f logged under a name: the sum over so many vertices."""

    name: str
    total: float
    vertices: int


class Push(NamedTuple):
    """Work of one lease: `sequence` counts the pushes of the lease from 1, `term` fences late writers, `base` is the
    version it was trained from, `upto` the position up to which the range is now trained, `vertices` the number of new
    ones, `logged` what f logged of them."""

    lease: int
    term: int
    sequence: int
    base: int
    upto: int
    vertices: int
    logged: tuple[Logged, ...] = ()


class Copies(NamedTuple):
    """Module tensors that a worker has though it holds no lease: those of the vertices that `lease` touched, as they
    are in `version`."""

    lease: int
    version: int


@dataclass(frozen=True)
class Failure:
    """Work of a lease failed; if f raised, on vertices `first`..`last` (else -1), with the user's traceback."""

    lease: int
    term: int
    message: str
    traceback: str
    first: int
    last: int


class Sync(NamedTuple):
    """What a worker says. `have` is the version it holds, `holds` the leases it works on, `copies` what it has left of
    the last when it holds none.

    A push's tensors travel beside the message. `leaving` means that nothing will come after this. `process` tells the
    processes of one worker apart, and comes back in the reply. `heard` is the answer that it took last, as that was
    called. `kind` says in a few words what machine it is. `cached` are the first CACHED_DIGITS of the SHA-256 of the
    chunks whose payloads it has kept, said when it wants work; None where it keeps none. `note` is for the user:
    in each line something that it could not do, and went on without.

    What its work costs it: `trained` and `train_s` count vertices and seconds of training in this process's life. The
    last of the `begun` chunks had `begun_vertices` and took `begin_s` seconds from the lease in hand to the first
    batch; before it the worker had waited `end_s` at the end of another. Its last push kept it from training for
    `push_s`, and was answered after `travel_s`.
    """

    worker: str
    process: str = ""
    have: int = -1
    holds: tuple[int, ...] = ()
    heard: str = ""
    copies: Copies | None = None
    wants: bool = False
    leaving: bool = False
    push: Push | None = None
    failure: Failure | None = None
    trained: int = 0
    train_s: float = 0.0
    push_s: float = 0.0
    travel_s: float = 0.0
    kind: str = ""
    begun: int = 0
    begun_vertices: int = 0
    begin_s: float = 0.0
    end_s: float = 0.0
    cached: tuple[str, ...] | None = None
    note: str = ""


@dataclass(frozen=True)
class Lease:
    """Positions [start, stop) of `epoch` to train; their rows are in the chunk file `chunk` of that SHA-256.

    One to be trained `afresh` starts from the replica that comes with it, with optimisers that remember nothing. No
    batch of it has fewer than `fewest` vertices, and its last `untrained` ones are credited without being trained.

    `modules` are the module vertices that it touches, by type, where a program has several: a worker has those of the
    leases that it names, and of no others. None where there are no two.
    """

    id: int
    term: int
    epoch: int
    start: int
    stop: int
    chunk: str
    sha256: str
    afresh: bool = False
    fewest: int = 1
    untrained: int = 0
    modules: Mapping[str, Sequence[int]] | None = None


@dataclass(frozen=True)
class Pace:
    """How to train: `live` workers hold leases, `credited` of `total` vertices of the whole run are credited at the
    reply's version, an epoch has `per_epoch` of them (0: there is but one), and a push is due every `push_every`
    vertices, or after `push_s` seconds if that is sooner, its steps compressed in a format of
    `gridml.protocol.compression` or not."""

    live: int = 1
    credited: int = 0
    total: int = 1
    push_every: int = 512
    compress: str = NONE
    push_s: float = MAX_PUSH_INTERVAL_S
    per_epoch: int = 0


@dataclass(frozen=True)
class Stored:
    """Tensors that belong to an answer and need not be written for it: they are in a file that is published as chunks
    are, under `name`, of that SHA-256."""

    name: str
    sha256: str
    tensors: Sequence[str]


class Reply(NamedTuple):
    """What the master answers. The newest replica travels beside it, or is `stored`, unless the worker has it.

    `fast_forward`: the version is exactly what was pushed. `lease`: work to add to the worker's. `stop_at`: the end of
    the pushed lease where it was cut. `drop_optimiser`: the refused work had spoilt it. `forget_rows`: those of other
    chunks than the one in hand are too many to keep. `ready`: of leases whose rows come piece by piece, how far they
    have come: batches that begin before that position may be trained. `moments`: the next push is to bring what its
    optimisers have gathered, too. `answer`: what this reply is called, of several to one sync perhaps. `leave`: there
    is nothing more to do.
    """

    version: int
    pace: Pace = Pace()
    verdict: Verdict | None = None
    reason: str = ""
    fast_forward: bool = False
    lease: Lease | None = None
    stop_at: int | None = None
    drop_optimiser: bool = False
    forget_rows: bool = False
    ready: tuple[tuple[int, int], ...] = ()
    moments: bool = False
    answer: str = ""
    leave: bool = False
    wait_s: float = 0.1
    process: str = ""
    stored: Stored | None = None


def to_json(message: Sync | Reply) -> dict[str, Any]:
    """A message as JSON can hold it."""
    parts = message._asdict()
    for name, part in parts.items():
        if isinstance(part, Push | Copies):
            parts[name] = part._asdict()
        elif isinstance(part, Failure | Lease | Pace | Stored):
            parts[name] = dataclasses.asdict(part)
    return parts


def sync_from(message: object) -> Sync:
    """A Sync from its JSON, within its bounds. Raises ValueError when a field is missing, unknown or beyond them."""
    try:
        return cast(Sync, _SYNC(message))
    except ValueError as error:
        raise ValueError(f"not a sync message: {error}") from error


def reply_from(message: dict[str, Any]) -> Reply:
    """A Reply from its JSON. Raises ValueError when a field is missing or unknown."""
    try:
        lease, verdict, stored = message["lease"], message["verdict"], message["stored"]
        return Reply(
            **{
                **message,
                "pace": Pace(**message["pace"]),
                "lease": None if lease is None else Lease(**lease),
                "verdict": None if verdict is None else Verdict(verdict),
                "stored": None if stored is None else Stored(**stored),
                "ready": tuple((lease, upto) for lease, upto in message["ready"]),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a reply: {error}") from error


# What the master takes from a worker, which may be anything: every field has its bound.
_DIGITS = re.compile(rf"[0-9a-f]{{{CACHED_DIGITS}}}")
MAX_HELD_LEASES = 256  # leases that a worker names: it works on one, and one comes ahead


def _logged(value: object) -> tuple[Logged, ...]:
    """Bound what f logged: names once each, means within what a float32 holds."""
    logged: tuple[Logged, ...] = list_of(_one_logged, MAX_LOGGED)(value)
    if len({each.name for each in logged}) < len(logged):
        raise ValueError("a name stands twice in what was logged")
    return logged


def _digits(value: object) -> str:
    """Bound what a worker names a payload by."""
    if type(value) is not str or not _DIGITS.fullmatch(value):
        raise unexpected(value, f"{CACHED_DIGITS} hexadecimal digits")
    return value


def _one_logged(value: object) -> Logged:
    if isinstance(value, list | tuple) and len(value) == 3:
        name, total, vertices = value
        named = type(name) is str and 1 <= len(name) <= MAX_LOGGED_NAME_CHARS and name.isprintable()
        counted = type(total) in (int, float) and type(vertices) is int and 1 <= vertices <= MAX_INTEGER
        if named and counted and abs(total) <= MAX_LOGGED_MEAN * vertices:  # NaN neither
            return Logged(name, float(total), vertices)
    raise unexpected(value, f"a name of at most {MAX_LOGGED_NAME_CHARS} characters, a sum and its vertices")


_OF_TYPE: dict[type, Bound] = {int: integer(), float: seconds, bool: boolean, str: text()}


def _bounds(of: type, **own: Bound) -> dict[str, Bound]:
    """A bound for every field: its own, else that of its type."""
    return {name: own.get(name) or _OF_TYPE[kind] for name, kind in get_type_hints(of).items()}


PUSH_BOUNDS = _bounds(Push, base=integer(-1), logged=_logged)
COPIES_BOUNDS = _bounds(Copies, version=integer(-1))
FAILURE_BOUNDS = _bounds(
    Failure, message=text(MAX_MESSAGE_CHARS), traceback=text(MAX_TRACEBACK_CHARS), first=integer(-1), last=integer(-1)
)
SYNC_BOUNDS = _bounds(
    Sync,
    have=integer(-1),
    holds=list_of(integer(), MAX_HELD_LEASES, " numbers"),
    copies=optional(object_of(Copies, COPIES_BOUNDS)),
    push=optional(object_of(Push, PUSH_BOUNDS)),
    failure=optional(object_of(Failure, FAILURE_BOUNDS)),
    cached=optional(list_of(_digits, MAX_CACHED)),
    note=text(MAX_MESSAGE_CHARS),
)


def _possible(**fields: Any) -> Sync:
    sync = Sync(**fields)
    if 0 < sync.train_s < MIN_VERTEX_S * sync.trained:
        raise ValueError(f"{sync.trained:,} vertices trained in {sync.train_s:g} s, which nobody can")
    for each in () if sync.push is None else sync.push.logged:
        if each.vertices > sync.push.vertices:  # type: ignore[union-attr]
            raise ValueError(f"{each.name} is logged of {each.vertices:,} vertices, more than the push has")
    return sync


_SYNC = object_of(_possible, SYNC_BOUNDS)
