"""Changes to tensors of modules that no optimiser trains: those that one worker alone makes are left out.

Such a tensor is a buffer or a frozen weight. f changes it at every worker, as BatchNorm's counters, or at none, as
positions, masks and a frozen backbone. So one worker alone does not change it: its change waits until another
worker changes the tensor too. A worker keeps its own values and brings them again with each push, so an honest one
loses nothing by that. Where two others were seen to leave it alone, the change is left out. Whole numbers that f
does change grow no faster than `OUTLIER` times as with the others. No worker is flagged: the data of one worker
alone may hold what f counts, and it brings that again with each push.

A tensor that is left out counts as unchanged: it is the very array of the push's base. Not watched are trained
weights, contributions (`add`, `maximum`) that the program asks for, and tensors that `by_name` names; nor array
fields, which f trains by itself. The memory ends with its master.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import is_chosen
from gridml.aggregates.base import same_bits
from gridml.model.graph import Graph
from gridml.model.layers import layers_of
from gridml.model.vertex import VertexType
from gridml.protocol.push import ReplicaPart, VertexKey
from master.store.versions import Base
from master.sync.gate import MAJORITY, MAX_WAIT_S, OUTLIER

Array = NDArray[Any]


class Growth(NamedTuple):
    """How far another worker moved an element of it in one push, at most: of late, and for each vertex of the push."""

    largest: float
    per_vertex: float


@dataclass(frozen=True)
class Change:
    """A tensor that no optimiser trains, as a push changes it."""

    name: str
    #: integers or truth values: there is no step between two of them, and the maximum is merged
    is_whole: bool
    #: how far an element moves at most
    growth: float
    #: it holds one number, such as a counter does
    is_number: bool
    #: all its values lie between the smallest and the largest that it had
    is_within: bool
    #: vertices of this push and of those before it that waited
    vertices: int
    #: of each other worker that changes it
    others: Sequence[Growth]
    #: other workers that have left it alone
    still: int
    #: workers of the run, at once
    workers: int
    #: for how long it has waited
    waited_s: float = 0.0
    #: nothing is trained after this push
    is_last: bool = False
    #: one that has ended left it alone for as long as it lived
    was_left: bool = False


class BufferDecision(NamedTuple):
    """Whether a change is taken, and why. One that `waits` is not lost."""

    is_taken: bool
    reason: str
    waits: bool = False


def decide(change: Change) -> BufferDecision:
    """Decide on a change of a tensor that no optimiser trains."""
    if change.others:
        return _as_others_do(change)
    if change.still >= min(MAJORITY, max(1, change.workers - 1)):
        number = change.still
        others = f"{number} other workers leave" if number > 1 else "the other worker leaves"
        return BufferDecision(False, f"it changes {change.name}, which {others} alone")
    if not change.still and not change.was_left and (change.is_last or change.waited_s >= MAX_WAIT_S):
        return _plausible(change)
    if change.was_left and change.is_last:
        return BufferDecision(False, f"it changes {change.name}, which those before it left alone")
    return BufferDecision(False, f"{change.name} waits until another worker changes it, too", waits=True)


def _as_others_do(change: Change) -> BufferDecision:
    """Others change it too: of whole numbers, which have no bound by a length, no further than they do."""
    if not change.is_whole:
        return BufferDecision(True, "others change it, too")
    most = max(OUTLIER * max(max(each.largest, each.per_vertex * change.vertices) for each in change.others), 1.0)
    if change.growth <= (most if len(change.others) >= MAJORITY else max(most, change.vertices)):
        return BufferDecision(True, "others change it, too")
    reason = (
        f"{change.name} grows by {change.growth:.3g} in {change.vertices:,} vertices, where others do by {most:.3g}"
    )
    return BufferDecision(False, f"{reason} at most")


def _plausible(change: Change) -> BufferDecision:
    """Nobody else has shown anything: whole numbers stay among those that were there, and a counter counts vertices."""
    if not change.is_whole or change.is_within:
        return BufferDecision(True, "nobody else has brought anything")
    if change.is_number and change.growth <= change.vertices:
        return BufferDecision(True, "nobody else has brought anything")
    return BufferDecision(False, f"{change.name} leaves the values that it was made with", waits=True)


@dataclass(frozen=True)
class FilteredPush:
    """A push without what is left out of it."""

    part: ReplicaPart
    #: why something is left out for good
    reasons: tuple[str, ...] = ()
    #: its worker has something that the master has not
    differs: bool = False


class _Push(NamedTuple):
    """What `filter` is told of a push."""

    worker: str
    vertices: int
    workers: int
    now: float
    is_last: bool


@dataclass
class _Tensor:
    """Who changes one tensor."""

    movers: dict[str, Growth] = field(default_factory=dict)
    still: set[str] = field(default_factory=set)  # who has left it alone
    waits: dict[str, tuple[int, float]] = field(default_factory=dict)  # by worker: vertices, and since when
    shown: Growth | None = None  # by those that stayed when another one that changes it ended
    was_left: bool = (
        False  # alone by one that has ended: where all others live shortly, nobody else would be left to ask
    )


@final
class UntrainedTensors:
    """The memory of one run's tensors that no optimiser trains."""

    def __init__(self, graph: Graph) -> None:
        self._types = {table.type.name: table.type for table in graph.replicated}
        self._tensors: dict[str, _Tensor] = {}
        self._watched: dict[VertexKey, frozenset[str]] = {}
        self._pushed: set[str] = set()

    def filter(
        self, part: ReplicaPart, base: Base, worker: str, vertices: int, now: float, *, workers: int, is_last: bool
    ) -> FilteredPush:
        """Return a push, with all tensors of its vertices, without what one worker alone changes.

        `workers` may push at once: one alone is not bounded. `is_last` says that nothing is trained after it.
        """
        alone = workers == 1 and self._pushed <= {worker}
        self._pushed.add(worker)
        push = _Push(worker, vertices, workers, now, is_last)
        modules = dict(part.modules)
        reasons, differs = [], False
        for key, name, values, old in self._pairs(part, base):
            taking = self._judge(name, values, old, push)
            if taking is None or taking.is_taken or alone:
                continue
            differs = True
            modules[key] = {**modules[key], name: old}
            reasons += [] if taking.waits else [taking.reason]
        sifted = ReplicaPart(modules, part.rows, moments=part.moments) if differs else part
        return FilteredPush(sifted, tuple(reasons), differs)

    def forget(self, worker: str) -> list[str]:
        """A worker has ended: it is no measure for others any more. Return what it changed and nobody took.
        Idempotent."""
        self._pushed.discard(worker)
        lost = []
        for name, tensor in self._tensors.items():
            if tensor.movers.pop(worker, None) is not None and tensor.movers:
                seen = [*tensor.movers.values(), *([] if tensor.shown is None else [tensor.shown])]
                tensor.shown = Growth(max(g.largest for g in seen), max(g.per_vertex for g in seen))
            tensor.was_left |= worker in tensor.still
            tensor.still.discard(worker)
            if tensor.waits.pop(worker, None) is not None:
                lost.append(name)
        return lost

    def _judge(self, name: str, values: Array, old: Array, push: _Push) -> BufferDecision | None:
        """Take note of what a push does to a tensor; decide on it where it is changed."""
        worker, now = push.worker, push.now
        tensor = self._tensors.setdefault(name, _Tensor())
        if values is old or same_bits(values, old):
            tensor.waits.pop(worker, None)
            if worker not in tensor.movers:
                tensor.still.add(worker)
            return None
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            return None  # the gate refuses it
        waited, since_s = tensor.waits.get(worker, (0, now))
        is_whole = values.dtype.kind != "f"
        growth = _growth(values, old) if is_whole else 0.0
        others = [each for name, each in tensor.movers.items() if name != worker]
        change = Change(
            name,
            is_whole=is_whole,
            growth=growth,
            is_number=values.size == 1,
            is_within=not is_whole or bool(values.min() >= old.min() and values.max() <= old.max()),
            vertices=waited + push.vertices,
            others=others if tensor.shown is None else [*others, tensor.shown],
            still=len(tensor.still - {worker}),
            workers=push.workers,
            waited_s=now - since_s,
            is_last=push.is_last,
            was_left=tensor.was_left,
        )
        taking = decide(change)
        before = tensor.movers.pop(worker, Growth(0.0, 0.0))
        if taking.is_taken or taking.waits:  # what is left out is no measure for others
            per_vertex = growth / max(1, change.vertices)
            tensor.movers[worker] = Growth(max(before.largest / 2, growth), max(before.per_vertex / 2, per_vertex))
        tensor.still.discard(worker)
        tensor.waits.pop(worker, None)
        if taking.waits:
            tensor.waits[worker] = change.vertices, since_s
        return taking

    def _pairs(self, part: ReplicaPart, base: Base) -> Iterator[tuple[VertexKey, str, Array, Array]]:
        """Yield the watched tensors of a push: (vertex, name, values, those of its base)."""
        for key, tensors in part.modules.items():
            held = base.modules[key].tensors
            if key not in self._watched:
                self._watched[key] = frozenset(_watched(self._types[key[0]], key[1], held))
            yield from ((key, name, tensors[name], held[name]) for name in held if name in self._watched[key])


def _watched(of: VertexType, index: int, tensors: dict[str, Array]) -> Iterator[str]:
    """The tensors of a module vertex that no optimiser trains; of one that cannot be made here, its whole numbers."""
    trained: set[str] = set()
    known = True
    for name, declared in of.modules.items():
        weights = layers_of(declared).weights
        known &= weights is not None
        trained |= {f"{of.name}/{index}/{name}/{weight.name}" for weight in weights or () if weight.is_trained}
    for name, tensor in tensors.items():
        if name in trained or not tensor.size or not (known or tensor.dtype.kind != "f"):
            continue
        if of.has_own_rule or not is_chosen(name, tensor, of.rule):
            yield name


def _growth(values: Array, old: Array) -> float:
    """How far an element moves, at most."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.max(np.abs(values.astype(np.float64) - old.astype(np.float64))))
