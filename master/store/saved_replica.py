"""Reads a replica that a run keeps (trained, best or a version), and the weights that a run begins with.

The best replica by a metric of evaluate is best.safetensors, which the ledger names. A new one is written beside it
before the evaluation is in the ledger, and takes its place after: a kill between the two leaves both, and the
ledger says which of them is the best.

A run may begin with the replica of another run, or with tensors in a file, instead of what factories make.
"""

from __future__ import annotations

import pickle
import sqlite3
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
from gridml.protocol import bundle
from gridml.protocol.foreign import described
from gridml.protocol.push import Array, module_key
from master.store.credits import find_point, rollback_points
from master.store.ledger import Ledger
from master.store.reader import opened, read_facts
from master.store.rundir import RunDirectory, command, read_named
from master.store.version_chain import CHANGED, open_chain
from master.store.versions import ReplicaState


@dataclass(frozen=True)
class Best:
    """Version `version` of the replica, at the end of epoch `epoch` (from 0), has the best `value` of a metric so far;
    `goal` is "min:loss" or alike, `sha256` the file's."""

    version: int
    epoch: int
    goal: str
    value: float
    sha256: str

    FACT: ClassVar[str] = "best"


def read_best(root: Path) -> tuple[Best, dict[str, NDArray[Any]]]:
    """Return the best replica of the run in `root`, and its tensors by the names that they have in final.safetensors.

    Raises LedgerError where there is none, DamagedError where its file is damaged or gone.
    """
    with opened(root) as ledger:
        fact = read_facts(ledger).get(Best.FACT)
    if fact is None:
        raise LedgerError(
            f"{root} has kept no best replica. Say what it is the best of, as in gridml.Program(..., "
            f'keep="best:loss"); there is one once an epoch has been evaluated.'
        )
    best, directory = Best(**fact), RunDirectory(root)
    try:
        payload = read_named(directory.best, best.sha256, "the best replica")
    except DamagedError:
        if not directory.next_best.is_file():
            raise
        payload = read_named(directory.next_best, best.sha256, "the best replica")
    return best, bundle.decode(payload)[1]


class BestCheckpoint:
    """Keeps the best replica of one run."""

    def __init__(self, directory: RunDirectory, ledger: Ledger) -> None:
        self._directory = directory
        self._ledger = ledger

    @property
    def best(self) -> Best | None:
        """The best so far, as the ledger has it."""
        fact = self._ledger.get(Best.FACT)
        return None if fact is None else Best(**fact)

    def restore(self) -> None:
        """Finish what a master was at that was killed: the file that the ledger names takes its place, what it does not
        name is removed."""
        if self._directory.next_best.is_file():
            best = self.best
            if best is not None and bundle.digest(self._directory.next_best.read_bytes()) == best.sha256:
                self.publish()
            else:
                self._directory.next_best.unlink()

    def stage(self, best: Best, tensors: Mapping[str, NDArray[Any]]) -> Best:
        """Write what may become the best replica, durable; return it with its SHA-256. Touches no ledger, so that any
        thread may call it. Raises OSError."""
        message = {"version": best.version, "epoch": best.epoch + 1, "goal": best.goal, "value": best.value}
        pieces = bundle.pieces(message, tensors)
        bundle.write_atomic(self._directory.next_best, pieces)
        return replace(best, sha256=pieces.sha256)

    def record(self, best: Best) -> None:
        """Name what was staged as the best. Must be called inside the ledger's transaction."""
        self._ledger.set(Best.FACT, asdict(best))

    def publish(self) -> None:
        """Let the file that the ledger now names take its place."""
        self._directory.next_best.replace(self._directory.best)
        bundle.sync_folder(self._directory.root)


FINAL, BEST = "final", "best"
FINAL_SHA256 = "final_sha256"  # in the ledger: of the file final.safetensors
_BUFFER = "#"


@dataclass(frozen=True)
class SavedReplica:
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


