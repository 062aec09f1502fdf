"""Saved replicas of a run (trained, best, or a version), and the initial weights of a new one.

The best replica by a metric is in best.safetensors, and its SHA-256 in the ledger. A new best replica is staged: it is
written under another name before the transaction that records it, and renamed afterwards. A kill in between leaves both
files, and the SHA-256 in the ledger says which one counts.
"""

from __future__ import annotations

import pickle
import sqlite3
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import VertexState
from gridml.engine.modules import Modules
from gridml.errors import DamagedError, GridmlError, LedgerError, RunError, UsageError
from gridml.model.graph import Graph
from gridml.model.layers import plain
from gridml.protocol import bundle
from gridml.protocol.foreign import described, printable
from gridml.protocol.push import Array, module_key
from master.store.credits import find_point, rollback_points
from master.store.ledger import Ledger
from master.store.reader import opened, read_facts
from master.store.rundir import RunDirectory, RunStatus, command, read_named
from master.store.version_chain import CHANGED, open_chain
from master.store.versions import ReplicaState


@dataclass(frozen=True)
class Best:
    """The version with the best value of a metric so far."""

    version: int
    epoch: int  # epoch that ends with the version, from 0
    goal: str  # such as "min:loss"
    value: float
    sha256: str  # of the replica's file

    FACT: ClassVar[str] = "best"


def read_best(root: Path) -> tuple[Best, dict[str, NDArray[Any]]]:
    """Return the best replica of the run in `root`, and its tensors by their names in final.safetensors.

    Raises LedgerError if there is none, DamagedError if its file is damaged or missing.
    """
    with opened(root) as ledger:
        fact = read_facts(ledger).get(Best.FACT)
    if fact is None:
        raise LedgerError(
            f"{root} has kept no best replica. Name its metric in the program, as in gridml.Program(..., "
            f'keep="best:loss"); the first one is kept after the first evaluation of an epoch.'
        )
    best, directory = Best(**fact), RunDirectory(root)
    try:
        payload = read_named(directory.best, best.sha256, "the best replica")
    except DamagedError:  # perhaps the master was killed between the commit and `publish`
        if not directory.next_best.is_file():
            raise
        payload = read_named(directory.next_best, best.sha256, "the best replica")
    return best, bundle.decode(payload)[1]


class BestCheckpoint:
    """The best replica of one run. Call `stage`, then `record` in the transaction of the evaluation, then `publish`."""

    def __init__(self, directory: RunDirectory, ledger: Ledger) -> None:
        self._directory = directory
        self._ledger = ledger

    @property
    def best(self) -> Best | None:
        """The best so far, from the ledger."""
        fact = self._ledger.get(Best.FACT)
        return None if fact is None else Best(**fact)

    def restore(self) -> None:
        """Finish on startup what a killed master began: publish a staged file that the ledger names, or remove it."""
        if self._directory.next_best.is_file():
            best = self.best
            if best is not None and bundle.digest(self._directory.next_best.read_bytes()) == best.sha256:
                self.publish()
            else:
                self._directory.next_best.unlink()

    def stage(self, best: Best, tensors: Mapping[str, NDArray[Any]]) -> Best:
        """Write a candidate durably; return it with its SHA-256. Raises OSError.

        Any thread can call it, because it does not use the ledger.
        """
        message = {"version": best.version, "epoch": best.epoch + 1, "goal": best.goal, "value": best.value}
        pieces = bundle.pieces(message, tensors)
        bundle.write_atomic(self._directory.next_best, pieces)
        return replace(best, sha256=pieces.sha256)

    def record(self, best: Best) -> None:
        """Record the staged replica as the best. Call inside a transaction of the ledger."""
        self._ledger.set(Best.FACT, asdict(best))

    def publish(self) -> None:
        """Rename the staged file, which the ledger now names, to best.safetensors."""
        self._directory.next_best.replace(self._directory.best)
        bundle.sync_folder(self._directory.root)


FINAL, BEST = "final", "best"
FINAL_SHA256 = "final_sha256"  # a fact of the run: the SHA-256 of final.safetensors
_BUFFER = "#"  # separates a tensor's name from that of a merge rule's buffer


