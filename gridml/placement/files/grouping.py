"""Grouping of edges by row, on disk: edges that come in any order become arrays in CSR form, in bounded memory.

Records are written to one file as they come, and then distributed to files of consecutive rows, each of which fits into
memory and is sorted there (a bucket sort). Edges of a row keep the order in which they came.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from gridml.placement.files.edge_columns import COLUMN, ROW, VALUE, Endpoints

Array = NDArray[Any]
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
