"""Takeover: a new master takes a run over from the last one, with a guard against crash loops; and rollback.

A takeover handles the messages that workers sent since the last master ended, and keeps the leases of workers that are
still alive. All other workers are fenced: their pushes are refused, even if they are in fact alive.

A batch system restarts a killed master immediately, but must not do so forever. Each master records its start in the
ledger before it loads the program, and removes the record when it ends in order. The remaining records decide whether
the next master starts, and how long it waits first.

A run without a master can be rolled back to any version that is still kept.
"""

from __future__ import annotations

import contextlib
import os
import shlex
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
from master.store.credits import RollbackPoint, Undone, find_point, rollback_points
from master.store.diagnosis import translate_errors
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.reader import connect, opened
from master.store.rundir import MasterLock, RunDirectory, RunStatus, command
from master.store.saved_replica import Best
from master.store.schema import read_fact
from master.store.store import Store
from master.store.version_chain import open_chain
from master.store.versions import Versions
from master.sync.exchange import Exchange
from master.sync.version_use import VersionUse

Row = Mapping[str, Any]  # a row of the ledger's table of workers


def recovered_messages(directory: RunDirectory, workers: Iterable[str], limits: MessageLimits) -> dict[Path, Message]:
    """Return the unsent messages that ended jobs left in the run directory, by file. Files without a message within
    `limits` are removed."""
    messages: dict[Path, Message] = {}
    if not directory.recovered.is_dir():
        return messages
    for path in dict.fromkeys(directory.recovered / job_of(worker) for worker in workers):
        unanswered = read_outbox(path, *limits)
        if unanswered is not None and is_attempt(unanswered.sync.worker, path.name):  # a job must not send for others
            last = replace(unanswered, sync=unanswered.sync._replace(wants=False))  # the worker has ended
            messages[path] = Message(last.sync.worker, last.number, bytes(last.payload))
        else:
            remove(path)
    return messages


@dataclass(frozen=True)
class Takeover:
    """The takeover of a run by a new master."""

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
        """Take the run over at `now`. Afterwards every open lease belongs to a worker that is still alive."""
        ledger, mailboxes = self.ledger, self.place.mailboxes
        masters = ledger.get("masters", 0)
        program = self.place.directory.saved_program(self.place.settings.program).digest()
        # Leases are void if the ledger has lost its last changes ("undone"), or if the program has changed.
        alike = not ledger.get("undone", False) and ledger.get("program", program) == program
        inherited = self.place.backend.inherit(keep=alike)
        survivors, rows = frozenset(inherited), ledger.workers()
        self._restore_workers(rows, survivors, now)
        # A killed master does not record its end, so the time of the last write to the ledger is used.
        until_s = min(now, ledger.last_activity_s())
        if masters and alike:
            self._handle_backlog(rows, survivors, now)
        # One transaction, so that the next master repeats the takeover if this master is killed during it.
        with ledger.transaction():
            self._end_others(survivors, now)
            if not alike or ledger.get("status") != RunStatus.RUNNING:  # a person has fixed what failed
                ledger.clear_failures()
                self.workers.clear_failures()
            if masters:
                ledger.orphan_workers(until_s, but=survivors)
                ledger.set("gaps", [*ledger.get("gaps", []), [until_s, now]])
                self._record_resume(len(survivors))
            ledger.set("undone", False)
            ledger.set("total", self.leases.epochs.total)
            ledger.set("workers", self.workers.requested)
            ledger.set("program", program)
            ledger.set("status", RunStatus.RUNNING)
            ledger.set("masters", masters + 1)
            for worker in inherited:
                self.fleet.expect(worker, now)
            if not alike:
                ledger.drop_reservations()
        self.fleet.avoid_resting_machines(now)
        if not alike:
            mailboxes.clear()  # perhaps the ledger does not even have rows of the senders
        for row in ledger.workers():  # including those that `orphan_workers` has just ended
            if row["worker"] not in survivors:
                self.leases.sizing.measures.recall(self.workers.of(row["worker"]), row)
                mailboxes.close(row["worker"])

    def _record_resume(self, survivors: int) -> None:
        """Record the position at which the run resumes, and the number of vertices that are trained again."""
        kept = f"; {survivors} workers live on" if survivors else ""
        credited, total = self.ledger.credited, self.leases.epochs.total
        facts = {"credited": credited, "total": total, "workers": survivors}
        self.events.record("resumed", facts, f"{credited:,} of {total:,} vertices are credited{kept}")
        if self.store.undone is not None:
            why = "it was restored from its copy, or its disk has lost the last changes"
            again = f"{self.store.undone:,} vertices are trained again"
            text = f"the ledger is older than the run: {why}. {again}"
            self.events.record("warning", {"vertices": self.store.undone}, text, standing=True)

    def _restore_workers(self, rows: Iterable[Row], survivors: Collection[str], now: float) -> None:
        """Restore the records of workers that are still alive, the names of other workers, and the records of
        machines."""
        measures = self.leases.sizing.measures
        for row in rows:
            if row["worker"] in survivors:
                record = self.workers.add(row["worker"])
                record.contact.has_reported = row["first_sync_s"] is not None
                record.moments.asked = None
                measures.recall(record, row)
            else:
                self.workers.add_ended([row["worker"]])
            self.workers.restore_failures(row)
        for machine in self.ledger.machines():
            self.workers.machines.restore(machine, now)

    def _handle_backlog(self, rows: Iterable[Row], survivors: Collection[str], now: float) -> None:
        """Merge the pushes that arrived while no master ran, including those of workers that have ended since."""
        table, jobs = self.ledger.leases, {job_of(worker) for worker in survivors}
        leased = {job_of(lease.worker) for lease in table}
        standing = [self.workers.add(worker) for worker in survivors if job_of(worker) in leased]
        reserved_until_s = max((lease.reserved_until_s or 0.0 for lease in table.reserved.values()), default=0.0)
        if any(job_of(lease.worker) in jobs and lease.worker not in survivors for lease in table):
            reserved_until_s = max(reserved_until_s, now + RESERVED_S)  # by `_end_others`, which follows
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
        """End the leases of workers that have ended. If a later attempt of a worker's job is alive, the range is
        reserved, because this attempt may push what the worker trained."""
        jobs = {job_of(worker) for worker in survivors}
        for lease in [lease for lease in self.ledger.leases if lease.worker not in survivors]:
            returns = job_of(lease.worker) in jobs
            until_s = now + RESERVED_S if returns else None
            self.leases.end(lease, now, "the master ended", reserved_until_s=until_s)


