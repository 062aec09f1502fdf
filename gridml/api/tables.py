"""`gridml.table` and `gridml.export`: results by the vertices' own ids, as arrays, and as files for other programs.

A table has the vertices of one type, a row each: first their ids, then a column for each field. It is made of arrays by
name ("Page.rank"), as `gridml.load`, `gridml.compute` and `gridml.infer` return them. Fields of edges are a table of
their own, "Document.words", without ids: row i is edge i, as `gridml.csr` was given it. Files are written piece by
piece, beside their name, and take it once they are complete.
"""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gridml.api.handle import Run, read_arrays, replica_of
from gridml.errors import UsageError
from gridml.model.loading import check_guarded

if TYPE_CHECKING:
    from gridml.api.computing import Computed

Array = NDArray[Any]
Table = dict[str, Array]  # columns (rows, *shape) by name, all of one length
IDS = "ids"  # no field can have this name
MAX_PIECE_ROWS, MAX_PIECE_BYTES = 1 << 17, 1 << 24  # of what is converted at a time; in Parquet, of a row group


def table(
    result: Run | Computed | Mapping[str, Any] | str | os.PathLike[str],
    name: str | None = None,
    *,
    which: str | int | None = None,
) -> Table:
    """Return the results of one vertex type as columns by name, in the order of `Graph.add`.

        ranks = gridml.table("runs/pagerank-20260401-120000", "Page")
        ranks["ids"]  # (pages,): the ids that the pages were added with, int64 or texts; without, numbers from 0 on
        ranks["rank"]  # (pages,) of the field's dtype; a field of a shape is (pages, *shape)

    `result` is a run, as in `gridml.load`, or what `gridml.compute`, `gridml.load` or `gridml.infer` returned. `name`
    is a vertex type, such as "Page", or edges with mutable fields, such as "Document.words", whose table has no ids. It
    may be left out if only one type has several vertices. `which` is as in `gridml.load`, for a run. Modules are in no
    table. Columns are those of a result given as arrays, and otherwise copies.

    Raises UsageError for a result without that table, and what `gridml.load` raises.
    """
    check_guarded("gridml.table")
    return chosen(tables_of("gridml.table", result, which), name)[1]


def export(
    result: Run | Computed | Mapping[str, Any] | str | os.PathLike[str],
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    which: str | int | None = None,
) -> None:
    """Write the results of one vertex type to a file, in place of one that is there: a `gridml.table`, a row a vertex.

        gridml.export(gridml.compute("pagerank.py"), "ranks.parquet", "Page")

    The suffix of `path` decides the format:

    - .parquet: ids and fields in their own types, a field of a shape as a list of fixed size; needs pyarrow;
    - .csv, .tsv: UTF-8, with a line of names, texts in quotation marks; a field p of shape (2, 3) is the columns p.0.0
      to p.1.2; numbers are as short as they can be read back exactly, and may be inf and nan; bools are True and False;
    - .npz: each column as an array, for `numpy.load`.

    `result`, `name` and `which` are as in `gridml.table`. Raises UsageError for another suffix, without pyarrow, and if
    the file cannot be written; and what `gridml.table` raises.
    """
    check_guarded("gridml.export")
    check_format(Path(path))
    write(chosen(tables_of("gridml.export", result, which), name)[1], Path(path))


def tables_of(call: str, result: Any, which: str | int | None = None) -> dict[str, Table]:
    """Return all tables of a result, by name. Raises UsageError, naming the call, for anything else."""
    found = getattr(result, "arrays", result)  # of a `Computed`
    if isinstance(found, Run | str | os.PathLike):
        _, found = read_arrays(*replica_of(call, found, which))
    elif which is not None:
        raise UsageError(f"{call} got which={which!r} with arrays; expected it with a run only.")
    if not isinstance(found, Mapping):
        raise UsageError(
            f"{call} got {type(result).__name__}; expected a run, or what gridml.load or gridml.compute returned."
        )
    columns: dict[str, Table] = {}
    for field, values in found.items():
        owner, _, name = field.rpartition(".")
        if owner and name != IDS and isinstance(values, np.ndarray) and values.ndim:  # others are state dicts
            columns.setdefault(owner, {})[name] = values
    return {owner: _with_ids(call, owner, each, found) for owner, each in columns.items()}


def _with_ids(call: str, owner: str, columns: Table, found: Mapping[str, Any]) -> Table:
    """Return a table with ids as its first column, if it is one of vertices."""
    lengths = {name: len(values) for name, values in columns.items()}
    rows = next(iter(lengths.values()))
    if "." not in owner:
        columns = {IDS: found.get(f"{owner}.{IDS}", np.arange(rows)), **columns}
        lengths[IDS] = len(columns[IDS])
    if len({*lengths.values()}) > 1:
        raise UsageError(f"{call} got columns of {owner} of unequal length: {lengths}; expected those of one result.")
    return columns


