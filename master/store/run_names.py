"""The names of run directories that users did not name."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

from gridml.errors import UsageError

_LEDGERS = ("ledger.db", "ledger.backup.db")  # a directory with one of them is a run, which master.store reads
_LOCK = "master.lock"


def default_root(program_name: str) -> Path:
    """Return where a run of a program would be kept: a directory that is not there yet."""
    return next(root for root in _names(program_name) if not root.exists())


@contextmanager
def claim_root(named: Path | None, program_name: str) -> Iterator[Path]:
    """Make a directory that no other run gets, though it begins in the same second, unless the user has `named` one. If
    nothing was written into it by the end, it is removed. Where an error came before there was a run in it, it is
    removed with all that is in it, but for a `named` one that was there before. Raises UsageError."""
    if named is not None:
        there = os.path.lexists(named)
        try:
            yield named
        except BaseException:
            if not there:
                _remove_unbegun(named)
            raise
        return
    first = not Path("runs").exists()
    root = _made(program_name)
    try:
        yield root
    except BaseException:
        _remove_unbegun(root)
        raise
    finally:
        with contextlib.suppress(OSError):  # mostly because it holds a run
            root.rmdir()
        with contextlib.suppress(OSError):
            if first:
                root.parent.rmdir()


def _remove_unbegun(root: Path) -> None:
    """Remove what a run has left that did not begin: it has no ledger, and nobody else is making one there."""
    with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as held:
        if (lock := root / _LOCK).is_file():
            fcntl.flock(held.enter_context(lock.open()), fcntl.LOCK_EX | fcntl.LOCK_NB)
        if root.is_dir() and not any(os.path.lexists(root / name) for name in _LEDGERS):
            shutil.rmtree(root)


def _made(program_name: str) -> Path:
    for root in _names(program_name):
        try:
            while True:
                root.parent.mkdir(exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # another run has just removed the parent
                    root.mkdir()
                    return root
        except FileExistsError as error:
            if root.parent.is_dir():
                continue
            raise _not_made(root, error) from error
        except (OSError, ValueError) as error:
            raise _not_made(root, error) from error
    raise AssertionError  # there are names without end


def _not_made(root: Path, error: Exception) -> UsageError:
    return UsageError(f"the run directory {root} cannot be made: {error}. Name another with --run-dir.")


def _names(program_name: str) -> Iterator[Path]:
    usual = Path("runs") / f"{program_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return chain([usual], (usual.with_name(f"{usual.name}-{number}") for number in count(2)))