MAX_KILLS = 5  # after this many masters in a row were killed without progress, no other master starts
MIN_BACKOFF_S = 5.0  # wait after two such masters; the wait doubles with each further one
HEALTHY_S = 900.0  # a master that lived longer did not fail because of its start


class MasterStart(NamedTuple):
    """The start of a master. The ledger stores it as a list, in this order."""

    at_s: float
    credited: int  # number of vertices that were credited at that time
    evaluated: int  # number of epochs that were evaluated at that time

    @property
    def done(self) -> tuple[int, int]:
        return self.credited, self.evaluated


def without_progress(killed: Sequence[MasterStart], now: MasterStart) -> list[MasterStart]:
    """Return the last killed masters in a row that made no progress, oldest first. A master made no progress if it
    lived at most `HEALTHY_S` and nothing was credited or evaluated since its start."""
    counted: list[MasterStart] = []
    after = now
    for started in reversed(killed):
        if started.done != now.done or after.at_s - started.at_s > HEALTHY_S:
            break
        counted.insert(0, started)
        after = started
    return counted


def restart_delay(killed: int) -> tuple[float | None, str]:
    """Return (seconds to wait before the next master starts, reason) after `killed` masters without progress. None: no
    other master starts."""
    reason = f"{killed} master{'s' if killed > 1 else ''} in a row killed before anything was credited or evaluated"
    if killed >= MAX_KILLS:
        return None, reason
    return (MIN_BACKOFF_S * 2.0 ** (killed - 2) if killed > 1 else 0.0), reason


_KILLED = "killed"  # fact in the ledger: starts of the masters that were killed, and the start of the present master
CANCEL_POLL_S = 1.0  # interval of checks for a cancel request during the wait


@contextmanager
def guard_crash_loop(root: Path, environment: Environment) -> Iterator[None]:
    """Record the start of a master for the duration of the block. If the last masters were killed, wait first.

    Raises RunError if too many masters were killed. The run is then stopped, and its workers are cancelled.
    """
    directory, started = RunDirectory(root), None
    if os.path.isfile(directory.ledger):
        # A ledger that cannot be read is ignored here, because the resume that follows reports it.
        with contextlib.suppress(LedgerError), translate_errors(root):
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
            _clear_start(ledger, started, all_before=False)  # an error does not count as a kill
            raise
        return started


def _back_off(directory: RunDirectory, ledger: Ledger, environment: Environment, killed: int) -> None:
    """After `killed` masters without progress, wait or stop the run."""
    wait_s, reason = restart_delay(killed)
    if wait_s is None:
        logs = f"see the machine's memory, or {directory.logs}, for what killed them"
        _stop(directory, ledger, environment, RunError(f"{reason}, so no other one starts: {logs}"))
    elif wait_s:
        text = f"{reason}; the next one starts in {wait_s:.0f} s"
        environment.report("warning", text, {"killed": killed, "wait_s": wait_s})
        _wait(directory, ledger, environment, wait_s)


def _wait(directory: RunDirectory, ledger: Ledger, environment: Environment, seconds: float) -> None:
    cancel, until_s = directory.root / "cancel", environment.clock() + seconds
    while not cancel.exists():  # a request that the killed master did not handle counts, too
        if environment.clock() >= until_s:
            return
        environment.rest(CANCEL_POLL_S)
    cancel.unlink()
    _stop(directory, ledger, environment, CancelledError(f"{directory.root} was cancelled"))


