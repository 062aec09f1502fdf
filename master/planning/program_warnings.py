"""Warnings of `gridml check` about a program that runs, but probably not as intended.

They cover data that is not finite, edges that f (the program's update) does not follow, parameters that f does not
train, edge weights that f writes without effect, and module buffers that f uses as counters. Such a buffer holds no
total, because the counts of several workers are averaged or their maximum is taken; they are not summed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import ByName, is_chosen, rule_for
from gridml.engine.engine import Engine
from gridml.engine.modules import Trainable
from gridml.model.graph import Edges, Graph, components
from gridml.model.layers import STATISTICS, layers_of
from gridml.model.program import Program
from gridml.model.update import Update
from gridml.model.vertex import VertexType, describe

Array = NDArray[Any]


_AT_ONCE = 1 << 22  # maximum elements to read at a time, because a column can be a file that is larger than memory


def nonfinite_fields(graph: Graph) -> Iterator[str]:
    """Yield a warning for each field, and each edge's weight, with NaN or infinity. Reads every floating-point field
    once."""
    for table in graph.tables.values():
        for name, edges in table.edges.items():
            weight = {} if edges.weight is None else {"the weight": edges.weight}
            for what, values in {**weight, **edges.fields}.items():
                count, first = _nonfinite(values)
                if count:
                    yield (
                        f"{table.type.name}.{name} has NaN or infinity as {what} of {count:,} of {len(values):,} "
                        f"edges, first of edge {first:,}; what that makes is refused if not finite"
                    )
        for name, column in table.columns.items():
            count, first = _nonfinite(column)
            if count:
                yield (
                    f"{table.type.name}.{name} holds NaN or infinity in {count:,} of {len(column):,} vertices, first "
                    f"in {table.type.name} {first:,}; what f makes of that is refused where it is not finite"
                )


def _nonfinite(column: Array) -> tuple[int, int]:
    """Return (number of rows with NaN or infinity, the first of them), reading a bounded part at a time."""
    count, first = 0, -1
    if column.dtype.kind != "f" or not column.size:
        return count, first
    rows = max(1, _AT_ONCE * len(column) // column.size)
    for start in range(0, len(column), rows):
        part = column[start : start + rows]
        wrong = np.flatnonzero(~np.isfinite(part.reshape(len(part), -1)).all(1))
        first = start + int(wrong[0]) if first < 0 and len(wrong) else first
        count += len(wrong)
    return count, first


MIN_VERTICES = 100  # with fewer vertices, one worker is enough, so connected vertices do no harm


def unfollowed_edges(program: Program, graph: Graph, followed: Collection[str]) -> Iterator[str]:
    """Yield a warning for each edge with one target per vertex if f uses the Batch of targets without the edge's index.

    `followed` names the edges whose index f used. Without the index, row i of the Batch looks like the target of the
    driver's row i (the driver is the vertices that f runs on), but it is not.
    """
    update = program.shape
    if not isinstance(update, Update) or update.batch is None:
        return
    driver = update.driver.__name__
    for parameter in update.parameters:
        name, edges = parameter.edge, graph.tables[driver].edges[parameter.edge]
        if not parameter.is_single and name not in followed and _one_each(edges):
            target = parameter.type.name
            yield (
                f"f has not used {driver}.{name}.index: its Batch of {target} has one row for each distinct {target}, "
                f"in the order of their numbers, not one for each {driver}. If f needs the latter, use FIELD[index] "
                f"with the index of the {driver} batch's {name}"
            )


def dominant_component(program: Program, graph: Graph, driver: str) -> Iterator[str]:
    """Yield a warning if edges between local vertices connect most of the vertices that f runs on. Connected vertices
    are trained by one worker at a time, in the same order in every epoch."""
    count = graph.tables[driver].count
    parts = None if program.consistency.is_bsp or count < MIN_VERTICES else components(graph)
    if parts is None:
        return
    largest = int(np.bincount(parts.label[driver]).max())
    if 2 * largest > count:
        declared = graph.tables[driver].type
        names = [f"{driver}.{name}" for name in declared.edges if not describe(declared.target(name)).replicated]
        yield (
            f"{largest:,} of {count:,} {driver} are connected with one another by edges to local vertices "
            f"({', '.join(names)}), and connected vertices are trained by one worker at a time, in one order. If f "
            f"only reads those vertices, copy what it reads into fields of each {driver} instead"
        )


def _one_each(edges: Edges) -> bool:
    if edges.constant is not None or edges.offsets is None:
        return edges.degree == 1
    return bool((np.diff(edges.offsets) == 1).all())


MAX_NAMED = 4  # parameters named in one message


@dataclass
class _ModuleTrial:
    """Findings of the trial's batches about one module field, over all vertices that have this field."""

    names: set[str] = field(default_factory=set)  #: trainable parameters
    reached: set[str] = field(default_factory=set)  #: parameters that a loss depends on
    moved: set[str] = field(default_factory=set)  #: parameters that changed
    pulled: bool = False  #: some parameter has a gradient other than 0
    asked: bool = False  #: f called the vertex's step
    has_rate: bool = False  #: some learning rate was not 0

    def add(self, seen: Trainable, moved: Collection[str]) -> None:
        whole = "/".join(map(str, seen.module))
        self.names |= seen.names
        self.reached |= seen.reached
        self.moved |= {name for name in seen.names if f"{whole}/{name}" in moved}
        self.pulled |= seen.pulled
        self.asked |= seen.asked
        self.has_rate |= seen.has_rate


