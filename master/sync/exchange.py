"""Exchange: handles a group of messages: merges and credits their pushes, grants leases, and replies.

Effects are ordered so that the master can be killed at any instant without harm:

    1. merge in memory; write the new version and the patch of local fields, both durable
    2. one transaction: version, credits, ended leases; then the patch is applied to the fields
    3. a second transaction: new leases, whose chunks hold what was credited
    4. replies; a message stays in its mailbox until it is answered, and a repeated push is recognised

Messages that cannot be merged are kept for a person to inspect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gridml.carriers.base import Message
from gridml.protocol.foreign import printable
from gridml.protocol.messages import Verdict
from master.leases.leases import Leases
from master.ports.environment import Environment
from master.state.failures import Alteration
from master.state.worker_records import WorkerRecord, WorkerTable
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.store import Store
from master.sync.inbox import Inbox
from master.sync.merger import Merger
from master.sync.pushes import Pushes
from master.sync.recovery import Failures, Recovery
from master.sync.replies import PushPace, Replies
from master.sync.rows import PendingReply
from master.sync.version_use import VersionKeeper, VersionUse
from master.trust.trust import Trust

#: Maximum number of one worker's notes that are recorded. It is bounded, because a hostile worker can send any number.
MAX_NOTES = 8
#: A warning is recorded if cutting chunks takes more CPU seconds than this, because no message is handled in that time.
LONG_CUT_S = 2.0


@dataclass(frozen=True)
class WorkerReports:
    """Records workers' reports other than pushes, and releases the leases of ended workers.

    Methods must be called inside the ledger's transaction.
    """

    ledger: Ledger
    leases: Leases
    workers: WorkerTable
    versions: VersionUse
    recovery: Recovery
    trust: Trust
    merger: Merger
    events: Events

    def release(self, record: WorkerRecord, because: str, now: float, *, reserved_until_s: float | None = None) -> None:
        """Release everything that an ended worker holds; its leases end at their last credit.

        With `reserved_until_s`, the worker's job is started again, and may deliver until then what the worker could not
        send.
        """
        held = [*self.ledger.leases.of(record.name).values()]
        versions = self.versions.forget(record)
        self.leases.sizing.measures.speeds.drop(record)
        self.trust.forget(record.name)
        if lost := self.merger.forget(record.name):
            self._record_not_taken(record, lost, because)
        for lease in held:
            lease.reserved_versions = versions if reserved_until_s is not None else ()
            self.leases.end(lease, now, because, reserved_until_s=reserved_until_s)

    def _record_not_taken(self, record: WorkerRecord, names: Sequence[str], because: str) -> None:
        """Record a warning that changes of a worker were not merged, because no other worker made them, too."""
        more = f" and {len(names) - 1:,} more tensors" if len(names) > 1 else ""
        text = f"changes of {record.name} to {names[0]}{more} are not in the replica ({because}): "
        why = "no other worker made any, and no optimiser trains it"
        self.events.record("warning", {"worker": record.name, "tensors": len(names)}, text + why)

    def handle(self, pending: PendingReply, now: float) -> None:
        """Record a worker's report: measurements, notes, failures, refused work, and that the worker leaves."""
        sync, record = pending.sync, pending.record
        if self.workers.is_current(record):  # false for an ended worker whose job left an unsent push
            self.versions.handle(record, sync.have, pending.message.number)
            self.leases.sizing.measures.handle_sync(record, sync, now, worked=pending.verdict is Verdict.MERGED)
            self.workers.report(record)
            record.signs.record_contact(now)
        else:
            self.merger.forget(record.name)
        self.ledger.worker_reported(sync, now, pending.nbytes)
        self.ledger.worker_sent(sync.worker, record.contact.bytes_down, now)
        record.contact.bytes_down = 0
        for note in sync.note.splitlines():
            self._show_note(record, note)
        for problem in self.recovery.moments.take_problems():
            self.events.record("warning", {}, problem)
        if sync.failure is not None:
            lease = self.ledger.leases.get(sync.failure.lease)
            if lease is not None and lease.worker == sync.worker and lease.term == sync.failure.term:
                self.recovery.record_failure(lease, sync.have)
                self.recovery.failures.record(lease, sync.failure, now)
        if sync.leaving:
            record.contact.disconnected = True
            self.release(record, "the worker left", now)
        elif pending.verdict is Verdict.REFUSED:
            lease = self.ledger.leases.get(pending.push.lease)
            if lease is not None and lease.worker == sync.worker:
                self.leases.end(lease, now, f"refused: {pending.reason}")

    def _show_note(self, record: WorkerRecord, note: str) -> None:
        """Record a worker's note as an event. Each text is recorded once, and at most `MAX_NOTES` texts."""
        if not note.strip() or note in record.contact.notes or len(record.contact.notes) >= MAX_NOTES:
            return
        record.contact.notes.add(note)
        last = "" if len(record.contact.notes) < MAX_NOTES else "; its further notes are not shown"
        self.events.record("warning", {"worker": record.name}, f"{record.name}: {note}{last}")