def _record_start(ledger: Ledger, now: float) -> tuple[MasterStart, int]:
    """Record the start of a master. Return (start, number of masters before it that were killed without progress).

    Masters that were killed before the run last ended do not count, because a person has resumed the run since.
    """
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
    """Remove the record of a start, unless another master has started since. With `all_before`, also remove the records
    of killed masters."""
    killed = ledger.get(_KILLED, [])
    if killed and killed[-1] == list(started):
        with ledger.transaction():
            ledger.set(_KILLED, [] if all_before else killed[:-1])


def _stop(directory: RunDirectory, ledger: Ledger, environment: Environment, error: RunError) -> None:
    """Cancel the workers and record the reason. Raises an error of the type of `error`."""
    backend = environment.backend(read_settings(directory.root, ledger.get("settings")), directory)
    backend.inherit(keep=False)  # cancels all workers
    backend.leave()
    text = f"{error}. It stands at its last credit; go on with {command('resume', directory.root)}"
    with ledger.transaction():
        ledger.set("status", RunStatus.CANCELLED if isinstance(error, CancelledError) else RunStatus.FAILED)
        ledger.set("stopped_because", text)
    raise type(error)(text)


@dataclass(frozen=True)
class RolledBack:
    """The result of a rollback."""

    point: RollbackPoint  # the new state of the run
    undone: Undone  # work that was removed


def rollback(root: Path, to: str, clock: Callable[[], float] = time.time) -> RolledBack:
    """Roll a run back to the end of an epoch, such as "e3" (the third), or to a version, such as "v57". `resume` then
    continues the run from there.

    Raises RunError while a master drives the run, LedgerError if the version's file is damaged, and UsageError for a
    version that is not kept or that is older than the saved fields of local vertices. Of these fields, only the values
    at the end of the last epoch are kept.
    """
    connect(root).close()  # raises LedgerError if there is no run
    directory = RunDirectory(root)
    again = f"{command('rollback', root)} --to {shlex.quote(to)}"
    with translate_errors(root, again), MasterLock(directory), closing(Ledger.of(directory)) as ledger:
        return _roll_back(ledger, directory, to, clock())


def offered(root: Path) -> list[RollbackPoint]:
    """Return the versions that a rollback can return to, newest first. They are not older than the saved fields of
    local vertices, and their files are intact. Reads the files of all these versions."""
    with opened(root) as ledger:
        oldest = read_fact(ledger, "base", {"version": 0})["version"]
        points = [point for point in rollback_points(ledger) if point.version >= oldest]
        digests = dict(ledger.execute("SELECT version, sha256 FROM versions WHERE kept").fetchall())
    whole = []
    for point in points:
        with translate_errors(root, command("rollback", root)), contextlib.suppress(DamagedError):
            open_chain(RunDirectory(root).versions, point.version, digests[point.version], mapped=True)
            whole.append(point)
    return whole


def _roll_back(ledger: Ledger, directory: RunDirectory, to: str, now: float) -> RolledBack:
    try:
        point = find_point(to, ledger.rollback_points())
    except UsageError:
        point = find_point(to, offered(directory.root))  # its error names only the versions that can still be chosen
    base = ledger.base()
    if base is not None and base.version > point.version:
        raise UsageError(
            f"--to is v{point.version}; the fields of local vertices that f changed are kept only since version "
            f"{base.version}. Give that one or a newer one, or go on with {command('resume', directory.root)}."
        )
    versions, newest = Versions(directory.versions), ledger.next_version
    gone = [version for version in ledger.saved_versions if version > point.version]
    # The version is copied under the next number, so that the numbers of undone versions are not used again.
    try:
        sha256 = versions.copy(point.version, ledger.sha256_of(point.version), newest, point.credited)
    except DamagedError as error:
        with ledger.transaction():
            ledger.drop_version(point.version)
        others = command("rollback", directory.root)
        raise LedgerError(f"{error}. It is no longer offered; for the others, see: {others}") from error
    with ledger.transaction():
        undone = ledger.roll_back(point.version, newest, sha256, now, "the run was rolled back")
        ledger.set("status", RunStatus.CANCELLED)
        ledger.set("stopped_because", f"It was rolled back to version {point.version}.")
        text = f"to version {point.version}; {undone.vertices:,} vertices are to be trained again"
        ledger.event(now, "rollback", text, {"version": point.version, "vertices": undone.vertices})
    ledger.backup()  # before files are removed, because the older copy of the ledger may need them
    for version in gone:
        versions.remove(version)
    directory.final.unlink(missing_ok=True)
    if ledger.get(Best.FACT) is None:  # the best version was undone; the next master finds the new one
        directory.best.unlink(missing_ok=True)
    return RolledBack(point, undone)