def chosen(tables: Mapping[str, Table], name: str | None) -> tuple[str, Table]:
    """Return (name, table) of the one that is asked for. Raises UsageError if there is none, or None is ambiguous."""
    sizes = {each: rows_of(columns) for each, columns in tables.items()}
    if not tables:
        raise UsageError("the result has no arrays of vertices; what modules learnt is in what gridml.load returns.")
    listed = ", ".join(f"{each} ({rows:,} rows)" for each, rows in sizes.items())
    if name is None:
        several = [each for each, rows in sizes.items() if rows > 1] if len(sizes) > 1 else [*sizes]
        if len(several) != 1:
            raise UsageError(f"the result has several tables; expected the name of one of them: {listed}.")
        name = several[0]
    if name not in tables:
        raise UsageError(f"the result has no fields of {name}; expected one of its tables: {listed}.")
    return name, tables[name]


def rows_of(columns: Table) -> int:
    """Return the number of rows of a table."""
    return len(next(iter(columns.values())))


def check_format(path: Path) -> None:
    """Raise UsageError for a file whose suffix names no format, or one that needs a package which is not installed."""
    if path.suffix.lower() not in _WRITERS:
        raise UsageError(f"{path} names no format by its suffix; expected one of {', '.join(_WRITERS)}.")
    if path.suffix.lower() == ".parquet":
        _pyarrow()


def write(columns: Table, path: Path) -> None:
    """Write a table to a file whose format was checked. Raises UsageError if that fails."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        try:
            with open(unfinished, "wb") as file:
                _WRITERS[path.suffix.lower()](columns, file)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}. Name a file in a folder that exists and has room."
        ) from error


def _pieces(columns: Table) -> Iterator[Table]:
    """Yield a table piece by piece, with views; one piece if it has no rows."""
    count, row_bytes = rows_of(columns), sum(values[:1].nbytes for values in columns.values())
    step = max(1, min(MAX_PIECE_ROWS, MAX_PIECE_BYTES // max(1, row_bytes)))
    for start in range(0, max(1, count), step):
        yield {name: values[start : start + step] for name, values in columns.items()}


def _write_text(columns: Table, file: IO[bytes], delimiter: str) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="")
    # All texts in quotation marks: then 007 stays a text, and csv forgets those around a carriage return.
    lines = csv.writer(text, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    places = {name: [*np.ndindex(values.shape[1:])] for name, values in columns.items()}
    lines.writerow(".".join(map(str, (name, *place))) for name, all_of in places.items() for place in all_of)
    for piece in _pieces(columns):
        flat = (values.reshape(len(values), len(places[name])) for name, values in piece.items())
        lines.writerows(zip(*(_cells(each) for values in flat for each in values.T), strict=True))
    text.flush()
    text.detach()


def _cells(values: Array) -> list[Any]:
    """Return a column (n,) as numbers or texts for csv. Of a float below 64 bits it is the number with the shortest
    text that is read back exactly, not its value as a float64, which has more digits."""
    is_short = values.dtype.kind == "f" and values.dtype.itemsize < 8
    cells: list[Any] = (values.astype(str).astype(float) if is_short else values).tolist()
    return cells


def _write_npz(columns: Table, file: IO[bytes]) -> None:
    # Not np.savez, which takes columns as keyword arguments beside its own, such as `file`.
    with zipfile.ZipFile(file, "w") as packed:
        for name, values in columns.items():
            with packed.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)


def _write_parquet(columns: Table, file: IO[bytes]) -> None:
    arrow, parquet = _pyarrow()
    kinds = {}
    for name, values in columns.items():
        kind = arrow.string() if values.dtype.kind == "U" else arrow.from_numpy_dtype(values.dtype)
        for length in reversed(values.shape[1:]):
            kind = arrow.list_(kind, length)
        kinds[name] = kind
    with parquet.ParquetWriter(file, arrow.schema(kinds.items())) as writer:
        for piece in _pieces(columns):
            made = []
            for values in piece.values():
                nested = arrow.array(np.ascontiguousarray(values).reshape(-1))
                for length in reversed(values.shape[1:]):
                    nested = arrow.FixedSizeListArray.from_arrays(nested, length)
                made.append(nested)
            writer.write_batch(arrow.record_batch(made, names=[*piece]))


def _pyarrow() -> tuple[Any, Any]:
    """Return the packages that write Parquet. Raises UsageError if they are not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise UsageError(
            "Parquet needs pyarrow, which is not installed. Install it: pip install pyarrow; or name a .csv, .tsv or "
            ".npz file, which need nothing more."
        ) from error
    return pyarrow, parquet


_WRITERS: dict[str, Callable[[Table, IO[bytes]], None]] = {
    ".parquet": _write_parquet,
    ".csv": partial(_write_text, delimiter=","),
    ".tsv": partial(_write_text, delimiter="\t"),
    ".npz": _write_npz,
}
