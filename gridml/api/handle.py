"""A run as a value: what a call returns, and what any run directory is opened as.

`gridml.load`: a replica of a run as state dicts.
"""

from __future__ import annotations

import json
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


_POLL_S = 0.2  # how often it is looked whether a run has ended


@dataclass(frozen=True)
class Event:
    """What happened in a run, `at_s` in seconds since 1970. Its `topic` is a word such as "evicted", its `facts` are
    the numbers and names of its `text` (docs/events.md)."""

    at_s: float
    topic: str
    text: str
    facts: EventFacts


@dataclass(frozen=True)
class CancelResult:
    """Which of two was done: a `master` was asked to stop, or where none drove the run, what the last one had left was
    `removed`; the other is None."""

    master: str | None
    removed: str | None

    def __str__(self) -> str:
        if self.master is not None:
            return f"Asked the master ({self.master}) to stop."
        return f"No master drove it. Removed: {self.removed}."


class Run:
    """A run in its directory, whoever drives it and whether it goes on. Raises LedgerError where there is none.

    `run_dir` is absolute: it stays this run, whatever directory its process works in later.

    `gridml.Run("runs/mnist-20260401-120000")` opens one that a command or another process began.
    """

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        from master.store.reader import connect

        self.run_dir = Path(run_dir).absolute()
        connect(self.run_dir).close()

    def __repr__(self) -> str:
        return f"gridml.Run({str(self.run_dir)!r})"

    def __fspath__(self) -> str:
        return str(self.run_dir)

    @property
    def status(self) -> RunStatus:
        """How the run stands: a text, such as "running" or "finished"."""
        from master.store.reader import opened, read_status

        with opened(self.run_dir) as ledger:
            return read_status(ledger, self.run_dir)

    def report(self) -> Report:
        """Return what the run did, how fast, and what was lost, as `gridml report` does; also while it goes on."""
        from master.views.report import report

        return report(self.run_dir)

    def events(self, topic: str | None = None) -> list[Event]:
        """Return what happened, oldest first; of one topic, or of all."""
        from master.store.reader import opened
        from master.store.rundir import facts_from

        query = "SELECT at_s, topic, text, facts FROM events WHERE ? IS NULL OR topic = ? ORDER BY rowid"
        with opened(self.run_dir) as ledger:
            rows = ledger.execute(query, (topic, topic)).fetchall()
            return [Event(at_s, its, text, facts_from(facts)) for at_s, its, text, facts in rows]

    def metrics(self) -> list[dict[str, Any]]:
        """Return what evaluate said of each epoch, with its number from 1 as "epoch"."""
        return [{"epoch": each.epoch, **each.metrics} for each in self.report().epochs if each.metrics]

    def load(self, which: str | int = "final") -> dict[str, Any]:
        """Return a replica of the run, as `gridml.load` does."""

        return load(self, which)

    def wait(self, timeout_s: float | None = None) -> Run:
        """Return when the run has finished: at once where this process drove it.

        Raises RunError where it was cancelled or has failed, or no master drives it nor will; TimeoutError.
        """
        from master.backends.registry import batch_of
        from master.store.rundir import RunDirectory, RunStatus, command

        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        batch = batch_of(self.run_dir)
        while (status := self.status) in (RunStatus.RUNNING, RunStatus.SUBMITTED, RunStatus.STOPPED):
            comes = batch is not None and batch.master_submitted(RunDirectory(self.run_dir))
            if status is not RunStatus.RUNNING and not comes:
                break
            if until_s is not None and time.monotonic() >= until_s:
                raise TimeoutError(f"{self.run_dir} is {status} after {timeout_s:g} s")
            time.sleep(_POLL_S)
        if status is not RunStatus.FINISHED:
            because = f": {self._stopped_because()}" if status in (RunStatus.FAILED, RunStatus.CANCELLED) else ""
            raise RunError(f"{self.run_dir} is {status}{because}. Go on with: {command('resume', self.run_dir)}")
        return self

    def _stopped_because(self) -> str:
        from master.store.reader import opened, read_facts

        with opened(self.run_dir) as ledger:
            return str(read_facts(ledger).get("stopped_because", "it is not known why"))

    def cancel(self) -> None:
        """Ask the run's master to stop, as `gridml cancel` does: the run keeps its credits, and can be resumed. Raises
        RunError where no master drives it."""
        request_stop(self.run_dir)

    def scale(self, workers: int) -> None:
        """Ask for so many workers from now on, as `gridml scale` does. Raises RunError where the run has finished."""
        from master.scaling import request

        request(self.run_dir, workers)

    def settings(self) -> Mapping[str, Any]:
        """Return what the run was asked for, as its settings.json has it."""
        from master.store.rundir import RunDirectory

        settings: dict[str, Any] = json.loads(RunDirectory(self.run_dir).settings.read_text())
        return settings


