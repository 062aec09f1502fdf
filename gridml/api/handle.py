"""`gridml.Run`, the handle of a run directory that every call returns, and `gridml.load`, which reads a replica."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridml.engine.modules import Modules
from gridml.errors import DataError, GridmlError, LedgerError, RunError, UsageError, UserCodeError
from gridml.model.loading import check_guarded
from gridml.model.loading import load as load_program
from gridml.model.program import Program
from gridml.protocol.push import Array, module_key

if TYPE_CHECKING:
    from master.store.rundir import EventFacts, RunStatus
    from master.views.report import Report


_POLL_S = 0.2  # interval at which `Run.wait` checks the ledger


@dataclass(frozen=True)
class Event:
    """Something that happened in a run (docs/events.md lists all topics)."""

    at_s: float  #: seconds since 1970
    topic: str  #: kind of event, such as "evicted"
    text: str
    facts: EventFacts  #: the numbers and names in `text`


@dataclass(frozen=True)
class CancelResult:
    """Outcome of a cancel request. Exactly one of the fields is set."""

    master: str | None  #: the running master, which was asked to stop; None if no master runs
    removed: str | None  #: the workers and jobs of an earlier master, which were removed because no master runs

    def __str__(self) -> str:
        if self.master is not None:
            return f"Asked the master ({self.master}) to stop."
        return f"No master drove it. Removed: {self.removed}."


class Run:
    """A handle on a run directory. The run can be in progress or ended, and any process can drive it.

    `gridml.Run("runs/mnist-20260401-120000")` opens a run that a command or another process started. `run_dir` is
    absolute, so the handle stays valid if the working directory changes. Raises LedgerError if there is no run.
    """

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        from master.store.reader import connect

        self.run_dir = Path(run_dir).absolute()
        connect(self.run_dir).close()  # raises LedgerError if there is no run

    def __repr__(self) -> str:
        return f"gridml.Run({str(self.run_dir)!r})"

    def __fspath__(self) -> str:
        return str(self.run_dir)

    @property
    def status(self) -> RunStatus:
        """The run's status, a string such as "running" or "finished"."""
        from master.store.reader import opened, read_status

        with opened(self.run_dir) as ledger:
            return read_status(ledger, self.run_dir)

    def report(self) -> Report:
        """Return the run's report, like `gridml report`. Works while the run is in progress."""
        from master.views.report import report

        return report(self.run_dir)

    def events(self, topic: str | None = None) -> list[Event]:
        """Return the run's events, oldest first; with `topic`, only those of that topic."""
        from master.store.reader import opened
        from master.store.rundir import facts_from

        query = "SELECT at_s, topic, text, facts FROM events WHERE ? IS NULL OR topic = ? ORDER BY rowid"
        with opened(self.run_dir) as ledger:
            rows = ledger.execute(query, (topic, topic)).fetchall()
            return [Event(at_s, its, text, facts_from(facts)) for at_s, its, text, facts in rows]

    def metrics(self) -> list[dict[str, Any]]:
        """Return what evaluate returned for each epoch, with the epoch's number (from 1) as "epoch"."""
        return [{"epoch": each.epoch, **each.metrics} for each in self.report().epochs if each.metrics]

    def load(self, which: str | int = "final") -> dict[str, Any]:
        """Return a replica of the run, like `gridml.load`."""
        return load(self, which)

    def wait(self, timeout_s: float | None = None) -> Run:
        """Wait until the run has finished; return at once if it has.

        Raises RunError if the run was cancelled or has failed, or if no master drives it and none is queued; raises
        TimeoutError after `timeout_s` seconds.
        """
        from master.backends.registry import batch_of
        from master.store.rundir import RunDirectory, RunStatus, command

        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        batch = batch_of(self.run_dir)
        # A batch system can restart the master of a stopped run, so wait for such a run while its job is queued.
        while (status := self.status) in (RunStatus.RUNNING, RunStatus.SUBMITTED, RunStatus.STOPPED):
            queued = batch is not None and batch.master_submitted(RunDirectory(self.run_dir))
            if status is not RunStatus.RUNNING and not queued:
                break
            if until_s is not None and time.monotonic() >= until_s:
                raise TimeoutError(f"{self.run_dir} is {status} after {timeout_s:g} s")
            time.sleep(_POLL_S)
        if status is not RunStatus.FINISHED:
            because = f": {self._stopped_because()}" if status in (RunStatus.FAILED, RunStatus.CANCELLED) else ""
            raise RunError(f"{self.run_dir} is {status}{because}. Resume with: {command('resume', self.run_dir)}")
        return self

    def _stopped_because(self) -> str:
        from master.store.reader import opened, read_facts

        with opened(self.run_dir) as ledger:
            return str(read_facts(ledger).get("stopped_because", "the reason is not known"))

    def cancel(self) -> None:
        """Ask the run's master to stop, like `gridml cancel`. The run keeps its credited work and can be resumed.
        Raises RunError if there is nothing to cancel."""
        request_stop(self.run_dir)

    def scale(self, workers: int) -> None:
        """Change the number of workers from now on, like `gridml scale`. Raises RunError if the run has finished."""
        from master.scaling import request

        request(self.run_dir, workers)

    def settings(self) -> Mapping[str, Any]:
        """Return the run's settings, as stored in its settings.json."""
        from master.backends.registry import current_settings

        return current_settings(self.run_dir).to_json()


