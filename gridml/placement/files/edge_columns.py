"""Edges with values and ids, read from text in blocks, and grouped by row on disk.

Unlike the readers in `text_formats`, which give `gridml place` the shape of a graph, these keep the value of each edge
and the ids of rows and columns, and no edges: a block's edges are yielded as records, so that memory holds a block and
what there is for each row and column. Errors are UsageError and name the file and the line.

Records are written to one file as they come, and then distributed to files of consecutive rows, each of which fits into
memory and is sorted there (a bucket sort). Edges of a row keep the order in which they came.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.placement.files import scan, scan_columns
from gridml.placement.files.source import GraphSource, TextBlock
from gridml.placement.files.text_formats import libsvm_blocks, matrix_blocks

Array = NDArray[Any]
MAX_ID_BYTES = 255
MAX_TEXT_BYTES = 2**31 - 1  # of a block: places in it are int32. Only a line of this length can exceed it
ROW, COLUMN, VALUE = "row", "column", "value"  # fields of a record


def record_of(value: np.dtype[Any] | None) -> np.dtype[Any]:
    """Return the dtype of an edge's record: row and column, int32, and a value of this dtype unless it is None."""
    return np.dtype([(ROW, "<i4"), (COLUMN, "<i4"), *([] if value is None else [(VALUE, value)])])


@dataclass
class Endpoints:
    """The rows of a graph, or its columns. Complete once all records are read."""

    count: int = 0
    ids: Array | None = None  #: int64 (count,) or bytes of UTF-8, dtype S, ascending; None: numbers are positions
    rank: NDArray[np.int32] | None = None  #: (count,) the position of each number of a record; None: the number itself


@dataclass
class EdgeReader(ABC):
    """A reader of one file. `records` may be called once; then `rows`, `columns` and `labels` are complete."""

    source: GraphSource
    value: np.dtype[Any] | None  #: of the value of each edge; None: values are checked, and not kept
    rows: Endpoints = field(default_factory=Endpoints)
    columns: Endpoints = field(default_factory=Endpoints)
    labels: list[Array] = field(default_factory=list)  #: float64, the labels of rows, in blocks (libsvm)

    @abstractmethod
    def records(self) -> Iterator[Array]:
        """Read the file, and yield the edges of each block, as `record_of` says."""

    def numbers(self, block: TextBlock, places: Array, dtype: np.dtype[Any], what: str) -> Array:
        """Return the numbers in columns (n, 2) of a block. Raises UsageError for text that is no number, for NaN and
        infinity, and for numbers that `dtype` cannot hold."""
        starts, ends = np.ascontiguousarray(places[:, 0]), np.ascontiguousarray(places[:, 1])
        found, odd = np.empty(len(starts), np.float64), np.empty(len(starts), np.int64)
        count = scan_columns.numbers(block.text, starts, ends, scan_columns.POWERS, found, odd)
        for at in odd[:count].tolist():
            try:
                found[at] = float(bytes(block.text[starts[at] : ends[at]]))
            except ValueError:
                raise self._wrong(block, starts[at], ends[at], what) from None
        with np.errstate(over="ignore", invalid="ignore"):
            kept = found.astype(dtype)
        bad = ~np.isfinite(kept) if dtype.kind == "f" else ~(kept.astype(np.float64) == found)
        if bad.any():
            at = int(bad.argmax())
            whole = "finite" if dtype.kind == "f" else "whole"
            what = f"a {whole} number that {dtype} holds"
            raise self._wrong(block, starts[at], ends[at], what)
        return kept

    def made(self, block: TextBlock, rows: Array, columns: Array, places: Array | None) -> Array:
        """Return the records of edges whose values stand in these places (n, 2); None: they have none."""
        records = np.empty(len(rows), record_of(None if places is None else self.value))
        records[ROW], records[COLUMN] = rows, columns
        if places is not None:
            values = self.numbers(block, places, self.value or np.dtype(np.float64), self._expected)
            if self.value is not None:
                records[VALUE] = values
        return records

    @property
    def _expected(self) -> str:
        """What a value must be."""
        return "a number, the value"

    def _wrong(self, block: TextBlock, start: int, end: int, expected: str) -> UsageError:
        got = repr(block.shown(bytes(block.text[start:end]))) if end > start else "nothing"
        return self.source.wrong(f"got {got}; expected {expected}", block.line(int(start)))

    def blocks(self) -> Iterator[TextBlock]:
        for block in self.source.blocks():
            if len(block.text) > MAX_TEXT_BYTES:
                raise self.source.wrong(f"a line has more than {MAX_TEXT_BYTES:,} bytes", block.before + 1)
            yield block


