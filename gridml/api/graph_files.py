"""`gridml.graph_from`: the graph in a file, such as ratings or a corpus, as memory-mapped arrays for `Graph.add`."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.datasets.pinned import folders
from gridml.errors import StorageError, UsageError
from gridml.model.graph import Edges, csr
from gridml.model.ragged import number_of
from gridml.placement.files import registry
from gridml.placement.files.edge_columns import (
    OFFSETS,
    TARGETS,
    WEIGHT,
    EdgeList,
    EdgeReader,
    Libsvm,
    MatrixMarket,
    gather,
    group,
)
from gridml.placement.files.source import GraphSource
from gridml.protocol.foreign import map_array

Array = NDArray[Any]
ROW_IDS, COLUMN_IDS, LABELS, COUNTS = "row_ids.npy", "column_ids.npy", "labels.npy", "counts.json"
_READERS: dict[str, Callable[..., EdgeReader]] = {"libsvm": Libsvm, "matrix-market": MatrixMarket, "edges": EdgeList}
BLOCK_BYTES = 2 << 20  # of text, parsed together: what is found in it takes some 20 times the memory
_VERSION = 1  # of the files below the cache; a change of their form changes it


@dataclass(frozen=True)
class FileGraph:
    """The graph in a file: rows, such as users or documents, and edges from each to columns, such as items or words.
    Arrays of edges are memory-mapped and grouped by row."""

    offsets: NDArray[np.int64]  #: (rows + 1,) row i has the edges offsets[i] to offsets[i + 1] - 1
    targets: Array  #: int32 (edges,) the column that each edge leads to
    columns: int
    weight: Array | None = None  #: (edges,) the value of each edge; None if the file has none, or it was left out
    row_ids: Array | None = None  #: (rows,) int64 or texts, ascending; None if the file knows rows by their positions
    column_ids: Array | None = None  #: (columns,) the same for columns
    labels: Array | None = None  #: float64 (rows,) of libsvm

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    def edges(self, **fields: Any) -> Edges:
        """Return the edges for `Graph.add`, with their weight and with further `fields`, as `gridml.csr` does."""
        return csr(self.offsets, self.targets, self.weight, **fields)


def graph_from(
    file: str | os.PathLike[str],
    *,
    columns: Sequence[int | str] | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    general: bool = False,
    weight: Any = "float32",
    format: str | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> FileGraph:
    """Return the graph in a file that `gridml place` reads, with values and ids:

        read = gridml.graph_from("ratings.csv", columns=("userId", "movieId", "rating"))
        g.add(Item, read.columns, ids=read.column_ids, q=start.normal(0, 0.1, (read.columns, RANK)))
        g.add(User, ids=read.row_ids, p=start.normal(0, 0.1, (read.rows, RANK)), rated=read.edges())

    In a list of edges ids are words of text, and rows and columns are numbered in ascending order of these: as numbers
    if all are whole numbers, otherwise as text. `columns` names the columns of row, column and value, from 0 or by the
    names in the first line; by default a line has these two or three alone. `header=True` skips a first line of names.
    `delimiter` is by default a tab, a comma, a semicolon or blanks, whichever the first line has. Lines that begin with
    # or % are comments. With `general=True` rows and columns are the same vertices, as in most graphs of SNAP.

    Matrix Market and libsvm have a value on each edge; hMETIS, a csr-folder and pattern matrices have none. An edge
    that is listed twice is two edges.

    `weight` is the dtype of the values, None to leave them out. `format` is as in `gridml place`, by default that of
    the file's ending. The file is read once, in blocks, and written as arrays below GRIDML_CACHE (or `folder`), where
    the next call finds them while the file's size and time stay the same. So memory holds a block, a bucket of edges
    that are sorted, and what there is for each row and column, but not the edges. An .npz and an hMETIS file are read
    into memory.

    Raises UsageError, naming file and line, for what is not in the format, for a value that is no finite number, and
    for a file without edges; StorageError if the arrays cannot be written.
    """
    path = Path(file)
    form = registry.format_of(path) if format is None else registry.find(format)
    dtype = None if weight is None else number_of(weight, "gridml.graph_from(..., weight=...)")
    source = GraphSource(path, block=BLOCK_BYTES)
    options = {"chosen": columns, "header": header, "delimiter": delimiter, "general": general}
    if form.name != "edges":
        if given := [name for name, value in options.items() if value not in (None, False)]:
            named = ", ".join(given).replace("chosen", "columns")
            raise UsageError(f"{path} is in the format {form.name}, and got {named}, which a list of edges has.")
        options = {}
    if form.name not in _READERS:
        return _whole(path, form.name, dtype)
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}. Name a file.") from error
    if not path.is_file():
        raise source.wrong("is no regular file; expected one that each process of a run can read again")
    key = [_VERSION, str(path.resolve()), status.st_size, status.st_mtime_ns, form.name, options, str(dtype)]
    name = hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()[:32]
    place = (folders(os.environ)[0] / "graphs" if folder is None else Path(folder)) / name
    if (kept := _open(place)) is None:
        _make(place, _READERS[form.name](source, dtype, **options), form.name)
        kept = _open(place)
    if kept is None:
        raise StorageError(f"{place} was written and cannot be read back. Give another folder=.")
    return kept


def _whole(path: Path, name: str, dtype: np.dtype[Any] | None) -> FileGraph:
    """Return the graph in a file that is no text, or has no values."""
    graph = registry.read(path, name)
    if name != "npz" or dtype is None:
        return FileGraph(graph.offsets, graph.neighbours, graph.columns)
    from scipy.sparse import load_npz

    matrix = load_npz(path).tocsr().astype(np.float64)
    values = matrix.data.astype(dtype)
    if not np.isfinite(values).all() or (dtype.kind != "f" and (values != matrix.data).any()):
        raise GraphSource(path).wrong(
            f"has NaN, or values that {dtype} does not hold. Correct them, or give weight=None"
        )
    return FileGraph(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.shape[1], values)


def _make(place: Path, reader: EdgeReader, form: str) -> None:
    """Read a file, and write its arrays into a new folder, which is complete or not there. Raises StorageError."""
    temporary = place.with_name(f".{place.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        temporary.mkdir(parents=True)
        dtype = gather(temporary, reader.records())
        if dtype is None:
            raise reader.source.wrong(f"holds no edges; expected some, in the format {form}")
        group(temporary, reader.rows, reader.columns, dtype)
        for name, side in ((ROW_IDS, reader.rows), (COLUMN_IDS, reader.columns)):
            if side.ids is not None:
                np.save(temporary / name, side.ids)
        if reader.labels:
            np.save(temporary / LABELS, np.concatenate(reader.labels))
        (temporary / COUNTS).write_text(json.dumps({"columns": reader.columns.count}))
        shutil.rmtree(place, ignore_errors=True)  # if it is there, it is damaged
        try:
            temporary.rename(place)
        except OSError:
            if _open(place) is None:  # else another process has just written the same
                raise
    except OSError as error:
        raise StorageError(
            f"the graph of {reader.source.path} cannot be written to {place}: {error}. Free some space, set "
            f"GRIDML_CACHE, or give another folder=."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _open(place: Path) -> FileGraph | None:
    """Return the graph in a folder; None if it is not there, or damaged."""
    try:
        counts = json.loads((place / COUNTS).read_text())
        arrays = {name: map_array(place / name) for name in _present(place)}
        offsets = np.array(arrays[OFFSETS])
        ids = {name: _texts(arrays[name]) for name in (ROW_IDS, COLUMN_IDS) if name in arrays}
        return FileGraph(
            offsets,
            arrays[TARGETS],
            int(counts["columns"]),
            arrays.get(WEIGHT),
            ids.get(ROW_IDS),
            ids.get(COLUMN_IDS),
            arrays.get(LABELS),
        )
    except Exception:  # numpy's parser may raise anything for a damaged file
        return None


def _present(place: Path) -> Iterator[str]:
    return (name for name in (OFFSETS, TARGETS, WEIGHT, ROW_IDS, COLUMN_IDS, LABELS) if (place / name).exists())


def _texts(ids: Array) -> Array:
    """Return ids in memory: numbers, or bytes of UTF-8 as texts."""
    return np.char.decode(ids, "utf-8") if ids.dtype.kind == "S" else np.array(ids)
