"""Edges by their ends, and lists of edges by either end: counting sorts, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Ends = NDArray[np.int32]


def _turn(offsets: Ids, ends: Ends, turned: Ids, sources: Ends, places: Ids) -> None:
    for e in range(len(ends)):
        turned[np.uint64(ends[e]) + np.uint64(1)] += 1
    for y in range(1, len(turned)):
        turned[y] += turned[y - 1]
    for x in range(len(offsets) - 1):
        for e in range(offsets[x], offsets[x + 1]):
            end = np.uint64(ends[np.uint64(e)])  # an unsigned index needs no test for a negative one
            at = np.uint64(turned[end])
            turned[end] += 1
            sources[at] = x
            if len(places):
                places[at] = e
    for y in range(len(turned) - 1, 0, -1):
        turned[y] = turned[y - 1]
    turned[0] = 0


def _group(keys: Ends, others: Ends, both: bool, begins: Ids, grouped: Ends, places: Ids) -> None:
    for e in range(len(keys)):
        begins[np.uint64(keys[e]) + np.uint64(1)] += 1
        if both:
            begins[np.uint64(others[e]) + np.uint64(1)] += 1
    for y in range(1, len(begins)):
        begins[y] += begins[y - 1]
    for direction in range(1 + both):
        for e in range(len(keys)):
            key, other = (others[e], keys[e]) if direction else (keys[e], others[e])
            at = np.uint64(begins[np.uint64(key)])
            begins[np.uint64(key)] += 1
            grouped[at] = other
            if len(places):
                places[at] = e
    for y in range(len(begins) - 1, 0, -1):
        begins[y] = begins[y - 1]
    begins[0] = 0


_turn_compiled: Callable[..., None] = numba.njit(nogil=True, cache=True)(_turn)
_group_compiled: Callable[..., None] = numba.njit(nogil=True, cache=True)(_group)


def transposed(offsets: Ids, ends: NDArray[Any], rows: int, *, places: bool) -> tuple[Ids, Ends, Ids]:
    """Return edges by their ends, of which there are `rows`: (offsets int64 (rows+1,), the row at which each edge
    starts, int32 (m,), in ascending order for each end; if `places`, the position of each among the `ends`, int64 (m,),
    else nothing). Edges are given as offsets (n+1,) and ends, integers (m,) from 0 to below `rows`."""
    turned, sources = np.zeros(rows + 1, np.int64), np.empty(len(ends), np.int32)
    at = np.empty(len(ends) if places else 0, np.int64)
    _turn_compiled(_writeable(offsets, np.int64), _writeable(ends, np.int32), turned, sources, at)
    return turned, sources, at


def grouped(keys: NDArray[Any], others: NDArray[Any], rows: int, *, both: bool, places: bool) -> tuple[Ids, Ends, Ids]:
    """Return the `others` of a list, integers (m,), by their `keys`, integers (m,) from 0 to below `rows`: (offsets
    int64 (rows+1,); the others of each key in the order of the list, int32 (m,), or (2m,) if `both`, when keys are
    the others of others, too; if `places`, the position in the list of each, int64, else nothing)."""
    count = len(keys) * (1 + both)
    begins, found = np.zeros(rows + 1, np.int64), np.empty(count, np.int32)
    at = np.empty(count if places else 0, np.int64)
    _group_compiled(_writeable(keys, np.int32), _writeable(others, np.int32), both, begins, found, at)
    return begins, found, at


def _writeable(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return an array in the one form for which kernels are compiled; a copy only where it has another."""
    values = np.ascontiguousarray(values, dtype)
    return values if values.flags.writeable else values.copy()
