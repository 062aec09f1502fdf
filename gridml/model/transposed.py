"""Edges by their ends, and lists of edges by either end: counting sorts, compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Ends = NDArray[np.int32]


@numba.njit(nogil=True, cache=True)
def _places(counts: Ids) -> None:
    """Make the first place of each key of how many there are, which stand one further on."""
    for y in range(1, len(counts)):
        counts[y] += counts[y - 1]


@numba.njit(nogil=True, cache=True)
def _offsets(places: Ids) -> None:
    """Make offsets of the place behind the last of each key."""
    for y in range(len(places) - 1, 0, -1):
        places[y] = places[y - 1]
    places[0] = 0


def _turn(offsets: Ids, ends: Ends, carried: Ids, turned: Ids, sources: Ends, moved: Ids) -> None:
    for e in range(len(ends)):
        turned[np.uint64(ends[e]) + np.uint64(1)] += 1
    _places(turned)
    for x in range(len(offsets) - 1):
        for e in range(offsets[x], offsets[x + 1]):
            end = np.uint64(ends[np.uint64(e)])  # an unsigned index needs no test for a negative one
            at = np.uint64(turned[end])
            turned[end] += 1
            sources[at] = x
            if len(moved):
                moved[at] = carried[e]
    _offsets(turned)


def _group(keys: Ends, others: Ends, both: bool, carried: Ids, begins: Ids, grouped: Ends, moved: Ids) -> None:
    for e in range(len(keys)):
        begins[np.uint64(keys[e]) + np.uint64(1)] += 1
        if both:
            begins[np.uint64(others[e]) + np.uint64(1)] += 1
    _places(begins)
    for direction in range(1 + both):
        for e in range(len(keys)):
            key, other = (others[e], keys[e]) if direction else (keys[e], others[e])
            at = np.uint64(begins[np.uint64(key)])
            begins[np.uint64(key)] += 1
            grouped[at] = other
            if len(moved):
                moved[at] = carried[e]
    _offsets(begins)


_turn_compiled: Callable[..., None] = numba.njit(nogil=True, cache=True)(_turn)
_group_compiled: Callable[..., None] = numba.njit(nogil=True, cache=True)(_group)


@dataclass(frozen=True)
class EdgeValues:
    """Arrays (m, ...) of edges that a sort brings into its order: one of 8 bytes an edge itself, others by their
    places."""

    values: Sequence[NDArray[Any]]

    @property
    def _is_itself(self) -> bool:
        return len(self.values) == 1 and self.values[0].ndim == 1 and self.values[0].dtype.itemsize == 8

    @property
    def first(self) -> Ids:
        """What a first sort takes, int64 (m,), or nothing."""
        if self._is_itself:
            return np.ascontiguousarray(self.values[0]).view(np.int64)
        return np.arange(len(self.values[0]) if self.values else 0)

    def sorted(self, moved: Ids) -> list[NDArray[Any]]:
        """Return the arrays in the order in which a sort `moved` what it took."""
        return [moved.view(self.values[0].dtype)] if self._is_itself else [values[moved] for values in self.values]


def transposed(offsets: Ids, ends: NDArray[Any], rows: int, carried: Ids) -> tuple[Ids, Ends, Ids]:
    """Return edges by their ends, of which there are `rows`: (offsets int64 (rows+1,), the row at which each edge
    starts, int32 (m,), in ascending order for each end; `carried`, int64 (m,) or nothing, in the same order). Edges are
    given as offsets (n+1,) and ends, integers (m,) from 0 to below `rows`."""
    turned, sources, moved = np.zeros(rows + 1, np.int64), np.empty(len(ends), np.int32), np.empty_like(carried)
    given = (_writeable(offsets, np.int64), _writeable(ends, np.int32), _writeable(carried, np.int64))
    _turn_compiled(*given, turned, sources, moved)
    return turned, sources, moved


def by_ends(
    offsets: Ids, ends: NDArray[Any], rows: int, fields: Mapping[str, NDArray[Any]]
) -> tuple[Ids, Ends, dict[str, NDArray[Any]]]:
    """Return edges by their ends as `transposed` does, with their `fields`, (m, ...) by name, in the same order."""
    carried = EdgeValues(list(fields.values()))
    turned, sources, moved = transposed(offsets, ends, rows, carried.first)
    return turned, sources, dict(zip(fields, carried.sorted(moved), strict=True))


def grouped(keys: NDArray[Any], others: NDArray[Any], rows: int, carried: Ids, *, both: bool) -> tuple[Ids, Ends, Ids]:
    """Return the `others` of a list, integers (m,), by their `keys`, integers (m,) from 0 to below `rows`: (offsets
    int64 (rows+1,); the others of each key in the order of the list, int32 (m,), or (2m,) if `both`, when keys are
    the others of others, too; `carried`, int64 (m,) or nothing, in the same order)."""
    begins, found = np.zeros(rows + 1, np.int64), np.empty(len(keys) * (1 + both), np.int32)
    moved = np.empty(len(carried) * (1 + both), np.int64)
    given = (_writeable(keys, np.int32), _writeable(others, np.int32))
    _group_compiled(*given, both, _writeable(carried, np.int64), begins, found, moved)
    return begins, found, moved


def _writeable(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return an array in the one form for which kernels are compiled; a copy only where it has another."""
    values = np.ascontiguousarray(values, dtype)
    return values if values.flags.writeable else values.copy()
