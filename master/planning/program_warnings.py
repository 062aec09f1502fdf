"""Oddities of a program: its data, its edges and how f follows them, its optimiser steps, and its buffers.

Also checked: the weights of edges that f writes, and buffers of modules in which f counts. A buffer that is
averaged, or of which the maximum is taken, holds no sum.
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
from gridml.model.vertex import VertexType, describe

Array = NDArray[Any]


_AT_ONCE = 1 << 22  # numbers that are looked at together: a column may be a file larger than memory


def nonfinite_fields(graph: Graph) -> Iterator[str]:
    """Yield for each field of numbers that are not all finite how many vertices have such, and the first. Reads every
    field of floating-point numbers once."""
    for table in graph.tables.values():
        for name, column in table.columns.items():
            if column.dtype.kind != "f" or not column.size:
                continue
            rows, count, first = max(1, _AT_ONCE * len(column) // column.size), 0, -1
            for start in range(0, len(column), rows):
                part = column[start : start + rows]
                wrong = np.flatnonzero(~np.isfinite(part.reshape(len(part), -1)).all(1))
                first = start + int(wrong[0]) if first < 0 and len(wrong) else first
                count += len(wrong)
            if count:
                yield (
                    f"{table.type.name}.{name} holds NaN or infinity in {count:,} of {len(column):,} vertices, first "
                    f"in {table.type.name} {first:,}; what f makes of that is refused where it is not finite"
                )


MIN_VERTICES = 100  # vertices: below that nobody wants several workers


def unfollowed_edges(program: Program, graph: Graph, followed: Collection[str]) -> Iterator[str]:
    """Yield for each edge that leads to one vertex each, and that f gets as a Batch without having `followed` it, what
    that Batch holds: rows of two such Batches look as if they belonged together, and do not."""
    update = program.update
    if update.batch is None:
        return
    driver = update.driver.__name__
    for parameter in update.parameters:
        name, edges = parameter.edge, graph.tables[driver].edges[parameter.edge]
        if not parameter.is_single and name not in followed and _one_each(edges):
            target = parameter.type.name
            yield (
                f"f has not looked at {driver}.{name}.index: its Batch of {target} has one row for each different "
                f"{target}, in the order of their numbers, not one for each {driver}. Where f needs the latter, "
                f"take FIELD[index] with the index of the {driver} batch's {name}"
            )


def dominant_component(program: Program, graph: Graph, driver: str) -> Iterator[str]:
    """Say so where most vertices that f runs on are joined by edges between local vertices: only one worker at a time
    trains these, in the same order in every epoch."""
    count = graph.tables[driver].count
    parts = None if program.bsp or count < MIN_VERTICES else components(graph)
    if parts is None:
        return
    largest = int(np.bincount(parts.label[driver]).max())
    if 2 * largest > count:
        declared = graph.tables[driver].type
        names = [f"{driver}.{name}" for name in declared.edges if not describe(declared.target(name)).replicated]
        yield (
            f"{largest:,} of {count:,} {driver} are connected with one another by edges to local vertices "
            f"({', '.join(names)}), and what is connected is trained by one worker at a time, in one order. Where f "
            f"only reads those vertices, copy what it reads into fields of each {driver} instead"
        )


def _one_each(edges: Edges) -> bool:
    if edges.constant is not None or edges.offsets is None:
        return edges.degree == 1
    return bool((np.diff(edges.offsets) == 1).all())


MAX_NAMED = 4  # parameters in one message


@dataclass
class _Tried:
    """What the tried batches have made of the parameters of one module field, over all its vertices."""

    names: set[str] = field(default_factory=set)
    reached: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    pulled: bool = False
    asked: bool = False
    has_rate: bool = False

    def add(self, seen: Trainable, moved: Collection[str]) -> None:
        whole = "/".join(map(str, seen.module))
        self.names |= seen.names
        self.reached |= seen.reached
        self.moved |= {name for name in seen.names if f"{whole}/{name}" in moved}
        self.pulled |= seen.pulled
        self.asked |= seen.asked
        self.has_rate |= seen.has_rate


def untrained_parameters(batches: Iterable[Trainable], moved: Collection[str]) -> Iterator[str]:
    """Yield what f leaves untrained: of all modules with an optimiser, `batches` say what each batch found and `moved`
    which tensors are not any more what they were.

    Whether a module is trained shows by steps and gradients, not by whether it moved: a rate may begin at 0, and steps
    may be gathered for. Modules without an optimiser, and frozen parameters, stay as they are on purpose.
    """
    tried: dict[str, _Tried] = {}
    for seen in batches:
        if seen.names:
            tried.setdefault(f"{seen.module[0]}.{seen.module[2]}", _Tried()).add(seen, moved)
    if not tried:
        return
    if not any(each.moved for each in tried.values()):
        count, those = sum(len(each.names) for each in tried.values()), ", ".join(tried)
        if not any(each.asked for each in tried.values()):
            yield (
                f"f took no optimiser step in the batches that were tried, and moved none of the {count:,} trainable "
                f"parameters of {those}. Call step of that vertex for the loss, as in network.step(loss): returning "
                f"the loss, or loss.backward(), trains nothing. To step every k batches, give step accumulate=k"
            )
        elif not any(each.pulled for each in tried.values()) and any(each.has_rate for each in tried.values()):
            yield (
                f"the steps that f took moved none of the {count:,} trainable parameters of {those}: all their "
                f"gradients are 0, or there are none"
            )
        return
    for name, each in tried.items():
        if not each.asked and each.pulled and not each.moved:
            yield (
                f"the loss that f steps for leads to {name}, and none of its {len(each.names):,} trainable parameters "
                f"is stepped: name its vertex as well, as in network.step(loss, head). Where it is to stay as it is, "
                f"give gridml.module no optimiser"
            )
        left = sorted(each.names - each.reached - each.moved)
        if each.asked and each.reached and left:
            yield (
                f"in the batches that were tried, of the first epoch, no loss of f led to {len(left):,} of the "
                f"{len(each.names):,} trainable parameters of {name} ({_listed(left)}). Where none ever does they stay "
                f"as they were made"
            )


def ignored_weight_writes(engine: Engine) -> Iterator[str]:
    """Yield for each edge field whose weights f has written in a trial that this changes nothing."""
    assert engine.chunk is not None
    type_name = engine.chunk.tables[engine.chunk.driver].type
    for name in sorted(engine.reweighted):
        yield (
            f"f wrote the weights of {type_name}.{name}, and nobody will see it: edges stay as graph() made them. "
            f"What f is to change is a field, such as gridml.array(..., mutable=True) of {type_name}"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


MAX_COUNTS = 1 << 20  # elements of a buffer that is looked at: longer ones are tables and caches


def untrained_buffers(types: Mapping[str, VertexType], values: Mapping[str, Array]) -> dict[str, Array]:
    """Return copies of the numbers that f may count in: of modules, not trained, not merged by `add` nor by a rule for
    their own name, and none of BatchNorm's."""
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
    """Say of each buffer that grows like a counter with batches of so many vertices, by its values before the first
    and after each of them, what several workers make of it, and how it is added."""
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
            f"{name} {growth}, and is {merged} ({type(rule).__name__}): what several workers count is not summed. Have "
            f'it added, if it is a sum: aggregate = gridml.by_name({{"{pattern}": gridml.add(){others}}})'
        )


def counter_growth(name: str, values: Sequence[Array], sizes: Sequence[int]) -> str | None:
    """Say how a buffer grows where that is like a counter: by whole numbers, never down, in every batch; None
    otherwise."""
    steps = [after.astype(np.float64) - before.astype(np.float64) for before, after in pairwise(values)]
    if not all(np.isfinite(step).all() and (step >= 0).all() and step.any() for step in steps):
        return None
    if all((step == size).all() for step, size in zip(steps, sizes, strict=True)):
        return "grows by the number of vertices with each batch"
    if all((step == np.rint(step)).all() for step in steps):
        largest = ", then ".join(f"{step.sum():g}" for step in steps[:2])
        return f"grows by whole numbers with each batch ({largest})"
    return None