def request_stop(run: Path) -> CancelResult:
    """Ask the master of a run to stop. Without a master, remove the workers and jobs that an earlier master has left.

    Raises RunError if there is nothing to cancel, UsageError if the directory cannot be written, LedgerError if it
    holds no run.
    """
    from master.backends.registry import batch_of, withdraw
    from master.store.reader import holder
    from master.store.rundir import RunDirectory, command

    directory = RunDirectory(run)
    # os.path.isfile is used, because Path.is_file raises PermissionError for a path that this user may not read.
    if not os.path.isfile(directory.ledger):
        raise LedgerError(f"{run} is not a run: it has no ledger. Give the directory that gridml run created.")
    try:
        if (master := holder(run)) is not None:
            (run / "cancel").touch()  # the master checks for this file in each turn
            return CancelResult(master, None)
        withdrawn = withdraw(run)
    except OSError as error:
        raise UsageError(f"{run} cannot be written: {error.strerror}. Cancel it as the user who runs it.") from error
    if withdrawn is None:
        batch = batch_of(run)
        submitted = batch is not None and batch.master_submitted(directory)
        gone = ", and its job is no longer in the queue" if submitted else ""
        see = f"See its status: {command('status', run)}"
        raise RunError(f"no master drives {run}{gone}: there is nothing to cancel. {see}")
    return CancelResult(None, withdrawn)


def load(run: Run | str | os.PathLike[str], which: str | int | None = None) -> dict[str, Any]:
    """Return a replica of a run.

    `which` is "final" (the default: the replica that the run last ended with), "best" (as chosen by the program's
    `keep`), a version's number or "v57", or "e3" for the end of the third epoch. `gridml rollback RUN` lists the
    versions that are available. `run` can include `which`, as in `--init-from`: "runs/first:best".

    For a type with modules the result has one state dict per module, under "Network.model", or "Network[3].model" if
    the type has several vertices. A state dict has the keys of the module's own `state_dict()`, including tied weights,
    so that a module from the factory accepts the state dict in `load_state_dict(strict=True)`. For a compiled module
    the keys begin with `_orig_mod.`, as in torch. Array fields are numpy arrays of shape (vertices, *shape), under
    "Word.count"; row i is that of vertex i, as `Graph.add` counted them. If vertices were added with ids of their own,
    these are under "Word.ids", in the same order: int64, or texts. All tensors and arrays are copies.

    With "final", the fields of local vertices that f or stages changed are arrays under "User.p" (vertices, *shape),
    and those of edges under "Document.words.topic" (edges, *shape), in the order of the edges that `Graph.add` was
    given. A run keeps them as they are now, so earlier replicas come without them. As `init_from=` of another run they
    are left out, like ids.

    The SHA-256 of the replica's file is checked against the ledger. Raises LedgerError if the SHA-256 differs or there
    is no run; RunError if the run has no such replica yet; UsageError for a version that is not available, and if both
    `run` and `which` name a version; and the errors of loading the run's copy of the program.
    """
    check_guarded("gridml.load")
    root, chosen = replica_of("gridml.load", run, which)
    tensors, arrays = read_arrays(root, chosen)
    by_type: dict[str, set[int]] = {}
    for name in tensors:
        if (key := module_key(name)) is not None:
            by_type.setdefault(key[0], set()).add(key[1])
    if not by_type:  # only modules need the program, and loading it runs the user's code
        return arrays
    with user_traceback_shown(), restored_process_state():
        program, _ = program_of(root)
        states = [state for name in by_type for state in _states(program, name, sorted(by_type[name]), tensors).items()]
    return {**dict(states), **arrays}


