"""Edges by their ends: a counting sort, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def _turn(offsets: Ids, ends: NDArray[Any], turned: Ids, sources: NDArray[np.int32], places: Ids) -> None:
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


_compiled: Callable[..., None] = numba.njit(nogil=True, cache=True)(_turn)


def transposed(offsets: Ids, ends: NDArray[Any], rows: int, *, places: bool) -> tuple[Ids, NDArray[np.int32], Ids]:
    """Return edges by their ends, of which there are `rows`: (offsets int64 (rows+1,), the row at which each edge
    starts, int32 (m,), in ascending order for each end; if `places`, the position of each among the `ends`, int64 (m,),
    else nothing). Edges are given as offsets (n+1,) and ends, integers (m,) from 0 to below `rows`."""
    turned, sources = np.zeros(rows + 1, np.int64), np.empty(len(ends), np.int32)
    at = np.empty(len(ends) if places else 0, np.int64)
    _compiled(np.array(offsets, np.int64), np.array(ends, np.int32), turned, sources, at)
    return turned, sources, at