class Interner:
    """Numbers of texts, in the order in which they first occur."""

    def __init__(self) -> None:
        self._arena, self._count = np.empty(1 << 16, np.uint8), 0
        self._offsets, self._hashes = np.zeros(1 << 10, np.int64), np.empty(1 << 10, np.uint64)
        self._slots = np.full(1 << 11, -1, np.int64)
        self.first_is_name = False  #: all texts but the first are whole numbers; set by `side`

    def numbered(self, text: Array, starts: Array, ends: Array) -> NDArray[np.int32]:
        """Return the number of each text `text[starts[i]:ends[i]]`."""
        more, new = int((ends - starts).sum()), len(starts)
        used = int(self._offsets[self._count])
        self._arena = _with_room(self._arena, used + more)
        self._offsets = _with_room(self._offsets, self._count + new + 1)
        self._hashes = _with_room(self._hashes, self._count + new)
        if 2 * (self._count + new) > len(self._slots):
            self._slots = np.full(1 << (4 * (self._count + new)).bit_length(), -1, np.int64)
            scan_columns.rehash(self._hashes, self._count, self._slots)
        out = np.empty(new, np.int32)
        self._count = scan_columns.intern(
            text, starts, ends, self._arena, self._offsets, self._hashes, self._count, self._slots, out
        )
        return out

    def side(self) -> Endpoints:
        """Return all texts, ascending: as numbers if each is a whole number as Python writes it, otherwise as bytes."""
        offsets = self._offsets[: self._count + 1]
        longest = int(np.diff(offsets).max(initial=1))
        stored = np.zeros((self._count, longest), np.uint8)
        scan_columns.spread(self._arena, offsets, stored)
        texts: Array = stored.view(f"S{longest}").reshape(-1)
        whole = _whole(texts)
        ids = texts if whole is None else whole
        self.first_is_name = whole is None and len(texts) > 1 and _whole(texts[1:]) is not None
        order = np.argsort(ids, kind="stable")
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        return Endpoints(self._count, ids[order], rank)


def _whole(texts: Array) -> Array | None:
    """Return the texts as int64 (n,); None unless each is a whole number as Python writes it."""
    try:
        whole = texts.astype(np.int64)
    except (ValueError, OverflowError):
        return None
    return whole if (whole.astype("S") == texts).all() else None