@dataclass(frozen=True)
class SavedReplica:
    """A saved replica, without the buffers of merge rules."""

    version: int
    tensors: Mapping[str, Array]  # by name: "Type/index/field/parameter", "Type/field"


def replica_named(text: str) -> tuple[Path, str | None]:
    """Parse "RUN" or "RUN:which". Return (directory of the run, which of its replicas or None)."""
    whole, (before, _, which) = Path(text), text.rpartition(":")
    if before and not whole.is_dir() and Path(before).is_dir():  # a directory's own name may contain a colon
        return Path(before), which
    return whole, None


def read_replica(root: Path, which: str | int = FINAL) -> SavedReplica:
    """Return a saved replica of the run in `root`, verified against the ledger.

    `which` is "final", "best", or a version: its number, "v57", or "e3" for the end of the third epoch.

    Raises RunError if the run has no such replica yet, UsageError for a version that is not saved, LedgerError without
    a run or for a damaged file.
    """
    with opened(root) as ledger:
        if which in _NAMED:
            return _NAMED[str(which)](root, ledger)
        name = f"v{which}" if isinstance(which, int) else which
        point = find_point(name, rollback_points(ledger), "which", [*_NAMED])
        (sha256,) = ledger.execute("SELECT sha256 FROM versions WHERE version = ?", (point.version,)).fetchone()
    try:
        tensors = open_chain(RunDirectory(root).versions, point.version, sha256, mapped=False).tensors()
    except DamagedError as error:
        raise LedgerError(f"{error}. The other saved versions are listed by: {command('rollback', root)}") from error
    values = {name: tensor for name, tensor in tensors.items() if not name.startswith(CHANGED) and _BUFFER not in name}
    return SavedReplica(point.version, values)


def _final(root: Path, ledger: sqlite3.Connection) -> SavedReplica:
    path, facts = RunDirectory(root).final, read_facts(ledger)
    if not path.is_file() and facts.get("status") == RunStatus.FINISHED and facts.get(FINAL_SHA256) is None:
        (version,) = ledger.execute("SELECT max(version) FROM versions").fetchone()
        return SavedReplica(version, {})  # nothing is replicated: a run has local fields alone
    if not path.is_file():
        how = command("resume", root)
        raise RunError(
            f"{root} has no trained replica yet: it is written when the run ends. Go on with it ({how}), or load a "
            f"version that is kept: {command('rollback', root)} names them."
        )
    return read_saved_file(path, facts.get(FINAL_SHA256))


def _best(root: Path, ledger: sqlite3.Connection) -> SavedReplica:
    try:
        best, tensors = read_best(root)
    except DamagedError as error:
        raise LedgerError(f"{error}. Put back a copy of it, or load {FINAL!r}, or a version that is kept.") from error
    return SavedReplica(best.version, tensors)


_NAMED: dict[str, Callable[[Path, sqlite3.Connection], SavedReplica]] = {FINAL: _final, BEST: _best}


def read_saved_file(path: Path, sha256: str | None) -> SavedReplica:
    """Return the replica in a whole file. `sha256` is the file's digest in the ledger, None if the ledger has none.
    Raises LedgerError."""
    try:
        payload = np.fromfile(path, np.uint8).data
        if sha256 is not None and bundle.digest(payload) != sha256:
            raise ValueError("its SHA-256 is not the one in the ledger")
        message, tensors = bundle.opened(payload)
        return SavedReplica(int(message["version"]), tensors)
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise LedgerError(
            f"{path} is damaged: {described(error)}. Put back a copy of it, or load a version that is kept: "
            f"{command('rollback', path.parent)} names them."
        ) from error


MAX_SHOWN = 6  # mismatches in one message
_EXPECTED = (
    "expected a run's directory (RUN, or RUN:best, RUN:v57, RUN:e3), or a file of tensors, .safetensors, or .pt with a "
    "state dict"
)


