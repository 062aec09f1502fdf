"""The beginning of a master's life: it takes a run over, waits after repeated kills, or rolls the run back.

A takeover reads what the workers of the master before have sent since, keeps the leases of those that live on, and
fences the others, which may be alive still: their pushes are refused.

Masters may be killed one after the other. A batch system starts them again at once, and must not do so for ever.
Each writes down in the ledger that it begins, before it loads the program, and takes that back when it ends in good
order. From these records follows whether a master begins, and how long it waits first.

A run that no master drives can be rolled back to a version that is kept.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from gridml.carriers.base import Message
from gridml.errors import CancelledError, DamagedError, GridmlError, LedgerError, RunError, UsageError
from gridml.protocol.foreign import remove
from gridml.protocol.outbox import is_attempt, job_of
from gridml.protocol.outbox import read as read_outbox
from master.backends.registry import read_settings
from master.fleet.fleet import RESERVED_S, Fleet, Workplace
from master.leases.leases import Leases
from master.ports.environment import Environment
from master.ports.mailboxes import MessageLimits
from master.state.worker_records import WorkerTable
from master.store.credits import RollbackPoint, Undone, find_point
from master.store.diagnosis import translate_errors
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.rundir import MasterLock, RunDirectory, RunStatus, command
from master.store.saved_replica import Best
from master.store.store import Store
from master.store.versions import Versions
from master.sync.exchange import Exchange
from master.sync.version_use import VersionUse

Row = Mapping[str, Any]  # of the ledger's table of workers


def recovered_messages(directory: RunDirectory, workers: Iterable[str], limits: MessageLimits) -> dict[Path, Message]:
    """Return what jobs that have ended could not send, and brought home, by the files that hold it. What is anything
    else than a message within `limits` is removed."""
    messages: dict[Path, Message] = {}
    if not directory.recovered.is_dir():
        return messages
    for path in dict.fromkeys(directory.recovered / job_of(worker) for worker in workers):
        unanswered = read_outbox(path, *limits)
        if unanswered is not None and is_attempt(unanswered.sync.worker, path.name):  # nobody speaks for another job
            last = replace(unanswered, sync=unanswered.sync._replace(wants=False))  # who wrote it is gone
            messages[path] = Message(last.sync.worker, last.number, bytes(last.payload))
        else:
            remove(path)
    return messages


@dataclass(frozen=True)
class Takeover:
    """What a master needs to take a run over."""

    place: Workplace
    store: Store
    workers: WorkerTable
    leases: Leases
    exchange: Exchange
    versions: VersionUse
    fleet: Fleet
    events: Events

    @property
    def ledger(self) -> Ledger:
        return self.store.ledger

    def begin(self, now: float) -> None:
        """Begin this master's life at `now`; afterwards every open lease is that of a worker that lives on."""
        ledger, mailboxes = self.ledger, self.place.mailboxes
        masters = ledger.get("masters", 0)
        program = self.place.directory.saved_program(self.place.settings.program).digest()
        # What was leased under a ledger since undone, or with another f, has nothing to do with this one.
        alike = not ledger.get("undone", False) and ledger.get("program", program) == program
        inherited = self.place.backend.inherit(keep=alike)
        survivors, rows = frozenset(inherited), ledger.workers()
        self._restore_workers(rows, survivors, now)
        # A master that is killed leaves no word: it lived until the last thing that it wrote down.
        until_s = min(now, ledger.last_activity_s())
        if masters and alike:
            self._handle_backlog(rows, survivors, now)
        with ledger.transaction():
            self._end_others(survivors, now)
            if not alike or ledger.get("status") != RunStatus.RUNNING:  # a person has mended what failed
                ledger.clear_failures()
                self.workers.forget_failures()
            if masters:
                ledger.orphan_workers(until_s, but=survivors)
                ledger.set("gaps", [*ledger.get("gaps", []), [until_s, now]])
                self._record_resume(len(survivors))
            ledger.set("undone", False)
            ledger.set("total", self.leases.epochs.total)
            ledger.set("workers", self.workers.wanted)
            ledger.set("program", program)
            ledger.set("status", RunStatus.RUNNING)
            ledger.set("masters", masters + 1)
            for worker in inherited:
                self.fleet.expect(worker, now)
            if not alike:
                ledger.drop_reservations()
        self.fleet.let_machines_rest(now)
        if not alike:
            mailboxes.clear()  # messages of workers that this ledger may not even know
        for row in ledger.workers():  # those that the last master left behind have ended by now
            if row["worker"] not in survivors:
                self.leases.sizing.measures.recall(self.workers.of(row["worker"]), row)
                mailboxes.close(row["worker"])

    def _record_resume(self, survivors: int) -> None:
        """Say where the run goes on, and what is trained again."""
        kept = f"; {survivors} workers live on" if survivors else ""
        credited, total = self.ledger.credited, self.leases.epochs.total
        facts = {"credited": credited, "total": total, "workers": survivors}
        self.events.record("resumed", facts, f"{credited:,} of {total:,} vertices are credited{kept}")
        if self.store.undone is not None:
            why = "it was restored from its copy, or its disk has lost the last changes"
            again = f"{self.store.undone:,} vertices are trained again"
            text = f"there was a newer ledger than this: {why}. {again}"
            self.events.record("warning", {"vertices": self.store.undone}, text, standing=True)

    def _restore_workers(self, rows: Iterable[Row], survivors: Collection[str], now: float) -> None:
        """Make records of the workers that live on and of the machines that are avoided, and take note of the other
        workers' names."""
        measures = self.leases.sizing.measures
        for row in rows:
            if row["worker"] in survivors:
                record = self.workers.add(row["worker"])
                record.contact.has_reported = row["first_sync_s"] is not None
                record.moments.asked = None
                measures.recall(record, row)
            else:
                self.workers.add_ended([row["worker"]])
            self.workers.recall_failures(row)
        for machine in self.ledger.machines():
            self.workers.machines.recall(machine, now)

    def _handle_backlog(self, rows: Iterable[Row], survivors: Collection[str], now: float) -> None:
        """Merge what was pushed while no master was there, by workers that have since ended, too."""
        table, jobs = self.ledger.leases, {job_of(worker) for worker in survivors}
        leased = {job_of(lease.worker) for lease in table}
        standing = [self.workers.add(worker) for worker in survivors if job_of(worker) in leased]
        reserved_until_s = max((lease.reserved_until_s or 0.0 for lease in table.reserved.values()), default=0.0)
        if any(job_of(lease.worker) in jobs and lease.worker not in survivors for lease in table):
            reserved_until_s = max(reserved_until_s, now + RESERVED_S)  # those that `_end_others` is about to reserve
        self.versions.inherit(standing, self.ledger.saved_versions, reserved_until_s)
        ended = (row["worker"] for row in rows if job_of(row["worker"]) not in jobs)
        recovered = recovered_messages(self.place.directory, ended, self.exchange.inbox.limits)
        messages = [*recovered.values(), *self.place.mailboxes.collect()]
        speaking = {message.worker for message in messages}.union(survivors)
        for lease in [lease for lease in table if lease.worker in speaking]:
            self.leases.adopt(lease)
        self.exchange.handle(messages, granting=False)
        for path in recovered:
            remove(path)

    def _end_others(self, survivors: Collection[str], now: float) -> None:
        """End the leases of those that do not live on; a later attempt of their job may bring what they left."""
        jobs = {job_of(worker) for worker in survivors}
        for lease in [lease for lease in self.ledger.leases if lease.worker not in survivors]:
            returns = job_of(lease.worker) in jobs
            until_s = now + RESERVED_S if returns else None
            self.leases.end(lease, now, "the master ended", reserved_until_s=until_s)


