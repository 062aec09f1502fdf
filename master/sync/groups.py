"""Groups of tensors whose steps are measured together: those of one type that one rule merges.

A network's weights and its running statistics move on scales of their own; of the fields of an array type each is a
group. Integers are in none: they are facts, and have no length. Nor are contributions (`add`, `maximum`): they are
taken whole, and how large they are is no measure of the worker that brings them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Aggregate
from gridml.protocol.push import ReplicaPart
from master.store.versions import Base

Array = NDArray[Any]


@dataclass(frozen=True)
class Group:
    """`overflow` is what the square of a length in its dtype stays below. Where its tensors are `near`, a replica's
    step is short against them."""

    name: str
    overflow: float
    near: bool


def grouped(tensors: Iterable[tuple[str, Array, Aggregate | None]]) -> dict[str, Group]:
    """Return the group of each floating-point tensor, by its name in files, given its rule, None for the user's own."""
    groups = {}
    for name, tensor, rule in tensors:
        if tensor.dtype.kind == "f" and not (rule is not None and rule.is_contribution):
            place = name.partition("/")[0] if name.count("/") > 1 else name
            overflow = float(np.finfo(np.result_type(tensor.dtype, np.float32)).max)
            called = f"{place} ({type(rule).__name__})" if rule is not None else place
            groups[name] = Group(called, overflow, near=rule is not None and rule.near)
    return groups


def pushed_from(part: ReplicaPart, base: Base) -> Iterator[tuple[str, Array]]:
    """Yield what of the base a push was trained from, with names as in files."""
    for key in part.modules:
        yield from base.modules[key].tensors.items()
    for type_name, rows in part.rows.items():
        old = base.rows(type_name, rows.ids)
        yield from ((f"{type_name}/{name}", old[name]) for name in rows.fields)


def length(tensors: Iterable[tuple[str, Array]]) -> float:
    """Return the length of some tensors together, as one vector; infinite where it overflows."""
    square = 0.0
    with np.errstate(over="ignore"):
        for _, tensor in tensors:
            line = np.ravel(tensor if tensor.itemsize > 2 else tensor.astype(np.float32))
            square += float(np.dot(line, line))
    return math.sqrt(square)
