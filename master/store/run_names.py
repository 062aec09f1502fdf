"""Default run directories: unique names, claimed atomically, removed if the run does not begin."""

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

# A directory that holds one of these is a run.
_LEDGERS = ("ledger.db", "ledger.backup.db")
_LOCK = "master.lock"


def default_root(program_name: str) -> Path:
    """Return the default directory for a new run of a program, which does not exist yet."""
    return next(root for root in _names(program_name) if not root.exists())


@contextmanager
def claim_root(named: Path | None, program_name: str) -> Iterator[Path]:
    """Create a directory for a new run, or use the one that the user `named`. Raises UsageError.

    Creation is atomic, so runs that begin in the same second get different directories. A new directory that is empty
    on exit is removed. If an error occurs before the run has a ledger, the directory is removed with its content,
    unless the user `named` it and it existed before.
    """
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
        with contextlib.suppress(OSError):  # in most cases it is not empty: it contains a run
            root.rmdir()
        with contextlib.suppress(OSError):
            if first:
                root.parent.rmdir()


def _remove_unbegun(root: Path) -> None:
    """Remove a directory without a ledger in which no other process is starting a run."""
    with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as held:
        if (lock := root / _LOCK).is_file():  # if another process holds it: BlockingIOError, which is suppressed
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
    raise AssertionError  # `_names` is endless


def _not_made(root: Path, error: Exception) -> UsageError:
    return UsageError(f"the run directory {root} cannot be made: {error}. Name another with --run-dir.")


def _names(program_name: str) -> Iterator[Path]:
    usual = Path("runs") / f"{program_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return chain([usual], (usual.with_name(f"{usual.name}-{number}") for number in count(2)))