def read_arrays(root: Path, chosen: str | int) -> tuple[Mapping[str, Array], dict[str, Array]]:
    """Return (all tensors of a replica by their names in files, the arrays by name that `load` returns). Raises what
    `load` raises for the files."""
    from master.store.local_arrays import read_local
    from master.store.saved_replica import FINAL, read_replica

    tensors = read_replica(root, chosen).tensors
    arrays = {name.replace("/", "."): tensor for name, tensor in tensors.items() if module_key(name) is None}
    return tensors, arrays | read_local(root, fields=chosen == FINAL)


def replica_of(call: str, run: Run | str | os.PathLike[str], which: str | int | None) -> tuple[Path, str | int]:
    """Return (run directory, which of its replicas) of the arguments of a call. Raises UsageError if both name a
    replica, LedgerError if there is no run."""
    from master.store.saved_replica import FINAL, replica_named

    path, of_text = (run.run_dir, None) if isinstance(run, Run) else replica_named(os.fspath(run))
    if of_text is not None and which is not None:
        raise UsageError(f"{call} got {os.fspath(run)!r} and which={which!r}; expected only one of the two.")
    chosen = which if of_text is None else of_text
    return Run(path).run_dir, FINAL if chosen is None else chosen


def program_of(root: Path) -> tuple[Program, Path]:
    """Return (the program of a run, from the run's own copy if it has one, its original file)."""
    from master.backends.registry import current_settings
    from master.store.rundir import RunDirectory

    file = current_settings(root).program
    kept = RunDirectory(root).saved_program(file)  # the program as it was trained; the original may have changed since
    return (load_program(kept.program, file) if kept.program.is_file() else load_program(file)), file


def _states(program: Program, type_name: str, indices: list[int], tensors: Mapping[str, Array]) -> dict[str, Any]:
    """Return the state dicts of all modules of a type, by name as `load` returns them."""
    import torch

    vertex_type = program.types().get(type_name)
    if vertex_type is None:
        raise LedgerError(f"the run has a {type_name}, but its program no longer does. Restore the type.")
    modules, states = Modules(vertex_type), {}
    for index in indices:
        called = type_name if len(indices) == 1 else f"{type_name}[{index}]"
        for field, names in modules.names(index).items():
            if lacking := [name for name, first in names.items() if first not in tensors]:
                raise LedgerError(
                    f"the run has no {lacking[0]} of {type_name}.{field}, but its program does. Load a version written "
                    "since that change, or restore the program that wrote this version."
                )
            # Tied weights share one tensor, as in the module: `names` maps each of their names to the first of them.
            firsts = {first: torch.from_numpy(tensors[first].copy()) for first in dict.fromkeys(names.values())}
            states[f"{called}.{field}"] = {name: firsts[first] for name, first in names.items()}
        modules.keep_only(())  # each vertex's modules are dropped before the next one's are built
    return states


@contextmanager
def user_traceback_shown() -> Iterator[None]:
    """Add the traceback of the user's code as a note to an error that this code raises in the body."""
    try:
        yield
    except GridmlError as error:
        if isinstance(error, UserCodeError | DataError) and error.traceback_text:
            error.add_note(error.traceback_text)
        raise


@contextmanager
def restored_process_state() -> Iterator[None]:
    """Restore the process state that a master changes: torch's threads, random generators, and import paths."""
    import numpy as np

    # Without torch loaded there is no state of torch to restore, and importing it would take seconds.
    path, finders = [*sys.path], [*sys.meta_path]
    drawn, drawn_numpy, torch = random.getstate(), np.random.get_state(), sys.modules.get("torch")
    threads, drawn_torch = (0, None) if torch is None else (torch.get_num_threads(), torch.random.get_rng_state())
    try:
        yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_numpy)
        sys.path[:], sys.meta_path[:] = path, finders
        if torch is not None:
            torch.set_num_threads(threads)
            torch.random.set_rng_state(drawn_torch)
