"""hMETIS: a hypergraph, whose vertices are rows and whose hyperedges are columns, a line for each of them."""

from __future__ import annotations

import numpy as np

from gridml.placement.bipartite import MOST, Bipartite
from gridml.placement.files import scan
from gridml.placement.files.size_line import size_line
from gridml.placement.files.source import Block, Source

SHORTEST = 2  # bytes of a vertex, with what is after it


def read(source: Source) -> Bipartite:
    """Read a hypergraph without weights; vertices count from 1. Raises UsageError, which names the line, where
    something else stands, and where lines are missing."""
    counts, vertices_of = [np.zeros(1, np.int64)], [np.empty(0, np.int32)]
    left = vertices = pins = 0
    block, header = None, None
    for block in source.blocks():
        begin = 0
        if header is None:
            begin, header = _header(source, block)
            if header is None:
                continue
            left, vertices = header
        text = block.text
        ends = np.empty(int(np.count_nonzero(text == scan.NEWLINE)), np.int64)
        numbers = np.empty(len(text) // SHORTEST + 1, np.int32)
        lines, more, at, mistake = scan.pins(text, begin, left, vertices, ends, numbers)
        if mistake:
            why = _SAID[mistake].format(block.word(at), f"{vertices:,}")
            raise source.wrong(why, block.line(at))
        counts.append(ends[:lines] + pins)
        vertices_of.append(numbers[:more].copy())
        left, pins = left - lines, pins + more
    if block is not None and header is None:
        raise source.wrong(f"has no first line; expected {_FIRST}")
    if block is not None and left:
        why = (
            f"ends here; expected {left:,} more hyperedges, as its first line says. Get the whole file, or correct it."
        )
        raise source.wrong(why, block.line(len(block.text) - 1))
    by_column = Bipartite.from_rows(np.concatenate(counts), np.concatenate(vertices_of), vertices)
    return by_column.transposed


def _header(source: Source, block: Block) -> tuple[int, tuple[int, int] | None]:
    """Return where the lines after the first begin, and how many hyperedges and vertices that says there are."""
    end, numbers = size_line(source, block, 0, (2, 3), _FIRST)
    if numbers is None:
        return end, None
    if numbers[2:] not in ([], [0]):
        raise source.wrong(f"weights (format {numbers[2]}) are not taken; expected none", block.line(end - 1))
    return end, (numbers[0], numbers[1])


_FIRST = f"the numbers of hyperedges and of vertices, each up to {MOST:,}"
_SAID = {
    scan.NUMBER: "got {}; expected whole numbers, the vertices of a hyperedge",
    scan.INDEX: "got {}; expected vertices from 1 to {}, as its first line says. Correct one of the two lines.",
    scan.TOO_MANY: "got {}; expected nothing after the last hyperedge. Correct the first line, or cut the file off.",
}
