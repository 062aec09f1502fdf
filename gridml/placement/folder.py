"""The folder that a placement is kept in: it is there with all of its files, or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from gridml.errors import StorageError, UsageError
from gridml.placement.base import Parts, Placement

ROWS, COLUMNS, QUALITY = "u_part.npy", "v_part.npy", "quality.json"
FILES = frozenset({ROWS, COLUMNS, QUALITY})


def check_free(folder: Path) -> None:
    """Raise UsageError where `folder` is a file, or holds anything but an earlier placement."""
    try:
        held = {path.name for path in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}. Name a folder.") from error
    if other := sorted(held - FILES):
        raise UsageError(
            f"{folder} holds {other[0]} already; expected an empty folder, one with a placement, which is replaced, or "
            "none. Name another --out."
        )


def save(folder: Path, placement: Placement, quality: str) -> None:
    """Write the parts of rows and columns, int32, and the `quality` beside them; a placement that is there is replaced.

    Raises UsageError where the folder holds something else, and StorageError where it cannot be written.
    """
    check_free(folder)
    there = folder.resolve()  # a link stays one
    name = f".{there.name}-{secrets.token_hex(4)}"
    new, old = there.with_name(f"{name}.new"), there.with_name(f"{name}.old")
    try:
        try:
            new.mkdir(parents=True)
            _write(new / ROWS, partial(_save, placement.rows))
            _write(new / COLUMNS, partial(_save, placement.columns))
            _write(new / QUALITY, lambda file: file.write(quality.encode() + b"\n"))
            _move(new, there, old)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            if there.exists():
                shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error}. Make room, or name another --out.") from error


def _move(new: Path, there: Path, old: Path) -> None:
    """A folder is replaced only by two renames; if the second fails the first is undone."""
    if not there.exists():
        new.rename(there)
        return
    there.rename(old)
    try:
        new.rename(there)
    except OSError:
        old.rename(there)
        raise


def _write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    with path.open("xb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())


def _save(parts: Parts, file: IO[bytes]) -> None:
    np.save(file, parts.astype(np.int32, copy=False), allow_pickle=False)