def untrained_parameters(batches: Iterable[Trainable], moved: Collection[str]) -> Iterator[str]:
    """Yield warnings about modules that have an optimiser but that f leaves untrained.

    `batches` holds the findings of each batch of the trial, `moved` the names of the tensors that changed. An unchanged
    tensor alone proves nothing, because a learning rate can start at 0 and steps can accumulate over several batches.
    So the calls of step and the gradients are examined, too. Modules without an optimiser and frozen parameters are
    left untrained on purpose.
    """
    tried: dict[str, _ModuleTrial] = {}
    for seen in batches:
        if seen.names:
            tried.setdefault(f"{seen.module[0]}.{seen.module[2]}", _ModuleTrial()).add(seen, moved)
    if not tried:
        return
    if not any(each.moved for each in tried.values()):
        count, those = sum(len(each.names) for each in tried.values()), ", ".join(tried)
        if not any(each.asked for each in tried.values()):
            yield (
                f"f took no optimiser step in the batches that were tried, and changed none of the {count:,} trainable "
                f"parameters of {those}. Call the vertex's step with the loss, as in network.step(loss): returning the "
                f"loss, or loss.backward(), trains nothing. To step every k batches, pass accumulate=k to step"
            )
        elif not any(each.pulled for each in tried.values()) and any(each.has_rate for each in tried.values()):
            yield (
                f"the steps that f took changed none of the {count:,} trainable parameters of {those}: they have no "
                f"gradient, or all gradients are 0"
            )
        return
    for name, each in tried.items():
        if not each.asked and each.pulled and not each.moved:
            yield (
                f"the loss that f steps for depends on {name}, but none of its {len(each.names):,} trainable "
                f"parameters is stepped: pass its vertex as well, as in network.step(loss, head). If it should "
                f"stay fixed, give gridml.module no optimiser"
            )
        left = sorted(each.names - each.reached - each.moved)
        if each.asked and each.reached and left:
            yield (
                f"in the batches that were tried, of the first epoch, no loss of f depended on {len(left):,} of the "
                f"{len(each.names):,} trainable parameters of {name} ({_listed(left)}). If none ever does, they keep "
                f"their initial values"
            )


def ignored_weight_writes(engine: Engine) -> Iterator[str]:
    """Yield a warning for each edge field whose weights f wrote in a trial, since that has no effect."""
    assert engine.chunk is not None
    type_name = engine.chunk.tables[engine.chunk.driver].type
    for name in sorted(engine.reweighted):
        yield (
            f"f wrote the weights of {type_name}.{name}, which has no effect: edges stay as graph() made them. Values "
            f"that f changes belong into a field, such as gridml.array(..., mutable=True) of {type_name}"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


MAX_COUNTS = 1 << 20  # maximum elements of a buffer to check: larger buffers are tables or caches, not counters


def untrained_buffers(types: Mapping[str, VertexType], values: Mapping[str, Array]) -> dict[str, Array]:
    """Return copies of the module buffers that could be counters of f: numeric, not trained, without a merge rule
    chosen for them, and not BatchNorm's statistics."""
    counters: dict[str, Array] = {}
    for name, value in values.items():
        type_name, _, field, own = name.split("/", 3)
        of = types[type_name]
        weights = layers_of(of.modules[field]).weights
        if weights is None or of.has_own_rule or value.dtype.kind not in "fiu":
            continue
        if own in {weight.name for weight in weights}:
            continue
        if not 0 < value.size <= MAX_COUNTS or own.rpartition(".")[2] in STATISTICS or is_chosen(name, value, of.rule):
            continue
        counters[name] = value.copy()
    return counters


def unsummed_counters(
    types: Mapping[str, VertexType], states: Sequence[Mapping[str, Array]], sizes: Sequence[int]
) -> Iterator[str]:
    """Yield a warning for each buffer that grows like a counter, and name the rule that would sum it.

    `states` are the buffers before the first batch and after each batch; `sizes` is the number of vertices in each
    batch.
    """
    for name in states[0] if len(states) > 2 else ():
        growth = counter_growth(name, [state[name] for state in states], sizes)
        if growth is None:
            continue
        type_name, _, _, own = name.split("/", 3)
        of = types[type_name]
        rule = rule_for(name, states[0][name], of.rule)
        pattern = f"*.{own.rpartition('.')[2]}" if "." in own else f"*/{own}"
        merged = "averaged" if states[0][name].dtype.kind == "f" else "merged by the maximum"
        others = "" if isinstance(of.rule, ByName) else f', "*": {of.rule!r}' if of.rule is not None else ""
        yield (
            f"{name} {growth}, and is {merged} ({type(rule).__name__}): the counts of several workers are not summed. "
            f'If it is a sum, add it: aggregate = gridml.by_name({{"{pattern}": gridml.add(){others}}})'
        )


def counter_growth(name: str, values: Sequence[Array], sizes: Sequence[int]) -> str | None:
    """Return how a buffer grows if it looks like a counter (by whole numbers, never down, in every batch); else
    None."""
    steps = [after.astype(np.float64) - before.astype(np.float64) for before, after in pairwise(values)]
    if not all(np.isfinite(step).all() and (step >= 0).all() and step.any() for step in steps):
        return None
    if all((step == size).all() for step, size in zip(steps, sizes, strict=True)):
        return "grows by the number of vertices with each batch"
    if all((step == np.rint(step)).all() for step in steps):
        largest = ", then ".join(f"{step.sum():g}" for step in steps[:2])
        return f"grows by whole numbers with each batch ({largest})"
    return None