def read_replica(root: Path, which: str | int = FINAL) -> SavedReplica:
    """Return a replica that the run in `root` keeps: "final", the trained one; "best"; or a version by its number, as
    "v57" or as the end of an epoch, "e3". Its file must be what the ledger says.

    Raises RunError where the run does not have it, UsageError for a version that is not kept, LedgerError where there
    is no run or the file is damaged.
    """
    with opened(root) as ledger:
        if which in _NAMED:
            return _NAMED[str(which)](root, ledger)
        point = find_point(
            f"v{which}" if isinstance(which, int) else which, rollback_points(ledger), "which", [*_NAMED]
        )
        (sha256,) = ledger.execute("SELECT sha256 FROM versions WHERE version = ?", (point.version,)).fetchone()
    try:
        tensors = open_chain(RunDirectory(root).versions, point.version, sha256, mapped=False).tensors()
    except DamagedError as error:
        raise LedgerError(f"{error}. The others are those of: {command('rollback', root)}") from error
    values = {name: tensor for name, tensor in tensors.items() if not name.startswith(CHANGED) and _BUFFER not in name}
    return SavedReplica(point.version, values)


def _final(root: Path, ledger: sqlite3.Connection) -> SavedReplica:
    path = RunDirectory(root).final
    if not path.is_file():
        how = command("resume", root)
        raise RunError(
            f"{root} has no trained replica yet: it is written when the run ends. Go on with it ({how}), or load a "
            f"version that is kept: {command('rollback', root)} names them."
        )
    return read_saved_file(path, read_facts(ledger).get(FINAL_SHA256))


def _best(root: Path, ledger: sqlite3.Connection) -> SavedReplica:
    try:
        best, tensors = read_best(root)
    except DamagedError as error:
        raise LedgerError(f"{error}. Put back a copy of it, or load {FINAL!r}, or a version that is kept.") from error
    return SavedReplica(best.version, tensors)


_NAMED: dict[str, Callable[[Path, sqlite3.Connection], SavedReplica]] = {FINAL: _final, BEST: _best}


def read_saved_file(path: Path, sha256: str | None) -> SavedReplica:
    """Return the replica in a file that holds one whole, whose SHA-256 the ledger has. Raises LedgerError."""
    try:
        payload = np.fromfile(path, np.uint8).data
        if sha256 is not None and bundle.digest(payload) != sha256:
            raise ValueError("its SHA-256 is not the one in the ledger")
        message, tensors = bundle.opened(payload)
        return SavedReplica(int(message["version"]), tensors)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(
            f"{path} is damaged: {described(error)}. Put back a copy of it, or load a version that is kept: "
            f"{command('rollback', path.parent)} names them."
        ) from error


MAX_SHOWN = 6  # names that do not fit
_EXPECTED = (
    "expected a run's directory (RUN, or RUN:best, RUN:v57, RUN:e3), or a file of tensors, .safetensors, or .pt with a "
    "state dict"
)


@dataclass(frozen=True)
class InitialWeights:
    """Tensors by names: a replica's own, or plain keys of the state dict of the only module that there is."""

    source: str
    tensors: Mapping[str, Array]

    @property
    def plain(self) -> bool:
        """Whether the names are keys of a state dict."""
        return not self.tensors or any(not _is_whole(name) for name in self.tensors)


@dataclass(frozen=True)
class InitializedReplica:
    """A replica before any training, `taken` of whose `total` tensors come from elsewhere."""

    state: ReplicaState
    taken: int
    total: int


def _is_whole(name: str) -> bool:
    try:
        module_key(name)
    except ValueError:
        return False
    return True


def find_source(text: str) -> tuple[Path, str | None]:
    """Return the run and which of its replicas a text names, or a file and None. Raises UsageError for neither."""
    path, which = replica_named(text)
    if which is not None:
        return path, which
    if path.is_dir():
        return path, FINAL
    if path.is_file():
        return path, None
    raise UsageError(f"--init-from is {text!r}, and nothing is there; {_EXPECTED}.")


def located(text: str) -> str:
    """Return what a text names, wherever this process works later. Raises UsageError."""
    path, which = find_source(text)
    return str(path.absolute()) if which is None else f"{path.absolute()}:{which}"


