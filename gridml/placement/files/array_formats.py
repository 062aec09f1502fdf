"""Array formats of graphs: numpy's .npz, and a folder of arrays.

An .npz is the output of scipy.sparse.save_npz for a csr, csc or coo matrix, or holds just the indptr, indices and shape
of a csr matrix. A folder holds indptr.npy, indices.npy and shape.npy, as if scipy's .npz of a csr matrix were unzipped.
The indices of a folder are memory-mapped, so a graph can be larger than memory.
"""

from __future__ import annotations

import math
import os
import secrets
import shlex
import shutil
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from gridml.errors import GridmlError, StorageError, UsageError
from gridml.placement.bipartite import MAX_COUNT, Bipartite, Ids, Offsets
from gridml.placement.files.source import HEAD, GraphSource, compression_of
from gridml.protocol.foreign import MAX_NAME_CHARS, map_array, printable, read_npy_header

Array = NDArray[Any]
_AGAIN = "Write the matrix again, by scipy.sparse.save_npz."
_MAX_DEFLATED = 1032  # largest ratio of deflate's compression; a file that claims a larger one is damaged


def read_array(file: IO[bytes], max_bytes: float) -> Array:
    """Read a .npy of at most `max_bytes`. Memory is allocated only after the header has shown that the array is not
    larger. Raises ValueError for all other content."""
    try:
        with warnings.catch_warnings(action="ignore"):  # numpy warns of headers that Python 2 wrote
            shape, dtype = read_npy_header(file)
            if math.prod(shape) * dtype.itemsize > max_bytes:
                raise ValueError(f"its header says {dtype} {shape}, which is more than the file holds")
            file.seek(0)
            return np.asarray(npy.read_array(file, allow_pickle=False))
    except Exception as error:  # numpy's parser may raise anything for a damaged header
        raise ValueError(printable(str(error), MAX_NAME_CHARS)) from error


def read_npz(source: GraphSource) -> Bipartite:
    """Read a sparse matrix. Every entry is an edge, whatever its value. Raises UsageError for other files."""
    try:
        with source.path.open("rb") as file:
            if not file.seekable():
                raise source.wrong("is a pipe; expected a file, because a .npz is read from its end")
            packing = compression_of(file.read(HEAD))
            if packing is not None and packing[0] != "zip":
                name = shlex.quote(str(source.path))
                raise source.wrong(
                    f"is compressed by {packing[0]}; expected a plain .npz. Decompress it: {packing[1]} {name}"
                )
            if not zipfile.is_zipfile(file):
                raise source.wrong(
                    "is no .npz, or the end of it is missing; expected one as scipy.sparse.save_npz writes"
                )
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                return _graph(source, archive)
    except GridmlError:
        raise
    except OSError as error:
        raise UsageError(f"{source.path} cannot be read: {error.strerror or error}. Name a file.") from error
    except Exception as error:  # zipfile raises many types for a damaged file
        why = printable(str(error), MAX_NAME_CHARS)
        raise source.wrong(f"is damaged: {why}. Get it, or write it, again.") from error


def _graph(source: GraphSource, archive: zipfile.ZipFile) -> Bipartite:
    form = _entry(source, archive, "format").astype(str).item() if f"format{_NPY}" in archive.namelist() else "csr"
    if form not in ("csr", "csc", "coo"):
        raise source.wrong(f"has the format {form[:MAX_NAME_CHARS]!r}; expected csr, csc or coo")
    shape = _whole(source, archive, "shape")
    if shape.shape != (2,):
        raise source.wrong(f"shape has {shape.size} numbers; expected 2, rows and columns")
    rows, columns = int(shape[0]), int(shape[1])
    if form == "coo":
        u, v = _whole(source, archive, "row"), _whole(source, archive, "col")
        source.check_size(rows, columns, len(u))
        try:
            return Bipartite.from_edges(u, v, (rows, columns))
        except UsageError as error:
            raise source.wrong(f"{error}. {_AGAIN}") from error
    lines = rows if form == "csr" else columns
    offsets, neighbours = _whole(source, archive, "indptr"), _whole(source, archive, "indices")
    source.check_size(rows, columns, len(neighbours))
    if len(offsets) != lines + 1:
        raise source.wrong(f"indptr has {len(offsets):,} numbers; expected {lines + 1:,}, one more than the shape says")
    try:
        graph = Bipartite.from_rows(offsets, neighbours, columns if form == "csr" else rows)
    except UsageError as error:
        raise source.wrong(f"{error}. {_AGAIN}") from error
    return graph if form == "csr" else graph.transposed


_NPY = ".npy"


def _entry(source: GraphSource, archive: zipfile.ZipFile, name: str) -> Array:
    if name + _NPY not in archive.namelist():
        held = printable(", ".join(each.removesuffix(_NPY) for each in archive.namelist()) or "nothing", MAX_NAME_CHARS)
        raise source.wrong(f"holds {held}; expected {name}, too, as scipy.sparse.save_npz writes")
    info = archive.getinfo(name + _NPY)
    # Other compression methods are rejected, because Python decompresses them at once, whatever their ratio.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is compressed by method {info.compress_type}, and numpy's are 0 and 8")
    with archive.open(info) as file:
        return read_array(file, min(info.file_size, _MAX_DEFLATED * source.path.stat().st_size))