class Grants:
    """Grants leases to a group of workers, in portions that do not block the loop for long."""

    def __init__(
        self,
        ledger: Ledger,
        leases: Leases,
        workers: WorkerTable,
        trust: Trust,
        pace: PushPace,
        events: Events,
    ) -> None:
        self._ledger = ledger
        self._leases = leases
        self._workers = workers
        self._trust = trust
        self._pace = pace
        self._events = events
        self._copying = leases.sizing.measures.copying
        self._has_warned = False

    def grant(self, group: Sequence[PendingReply], now: float) -> int:
        """Grant leases to the workers that want one and may work; return the bytes of chunks that were cut.

        Must be called inside the ledger's transaction.
        """
        group = [pending for pending in group if not pending.is_dropping and self._can_work(pending.record)]
        before = self._copying.nbytes
        # Once half a chunk's bytes are cut, the remaining workers get no lease and have to ask again. So the loop
        # blocks for at most the time of cutting one and a half chunks, however many workers want a lease at once.
        most = before + self._leases.chunk_bytes / 2
        for pending in group:
            if pending.sync.wants and self._copying.nbytes >= most:
                continue
            if pending.verdict is Verdict.MERGED:
                self._pace.choose(pending)  # before the grant: chunks are sized by the push interval
            assignment = self._trust.assignment(pending.record, pending.sync, now)
            pending.grant = self._leases.grant(pending.record, pending.sync, now, assignment)
            if assignment is not None:
                self._trust.reserve(pending.record, pending.grant)
        for pending in group:  # a later grant of the group may have cut or reassigned the lease
            if pending.grant is not None and self._ledger.leases.get(pending.grant.id) is not pending.grant:
                pending.grant = None
        return self._copying.nbytes - before

    def record_cost(self, grants: int, nbytes: int, seconds: float) -> None:
        """Record the CPU seconds that cutting chunks took. Warn once if it took long, because the user may have chosen
        a larger chunk than gridml ever chooses."""
        self._copying.grant(grants, nbytes, seconds)
        if seconds <= LONG_CUT_S or self._has_warned:
            return
        self._has_warned = True
        text = f"cutting chunks of {nbytes / 1e6:,.0f} MB took {seconds:.1f} s, in which no message was handled; "
        advice = "smaller ones take less: leave --chunk out, or give a smaller --chunk or --chunk-bytes"
        self._events.record("warning", {"bytes": nbytes, "cutting_s": seconds}, text + advice)

    def _can_work(self, record: WorkerRecord) -> bool:
        return self._workers.is_current(record) and not self._trust.quarantined(record.name)


