"""Says which buffers of modules f counts in: what is averaged, or of which the maximum is taken, holds no sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import ByName, is_chosen, rule_for
from gridml.model.batch_norm import STATISTICS
from gridml.model.layers import layers_of
from gridml.model.vertex import VertexType

Array = NDArray[Any]
MAX_COUNTS = 1 << 20  # elements of a buffer that is looked at: longer ones are tables and caches


def untrained_buffers(types: Mapping[str, VertexType], values: Mapping[str, Array]) -> dict[str, Array]:
    """Return copies of the numbers that f may count in: of modules, not trained, not merged by `add` nor by a rule for
    their own name, and none of BatchNorm's."""
    counters: dict[str, Array] = {}
    for name, value in values.items():
        type_name, _, field, own = name.split("/", 3)
        of = types[type_name]
        weights = layers_of(of.modules[field]).weights
        if weights is None or of.own_rule or value.dtype.kind not in "fiu":
            continue
        if own in {weight.name for weight in weights}:
            continue
        if not 0 < value.size <= MAX_COUNTS or own.rpartition(".")[2] in STATISTICS or is_chosen(name, value, of.rule):
            continue
        counters[name] = value.copy()
    return counters


def counted(
    types: Mapping[str, VertexType], states: Sequence[Mapping[str, Array]], sizes: Sequence[int]
) -> Iterator[str]:
    """Say of each buffer that grows like a counter with batches of so many vertices, by its values before the first
    and after each of them, what several workers make of it, and how it is added."""
    for name in states[0] if len(states) > 2 else ():
        growth = counts(name, [state[name] for state in states], sizes)
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


def counts(name: str, values: Sequence[Array], sizes: Sequence[int]) -> str | None:
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
