"""A master takes a run over from the one before: hear what its workers sent since, keep the leases of those that live
on, and fence the others, which may be alive still: their pushes are refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gridml.carriers.base import Message
from gridml.protocol.attempts import is_attempt, job_of
from gridml.protocol.foreign_files import remove
from gridml.protocol.outbox import read as read_outbox
from master.fleet import RESERVED_S, Fleet, Workplace
from master.leases.leases import Leases
from master.mailboxes import MessageLimits
from master.records import WorkerTable
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.rundir import RunDirectory
from master.store.status import RunStatus
from master.store.store import Store
from master.sync.exchange import Exchange

Row = Mapping[str, Any]  # of the ledger's table of workers


def recovered(directory: RunDirectory, workers: Iterable[str], limits: MessageLimits) -> dict[Path, Message]:
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
    fleet: Fleet
    events: Events

    @property
    def ledger(self) -> Ledger:
        return self.store.ledger

    def begin(self, now: float) -> None:
        """Begin this master's life at `now`; afterwards every open lease is that of a worker that lives on."""
        ledger, mailboxes = self.ledger, self.place.mailboxes
        masters = ledger.get("masters", 0)
        program = self.place.directory.kept_program(self.place.settings.program).digest()
        # What was leased under a ledger since undone, or with another f, has nothing to do with this one.
        alike = not ledger.get("undone", False) and ledger.get("program", program) == program
        inherited = self.place.backend.inherit(keep=alike)
        survivors, rows = frozenset(inherited), ledger.workers()
        self._recall(rows, survivors, now)
        # A master that is killed leaves no word: it lived until the last thing that it wrote down.
        until_s = min(now, ledger.last_sign())
        if masters and alike:
            self._hear_what_came_meanwhile(rows, survivors, now)
        with ledger.transaction():
            self._end_others(survivors, now)
            if not alike or ledger.get("status") != RunStatus.RUNNING:  # a person has mended what failed
                ledger.forget_failures()
                self.workers.forget_failures()
            if masters:
                ledger.orphan_workers(until_s, but=survivors)
                ledger.set("gaps", [*ledger.get("gaps", []), [until_s, now]])
                self._tell(len(survivors))
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

    def _tell(self, survivors: int) -> None:
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

    def _recall(self, rows: Iterable[Row], survivors: Collection[str], now: float) -> None:
        """Make records of the workers that live on and of the machines that are avoided, and take note of the other
        workers' names."""
        measures = self.leases.sizing.measures
        for row in rows:
            if row["worker"] in survivors:
                record = self.workers.add(row["worker"])
                record.spoke = row["first_sync_s"] is not None
                record.moments_asked = None
                measures.recall(record, row)
            else:
                self.workers.add_ended([row["worker"]])
            self.workers.recall_failures(row)
        for machine in self.ledger.machines():
            self.workers.machines.recall(machine, now)

    def _hear_what_came_meanwhile(self, rows: Iterable[Row], survivors: Collection[str], now: float) -> None:
        """Merge what was pushed while no master was there, by workers that have since ended, too."""
        table, jobs = self.ledger.leases, {job_of(worker) for worker in survivors}
        leased = {job_of(lease.worker) for lease in table}
        standing = [self.workers.add(worker) for worker in survivors if job_of(worker) in leased]
        reserved_until_s = max((lease.reserved_until_s or 0.0 for lease in table.reserved.values()), default=0.0)
        if any(job_of(lease.worker) in jobs and lease.worker not in survivors for lease in table):
            reserved_until_s = max(reserved_until_s, now + RESERVED_S)  # those that `_end_others` is about to reserve
        self.exchange.versions.inherit(standing, self.ledger.kept_versions, reserved_until_s)
        ended = (row["worker"] for row in rows if job_of(row["worker"]) not in jobs)
        brought_home = recovered(self.place.directory, ended, self.exchange.limits)
        messages = [*brought_home.values(), *self.place.mailboxes.collect()]
        speaking = {message.worker for message in messages}.union(survivors)
        for lease in [lease for lease in table if lease.worker in speaking]:
            self.leases.take_over(lease)
        self.exchange.handle(messages, granting=False)
        for path in brought_home:
            remove(path)

    def _end_others(self, survivors: Collection[str], now: float) -> None:
        """End the leases of those that do not live on; a later attempt of their job may bring what they left."""
        jobs = {job_of(worker) for worker in survivors}
        for lease in [lease for lease in self.ledger.leases if lease.worker not in survivors]:
            returns = job_of(lease.worker) in jobs
            until_s = now + RESERVED_S if returns else None
            self.leases.end(lease, now, "the master ended", reserved_until_s=until_s)