@dataclass(frozen=True)
class Exchange:
    """Handles the messages of workers and replies to them. The parts of this work are fields, in order of their use."""

    environment: Environment
    store: Store
    workers: WorkerTable
    leases: Leases
    #: decodes messages
    inbox: Inbox
    #: merges and credits pushes
    pushes: Pushes
    #: records what workers report
    reports: WorkerReports
    #: failures, and rollbacks of the replica
    recovery: Recovery
    #: quarantine and spot checks
    trust: Trust
    #: grants leases
    grants: Grants
    #: push interval of each worker
    pace: PushPace
    #: sends replies
    replies: Replies
    #: removes versions that are not needed any more
    keeper: VersionKeeper

    @property
    def failures(self) -> Failures:
        return self.recovery.failures

    def handle(self, messages: list[Message], *, granting: bool = True) -> int:
        """Handle all messages as one group; return the number of pushes that were merged. Raises StorageError if the
        disk is full.

        The list is emptied, because a push can be as large as the replica and is freed as soon as it is merged.
        """
        group, malformed = self.inbox.open(messages)
        messages.clear()
        if not group and not malformed:
            return 0
        now, hook, cpu = self.environment.clock(), self.environment.hook, self.environment.cpu
        ledger, began = self.store.ledger, cpu()
        with ledger.transaction():
            merged = self.pushes.merge(group, now)
            for pending in group:
                self._handle(pending, now)
            for problem in malformed:
                self._count_unreadable(problem.message, problem.record, problem.reason, now)
                # The sender of a malformed message loses its leases, because it is unknown what it trains. The sender
                # of a damaged message sends it again.
                if not problem.message.is_damaged:
                    self.reports.release(problem.record, f"a malformed message: {problem.reason}", now)
            hook("before-commit")
        hook("after-commit")
        self.store.fields.committed(merged)
        self.pace.merged(len(merged), cpu() - began)
        # Chunks are cut after the commit, so that they hold the fields that were just credited.
        cutting = cpu()
        with ledger.transaction():
            nbytes = self.grants.grant(group if granting else (), now)
        cutting = cpu() - cutting
        self.grants.record_cost(sum(pending.grant is not None for pending in group), nbytes, cutting)
        hook("after-grants")
        for pending in group:
            if self.pace.rounds.holds(pending):
                self.inbox.hold(pending.message)
            else:
                self._reply(pending)
        for problem in malformed:
            if not problem.message.is_damaged:  # a damaged message is already removed; another copy may be intact
                self.inbox.discard(problem.message)
        hook("after-answers")
        self.keeper.tidy(now)
        self.pace.answered(len(merged), cpu() - began - cutting)  # chunks are not a cost of pushes
        return len(merged)

    def end_round(self) -> bool:
        """End the round of gathered pushes if it is time, and send the replies that waited for it. Return whether it
        ended."""
        rounds, now, began = self.pace.rounds, self.environment.clock(), self.environment.cpu()
        if not rounds.is_over():
            return False
        store, hook = self.store, self.environment.hook
        with store.ledger.transaction():
            store.replica.begin_version()
            version = store.replica.next_version
            if rounds.end(version):
                hook("before-version")
                sha256 = store.replica.commit_version(version, store.ledger.credited)
                hook("after-version")
                store.ledger.add_version(version, sha256, 0, now)
            hook("before-commit")
        hook("after-commit")
        for pending in rounds.release():
            if pending.grant is not None and store.ledger.leases.get(pending.grant.id) is not pending.grant:
                pending.grant = None
            self._reply(pending)
        hook("after-answers")
        self.keeper.tidy(now)
        self.pace.ended_round(self.environment.cpu() - began)
        return True

    def undo_rounds(self) -> None:
        """After a rollback, refuse the pushes whose replies waited for the end of their round."""
        if not self.pace.rounds.used:
            return
        with self.store.ledger.transaction():
            undone = self.pace.rounds.undo()
        for pending in undone:
            pending.verdict, pending.reason = Verdict.REFUSED, "the run was taken back"
            self._reply(pending)

    def _reply(self, pending: PendingReply) -> None:
        leave = self.leases.epochs.is_finished() or self.failures.stop_because is not None
        self.replies.send(pending, leave=leave or self.trust.quarantined(pending.record.name))

    def _count_unreadable(self, message: Message, record: WorkerRecord, reason: str, now: float) -> None:
        self.inbox.keep(message, record, reason)
        self.store.ledger.add_altered(record.name, Alteration.UNREADABLE, 0, printable(reason), now)

    def _handle(self, pending: PendingReply, now: float) -> None:
        if pending.problem is not None:
            self._count_unreadable(pending.message, pending.record, pending.problem, now)
        self.reports.handle(pending, now)
