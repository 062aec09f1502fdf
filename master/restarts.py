"""Masters that are killed one after the other: whoever starts them again (a batch system does at once) must not do so
for ever. Each writes down in the ledger that it begins, before it loads the program, and takes that back when it ends
in good order."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gridml.errors import CancelledError, GridmlError, LedgerError, RunError
from gridml.protocol.disks import network_disk
from master.backends.registry import read_settings
from master.decisions.restarts import Beginning, in_vain, may_begin
from master.environment import Environment
from master.store.diagnosis import explained
from master.store.ledger import Ledger
from master.store.rundir import MasterLock, RunDirectory, command
from master.store.status import RunStatus

_KILLED = "killed"  # in the ledger: beginnings of masters that left no word
BETWEEN_LOOKS_S = 1.0  # for a person who cancels a run that waits


@contextmanager
def counted(root: Path, environment: Environment) -> Iterator[None]:
    """The life of a master that takes a run up, from before it does. It waits where those before it were killed.

    Raises RunError when there were too many of them: the run has been stopped then, and its workers sent home.
    """
    directory, beginning = RunDirectory(root), None
    if os.path.isfile(directory.ledger):
        with contextlib.suppress(LedgerError), explained(root):  # who takes the run up says what is wrong with it
            beginning = _begin(directory, environment)
    try:
        yield
    finally:
        if beginning is not None:
            with contextlib.suppress(GridmlError, sqlite3.Error, OSError), _opened(directory) as ledger:
                _forget(ledger, beginning, all_before=True)


def _begin(directory: RunDirectory, environment: Environment) -> Beginning:
    lock = MasterLock(directory)
    try:
        with _opened(directory) as ledger:
            beginning, killed = _noted(ledger, environment.clock())
            try:
                _hesitate(directory, ledger, environment, killed)
            except BaseException:
                _forget(ledger, beginning, all_before=False)  # it was not killed
                raise
            return beginning
    finally:
        lock.release()


def _hesitate(directory: RunDirectory, ledger: Ledger, environment: Environment, killed: int) -> None:
    """Wait after so many were `killed`, or stop the run."""
    wait_s, reason = may_begin(killed)
    if wait_s is None:
        logs = f"what the machine says of its memory, or {directory.logs}, may say what killed them"
        _stop(directory, ledger, environment, RunError(f"{reason}, so no other one begins: {logs}"))
    elif wait_s:
        text = f"{reason}; the next one begins in {wait_s:.0f} s"
        environment.report("warning", text, {"killed": killed, "wait_s": wait_s})
        _wait(directory, ledger, environment, wait_s)


def _wait(directory: RunDirectory, ledger: Ledger, environment: Environment, seconds: float) -> None:
    cancel, until_s = directory.root / "cancel", environment.clock() + seconds
    while not cancel.exists():  # one that was left for those that were killed is meant for the run
        if environment.clock() >= until_s:
            return
        environment.rest(BETWEEN_LOOKS_S)
    cancel.unlink()
    _stop(directory, ledger, environment, CancelledError(f"{directory.root} was cancelled"))


def _noted(ledger: Ledger, now: float) -> tuple[Beginning, int]:
    """Write down that a master begins; return that, and how many before it were killed in vain: none where the run has
    come to an end since, for then a person has looked after it."""
    beginning = Beginning(max(now, ledger.last_sign()), ledger.credited, ledger.epochs_evaluated())
    driven = ledger.get("status") in (RunStatus.SUBMITTED, RunStatus.RUNNING)
    before = [Beginning(*values) for values in ledger.get(_KILLED, [])] if driven else []
    killed = in_vain(before, beginning)
    with ledger.transaction():
        ledger.set(_KILLED, [*killed, beginning])
        if killed:
            ledger.event(beginning.at_s, "warning", may_begin(len(killed))[1], {"killed": len(killed)})
    return beginning, len(killed)


def _forget(ledger: Ledger, beginning: Beginning, *, all_before: bool) -> None:
    """Take back that a master begins, and with `all_before` it those that were killed, unless another began since."""
    killed = ledger.get(_KILLED, [])
    if killed and killed[-1] == list(beginning):
        with ledger.transaction():
            ledger.set(_KILLED, [] if all_before else killed[:-1])


def _stop(directory: RunDirectory, ledger: Ledger, environment: Environment, error: RunError) -> None:
    """Send the workers home, and leave word of why. Raises an error of that kind."""
    backend = environment.backend(read_settings(directory.root, ledger.get("settings")), directory)
    backend.inherit(keep=False)
    backend.leave()
    text = f"{error}. It stands at its last credit; go on with {command('resume', directory.root)}"
    with ledger.transaction():
        ledger.set("status", RunStatus.CANCELLED if isinstance(error, CancelledError) else RunStatus.FAILED)
        ledger.set("stopped_because", text)
    raise type(error)(text)


@contextmanager
def _opened(directory: RunDirectory) -> Iterator[Ledger]:
    ledger = Ledger(directory.ledger, shared_disk=network_disk(directory.root) is not None)
    try:
        yield ledger
    finally:
        ledger.close()