def request_stop(run: Path) -> CancelResult:
    """Ask the master of a run to stop, or where it is gone, end what it has left; return which was done. Raises
    RunError where there is nothing to cancel, UsageError where the run cannot be written, LedgerError where there is
    none."""
    from master.backends.registry import batch_of, withdraw
    from master.store.reader import holder
    from master.store.rundir import RunDirectory, command

    directory = RunDirectory(run)
    if not os.path.isfile(directory.ledger):
        raise LedgerError(f"{run} is not a run: it has no ledger. Name the directory that gridml run made.")
    try:
        if (master := holder(run)) is not None:
            (run / "cancel").touch()
            return CancelResult(master, None)
        withdrawn = withdraw(run)
    except OSError as error:
        raise UsageError(f"{run} cannot be written: {error.strerror}. Cancel it as the user who runs it.") from error
    if withdrawn is None:
        batch = batch_of(run)
        submitted = batch is not None and batch.master_submitted(directory)
        gone = ", and its job is no longer in the queue" if submitted else ""
        look = f"{command('status', run)} says how it stands."
        raise RunError(f"no master drives {run}{gone}: there is nothing to cancel. {look}")
    return CancelResult(None, withdrawn)


def load(run: Run | str | os.PathLike[str], which: str | int | None = None) -> dict[str, Any]:
    """Return a replica of a run: "final", with which it last ended, "best", as `keep` of the program chose it, or a
    version by its number; also "v57", or "e3" for the end of the third epoch: `gridml rollback RUN` names those that
    are kept. The run's text may say which, as with `--init-from`: "runs/first:best". Where nothing does, it is "final".

    Of a type with modules there is a state dict for each, under "Network.model", or "Network[3].model" where there are
    several vertices: torch tensors with the keys of the module's own `state_dict()`, those of tied weights included, so
    that `load_state_dict(strict=True)` takes it. Fields of arrays are numpy arrays (vertices, *shape), under
    "Word.count". They are copies.

    The file's SHA-256 is compared with the ledger's. Raises LedgerError where that differs or there is no run, RunError
    where the run does not have it yet, UsageError for a version that is not kept or where `run` and `which` both say
    one, and what loading the run's copy of the program raises.
    """
    from master.store.saved_replica import FINAL, read_replica, replica_named

    check_guarded("gridml.load")
    path, of_text = (run.run_dir, None) if isinstance(run, Run) else replica_named(os.fspath(run))
    if of_text is not None and which is not None:
        raise UsageError(f"gridml.load got {os.fspath(run)!r} and which={which!r}; expected one of them to say which.")
    root = Run(path).run_dir
    chosen = which if of_text is None else of_text
    tensors = read_replica(root, FINAL if chosen is None else chosen).tensors
    arrays = {name.replace("/", "."): tensor for name, tensor in tensors.items() if module_key(name) is None}
    by_type: dict[str, set[int]] = {}
    for name in tensors:
        if (key := module_key(name)) is not None:
            by_type.setdefault(key[0], set()).add(key[1])
    if not by_type:
        return arrays
    with user_traceback_shown(), restored_process_state():
        program = _program_of(root)
        states = [state for name in by_type for state in _states(program, name, sorted(by_type[name]), tensors).items()]
    return {**dict(states), **arrays}


def _program_of(root: Path) -> Program:
    """Return the program of a run, from the run's own copy."""
    from master.backends.registry import read_settings
    from master.store.reader import opened, read_facts
    from master.store.rundir import RunDirectory

    with opened(root) as ledger:
        file = read_settings(root, read_facts(ledger).get("settings")).program
    kept = RunDirectory(root).saved_program(file)
    return load_program(kept.program, file) if kept.program.is_file() else load_program(file)


def _states(program: Program, type_name: str, indices: list[int], tensors: Mapping[str, Array]) -> dict[str, Any]:
    """Return the state dicts of all modules of a type, by how they are called."""
    import torch

    vertex_type = program.types().get(type_name)
    if vertex_type is None:
        raise LedgerError(f"the run holds a {type_name}, which its program does not have any more. Put that back.")
    modules, states = Modules(vertex_type), {}
    for index in indices:
        called = type_name if len(indices) == 1 else f"{type_name}[{index}]"
        for field, names in modules.names(index).items():
            if lacking := [name for name, first in names.items() if first not in tensors]:
                raise LedgerError(
                    f"the run holds no {lacking[0]} of {type_name}.{field}, which its program has now. Load a version "
                    "that was written since, or put back the program that wrote this one."
                )
            # One copy of what is tied, as in the module.
            firsts = {first: torch.from_numpy(tensors[first].copy()) for first in dict.fromkeys(names.values())}
            states[f"{called}.{field}"] = {name: firsts[first] for name, first in names.items()}
        modules.keep_only(())
    return states


@contextmanager
def user_traceback_shown() -> Iterator[None]:
    """Let an error of the user's own code show its traceback, beside gridml's message."""
    try:
        yield
    except GridmlError as error:
        if isinstance(error, UserCodeError | DataError) and error.traceback_text:
            error.add_note(error.traceback_text)
        raise


@contextmanager
def restored_process_state() -> Iterator[None]:
    """What a master sets for its process is put back: threads of torch, the states of random generators, and where
    modules are found."""
    import numpy as np

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
