"""numpy's .npz: what scipy.sparse.save_npz writes of csr, csc and coo, or only indptr, indices and shape, by rows."""

from __future__ import annotations

import shlex
import zipfile
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.placement.bipartite import Bipartite
from gridml.placement.files.packing import HEAD, packing_of
from gridml.placement.files.source import Source

Array = NDArray[Any]
_AGAIN = "Write the matrix again, by scipy.sparse.save_npz."


def read(source: Source) -> Bipartite:
    """Read a sparse matrix, whatever its values: every entry is an edge. Raises UsageError where it is none."""
    try:
        with source.path.open("rb") as file:
            if not file.seekable():
                raise source.wrong("is a pipe; expected a file, because a .npz is read from its end")
            packing = packing_of(file.read(HEAD))
            if packing is not None and packing[0] != "zip":
                name = shlex.quote(str(source.path))
                raise source.wrong(
                    f"is packed by {packing[0]}; expected a .npz as it is. Unpack it: {packing[1]} {name}"
                )
            if not zipfile.is_zipfile(file):
                raise source.wrong(
                    "is no .npz, or the end of it is missing; expected one as scipy.sparse.save_npz writes"
                )
            file.seek(0)
            with np.load(file, allow_pickle=False) as entries:
                return _graph(source, entries)
    except OSError as error:
        raise UsageError(f"{source.path} cannot be read: {error.strerror or error}. Name a file.") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise source.wrong(f"is damaged: {error}. Get it, or write it, again.") from error


def _graph(source: Source, entries: np.lib.npyio.NpzFile) -> Bipartite:
    form = entries["format"].astype(str).item() if "format" in entries else "csr"
    if form not in ("csr", "csc", "coo"):
        raise source.wrong(f"has the format {form!r}; expected csr, csc or coo")
    shape = _whole(source, entries, "shape")
    if shape.shape != (2,):
        raise source.wrong(f"shape has {shape.size} numbers; expected 2, rows and columns")
    rows, columns = int(shape[0]), int(shape[1])
    if form == "coo":
        u, v = _whole(source, entries, "row"), _whole(source, entries, "col")
        try:
            return Bipartite.from_edges(u, v, (rows, columns))
        except UsageError as error:
            raise source.wrong(f"{error}. {_AGAIN}") from error
    lines = rows if form == "csr" else columns
    offsets, neighbours = _whole(source, entries, "indptr"), _whole(source, entries, "indices")
    if len(offsets) != lines + 1:
        raise source.wrong(f"indptr has {len(offsets):,} numbers; expected {lines + 1:,}, one more than the shape says")
    try:
        graph = Bipartite.from_rows(offsets, neighbours, columns if form == "csr" else rows)
    except UsageError as error:
        raise source.wrong(f"{error}. {_AGAIN}") from error
    return graph if form == "csr" else graph.transposed


def _whole(source: Source, entries: np.lib.npyio.NpzFile, name: str) -> Array:
    if name not in entries:
        held = ", ".join(entries.files) or "nothing"
        raise source.wrong(f"holds {held}; expected {name}, too, as scipy.sparse.save_npz writes")
    array: Array = entries[name]
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise source.wrong(f"{name} is {array.dtype} {array.shape}; expected one row of whole numbers")
    return array.astype(np.int64) if array.dtype.kind == "u" else array  # differences of offsets have a sign