MAX_KILLS = 5  # masters in a row that are killed before anything comes of them
MIN_BACKOFF_S = 5.0  # of the third in a row; doubled by each further one
HEALTHY_S = 900.0  # between two beginnings: a master that lived longer was not killed by how it begins


class MasterStart(NamedTuple):
    """When a master began, with so many vertices `credited` and so many epochs `evaluated`."""

    at_s: float
    credited: int
    evaluated: int

    @property
    def done(self) -> tuple[int, int]:
        return self.credited, self.evaluated


def without_progress(killed: Sequence[MasterStart], now: MasterStart) -> list[MasterStart]:
    """Return those of the masters that were killed, the oldest first, which were so soon, one after the other, and of
    which nothing has come until now."""
    counted: list[MasterStart] = []
    after = now
    for started in reversed(killed):
        if started.done != now.done or after.at_s - started.at_s > HEALTHY_S:
            break
        counted.insert(0, started)
        after = started
    return counted


def restart_delay(killed: int) -> tuple[float | None, str]:
    """Seconds that a master waits before it begins after so many `killed` in vain, None where it had better not."""
    reason = f"{killed} master{'s' if killed > 1 else ''} in a row killed before anything was credited or evaluated"
    if killed >= MAX_KILLS:
        return None, reason
    return (MIN_BACKOFF_S * 2.0 ** (killed - 2) if killed > 1 else 0.0), reason


_KILLED = "killed"  # in the ledger: beginnings of masters that left no word
CANCEL_POLL_S = 1.0  # for a person who cancels a run that waits


