"""The messages of the only exchange between worker and master, `sync`: Sync from the worker, Reply from the master.

Each is the JSON message of a bundle; the tensors are in the same bundle. Positions are places in the order of an epoch.
Field names are part of the wire format.
"""

from __future__ import annotations

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

MAX_PUSH_INTERVAL_S = 30.0  # a slow f pushes by the clock, which bounds the work that a kill loses
NO_PUSH = 2**40  # as Pace.push_every: push only at the end of a lease (no chunk has that many vertices)
MAX_CACHED, CACHED_DIGITS = 256, 16  # chunk payloads that a sync names; digits of the SHA-256 that name each
MAX_LOGGED, MAX_LOGGED_NAME_CHARS = 32, 64  # names of logged values in a push; characters of a name
MAX_LOGGED_MEAN = 1e40  # more than a float32 holds


class Verdict(StrEnum):
    """The outcome of a push."""

    MERGED = "merged"  # merged and credited; the version of the reply includes it
    REPEATED = "repeated"  # was merged before, so it is not merged again
    REFUSED = "refused"  # never merged: the worker drops the work


class Logged(NamedTuple):
    """A value that f logged, summed over the vertices of a push."""

    name: str
    total: float  # the sum over `vertices`
    vertices: int


class Push(NamedTuple):
    """Trained work of one lease. The key (lease, term, sequence) makes its merge exactly-once."""

    lease: int
    term: int  # fences late writers: a reassigned lease has a higher term
    sequence: int  # counts the pushes of the lease from 1
    base: int  # the replica version that the push was trained from
    upto: int  # the position up to which the lease is now trained
    vertices: int  # trained since the last push of the lease
    logged: tuple[Logged, ...] = ()
    added: bool = False  # its batches were trained under `Pace.added`


class Copies(NamedTuple):
    """Module tensors that a worker still holds after its last lease."""

    lease: int  # they are of the module vertices that this lease touched
    version: int  # replica version that the tensors certainly include


@dataclass(frozen=True)
class Failure:
    """Failed work of a lease."""

    lease: int
    term: int
    message: str
    traceback: str  # of the user's code; empty if f did not raise
    first: int  # position of the first vertex of the batch on which f raised, else -1
    last: int  # position of its last vertex, else -1


class Sync(NamedTuple):
    """A message from a worker. The tensors of its push are in the same bundle."""

    worker: str
    process: str = ""  # distinguishes the processes of one worker; the reply repeats it
    have: int = -1  # the replica version of the worker; -1 for none
    holds: tuple[int, ...] = ()  # ids of the leases in hand (in training) and ahead (not begun yet)
    heard: str = ""  # `Reply.answer` of the last reply that the worker has handled
    copies: Copies | None = None  # sent only by a worker that holds no lease
    wants: bool = False  # the worker asks for a lease
    leaving: bool = False  # this is the last message of this process
    push: Push | None = None
    failure: Failure | None = None
    trained: int = 0  # vertices in the life of this process
    train_s: float = 0.0  # seconds of training in the life of this process
    push_s: float = 0.0  # seconds of training that the last push cost
    travel_s: float = 0.0  # seconds from sending the last push to its reply
    kind: str = ""  # of machine, such as "x86_64 avx2"
    begun: int = 0  # chunks begun in the life of this process
    begun_vertices: int = 0  # of the last chunk
    begin_s: float = 0.0  # seconds that it took to begin the last chunk
    end_s: float = 0.0  # seconds between the last batch of the previous lease and the beginning of the next
    cached: tuple[str, ...] | None = None  # first CACHED_DIGITS of the SHA-256 of cached chunks; sent with `wants`
    note: str = ""  # for the user: one line for each thing that the worker could not do and continued without


@dataclass(frozen=True)
class Lease:
    """Positions [start, stop) of `epoch` to train."""

    id: int
    term: int
    epoch: int
    start: int
    stop: int
    chunk: str  # name of the chunk file that holds the rows
    sha256: str  # of that file
    afresh: bool = False  # start from the replica in the reply, with new optimiser state
    fewest: int = 1  # minimum vertices of a batch
    untrained: int = 0  # number of vertices at the end of the lease that are credited without training
    #: The module vertices that the lease touches, by type; None if the program has fewer than two. A worker keeps the
    #: module vertices of the leases in `Sync.holds`, and no others.
    modules: Mapping[str, Sequence[int]] | None = None


@dataclass(frozen=True)
class Pace:
    """The progress of the run, and how often to push."""

    live: int = 1  # workers that hold leases
    credited: int = 0  # vertices that are credited in the version of the reply
    total: int = 1  # vertices of the run, over all epochs
    push_every: int = 512  # a push is due after this many vertices, or after `push_s` if that comes first
    compress: str = NONE  # a format of `gridml.protocol.compression`
    push_s: float = MAX_PUSH_INTERVAL_S  # seconds since the last push after which the next one is due
    per_epoch: int = 0  # vertices of an epoch; 0 if the run has one epoch
    added: int = 0  # vertices of a batch, if the master adds the step of each batch; 0: it averages replicas
    others: float = 0.0  # how far other workers go while a batch is trained, in lengths of its step, if steps are added
    gathered: bool = False  # pushes are gathered in rounds: the next is due `push_s` after this reply