def read_initial_weights(text: str) -> InitialWeights:
    """Return the tensors of a run or of a file. Raises UsageError for what has none, and as reading a run does."""
    path, which = find_source(text)
    if which is not None:
        return InitialWeights(text, read_replica(path, which).tensors)
    try:
        if zipfile.is_zipfile(path):
            return InitialWeights(text, _of_torch(path))
        return InitialWeights(text, bundle.plain_tensors(path.read_bytes()))
    except GridmlError:
        raise
    except pickle.UnpicklingError as error:  # torch says at length how to run what is in the file
        raise UsageError(
            f"--init-from is {text!r}, which holds other objects than tensors, such as a whole module or an optimiser, "
            f"and nothing in a file is executed; expected what torch.save(module.state_dict(), file) writes."
        ) from error
    except Exception as error:  # whatever torch says of a file
        raise UsageError(f"--init-from is {text!r}, which cannot be read: {described(error)}; {_EXPECTED}.") from error


def _of_torch(path: Path) -> dict[str, Array]:
    """The tensors of a state dict that torch saved. Nothing in the file is executed. Raises what torch does."""
    import torch

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
    """Return a replica, as factories and the graph made it, with the tensors of `values` instead of its own of the same
    names; all of them, or where `partial`, those whose names and shapes fit. Values of floating point are converted.

    Raises UsageError for names that only one of them has, for another shape or kind, and for NaN and infinity.
    """
    own = _own_tensors(state)
    called = _keys(graph) if values.plain else _whole_names(graph, own)
    taken: dict[str, Array] = {}
    odd: list[str] = []
    for name, tensor in values.tensors.items():
        first = called.get(_without_wrappers(name))
        if first is None:
            odd.append(f"{name} {tensor.shape} is none of the program's")
        elif (problem := _problem(own[first], tensor)) is not None:
            odd.append(f"{name} {problem}")
        else:
            taken[first] = tensor.astype(own[first].dtype)
    there = {called.get(_without_wrappers(name)) for name in values.tensors}
    odd += [f"{name} {own[name].shape} is not there" for name in own if name not in there]
    if (odd and not partial) or not taken:
        raise UsageError(_refusal(values, odd, len(own), partial=partial))
    return InitializedReplica(_with(state, taken), len(taken), len(own))


def _refusal(values: InitialWeights, odd: list[str], total: int, *, partial: bool) -> str:
    more = f"; {len(odd) - MAX_SHOWN} more" if len(odd) > MAX_SHOWN else ""
    listed = f": {'; '.join(odd[:MAX_SHOWN])}{more}" if odd else ""
    if partial:
        return f"--init-from is {values.source!r}, of which nothing fits the program's {total:,} tensors{listed}."
    return (
        f"--init-from is {values.source!r}, which does not fit the program's {total:,} tensors{listed}. Give "
        "--init-partial, too, to take those that fit and begin the others as the program makes them."
    )


def _without_wrappers(name: str) -> str:
    """A name without what torch.compile puts into it."""
    return name.replace("_orig_mod.", "")


def _own_tensors(state: ReplicaState) -> dict[str, Array]:
    arrays = {f"{name}/{field}": column for name, fields in state.arrays.items() for field, column in fields.items()}
    return {**{n: t for vertex in state.modules.values() for n, t in vertex.tensors.items()}, **arrays}


def _keys(graph: Graph) -> dict[str, str]:
    """Return the replica's name of each key of the program's only module. Raises UsageError where there are others."""
    tables = [table for table in graph.replicated if table.type.modules]
    if len(tables) != 1 or tables[0].count != 1 or len(tables[0].type.modules) != 1:
        raise UsageError(
            "--init-from names a file with the keys of one state dict, and the program has several modules, or none. "
            "Call its tensors Type/index/field/KEY, as final.safetensors of a run does."
        )
    ((_, names),) = Modules(tables[0].type).names(0).items()
    return names


def _whole_names(graph: Graph, own: Mapping[str, Array]) -> dict[str, str]:
    """Return the replica's name of each tensor, which differs from its own where it is tied to an earlier one."""
    called = {name: name for name in own}
    for table in graph.replicated:
        modules = Modules(table.type)
        for index in range(table.count) if table.type.modules else ():
            for field, names in modules.names(index).items():
                called |= {f"{table.type.name}/{index}/{field}/{key}": first for key, first in names.items()}
            modules.keep_only(())
    return called


def _problem(own: Array, tensor: Array) -> str | None:
    """Return why a tensor cannot stand for one of the program's, None if it can."""
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
