"""Buffers: decides on changes to module tensors that no optimiser trains, so that no single worker changes them.

Such a tensor is a buffer or a frozen weight. Either f changes the tensor at every worker, as BatchNorm's counters, or
at no worker, as positions, masks and a frozen backbone. A change that only one worker makes therefore waits until
another worker changes the tensor, too. An honest worker loses nothing: it keeps its own values and pushes them again.
If two other workers have left the tensor alone, the change is dropped. Integers that f does change may grow at most
`OUTLIER` times as fast as at other workers. No worker is flagged, because perhaps f finds something to count only in
the data of one worker.

A tensor that a push leaves out counts as unchanged. Some tensors are not watched: trained weights, contributions
(`add`, `maximum`) that the program asks for, tensors that `by_name` names, and array fields, which f trains itself. The
state is not saved: a new master starts without any.
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
    """Largest move of one element of a tensor in a worker's recent pushes. A move counts half after each later push."""

    #: in one push
    largest: float
    #: in one push, divided by the vertices of that push
    per_vertex: float


@dataclass(frozen=True)
class Change:
    """A push's change of a tensor that no optimiser trains."""

    name: str
    #: True: the tensor holds integers or booleans, which are merged by the maximum
    is_whole: bool
    #: largest move of an element; 0 for floating-point tensors
    growth: float
    #: True: the tensor holds only one number, like a counter
    is_number: bool
    #: True: all new values lie between the smallest and the largest value of the base
    is_within: bool
    #: vertices of this push and of the worker's earlier pushes whose changes of the tensor still wait
    vertices: int
    #: one entry for each other worker that changes the tensor, and one for all workers that have ended
    others: Sequence[Growth]
    #: number of other workers that have left the tensor alone
    still: int
    #: number of workers that the run has at once
    workers: int
    #: seconds that the change has waited
    waited_s: float = 0.0
    #: True: nothing is trained after this push
    is_last: bool = False
    #: True: some worker that has ended never changed the tensor
    was_left: bool = False


class BufferDecision(NamedTuple):
    """The decision on a change."""

    #: True: the change is merged
    is_taken: bool
    reason: str
    #: True: the change is not merged now, but perhaps later
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
        return BufferDecision(False, f"it changes {change.name}, which earlier workers left alone")
    return BufferDecision(False, f"{change.name} waits until another worker changes it, too", waits=True)


def _as_others_do(change: Change) -> BufferDecision:
    """Decide on a change of a tensor that other workers change, too. The growth of integers is bounded here, because
    the gate does not bound integers."""
    if not change.is_whole:
        return BufferDecision(True, "others change it, too")
    most = max(OUTLIER * max(max(each.largest, each.per_vertex * change.vertices) for each in change.others), 1.0)
    if change.growth <= (most if len(change.others) >= MAJORITY else max(most, change.vertices)):
        return BufferDecision(True, "others change it, too")
    reason = (
        f"{change.name} grows by {change.growth:.3g} in {change.vertices:,} vertices, at other workers by at most "
        f"{most:.3g}"
    )
    return BufferDecision(False, reason)


def _plausible(change: Change) -> BufferDecision:
    """Decide on a change if it is not known whether other workers change the tensor or leave it alone. Integers must
    stay between the smallest and the largest value of the base, or count vertices."""
    if not change.is_whole or change.is_within:
        return BufferDecision(True, "no other worker has pushed it yet")
    if change.is_number and change.growth <= change.vertices:
        return BufferDecision(True, "no other worker has pushed it yet")
    return BufferDecision(False, f"{change.name} leaves the range of its earlier values", waits=True)


@dataclass(frozen=True)
class FilteredPush:
    """A push without the changes that are left out."""

    part: ReplicaPart
    #: the reasons why changes were dropped
    reasons: tuple[str, ...] = ()
    #: True: a change was left out, so the worker's replica differs from the master's
    differs: bool = False


class _Push(NamedTuple):
    """The arguments of `filter`."""

    worker: str
    vertices: int
    workers: int
    now: float
    is_last: bool


@dataclass
class _Tensor:
    """Changes of one tensor, by worker."""

    #: growth at each worker that changes the tensor
    movers: dict[str, Growth] = field(default_factory=dict)
    #: workers that have left the tensor alone; disjoint from `movers`
    still: set[str] = field(default_factory=set)
    #: (vertices so far, time of the first push) of each waiting change, by worker
    waits: dict[str, tuple[int, float]] = field(default_factory=dict)
    #: largest growth at the remaining workers, recorded whenever a worker that changes the tensor ends; None before the
    #: first record
    shown: Growth | None = None
    #: True: a worker that has ended left the tensor alone; if all workers live only briefly, this is the only evidence
    was_left: bool = False


@final
class UntrainedTensors:
    """Decides on changes of a run's tensors that no optimiser trains, from what each worker has done to them."""

    def __init__(self, graph: Graph) -> None:
        self._types = {table.type.name: table.type for table in graph.replicated}
        self._tensors: dict[str, _Tensor] = {}
        self._watched: dict[VertexKey, frozenset[str]] = {}
        self._pushed: set[str] = set()

    def filter(
        self, part: ReplicaPart, base: Base, worker: str, vertices: int, now: float, *, workers: int, is_last: bool
    ) -> FilteredPush:
        """Return a push without the changes that only its worker makes; `part` has all tensors of its vertices.

        `workers` is the number of workers that may push at the same time; a single worker is not bounded. `is_last` is
        True if nothing is trained after this push.
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
        """Drop an ended worker. Return the tensors whose changes were not merged. Idempotent."""
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
        """Record the change of a tensor by a push. Return the decision; None if the tensor is unchanged, or not
        finite."""
        worker, now = push.worker, push.now
        tensor = self._tensors.setdefault(name, _Tensor())
        if values is old or same_bits(values, old):
            tensor.waits.pop(worker, None)
            if worker not in tensor.movers:
                tensor.still.add(worker)
            return None
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            return None  # the gate refuses the push
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
        if taking.is_taken or taking.waits:  # a dropped change must not raise the bound of other workers
            per_vertex = growth / max(1, change.vertices)
            tensor.movers[worker] = Growth(max(before.largest / 2, growth), max(before.per_vertex / 2, per_vertex))
        tensor.still.discard(worker)
        tensor.waits.pop(worker, None)
        if taking.waits:
            tensor.waits[worker] = change.vertices, since_s
        return taking

    def _pairs(self, part: ReplicaPart, base: Base) -> Iterator[tuple[VertexKey, str, Array, Array]]:
        """Yield the watched tensors of a push: (vertex, name, pushed values, values of the base)."""
        for key, tensors in part.modules.items():
            held = base.modules[key].tensors
            if key not in self._watched:
                self._watched[key] = frozenset(_watched(self._types[key[0]], key[1], held))
            yield from ((key, name, tensors[name], held[name]) for name in held if name in self._watched[key])


def _watched(of: VertexType, index: int, tensors: dict[str, Array]) -> Iterator[str]:
    """Yield the tensors of a module vertex that no optimiser trains. If the module cannot be built on this machine,
    only its integers are known to be untrained."""
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
    """Return the largest move of an element."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.max(np.abs(values.astype(np.float64) - old.astype(np.float64))))