@dataclass(frozen=True)
class InitialWeights:
    """Tensors to begin with, from another run or from a file."""

    source: str  # as the user named it
    tensors: Mapping[str, Array]  # by the names of a replica, or by the keys of a state dict

    @property
    def plain(self) -> bool:
        """Return whether the names are keys of a state dict."""
        return not self.tensors or any(not _is_whole(name) for name in self.tensors)


@dataclass(frozen=True)
class InitializedReplica:
    """A replica before any training."""

    state: ReplicaState
    taken: int  # tensors that come from the initial weights
    total: int  # tensors of the replica


def _is_whole(name: str) -> bool:
    try:
        module_key(name)
    except ValueError:
        return False
    return True


def find_source(text: str) -> tuple[Path, str | None]:
    """Parse --init-from. Return (directory of a run, which of its replicas) or (file, None). Raises UsageError."""
    path, which = replica_named(text)
    if which is not None:
        return path, which
    if path.is_dir():
        return path, FINAL
    if path.is_file():
        return path, None
    raise UsageError(f"--init-from is {text!r}, which does not exist; {_EXPECTED}.")


def located(text: str) -> str:
    """Return --init-from with an absolute path, independent of the working directory. Raises UsageError."""
    path, which = find_source(text)
    return str(path.absolute()) if which is None else f"{path.absolute()}:{which}"


def read_initial_weights(text: str) -> InitialWeights:
    """Read the tensors of a run or a file. Raises UsageError if there are none, or an error of `read_replica`."""
    path, which = find_source(text)
    if which is not None:
        return InitialWeights(text, read_replica(path, which).tensors)
    try:
        with path.open("rb") as file:
            head = file.read(9)
        # Before torch 1.6, torch.save wrote pickles. A safetensors file begins with the size of its header (8 bytes),
        # which can look like a pickle, but the ninth byte is always "{".
        if zipfile.is_zipfile(path) or (head.startswith(pickle.PROTO) and not head.endswith(b"{")):
            return InitialWeights(text, _of_torch(path))
        return InitialWeights(text, bundle.plain_tensors(path.read_bytes()))
    except GridmlError:
        raise
    except pickle.UnpicklingError as error:  # its message is replaced, because it advises to execute the file's content
        raise UsageError(
            f"--init-from is {text!r}, which holds other objects than tensors, such as a whole module or an optimiser, "
            f"and nothing in a file is executed; expected what torch.save(module.state_dict(), file) writes."
        ) from error
    except Exception as error:  # torch raises many types for a bad file
        raise UsageError(
            f"--init-from is {text!r}, which cannot be read: {printable(described(error), 300)}; {_EXPECTED}."
        ) from error


def _of_torch(path: Path) -> dict[str, Array]:
    """Read a state dict saved by torch, without executing anything in the file. Raises what torch raises."""
    import torch

    with warnings.catch_warnings(action="ignore"):  # warnings about old pickles
        state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, Mapping) or not all(torch.is_tensor(tensor) for tensor in state.values()):
        holds = (
            f"with the keys {', '.join(map(str, [*state][:4]))}" if isinstance(state, Mapping) else "of another kind"
        )
        raise UsageError(
            f"--init-from is {str(path)!r}, which holds no state dict but an object {holds}; expected what "
            "torch.save(module.state_dict(), file) writes."
        )
    return {str(name): (t.float() if t.dtype == torch.bfloat16 else t).numpy() for name, t in state.items()}


