"""Reading a replica that a run keeps, from outside: the trained one, the best one, or a version."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gridml.errors import DamagedError, LedgerError, RunError
from gridml.protocol import bundle
from gridml.protocol.push import Array
from gridml.protocol.text import described
from master.store.best import read_best
from master.store.reader import opened
from master.store.run_facts import read_facts
from master.store.rundir import RunDirectory, command
from master.store.undo import find_point, points
from master.store.version_chain import CHANGED, open_chain

FINAL, BEST = "final", "best"
FINAL_SHA256 = "final_sha256"  # in the ledger: of the file final.safetensors
_BUFFER = "#"


@dataclass(frozen=True)
class KeptReplica:
    """A replica of a run: its `version`, and its tensors by the names they have in files, "Type/index/field/parameter"
    and "Type/field"; without what merge rules remember."""

    version: int
    tensors: Mapping[str, Array]


def replica_named(text: str) -> tuple[Path, str | None]:
    """Return the run that a text names, "RUN" or "RUN:which", and which of its replicas, None where it says none. A
    directory whose own name has a colon is that directory."""
    whole, (before, _, which) = Path(text), text.rpartition(":")
    if before and not whole.is_dir() and Path(before).is_dir():
        return Path(before), which
    return whole, None


def read_replica(root: Path, which: str | int = FINAL) -> KeptReplica:
    """Return a replica that the run in `root` keeps: "final", the trained one; "best"; or a version by its number, as
    "v57" or as the end of an epoch, "e3". Its file must be what the ledger says.

    Raises RunError where the run does not have it, UsageError for a version that is not kept, LedgerError where there
    is no run or the file is damaged.
    """
    with opened(root) as ledger:
        if which in _NAMED:
            return _NAMED[str(which)](root, ledger)
        point = find_point(f"v{which}" if isinstance(which, int) else which, points(ledger), "which", [*_NAMED])
        (sha256,) = ledger.execute("SELECT sha256 FROM versions WHERE version = ?", (point.version,)).fetchone()
    try:
        tensors = open_chain(RunDirectory(root).versions, point.version, sha256, mapped=False).tensors()
    except DamagedError as error:
        raise LedgerError(f"{error}. The others are those of: {command('rollback', root)}") from error
    values = {name: tensor for name, tensor in tensors.items() if not name.startswith(CHANGED) and _BUFFER not in name}
    return KeptReplica(point.version, values)


def _final(root: Path, ledger: sqlite3.Connection) -> KeptReplica:
    path = RunDirectory(root).final
    if not path.is_file():
        how = command("resume", root)
        raise RunError(
            f"{root} has no trained replica yet: it is written when the run ends. Go on with it ({how}), or load a "
            f"version that is kept: {command('rollback', root)} names them."
        )
    return read_kept_file(path, read_facts(ledger).get(FINAL_SHA256))


def _best(root: Path, ledger: sqlite3.Connection) -> KeptReplica:
    try:
        best, tensors = read_best(root)
    except DamagedError as error:
        raise LedgerError(f"{error}. Put back a copy of it, or load {FINAL!r}, or a version that is kept.") from error
    return KeptReplica(best.version, tensors)


_NAMED: dict[str, Callable[[Path, sqlite3.Connection], KeptReplica]] = {FINAL: _final, BEST: _best}


def read_kept_file(path: Path, sha256: str | None) -> KeptReplica:
    """Return the replica in a file that holds one whole, whose SHA-256 the ledger has. Raises LedgerError."""
    try:
        payload = np.fromfile(path, np.uint8).data
        if sha256 is not None and bundle.digest(payload) != sha256:
            raise ValueError("its SHA-256 is not the one in the ledger")
        message, tensors = bundle.opened(payload)
        return KeptReplica(int(message["version"]), tensors)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(
            f"{path} is damaged: {described(error)}. Put back a copy of it, or load a version that is kept: "
            f"{command('rollback', path.parent)} names them."
        ) from error