def _with_room(values: Array, count: int) -> Array:
    """Return an array that begins with `values` and has at least `count` elements."""
    if count <= len(values):
        return values
    longer = np.empty(max(count, 3 * len(values) // 2), values.dtype)
    longer[: len(values)] = values
    return longer


@dataclass
class EdgeList(EdgeReader):
    """A list of edges: a row, a column and perhaps a value on each line, in columns of text."""

    chosen: Sequence[int | str] | None = None  #: columns of row, column and perhaps value; None: all two or three
    header: bool | None = None  #: the first line names the columns; None: only if `chosen` has names
    delimiter: str | None = None  #: None: by the first line, a tab, a comma, a semicolon or blanks
    general: bool = False  #: rows and columns are the same vertices

    def records(self) -> Iterator[Array]:
        first, at = Interner(), -1
        interners = first, first if self.general else Interner()
        delimiter, wanted, width = 0, np.empty(0, np.int64), 0
        for block in self.blocks():
            if at < 0:
                begin, line = _first_line(block)
                if not line:
                    continue
                delimiter, wanted, width, names = self._form(block, begin, line)
                at = begin + len(line) + 1 if names else begin
            yield self._parsed(block, at, delimiter, wanted, width, interners)
            at = 0
        self.rows, self.columns = (each.side() for each in interners)
        if self.header is None and any(each.first_is_name for each in interners):
            raise self.source.wrong(
                "the first edge has an id that is no number, and all others have numbers. If the first line names the "
                "columns, pass header=True; if not, header=False"
            )

    def _form(self, block: TextBlock, begin: int, line: bytes) -> tuple[int, NDArray[np.int64], int, bool]:
        """Return (delimiter, the columns wanted, the columns that a line must have or 0, whether the line is names)."""
        given = None if self.delimiter is None else self.delimiter.encode()
        if given is not None and len(given) != 1:
            raise UsageError(f"got the delimiter {self.delimiter!r}; expected one ASCII character, or None.")
        delimiter = next((mark for mark in (b"\t", b",", b";") if mark in line), b" ") if given is None else given
        parts = line.split() if delimiter == b" " else line.split(delimiter)
        words = [part.strip(b' \t"').decode(errors="replace") for part in parts]
        chosen = range(len(words)) if self.chosen is None else self.chosen
        names = self.header is True or any(isinstance(each, str) for each in chosen)
        if self.chosen is None and len(words) not in (2, 3):
            raise self.source.wrong(
                f"has {len(words):,} columns; expected a row, a column and perhaps a value. Say which these are, from "
                f"0 or by name: columns=(0, 1, 2)",
                block.line(begin),
            )
        for each in chosen:
            if isinstance(each, str) and each not in words:
                held = ", ".join(block.shown(word.encode()) for word in words)
                raise self.source.wrong(f"has the columns {held}; expected {each}, too", block.line(begin))
        wanted = np.array([words.index(each) if isinstance(each, str) else each for each in chosen], np.int64)
        if len(wanted) not in (2, 3) or (wanted < 0).any():
            raise UsageError(f"got columns={self.chosen!r}; expected those of row, column and perhaps value, from 0.")
        return delimiter[0], wanted, len(words) if self.chosen is None else 0, names

    def _parsed(
        self,
        block: TextBlock,
        at: int,
        delimiter: int,
        wanted: NDArray[np.int64],
        width: int,
        interners: tuple[Interner, Interner],
    ) -> Array:
        text = block.text[at:]
        starts, ends = np.empty((2, int(np.count_nonzero(text == scan.NEWLINE)), len(wanted)), np.int32)
        lines, wrong, mistake = scan_columns.split(text, delimiter, wanted, width, starts, ends)
        if mistake:
            needed = f"{width:,} columns" if width else f"at least {int(wanted.max()) + 1:,} columns"
            said = {
                scan_columns.COLUMNS: f"expected {needed}. Put # before a line that is no edge",
                scan_columns.QUOTE: "expected quotes around a whole column, and none inside",
            }[mistake]
            raise self.source.wrong(f"got {block.word(at + wrong)} ...; {said}", block.line(at + wrong))
        starts, ends = starts[:lines] + np.int32(at), ends[:lines] + np.int32(at)
        numbered = []
        for place, interner in enumerate(interners):
            first, last = np.ascontiguousarray(starts[:, place]), np.ascontiguousarray(ends[:, place])
            lengths = last - first
            bad = (lengths == 0) | (lengths > MAX_ID_BYTES)
            if bad.any():
                which = int(bad.argmax())
                raise self._wrong(block, first[which], last[which], f"an id of 1 to {MAX_ID_BYTES} bytes")
            numbered.append(interner.numbered(block.text, first, last))
        places = np.stack([starts[:, 2], ends[:, 2]], axis=1) if len(wanted) > 2 else None
        return self.made(block, numbered[0], numbered[1], places)

    @property
    def _expected(self) -> str:
        return "a number, the value of the edge. If the first line names the columns, pass header=True"


def _first_line(block: TextBlock) -> tuple[int, bytes]:
    """Return (where it begins, the text) of the first line that is neither blank nor a comment; empty without one."""
    at = 0
    while at < len(block.text):
        end = scan.past_line(block.text, at)
        line = bytes(block.text[at : end - 1])
        if line.strip() and not line.lstrip().startswith((b"#", b"%")):
            return at, line
        at = end
    return at, b""


@dataclass
class MatrixMarket(EdgeReader):
    """A coordinate matrix: rows, columns and values as the file numbers them, from 1."""

    def records(self) -> Iterator[Array]:
        for block in matrix_blocks(self.source, self.blocks(), values=True):
            if block.values > 1:
                raise self.source.wrong("got complex values; expected real ones, integers or a pattern", 1)
            self.rows, self.columns = Endpoints(block.size[0]), Endpoints(block.size[1])
            self.source.check_size(*block.size)
            places = block.places if block.values else None
            records = self.made(block.text, block.rows, block.columns, places)
            yield records if not block.symmetry else _mirrored(records, block.symmetry)


def _mirrored(records: Array, symmetry: str) -> Array:
    """Return the entries of a symmetric matrix, of which a file has one half."""
    other = records[records[ROW] != records[COLUMN]]
    other[ROW], other[COLUMN] = other[COLUMN].copy(), other[ROW].copy()
    if symmetry == "skew-symmetric" and VALUE in (records.dtype.names or ()):
        other[VALUE] = -other[VALUE]
    return np.concatenate([records, other])


@dataclass
class Libsvm(EdgeReader):
    """Rows in the order of their lines, `label index:value ...`; indices count from 1."""

    def records(self) -> Iterator[Array]:
        rows = width = 0
        for block in libsvm_blocks(self.source, self.blocks(), values=True):
            assert block.labels is not None
            self.labels.append(self.numbers(block.text, block.labels, np.dtype(np.float64), "a number, the label"))
            count = len(block.ends)
            of_rows = np.repeat(np.arange(rows, rows + count), np.diff(block.ends, prepend=0))
            rows, width = rows + count, max(width, int(block.columns.max(initial=-1)) + 1)
            self.rows, self.columns = Endpoints(rows), Endpoints(width)
            yield self.made(block.text, of_rows, block.columns, block.values)


BUCKET_RECORDS = 1 << 18  # sorted at once, or those of one row if they are more
MAX_BUCKETS = 256  # files that are open at once; beyond, buckets are larger
_RECORDS = "records"
OFFSETS, TARGETS, WEIGHT = "offsets.npy", "targets.npy", "weight.npy"


def gather(folder: Path, records: Iterable[Array]) -> np.dtype[Any] | None:
    """Write records to a file of the folder, as they come. Return their dtype; None if there are none."""
    dtype = None
    with (folder / _RECORDS).open("wb") as file:
        for part in records:
            part.tofile(file)
            dtype = part.dtype if len(part) else dtype
    return dtype


def group(folder: Path, rows: Endpoints, columns: Endpoints, dtype: np.dtype[Any]) -> int:
    """Sort the records of `gather` by row, and write `OFFSETS`, `TARGETS` and, if they have values, `WEIGHT` into the
    folder. Return the number of edges."""
    path = folder / _RECORDS
    degrees = np.zeros(rows.count, np.int64)
    for part in _parts(path, dtype):
        degrees += np.bincount(_ranked(part[ROW], rows), minlength=rows.count)
    offsets = np.concatenate([[0], np.cumsum(degrees)])
    np.save(folder / OFFSETS, offsets)
    total = int(offsets[-1])
    size = max(BUCKET_RECORDS, -(-total // MAX_BUCKETS))
    # The last row of each bucket: the first at which it is full.
    ends = np.unique(np.searchsorted(offsets[1:], np.arange(size, total, size)))
    buckets = [folder / f"bucket-{number}" for number in range(len(ends) + 1)]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(bucket.open("wb")) for bucket in buckets]
        for part in _parts(path, dtype):
            ranked = part.copy()
            ranked[ROW], ranked[COLUMN] = _ranked(part[ROW], rows), _ranked(part[COLUMN], columns)
            bucket = np.searchsorted(ends, ranked[ROW])
            order = np.argsort(bucket, kind="stable")
            borders = np.searchsorted(bucket[order], np.arange(len(files) + 1))
            for file, first, last in zip(files, borders[:-1], borders[1:], strict=True):
                ranked[order[first:last]].tofile(file)
    path.unlink()
    _write(folder, buckets, dtype, total)
    return total


def _write(folder: Path, buckets: list[Path], dtype: np.dtype[Any], total: int) -> None:
    """Sort each bucket, append it to the arrays, and remove it."""
    with contextlib.ExitStack() as stack:
        outputs: dict[str, IO[bytes]] = {}
        for name, path in ((COLUMN, TARGETS), (VALUE, WEIGHT)):
            if name not in (dtype.names or ()):
                continue
            file = outputs[name] = stack.enter_context((folder / path).open("wb"))
            header = {"descr": npy.dtype_to_descr(dtype[name]), "fortran_order": False, "shape": (total,)}
            npy.write_array_header_1_0(file, header)
        for bucket in buckets:
            records = np.fromfile(bucket, dtype)
            bucket.unlink()
            order = np.argsort(records[ROW], kind="stable")
            for name, file in outputs.items():
                records[name][order].tofile(file)


def _parts(path: Path, dtype: np.dtype[Any]) -> Iterator[Array]:
    """Yield the records of a file. They are read, not mapped: pages of a mapped file count as memory of a process."""
    with path.open("rb") as file:
        while len(part := np.fromfile(file, dtype, BUCKET_RECORDS)):
            yield part


def _ranked(numbers: Array, side: Endpoints) -> Array:
    return numbers if side.rank is None else side.rank[numbers]