def initialize_from(graph: Graph, state: ReplicaState, values: InitialWeights, *, partial: bool) -> InitializedReplica:
    """Return the replica `state` with tensors replaced by those of the same names in `values`.

    Floating-point values are converted. Raises UsageError for a name that only one side has, for a different shape or
    kind of dtype, and for NaN and infinity. With `partial`, such tensors are skipped, and UsageError is raised only if
    no tensor fits. Fields of local vertices, which `gridml.load` returns too, are left out: they begin as the graph's.
    """
    own = _own_tensors(state)
    local = {field.replace(":", ".") if ":" in field else field.replace(".", "/") for field in graph.mutable_columns()}
    values = replace(values, tensors={name: each for name, each in values.tensors.items() if name not in local})
    called = _keys(graph) if values.plain else _whole_names(graph, own)
    taken: dict[str, Array] = {}
    odd: list[str] = []
    for name, tensor in values.tensors.items():
        first = called.get(plain(name))
        if first is None:
            odd.append(f"{name} {tensor.shape} is none of the program's")
        elif (problem := _problem(own[first], tensor)) is not None:
            odd.append(f"{name} {problem}")
        else:
            taken[first] = tensor.astype(own[first].dtype)
    there = {called.get(plain(name)) for name in values.tensors}
    odd += [f"{name} {own[name].shape} is not there" for name in own if name not in there]
    if (odd and not partial) or not taken:
        raise UsageError(_refusal(values, odd, len(own), partial=partial))
    return InitializedReplica(_with(state, taken), len(taken), len(own))


def _refusal(values: InitialWeights, odd: list[str], total: int, *, partial: bool) -> str:
    more = f"; {len(odd) - MAX_SHOWN} more" if len(odd) > MAX_SHOWN else ""
    listed = f": {'; '.join(odd[:MAX_SHOWN])}{more}" if odd else ""
    if partial:
        return f"--init-from is {values.source!r}; none of its tensors fits the program's {total:,} tensors{listed}."
    return (
        f"--init-from is {values.source!r}, which does not fit the program's {total:,} tensors{listed}. Add "
        "--init-partial to use only the tensors that fit, and the program's own initial values for the others."
    )


def _own_tensors(state: ReplicaState) -> dict[str, Array]:
    arrays = {f"{name}/{field}": column for name, fields in state.arrays.items() for field, column in fields.items()}
    return {**{n: t for vertex in state.modules.values() for n, t in vertex.tensors.items()}, **arrays}


def _keys(graph: Graph) -> dict[str, str]:
    """Map the keys of the program's only module to names of the replica. Raises UsageError if it has several modules,
    or none."""
    tables = [table for table in graph.replicated if table.type.modules]
    if len(tables) != 1 or tables[0].count != 1 or len(tables[0].type.modules) != 1:
        raise UsageError(
            "--init-from names a file with the keys of one state dict, but the program has several modules, or none. "
            "Name the file's tensors Type/index/field/KEY, as final.safetensors of a run does."
        )
    ((_, names),) = Modules(tables[0].type).names(0).items()
    return {plain(key): first for key, first in names.items()}


def _whole_names(graph: Graph, own: Mapping[str, Array]) -> dict[str, str]:
    """Map each tensor's name to its name in the replica. There, a tensor that is tied to an earlier tensor has the name
    of the earlier one."""
    called = {name: name for name in own}
    for table in graph.replicated:
        modules = Modules(table.type)
        for index in range(table.count) if table.type.modules else ():
            for field, names in modules.names(index).items():
                called |= {f"{table.type.name}/{index}/{field}/{plain(key)}": first for key, first in names.items()}
            modules.keep_only(())
    return called


def _problem(own: Array, tensor: Array) -> str | None:
    """Return why a tensor cannot replace one of the program's, None if it can."""
    if tensor.shape != own.shape:
        return f"is {tensor.shape} there, and {own.shape} here"
    if tensor.dtype != own.dtype and (tensor.dtype.kind, own.dtype.kind) != ("f", "f"):
        return f"is {tensor.dtype} there, and {own.dtype} here"
    if own.dtype.kind == "f" and np.isfinite(own).all() and not np.isfinite(tensor).all():
        return "holds NaN or infinity"
    return None


def _with(state: ReplicaState, taken: Mapping[str, Array]) -> ReplicaState:
    modules = {
        key: VertexState({n: taken.get(n, t) for n, t in vertex.tensors.items()}, dict(vertex.buffers))
        for key, vertex in state.modules.items()
    }
    arrays = {
        name: {field: taken.get(f"{name}/{field}", column) for field, column in fields.items()}
        for name, fields in state.arrays.items()
    }
    return replace(state, modules=modules, arrays=arrays)