@contextmanager
def guard_crash_loop(root: Path, environment: Environment) -> Iterator[None]:
    """The life of a master that takes a run up, from before it does. It waits where those before it were killed.

    Raises RunError when there were too many of them: the run has been stopped then, and its workers sent home.
    """
    directory, started = RunDirectory(root), None
    if os.path.isfile(directory.ledger):
        with (
            contextlib.suppress(LedgerError),
            translate_errors(root),
        ):  # who takes the run up says what is wrong with it
            started = _record_and_back_off(directory, environment)
    try:
        yield
    finally:
        if started is not None:
            with contextlib.suppress(GridmlError, sqlite3.Error, OSError), closing(Ledger.of(directory)) as ledger:
                _clear_start(ledger, started, all_before=True)


def _record_and_back_off(directory: RunDirectory, environment: Environment) -> MasterStart:
    with MasterLock(directory), closing(Ledger.of(directory)) as ledger:
        started, killed = _record_start(ledger, environment.clock())
        try:
            _back_off(directory, ledger, environment, killed)
        except BaseException:
            _clear_start(ledger, started, all_before=False)  # it was not killed
            raise
        return started


def _back_off(directory: RunDirectory, ledger: Ledger, environment: Environment, killed: int) -> None:
    """Wait after so many were `killed`, or stop the run."""
    wait_s, reason = restart_delay(killed)
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
        environment.rest(CANCEL_POLL_S)
    cancel.unlink()
    _stop(directory, ledger, environment, CancelledError(f"{directory.root} was cancelled"))


def _record_start(ledger: Ledger, now: float) -> tuple[MasterStart, int]:
    """Write down that a master begins; return that, and how many before it were killed in vain: none where the run has
    come to an end since, for then a person has looked after it."""
    started = MasterStart(max(now, ledger.last_activity_s()), ledger.credited, ledger.epochs_evaluated())
    driven = ledger.get("status") in (RunStatus.SUBMITTED, RunStatus.RUNNING)
    before = [MasterStart(*values) for values in ledger.get(_KILLED, [])] if driven else []
    killed = without_progress(before, started)
    with ledger.transaction():
        ledger.set(_KILLED, [*killed, started])
        if killed:
            ledger.event(started.at_s, "warning", restart_delay(len(killed))[1], {"killed": len(killed)})
    return started, len(killed)


def _clear_start(ledger: Ledger, started: MasterStart, *, all_before: bool) -> None:
    """Take back that a master begins, and with `all_before` it those that were killed, unless another began since."""
    killed = ledger.get(_KILLED, [])
    if killed and killed[-1] == list(started):
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


@dataclass(frozen=True)
class RolledBack:
    """Where a run now stands, and what was undone for that."""

    point: RollbackPoint
    undone: Undone


def rollback(root: Path, to: str, clock: Callable[[], float] = time.time) -> RolledBack:
    """Take a run back to "e3", the end of its third epoch, or to version "v57"; `resume` then goes on from there.

    Raises RunError while a master drives it, LedgerError where the version's file is damaged, UsageError for a version
    that is not kept, or where the fields of local vertices are: they are kept since the end of the last epoch.
    """
    directory = RunDirectory(root)
    if not directory.ledger.is_file():
        raise LedgerError(f"{root} is not a run: it has no {directory.ledger.name}. Start one with gridml run PROGRAM.")
    with MasterLock(directory), closing(Ledger.of(directory)) as ledger:
        return _roll_back(ledger, directory, to, clock())


def _roll_back(ledger: Ledger, directory: RunDirectory, to: str, now: float) -> RolledBack:
    point = find_point(to, ledger.rollback_points())
    base = ledger.base()
    if base is not None and base.version > point.version:
        raise UsageError(
            f"--to is v{point.version}; the fields of local vertices that f changed are kept since version "
            f"{base.version} only. Give that one or a newer one, or go on with {command('resume', directory.root)}."
        )
    versions, newest = Versions(directory.versions), ledger.next_version
    gone = [version for version in ledger.saved_versions if version > point.version]
    try:
        sha256 = versions.copy(point.version, ledger.sha256_of(point.version), newest, point.credited)
    except DamagedError as error:
        with ledger.transaction():
            ledger.drop_version(point.version)
        others = command("rollback", directory.root)
        raise LedgerError(f"{error}. It is not offered any more; the others are those of: {others}") from error
    with ledger.transaction():
        undone = ledger.roll_back(point.version, newest, sha256, now, "the run was taken back")
        ledger.set("status", RunStatus.CANCELLED)
        ledger.set("stopped_because", f"It was taken back to version {point.version}.")
        text = f"to version {point.version}; {undone.vertices:,} vertices are to be trained again"
        ledger.event(now, "rollback", text, {"version": point.version, "vertices": undone.vertices})
    ledger.backup()
    for version in gone:
        versions.remove(version)
    directory.final.unlink(missing_ok=True)
    if ledger.get(Best.FACT) is None:  # what was the best is undone; the next master finds what is now
        directory.best.unlink(missing_ok=True)
    return RolledBack(point, undone)
