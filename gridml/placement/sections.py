"""Parts divided into sections: rows of a part that touch the same columns, so that a piece of it needs few of them.

Each part is placed once more, by itself (`parsa`). Columns that several parts touch are thus not needed throughout a
part, but in some of its sections.
"""

from __future__ import annotations

import numpy as np

from gridml.placement.base import Parts
from gridml.placement.bipartite import Bipartite, Ids
from gridml.placement.parsa import ParsaOptions, deal_out


def sections(graph: Bipartite, rows: Parts, parts: int, each: int, seed: int) -> Parts:
    """Return the section of each row in its part, int32 (rows,) from 0 to `each` - 1, given the part of each row.

    Sections of a part differ by one row at most; one of fewer than `each` rows is not divided.
    """
    section_of = np.zeros(graph.rows, np.int32)
    if each == 1:
        return section_of
    ends = np.cumsum(np.bincount(rows, minlength=parts))
    numbers = np.empty(graph.columns, np.int32)
    for members in np.split(np.argsort(rows, kind="stable").astype(np.int32), ends[:-1]):
        if len(members) >= each:
            section_of[members] = deal_out(_compact(graph.only(members), numbers), each, ParsaOptions(seed))[0]
    return section_of


def _compact(graph: Bipartite, numbers: Ids) -> Bipartite:
    """Return a graph with the columns that its rows touch, and no others, under new numbers; `numbers` (columns,) is
    memory to work in."""
    touched = graph.neighbours
    numbers[touched] = np.arange(len(touched), dtype=np.int32)  # of several equal ones the last stays
    chosen = touched[numbers[touched] == np.arange(len(touched))]
    numbers[chosen] = np.arange(len(chosen), dtype=np.int32)
    return Bipartite(graph.offsets, numbers[touched], len(chosen))
