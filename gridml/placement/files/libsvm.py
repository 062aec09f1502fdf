"""libsvm, also called svmlight: a row is a line, `label index:value ...`, and indices count from 1."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gridml.placement.bipartite import MOST, Bipartite
from gridml.placement.files import scan
from gridml.placement.files.source import Source

SHORTEST = 4  # bytes of an entry, with the blank before it


def read(source: Source) -> Bipartite:
    """Read the rows in the order of their lines; lines that are blank or comments are none. Every entry is an edge,
    whatever its value. Raises UsageError, which names the line, where something else stands."""
    counts, columns, edges = [np.zeros(1, np.int64)], [np.empty(0, np.int32)], 0
    for ends, found in _blocks(source):
        counts.append(ends + edges)
        columns.append(found)
        edges += len(found)
    offsets, neighbours = np.concatenate(counts), np.concatenate(columns)
    return Bipartite.from_rows(offsets, neighbours, int(neighbours.max(initial=-1)) + 1)


def pieces(source: Source) -> Iterator[Bipartite]:
    """As `read`, a graph for each block of lines: the whole need not fit into memory."""
    for ends, found in _blocks(source):
        yield Bipartite.from_rows(np.concatenate([[0], ends]), found, int(found.max(initial=-1)) + 1)


def _blocks(source: Source) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
    """Where each row of a block of lines ends in the columns that follow."""
    for block in source.blocks():
        text = block.text
        ends = np.empty(int(np.count_nonzero(text == scan.NEWLINE)), np.int64)
        found = np.empty(len(text) // SHORTEST + 1, np.int32)
        rows, more, at, mistake = scan.libsvm(text, ends, found)
        if mistake:
            raise source.wrong(_SAID[mistake].format(block.word(at)), block.line(at))
        yield ends[:rows], found[:more].copy()


_SAID = {
    scan.LABEL: "got {}; expected a number, the label, and then index:value",
    scan.PAIR: "got {}; expected index:value, such as 3:0.5",
    scan.INDEX: f"got {{}}; expected an index of 1 to {MOST:,}. Add 1 to each where they count from 0.",
    scan.VALUE: "got {}; expected index:value with a number as value, such as 3:0.5",
}
