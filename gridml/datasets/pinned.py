"""Pinned arrays: fetched once from the first place that has them, verified, and kept as memory-mapped files.

What is pinned is the decoded array, not the file it came in, so every source gives the same bytes and the cache needs
no manifest beside it: the pins are one, verified at every load.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.datasets.sources import FAILURES, Report, Source
from gridml.errors import DataError, StorageError


@dataclass(frozen=True)
class Pin:
    """What one array must be: `sha256` is that of its bytes in C order with little-endian `dtype`. Several of them are
    those of as many equal shares of its rows, one after the other."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str | tuple[str, ...]

    @property
    def digests(self) -> tuple[str, ...]:
        return (self.sha256,) if isinstance(self.sha256, str) else self.sha256

    def wrong(self, array: NDArray[Any]) -> str | None:
        """Return the first digest that `array`, C-contiguous and of this shape and dtype, should not have; None where
        all are right."""
        rows = len(array) // len(self.digests)
        for share, expected in enumerate(self.digests):
            if (got := digest(array[share * rows : (share + 1) * rows])) != expected:
                return f"{got}, expected {expected}"
        return None


@dataclass(frozen=True)
class Wanted:
    """A data set by its pinned arrays; `advice` says, a line each, what a person can do where it cannot be had."""

    title: str
    pins: tuple[Pin, ...]
    advice: tuple[str, ...] = ()


def obtain(wanted: Wanted, folder: Path, sources: Sequence[Source], report: Report) -> list[NDArray[Any]]:
    """Return the pinned arrays, in order, memory-mapped from `folder`; if one is missing, all are fetched.

    Two processes may do this at once: each file appears by a rename, complete, and both write the same bytes.
    """
    title, pins = wanted.title, wanted.pins
    if (cached := load(folder, pins, report)) is not None:
        return cached
    failures = []
    for source in sources:
        report(f"{title}: trying {source.name}")
        try:
            fetched = source.fetch(report)
            arrays = [verified(fetched[pin.name], pin) for pin in pins]
        except FAILURES as error:
            reason = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
            failures.append(f"{source.name}: {reason}")
            report(f"{title}: not from {failures[-1]}")
            continue
        for pin, array in zip(pins, arrays, strict=True):
            store(folder, pin, array)
        report(f"{title}: stored in {folder}")
        if (stored := load(folder, pins, report)) is not None:
            return stored
        raise StorageError(
            f"{title} was written to {folder} and reads back with other bytes: the disk is faulty, or something else"
            " writes there. Set GRIDML_CACHE to a folder on another disk."
        )
    tried = "\n".join(f"  - {failure}" for failure in failures)
    advice = "\n".join(f"  - {each}" for each in wanted.advice)
    raise DataError(
        f"{title} cannot be had. Tried:\n{tried}\nDo one of these:\n{advice}\n"
        f"  - open the network to the addresses above\n"
        f"  - run it where the network is, and copy the folder {folder} from there"
    )


def load(folder: Path, pins: Sequence[Pin], report: Report) -> list[NDArray[Any]] | None:
    """Return the cached arrays, memory-mapped read-only, or None when one is missing, torn or not what its pin says."""
    arrays: list[NDArray[Any]] = []
    for pin in pins:
        path = folder / f"{pin.name}.npy"
        header = npy_header(pin)
        try:
            with path.open("rb") as file:
                # Compared, not parsed: only one header is right, and numpy's parser may raise anything on another.
                intact = file.read(len(header)) == header
                array = np.memmap(file, pin.dtype, mode="r", offset=len(header), shape=pin.shape) if intact else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            report(f"{path} cannot be read and is made again: {error}")
            return None
        if array is None or pin.wrong(array):
            report(f"{path} is not what its pinned checksum says and is made again")
            return None
        arrays.append(array)
    return arrays


def npy_header(pin: Pin) -> bytes:
    """Return the first bytes of the .npy file that holds the pinned array."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": pin.dtype, "fortran_order": False, "shape": pin.shape})
    return header.getvalue()


def store(folder: Path, pin: Pin, array: NDArray[Any]) -> None:
    """Write a verified array as .npy so that a reader, another writer or a crash sees the whole file or none of it."""
    path = folder / f"{pin.name}.npy"
    temporary = folder / f".{pin.name}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(npy_header(pin))
                file.write(array.data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _fsync_folder(folder)
    except OSError as error:
        raise StorageError(
            f"{path} ({array.nbytes:,} bytes) cannot be written: {error}. Free some space, or set GRIDML_CACHE to a"
            " folder that can be written to."
        ) from error


def _fsync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verified(raw: NDArray[Any], pin: Pin) -> NDArray[Any]:
    """Return `raw` in the shape and dtype of its pin. Raises DataError when size or bytes differ from the pin's."""
    if raw.size != math.prod(pin.shape):
        raise DataError(f"{pin.name} holds {raw.size} items, expected {math.prod(pin.shape)}")
    array = np.ascontiguousarray(raw.reshape(pin.shape), dtype=pin.dtype)
    if wrong := pin.wrong(array):
        raise DataError(f"{pin.name} has the SHA-256 {wrong}")
    return array


def digest(array: NDArray[Any]) -> str:
    """Return the SHA-256 of the bytes of a C-contiguous array."""
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
