"""Files of the fields that f changes: .npy, made so that a full disk is an error at once, read only as what they were.

A memory-mapped file that has holes kills its process with SIGBUS when the disk is full and a hole is written to. So
every block is allocated before the file is mapped, and no file here is a reflink, whose blocks are allocated when they
are first written to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import DamagedError
from gridml.model.digest import block_digest, blocks

Array = NDArray[Any]


@dataclass(frozen=True)
class Base:
    """The fields as the epochs up to `version` left them, in files that nobody writes to again: the SHA-256 of each
    block (`gridml.model.digest`) by "Type.field"."""

    version: int
    digests: Mapping[str, Sequence[str]]


def create(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Make a .npy file of which every block is allocated, and map it. Raises OSError."""
    size = dtype.itemsize * prod(shape)
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        if size:
            os.posix_fallocate(file.fileno(), file.tell(), size)
    return np.asanyarray(np.load(path, mmap_mode="r+")) if size else np.empty(shape, dtype)


def open_base(path: Path, like: Array) -> Array:
    """Map a base for reading. Raises DamagedError where it is gone, or has not the dtype and shape of `like`."""
    try:
        column = np.load(path, mmap_mode="r" if like.size else None)
    except (OSError, ValueError, EOFError, SyntaxError) as error:  # NumPy's for a header that makes no sense
        raise DamagedError(f"{path} cannot be read: {error}", path) from error
    if column.shape != like.shape or column.dtype != like.dtype:
        raise DamagedError(f"{path} holds {column.dtype} {column.shape}, expected {like.dtype} {like.shape}", path)
    return np.asanyarray(column)


def copy_base(path: Path, target: Array, digests: Sequence[str]) -> None:
    """Copy a base into `target`, each block if it has its digest. Raises DamagedError, naming the vertices."""
    source = open_base(path, target)
    parts = list(blocks(source))
    if len(digests) != len(parts):
        raise DamagedError(f"{path} has {len(parts)} blocks, the ledger names {len(digests)}", path)
    for rows, digest in zip(parts, digests, strict=True):
        block = np.array(source[rows])
        if block_digest(block) != digest:
            raise DamagedError(f"{path} is damaged between vertices {rows.start:,} and {rows.stop - 1:,}", path)
        target[rows] = block


def copy_column(source: Array, target: Array) -> None:
    """Copy a graph's own column into `target`, block by block."""
    for rows in blocks(source):
        target[rows] = source[rows]


def flush(column: Array) -> None:
    """Make what was written to a mapped file durable. Raises OSError."""
    if isinstance(column, np.memmap):
        column.flush()