def _whole(source: GraphSource, archive: zipfile.ZipFile, name: str) -> Array:
    array = _entry(source, archive, name)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise source.wrong(f"{name} is {array.dtype} {array.shape}; expected one row of whole numbers")
    return array.astype(np.int64) if array.dtype.kind == "u" else array  # differences of unsigned offsets would wrap


OFFSETS, NEIGHBOURS, SHAPE, FORMAT = "indptr.npy", "indices.npy", "shape.npy", "format.npy"
_HEADER = 128  # bytes reserved for the header of a .npy. Enough for any count, which is known only after the data.


def read_csr_folder(source: GraphSource) -> Bipartite:
    """Return the graph with memory-mapped neighbours. Raises UsageError if the folder holds no graph; the neighbours
    are only checked when they are read."""
    offsets, neighbours, shape = (_array(source, name) for name in (OFFSETS, NEIGHBOURS, SHAPE))
    if (source.path / FORMAT).exists() and (form := _array(source, FORMAT).astype(str).item()) != "csr":
        raise source.wrong(f"has the format {form!r}; expected csr, a matrix by rows: matrix.tocsr()")
    if shape.shape != (2,) or offsets.ndim != 1 or neighbours.ndim != 1 or offsets.shape[0] != int(shape[0]) + 1:
        raise source.wrong(f"{OFFSETS} has {offsets.size:,} numbers; expected one more than rows, and {SHAPE} has two")
    if neighbours.dtype != np.int32 or offsets.dtype not in (np.int32, np.int64):
        raise source.wrong(f"{NEIGHBOURS} is {neighbours.dtype}, {OFFSETS} {offsets.dtype}; expected int32 and int64")
    starts, columns = np.array(offsets, np.int64), int(shape[1])
    if len(starts) - 1 > MAX_COUNT or not 0 <= columns <= MAX_COUNT:
        raise source.wrong(f"has {len(starts) - 1:,} rows and {columns:,} columns; expected at most {MAX_COUNT:,}")
    source.check_size(len(starts) - 1, columns, len(neighbours))
    if starts[0] != 0 or starts[-1] != len(neighbours) or (np.diff(starts) < 0).any():
        raise source.wrong(
            f"{OFFSETS} must ascend from 0 to the {len(neighbours):,} numbers of {NEIGHBOURS}. "
            "Write the folder again: gridml place GRAPH --store"
        )
    return Bipartite(starts, neighbours, columns)


def _array(source: GraphSource, name: str) -> NDArray[Any]:
    try:
        return map_array(source.path / name)
    except OSError as error:
        if not source.path.is_dir():
            why = "it is a file" if source.path.exists() else "No such file or directory"
            raise UsageError(
                f"{source.path} cannot be read: {why}; expected a folder that gridml place --store wrote"
            ) from error
        raise source.wrong(
            f"{name} cannot be read: {error.strerror or error}; expected a folder with {OFFSETS}, {NEIGHBOURS} and "
            f"{SHAPE}, which gridml place GRAPH --store writes"
        ) from error
    except Exception as error:  # numpy's parser may raise anything for a damaged header
        raise source.wrong(f"{name} is damaged: {printable(str(error), MAX_NAME_CHARS)}. Write it again.") from error


def check_new(folder: Path) -> None:
    """Raise UsageError if the folder exists."""
    if folder.exists():
        raise UsageError(
            f"{folder} exists already; expected a new name for --store. To place what it holds: gridml place {folder}"
        )


def write(folder: Path, pieces: Iterable[Bipartite]) -> None:
    """Write a graph that is given in pieces of consecutive rows. The folder is created atomically, with all its files.

    Raises UsageError if the folder exists already, StorageError if it cannot be written.
    """
    check_new(folder)
    new = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}.new")
    try:
        try:
            new.mkdir(parents=True)
            rows = edges = columns = 0
            with (new / OFFSETS).open("xb") as offsets, (new / NEIGHBOURS).open("xb") as neighbours:
                for file in (offsets, neighbours):
                    file.write(bytes(_HEADER))  # a placeholder: the counts are known at the end
                offsets.write(bytes(8))
                for piece in pieces:
                    (piece.offsets[1:] + edges).tofile(offsets)
                    piece.neighbours.tofile(neighbours)
                    rows, edges, columns = rows + piece.rows, edges + piece.edges, max(columns, piece.columns)
                _head(offsets, np.empty(0, np.int64), rows + 1)
                _head(neighbours, np.empty(0, np.int32), edges)
            np.save(new / SHAPE, np.array([rows, columns], np.int64))
            new.rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error}. Make room, or name another --store.") from error


def _head(file: IO[bytes], like: Offsets | Ids, count: int) -> None:
    """Write numpy's header for `count` numbers, padded with blanks to `_HEADER` bytes."""
    file.flush()
    head = f"{{'descr': {like.dtype.str!r}, 'fortran_order': False, 'shape': ({count},), }}"
    body = head.encode().ljust(_HEADER - 11) + b"\n"
    file.seek(0)
    file.write(b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body)
    file.flush()
    os.fsync(file.fileno())
