"""Text formats of graphs: libsvm, Matrix Market, lists of edges, and hMETIS.

- libsvm, also called svmlight: one row per line, `label index:value ...`; indices count from 1.
- Matrix Market: a coordinate matrix, one entry per line; a symmetric matrix lists only one half. scipy's reader is not
  used, because a damaged file makes it end the process.
- A list of edges, like those of SNAP: a row and a column per line; the numbers may have gaps.
- hMETIS: a hypergraph, whose vertices are rows and whose hyperedges are columns, with one line per hyperedge.

Matrix Market and hMETIS begin with a line that gives the size of the graph (`_size_line`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.placement.bipartite import MAX_COUNT, Bipartite, Numbered, Numbers
from gridml.placement.files import scan
from gridml.placement.files.source import GraphSource, TextBlock

MIN_LIBSVM_ENTRY_BYTES = 4  # minimum bytes of an entry and the blank before it; bounds the entries of a block


def read_libsvm(source: GraphSource) -> Bipartite:
    """Read rows in the order of their lines. Every entry is an edge, whatever its value. Blank lines and comments are
    skipped. Raises UsageError, which names the line, for other content."""
    counts, columns, edges = [np.zeros(1, np.int64)], [np.empty(0, np.int32)], 0
    for block in libsvm_blocks(source, source.blocks()):
        counts.append(block.ends + edges)
        columns.append(block.columns)
        edges += len(block.columns)
    offsets, neighbours = np.concatenate(counts), np.concatenate(columns)
    width = int(neighbours.max(initial=-1)) + 1
    source.check_size(len(offsets) - 1, width, edges)
    return Bipartite.from_rows(offsets, neighbours, width)


def pieces(source: GraphSource) -> Iterator[Bipartite]:
    """Like `read_libsvm`, but yield a graph for each block of lines, so the file need not fit into memory."""
    for block in libsvm_blocks(source, source.blocks()):
        width = int(block.columns.max(initial=-1)) + 1
        yield Bipartite.from_rows(np.concatenate([[0], block.ends]), block.columns, width)


class LibsvmBlock(NamedTuple):
    """The rows of a block of lines."""

    text: TextBlock
    ends: NDArray[np.int64]  #: the end of each row in `columns`
    columns: NDArray[np.int32]  #: the columns of the rows, counted from 0
    labels: scan.Places | None  #: where each row's label stands; None: not asked for
    values: scan.Places | None  #: the same of the value of each of `columns`


def libsvm_blocks(source: GraphSource, blocks: Iterable[TextBlock], *, values: bool = False) -> Iterator[LibsvmBlock]:
    """Yield the rows of each block; with `values`, also where labels and values stand."""
    for block in blocks:
        text = block.text
        lines, most = int(np.count_nonzero(text == scan.NEWLINE)), len(text) // MIN_LIBSVM_ENTRY_BYTES + 1
        ends, found = np.empty(lines, np.int64), np.empty(most, np.int32)
        labels, places = (np.empty((count, 2), np.int32) if values else None for count in (lines, most))
        rows, edges, at, mistake = scan.libsvm(text, ends, found, labels, places)
        if mistake:
            raise source.wrong(_MESSAGES[mistake].format(block.word(at)), block.line(at))
        of_rows, of_edges = None if labels is None else labels[:rows], None if places is None else places[:edges]
        yield LibsvmBlock(block, ends[:rows], found[:edges].copy(), of_rows, of_edges)


_MESSAGES = {
    scan.LABEL: "got {}; expected a number, the label, and then index:value",
    scan.PAIR: "got {}; expected index:value, such as 3:0.5",
    scan.INDEX: f"got {{}}; expected an index of 1 to {MAX_COUNT:,}. Add 1 to each if they count from 0.",
    scan.VALUE: "got {}; expected index:value with a number as value, such as 3:0.5",
}


_MAX_SIZE_LINE_BYTES = 1000  # longer lines are truncated: they cannot be a size line


def _size_line(
    source: GraphSource, block: TextBlock, at: int, counts: tuple[int, ...], expected: str
) -> tuple[int, list[int] | None]:
    """Find the first line that is neither blank nor a comment (%). Return its end and its integers. If the block has no
    such line, return the end of the block and None. Raises UsageError if the number of integers is not one of `counts`,
    or if the graph is too large."""
    while at < len(block.text):
        end = scan.past_line(block.text, at)
        words = bytes(block.text[at : min(end, at + _MAX_SIZE_LINE_BYTES)]).split()
        if words and not words[0].startswith(b"%"):
            numbers = [int(word) for word in words if word.isdigit() and len(word) < 19]
            if len(numbers) != len(words) or len(words) not in counts or max(numbers[:2]) > MAX_COUNT:
                shown = " ".join(block.shown(word) for word in words[:4])
                raise source.wrong(f"got {shown!r}; expected {expected}", block.line(at))
            return end, numbers
        at = end
    return at, None


MIN_ENTRY_BYTES = 4  # minimum bytes of an entry and the end of its line; bounds the entries of a block


def read_matrix_market(source: GraphSource) -> Bipartite:
    """Read a matrix; every entry is an edge, whatever its value. Raises UsageError, which names the line, for other
    content, and if lines are missing."""
    blocks = [*matrix_blocks(source, source.blocks())]
    u, v = (np.concatenate([block[side] for block in blocks]) for side in (2, 3))
    (rows, columns, entries), symmetry = blocks[0].size, blocks[0].symmetry
    source.check_size(rows, columns, entries)
    if symmetry:
        u, v = np.concatenate([u, v]), np.concatenate([v, u])  # duplicates of the diagonal are merged
    return Bipartite.from_edges(u, v, (rows, columns))


class MatrixBlock(NamedTuple):
    """The entries of a block of lines."""

    size: tuple[int, int, int]  #: the numbers of rows, columns and entries of the whole matrix
    symmetry: str  #: that of the matrix; "" if it has none
    rows: NDArray[np.int32]  #: of each entry, from 0
    columns: NDArray[np.int32]
    text: TextBlock
    values: int  #: of each entry: 2 for complex ones
    places: scan.Places | None  #: where each entry's value stands; None: not asked for


def matrix_blocks(source: GraphSource, blocks: Iterable[TextBlock], *, values: bool = False) -> Iterator[MatrixBlock]:
    """Yield the entries of each block, at least one; with `values`, also where values stand. Raises UsageError, which
    names the line, for other content, and if lines are missing."""
    kind, symmetry, left = 0, "", 0
    size: tuple[int, int, int] | None = None
    block = None
    for block in blocks:
        begin = 0
        if not block.before:
            kind, symmetry = _matrix_kind(source, block)
        if size is None:
            begin, numbers = _size_line(source, block, begin, (3,), _SIZE)
            if numbers is None:
                continue
            size = (numbers[0], numbers[1], numbers[2])
            if symmetry and size[0] != size[1]:
                raise source.wrong(f"a symmetric matrix has {size[0]:,} rows and {size[1]:,} columns; expected as many")
            left = size[2]
        most = len(block.text) // MIN_ENTRY_BYTES + 1
        first, second = np.empty((2, most), np.int32)
        places = np.empty((most, 2), np.int32) if values else None
        entries, at, mistake = scan.coordinates(block.text, begin, left, size[:2], kind, first, second, places)
        if mistake:
            raise source.wrong(_MATRIX_MARKET_MESSAGES[mistake].format(block.word(at), *size), block.line(at))
        of_entries = None if places is None else places[:entries]
        yield MatrixBlock(size, symmetry, first[:entries].copy(), second[:entries].copy(), block, kind, of_entries)
        left -= entries
    if block is None:
        raise source.wrong(f"is empty; expected {_BANNER}")
    if size is None:
        raise source.wrong(f"ends here; expected {_SIZE}", block.line(len(block.text) - 1))
    if left:
        raise source.wrong(f"ends here; expected {left:,} more entries{_WHOLE}", block.line(len(block.text) - 1))


def _matrix_kind(source: GraphSource, block: TextBlock) -> tuple[int, str]:
    """Parse the first line: return the number of values per entry, and the symmetry of the matrix, "" for none."""
    line = bytes(block.text[: scan.past_line(block.text, 0)])
    words = [block.shown(word).lower() for word in line.split()[:6]]
    if words[:2] != ["%%matrixmarket", "matrix"] or len(words) != 5:
        raise source.wrong(f"got {block.word(0)} ...; expected {_BANNER}", 1)
    if words[2] == "array":
        raise source.wrong(f"got 'array'; expected coordinate, which says where entries are. {_SPARSE}", 1)
    for word, known in ((words[2], ("coordinate",)), (words[3], tuple(_VALUES)), (words[4], _SYMMETRIES)):
        if word not in known:
            raise source.wrong(f"got {word!r}; expected {' or '.join(known)}", 1)
    return _VALUES[words[3]], words[4] if words[4] != "general" else ""


_VALUES = {"pattern": 0, "real": 1, "integer": 1, "unsigned-integer": 1, "double": 1, "complex": 2}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
_SPARSE = "Write what is not zero: scipy.io.mmwrite(NEW, scipy.sparse.coo_array(scipy.io.mmread(FILE)))"
_BANNER = "%%MatrixMarket matrix coordinate ..., as a Matrix Market file begins"
_SIZE = f"the numbers of rows, columns and entries, the first two up to {MAX_COUNT:,}"
_WHOLE = ", as the line of its size says. Get the whole file, or correct that line."
_MATRIX_MARKET_MESSAGES = {
    scan.NUMBER: "got {}; expected a row and a column, whole numbers",
    scan.INDEX: "got {0}; expected a row from 1 to {1:,} and a column from 1 to {2:,}, as the line of its size says. "
    "Correct one of the two lines.",
    scan.VALUE: "got {}; expected a number, the value, as the first line says",
    scan.TOO_LONG: "got {}; expected the end of the line",
    scan.TOO_MANY: "got {0}; expected nothing after the last entry, of {3:,} as the line of its size says. "
    "Correct that line, or cut the file off.",
}


SPREAD = 8  # ids are ranked by a lookup table, not by sorting, if their range is at most this multiple of their count


def read_edge_list(source: GraphSource) -> Bipartite:
    """Read a list of edges. Row i of the graph is the i-th smallest of the first numbers of all lines, and column j the
    j-th smallest of the second numbers. Numbers are separated by blanks or a comma. A third column, such as a weight or
    a time, is ignored; either all lines have one, or none. Raises UsageError, which names the line, for other
    content."""
    return read_numbered(source).graph


def read_numbered(source: GraphSource, *, general: bool = False) -> Numbered:
    """Like `read_edge_list`. In a `general` graph both numbers are vertices: row i and column i are the same vertex,
    the i-th smallest of all numbers."""
    first_of, second_of = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    width = 0
    for block in source.blocks():
        first, second = np.empty((2, len(block.text) // MIN_ENTRY_BYTES + 1), np.int64)
        edges, width, at, mistake = scan.pairs(block.text, width, first, second)
        if mistake:
            raise source.wrong(_EDGE_LIST_MESSAGES[mistake].format(block.word(at)), block.line(at))
        first_of.append(first[:edges].copy())
        second_of.append(second[:edges].copy())
    u, v = np.concatenate(first_of), np.concatenate(second_of)
    if general:
        places, ids = _numbered(np.concatenate([u, v]))
        return Numbered(Bipartite.from_edges(places[: len(u)], places[len(u) :], (len(ids), len(ids))), ids, ids)
    (u_places, u_ids), (v_places, v_ids) = _numbered(u), _numbered(v)
    return Numbered(Bipartite.from_edges(u_places, v_places, (len(u_ids), len(v_ids))), u_ids, v_ids)


def _numbered(ids: Numbers) -> tuple[NDArray[np.int32], Numbers]:
    """Return the rank of each id among the distinct ids, and the distinct ids, ascending."""
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


_EDGE_LIST_MESSAGES = {
    scan.NUMBER: "got {}; expected two whole numbers, a row and a column. Put # before a line that is no edge.",
    scan.TOO_LONG: "got {}, a fourth column; expected a row, a column and at most one more, such as a weight. If the "
    "further columns are no neighbours, leave them out: cut -f1-2 FILE (or cut -d, -f1-2, cut -d' ' -f1-2). If they "
    "are neighbours, write a line for each edge.",
    scan.MORE: "got {}, a third column; expected the end of the line, as the lines before have two. Leave it out, or "
    "write one on each line.",
    scan.FEWER: "got {}; expected a third column, as the lines before have. Write it, or leave it out of each line.",
    scan.TOO_LARGE: f"got {{}}; expected whole numbers between {-scan.LARGEST} and {scan.LARGEST}",
}


MIN_HMETIS_ENTRY_BYTES = 2  # minimum bytes of a vertex and the separator after it; bounds the vertices of a block


def read_hmetis(source: GraphSource) -> Bipartite:
    """Read a hypergraph without weights; vertices count from 1. Raises UsageError, which names the line, for other
    content, and if lines are missing."""
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
        numbers = np.empty(len(text) // MIN_HMETIS_ENTRY_BYTES + 1, np.int32)
        lines, more, at, mistake = scan.pins(text, begin, left, vertices, ends, numbers)
        if mistake:
            why = _HMETIS_MESSAGES[mistake].format(block.word(at), f"{vertices:,}")
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
    source.check_size(vertices, 0, pins)
    by_column = Bipartite.from_rows(np.concatenate(counts), np.concatenate(vertices_of), vertices)
    return by_column.transposed


def _header(source: GraphSource, block: TextBlock) -> tuple[int, tuple[int, int] | None]:
    """Return the end of the first line, and the numbers of hyperedges and vertices that it gives; None if the block has
    no such line."""
    end, numbers = _size_line(source, block, 0, (2, 3), _FIRST)
    if numbers is None:
        return end, None
    if numbers[2:] not in ([], [0]):
        raise source.wrong(f"weights (format {numbers[2]}) are not taken; expected none", block.line(end - 1))
    return end, (numbers[0], numbers[1])


_FIRST = f"the numbers of hyperedges and of vertices, each up to {MAX_COUNT:,}"
_HMETIS_MESSAGES = {
    scan.NUMBER: "got {}; expected whole numbers, the vertices of a hyperedge",
    scan.INDEX: "got {}; expected vertices from 1 to {}, as its first line says. Correct one of the two lines.",
    scan.TOO_MANY: "got {}; expected nothing after the last hyperedge. Correct the first line, or cut the file off.",
}
