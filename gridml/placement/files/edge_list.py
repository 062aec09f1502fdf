"""A list of edges, as SNAP has them: a row and a column a line, numbers that need not follow on one another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.bipartite import Bipartite
from gridml.placement.files import scan
from gridml.placement.files.source import Source

SHORTEST = 4  # bytes of an edge, with its line's end
SPREAD = 8  # times as many numbers as edges, of which a table is worth its memory


def read(source: Source) -> Bipartite:
    """Read the graph whose row i is the i-th smallest number of the lines' first, and column j the j-th smallest of
    their second. A line has them apart by blanks or a comma; what else it has, such as a weight or a time, is not
    looked at. Raises UsageError, which names the line, where something else stands."""
    rows, columns = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for block in source.blocks():
        first, second = np.empty((2, len(block.text) // SHORTEST + 1), np.int64)
        edges, at, mistake = scan.pairs(block.text, first, second)
        if mistake:
            raise source.wrong(_SAID[mistake].format(block.word(at)), block.line(at))
        rows.append(first[:edges].copy())
        columns.append(second[:edges].copy())
    (u, n), (v, m) = _numbered(np.concatenate(rows)), _numbered(np.concatenate(columns))
    return Bipartite.from_edges(u, v, (n, m))


def _numbered(ids: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """Return the place of each id among those that occur, and how many these are."""
    if not len(ids):
        return ids.astype(np.int32), 0
    low, high = int(ids.min()), int(ids.max())
    if high - low > SPREAD * len(ids):
        occurring, places = np.unique(ids, return_inverse=True)
        return places.astype(np.int32), len(occurring)
    occurs = np.zeros(high - low + 1, np.bool_)
    occurs[ids - low] = True
    place = np.cumsum(occurs, dtype=np.int32) - 1
    return place[ids - low], int(place[-1]) + 1


_SAID = {
    scan.NUMBER: "got {}; expected two whole numbers, a row and a column. Put # before a line that is none of them.",
    scan.TOO_LARGE: f"got {{}}; expected whole numbers between {-scan.LARGEST} and {scan.LARGEST}",
}
