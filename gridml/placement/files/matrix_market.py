"""Matrix Market: a matrix of coordinates, an entry a line; of a symmetric one only half of it.

Not by scipy's reader: what is damaged lets that end the process.
"""

from __future__ import annotations

import numpy as np

from gridml.placement.bipartite import MOST, Bipartite
from gridml.placement.files import scan
from gridml.placement.files.size_line import size_line
from gridml.placement.files.source import Block, Source

SHORTEST = 4  # bytes of an entry, with its line's end


def read(source: Source) -> Bipartite:
    """Read a matrix; every entry is an edge, whatever its value. Raises UsageError, which names the line, where
    something else stands, and where lines are missing."""
    rows, columns = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    values, symmetric = 0, False
    size: list[int] | None = None
    block = None
    left = 0
    for block in source.blocks():
        begin = 0
        if not block.before:
            values, symmetric = _kind(source, block)
        if size is None:
            begin, size = size_line(source, block, begin, (3,), _SIZE)
            if size is None:
                continue
            if symmetric and size[0] != size[1]:
                raise source.wrong(f"a symmetric matrix has {size[0]:,} rows and {size[1]:,} columns; expected as many")
            left = size[2]
        first, second = np.empty((2, len(block.text) // SHORTEST + 1), np.int32)
        entries, at, mistake = scan.coordinates(block.text, begin, left, size[0], size[1], values, first, second)
        if mistake:
            raise source.wrong(_SAID[mistake].format(block.word(at), *size), block.line(at))
        rows.append(first[:entries].copy())
        columns.append(second[:entries].copy())
        left -= entries
    if block is None:
        raise source.wrong(f"is empty; expected {_BANNER}")
    if size is None:
        raise source.wrong(f"ends here; expected {_SIZE}", block.line(len(block.text) - 1))
    if left:
        raise source.wrong(f"ends here; expected {left:,} more entries{_WHOLE}", block.line(len(block.text) - 1))
    u, v = np.concatenate(rows), np.concatenate(columns)
    if symmetric:
        u, v = np.concatenate([u, v]), np.concatenate([v, u])  # the diagonal is there twice, and is kept once
    return Bipartite.from_edges(u, v, (size[0], size[1]))


def _kind(source: Source, block: Block) -> tuple[int, bool]:
    """Return how many numbers the value of an entry is, and whether the matrix is symmetric, as the first line says."""
    line = bytes(block.text[: scan.past_line(block.text, 0)])
    words = [block.shown(word).lower() for word in line.split()[:6]]
    if words[:2] != ["%%matrixmarket", "matrix"] or len(words) != 5:
        raise source.wrong(f"got {block.word(0)} ...; expected {_BANNER}", 1)
    if words[2] == "array":
        raise source.wrong(f"got 'array'; expected coordinate, which says where entries are. {_SPARSE}", 1)
    for word, known in ((words[2], ("coordinate",)), (words[3], tuple(_VALUES)), (words[4], _SYMMETRIES)):
        if word not in known:
            raise source.wrong(f"got {word!r}; expected {' or '.join(known)}", 1)
    return _VALUES[words[3]], words[4] != "general"


_VALUES = {"pattern": 0, "real": 1, "integer": 1, "unsigned-integer": 1, "double": 1, "complex": 2}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
_SPARSE = "Write what is not zero: scipy.io.mmwrite(NEW, scipy.sparse.coo_array(scipy.io.mmread(FILE)))"
_BANNER = "%%MatrixMarket matrix coordinate ..., as a Matrix Market file begins"
_SIZE = f"the numbers of rows, columns and entries, the first two up to {MOST:,}"
_WHOLE = ", as the line of its size says. Get the whole file, or correct that line."
_SAID = {
    scan.NUMBER: "got {}; expected a row and a column, whole numbers",
    scan.INDEX: "got {0}; expected a row from 1 to {1:,} and a column from 1 to {2:,}, as the line of its size says. "
    "Correct one of the two lines.",
    scan.VALUE: "got {}; expected a number, the value, as the first line says",
    scan.TOO_LONG: "got {}; expected the end of the line",
    scan.TOO_MANY: "got {0}; expected nothing after the last entry, of {3:,} as the line of its size says. "
    "Correct that line, or cut the file off.",
}