@dataclass(frozen=True)
class Stored:
    """Tensors of a reply that are in a published file instead of the bundle. The worker fetches it like a chunk."""

    name: str  # of the published file
    sha256: str  # of the file
    tensors: Sequence[str]  # names of the tensors in the file that belong to the reply


class Reply(NamedTuple):
    """The answer to a sync. The newest replica is in the same bundle or in `stored`, unless the worker has it."""

    version: int  # of the replica that the worker has after this reply
    pace: Pace = Pace()
    verdict: Verdict | None = None  # on the push of the sync
    reason: str = ""  # of a refusal
    fast_forward: bool = False  # the replica of this version is exactly the pushed one
    gathered: int = -1  # the round in which the push was gathered; -1: it was merged at once
    round: int = 0  # the open round; the replica has what was gathered in the rounds before
    lease: Lease | None = None  # in addition to those that the worker holds
    stop_at: int | None = None  # the new end of the pushed lease, if the master has shortened it
    drop_optimiser: bool = False  # reset the optimisers: the refused work has tainted their state
    forget_rows: bool = False  # the worker's row cache is full: keep the rows of the chunk in hand only
    #: (lease, position) for leases whose rows arrive in parts: batches that begin before the position may be trained.
    ready: tuple[tuple[int, int], ...] = ()
    moments: bool = False  # the next push is to include the moments of the optimisers
    answer: str = ""  # identifies this reply, as a sync may be answered more than once; `Sync.heard` repeats it
    leave: bool = False  # the worker should leave
    wait_s: float = 0.1  # seconds until the worker asks for a lease again
    held_s: float = 0.0  # seconds for which the reply waited for the end of a round
    process: str = ""  # repeats that of the sync
    stored: Stored | None = None


def to_json(message: Sync | Reply) -> dict[str, Any]:
    """Return a message as JSON-compatible values."""
    parts = message._asdict()
    for name, part in parts.items():
        if isinstance(part, Push | Copies):
            parts[name] = part._asdict()
        elif isinstance(part, Failure | Lease | Pace | Stored):
            parts[name] = dict(vars(part))  # dataclasses.asdict would copy every list, which takes as long as a merge
    return parts


def sync_from(message: object) -> Sync:
    """Return a Sync from its JSON. Raises ValueError when a field is missing, unknown or out of bounds."""
    try:
        return cast(Sync, _SYNC(message))
    except ValueError as error:
        raise ValueError(f"not a sync message: {error}") from error


def reply_from(message: dict[str, Any]) -> Reply:
    """Return a Reply from its JSON. Raises ValueError when a field is missing or unknown."""
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


# A worker may send anything, so every field of a Sync has a bound.
_DIGITS = re.compile(rf"[0-9a-f]{{{CACHED_DIGITS}}}")
MAX_HELD_LEASES = 256  # in one sync; an honest worker holds two: one in hand and one ahead


def _logged(value: object) -> tuple[Logged, ...]:
    """Bound logged values: unique names, and means that a float32 holds."""
    logged: tuple[Logged, ...] = list_of(_one_logged, MAX_LOGGED)(value)
    if len({each.name for each in logged}) < len(logged):
        raise ValueError("a name is logged twice")
    return logged


def _digits(value: object) -> str:
    """Bound the digits by which a worker names a payload."""
    if type(value) is not str or not _DIGITS.fullmatch(value):
        raise unexpected(value, f"{CACHED_DIGITS} hexadecimal digits")
    return value


def _one_logged(value: object) -> Logged:
    if isinstance(value, list | tuple) and len(value) == 3:
        name, total, vertices = value
        named = type(name) is str and 1 <= len(name) <= MAX_LOGGED_NAME_CHARS and name.isprintable()
        counted = type(total) in (int, float) and type(vertices) is int and 1 <= vertices <= MAX_INTEGER
        if named and counted and abs(total) <= MAX_LOGGED_MEAN * vertices:  # false for NaN
            return Logged(name, float(total), vertices)
    raise unexpected(value, f"a name of at most {MAX_LOGGED_NAME_CHARS} characters, a sum and its vertices")


_OF_TYPE: dict[type, Bound] = {int: integer(), float: seconds, bool: boolean, str: text()}


def _bounds(of: type, **own: Bound) -> dict[str, Bound]:
    """Return a bound for every field of a class: the one in `own`, else that of the field's type."""
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


def _consistent(**fields: Any) -> Sync:
    sync = Sync(**fields)
    if 0 < sync.train_s < MIN_VERTEX_S * sync.trained:
        raise ValueError(f"{sync.trained:,} vertices trained in {sync.train_s:g} s, which is impossible")
    for each in () if sync.push is None else sync.push.logged:
        if each.vertices > sync.push.vertices:  # type: ignore[union-attr]
            raise ValueError(f"{each.name} is logged of {each.vertices:,} vertices, more than the push has")
    return sync


_SYNC = object_of(_consistent, SYNC_BOUNDS)
