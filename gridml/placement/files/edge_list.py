"""A list of edges, as SNAP has them: a row and a column a line, numbers that need not follow on one another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.bipartite import Bipartite
from gridml.placement.files import scan
from gridml.placement.files.numbered import Numbered, Numbers
from gridml.placement.files.source import Source

SHORTEST = 4  # bytes of an edge, with its line's end
SPREAD = 8  # times as many numbers as edges, of which a table is worth its memory


def read(source: Source) -> Bipartite:
    """Read the graph whose row i is the i-th smallest number of the lines' first, and column j the j-th smallest of
    their second. A line has them apart by blanks or a comma; a third column, such as a weight or a time, is not looked
    at, but all lines have it, or none. Raises UsageError, which names the line, where something else stands."""
    return read_numbered(source).graph


def read_numbered(source: Source, *, general: bool = False) -> Numbered:
    """As `read`. In a `general` graph both numbers are vertices', so row i and column i are the same one: the i-th
    smallest of all numbers."""
    first_of, second_of = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    width = 0
    for block in source.blocks():
        first, second = np.empty((2, len(block.text) // SHORTEST + 1), np.int64)
        edges, width, at, mistake = scan.pairs(block.text, width, first, second)
        if mistake:
            raise source.wrong(_SAID[mistake].format(block.word(at)), block.line(at))
        first_of.append(first[:edges].copy())
        second_of.append(second[:edges].copy())
    u, v = np.concatenate(first_of), np.concatenate(second_of)
    if general:
        places, ids = _numbered(np.concatenate([u, v]))
        return Numbered(Bipartite.from_edges(places[: len(u)], places[len(u) :], (len(ids), len(ids))), ids, ids)
    (u_places, u_ids), (v_places, v_ids) = _numbered(u), _numbered(v)
    return Numbered(Bipartite.from_edges(u_places, v_places, (len(u_ids), len(v_ids))), u_ids, v_ids)


def _numbered(ids: Numbers) -> tuple[NDArray[np.int32], Numbers]:
    """Return the place of each id among those that occur, and these."""
    if not len(ids):
        return ids.astype(np.int32), ids
    low, high = int(ids.min()), int(ids.max())
    if high - low > SPREAD * len(ids):
        occurring, places = np.unique(ids, return_inverse=True)
        return places.astype(np.int32), occurring
    occurs = np.zeros(high - low + 1, np.bool_)
    occurs[ids - low] = True
    place = np.cumsum(occurs, dtype=np.int32) - 1
    return place[ids - low], np.flatnonzero(occurs) + low


_SAID = {
    scan.NUMBER: "got {}; expected two whole numbers, a row and a column. Put # before a line that is none of them.",
    scan.TOO_LONG: "got {}, a fourth column; expected a row, a column and at most one more, such as a weight. If the "
    "others are no neighbours, leave them out: cut -f1-2 FILE (or cut -d, -f1-2, cut -d' ' -f1-2); if they are, write "
    "a line for each edge.",
    scan.MORE: "got {}, a third column; expected the end of the line, as the lines before have two. Leave it out, or "
    "write one on each line.",
    scan.FEWER: "got {}; expected a third column, as the lines before have. Write it, or leave it out of each line.",
    scan.TOO_LARGE: f"got {{}}; expected whole numbers between {-scan.LARGEST} and {scan.LARGEST}",
}
