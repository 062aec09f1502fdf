"""How alike two pushes over the same vertices from the same version are.

Whole numbers of modules are left out: they are facts (batches that were counted), and no steps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates.bits import same_bits
from gridml.protocol.push import Ids, PushContent, RowValues
from master.store.versions import Base
from master.sync.groups import Group

Array = NDArray[Any]


class _Step(NamedTuple):
    """What a push changed of one tensor, float64; of the rows `ids` where it has some."""

    change: Array
    ids: Ids | None = None


def likeness(
    first: PushContent,
    second: PushContent,
    base: Base,
    groups: Mapping[str, Group],
    before: Callable[[str, RowValues], Mapping[str, Array]],
) -> dict[str, float]:
    """Return the cosine of the angle between the steps of two pushes, by group of tensors; 1 where neither has moved.

    Both were trained from `base`; `before` gives the values that local vertices had, by type and for given rows.
    """
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])  # Σab, Σaa, Σbb
    one, other = dict(_steps(first, base, before)), dict(_steps(second, base, before))
    for name in {**one, **other}:
        a, b = _aligned(one.get(name), other.get(name))
        total = sums[groups[name].name if name in groups else name]
        for at, (left, right) in enumerate(((a, b), (a, a), (b, b))):
            total[at] += float(np.vdot(left, right))
    return {group: _cosine(*total) for group, total in sums.items()}


def _cosine(product: float, square: float, other_square: float) -> float:
    if square == 0 and other_square == 0:
        return 1.0
    lengths = math.sqrt(square) * math.sqrt(other_square)
    return max(-1.0, min(1.0, product / lengths)) if lengths > 0 else 0.0


def _steps(
    content: PushContent, base: Base, before: Callable[[str, RowValues], Mapping[str, Array]]
) -> Iterator[tuple[str, _Step]]:
    """Yield what a push changed, by names as in files; those of local vertices begin with an @."""
    for key, tensors in content.replica.modules.items():
        for name, values in tensors.items():
            if values.dtype.kind == "f":
                yield name, _Step(_change(values, base.modules[key].tensors[name]))
    for type_name, rows in content.replica.rows.items():
        yield from _of_rows(f"{type_name}/", rows, base.rows(type_name, rows.ids))
    for type_name, rows in content.fields.items():
        yield from _of_rows(f"@{type_name}/", rows, before(type_name, rows))


def _of_rows(prefix: str, rows: RowValues, old: Mapping[str, Array]) -> Iterator[tuple[str, _Step]]:
    order = np.argsort(rows.ids)
    for name, values in rows.fields.items():
        yield prefix + name, _Step(_change(values[order], old[name][order]), rows.ids[order])


def _change(new: Array, old: Array) -> Array:
    """How far a tensor was moved; a constant that holds infinities, as a mask does, was not."""
    if same_bits(new, old):
        return np.zeros(new.shape)
    return np.subtract(new, old, dtype=np.float64) if new.dtype != np.bool_ else new.astype(float) - old


def _aligned(one: _Step | None, other: _Step | None) -> tuple[Array, Array]:
    """Return both changes in one shape: who does not name something has not changed it."""
    if one is None or other is None:
        there = one or other
        assert there is not None, "one of the two has the tensor"
        none = np.zeros_like(there.change)
        return (there.change, none) if one is not None else (none, there.change)
    if one.ids is None or other.ids is None or np.array_equal(one.ids, other.ids):
        return one.change, other.change
    ids = np.union1d(one.ids, other.ids)
    return _spread(one, ids), _spread(other, ids)


def _spread(step: _Step, ids: Ids) -> Array:
    assert step.ids is not None, "only rows are spread"
    spread = np.zeros((len(ids), *step.change.shape[1:]))
    spread[np.searchsorted(ids, step.ids)] = step.change
    return spread
