"""The master's side of `sync`: take a group of messages, merge and credit their pushes, grant leases, reply.

Order of effects, which makes a kill at any instant harmless:

    1. merge in memory; write the new version and the patch of local fields, durable
    2. one transaction: version, credits, ended leases; then the patch is applied to the fields
    3. another one: new leases, whose chunks hold what was credited
    4. replies; a message stays in its mailbox until it is answered, and a repeated push is recognised

Messages that could not be taken are kept, for a person to look at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from gridml.carriers.base import BEGUN, MasterMailboxes, Message
from gridml.protocol import bundle
from gridml.protocol.codec import MalformedPush
from gridml.protocol.foreign import described, printable
from gridml.protocol.messages import Failure, Verdict
from gridml.protocol.push import NOTHING
from master.leases.leases import Leases
from master.ports.environment import Environment
from master.ports.mailboxes import message_limits
from master.state.failures import GivenUpFor
from master.state.records import Lost, WorkerRecord, WorkerTable
from master.store.journal import Events
from master.store.spec import RunSpec
from master.store.store import Store
from master.sync.buffers import Untrained
from master.sync.conduct import Conduct
from master.sync.merger import Merger
from master.sync.moments import KeptMoments, MomentsFile
from master.sync.pushes import Pushes, after_malformed
from master.sync.recovery import Failures, Recovery
from master.sync.replies import Replies
from master.sync.rows import Draft, Malformed
from master.sync.spot_checks import SpotChecks
from master.sync.version_use import Tails, VersionKeeper, VersionUse

KEPT = 16  # messages; the next one takes the place of the oldest
LONGEST = 1 << 24  # bytes of a message that are kept


class SetAside:
    """The last few messages in `folder`, which is made for the first: `03.message`, and why in `03.txt`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 0

    def keep(self, message: Message, reason: str) -> None:
        """Keep a message. A disk that has no room for it is no reason to stop."""
        place = self._folder / f"{self._next:02d}"
        self._next = (self._next + 1) % KEPT
        words = f"message {message.number} of {message.worker}, {len(message.payload):,} bytes: {reason}\n"
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            bundle.write_atomic(place.with_suffix(".txt"), printable(words).encode(), durable=False)
            bundle.write_atomic(place.with_suffix(".message"), bytes(message.payload[:LONGEST]), durable=False)


MAX_NOTES = 8  # of one worker that are shown
LONG_S = 2.0  # that cutting chunks takes: as long nobody is heard


class Exchange:
    """Hears workers and answers them."""

    def __init__(
        self,
        spec: RunSpec,
        store: Store,
        workers: WorkerTable,
        leases: Leases,
        mailboxes: MasterMailboxes,
        environment: Environment,
        events: Events,
    ) -> None:
        self.ledger = store.ledger
        self._fields = store.fields
        self._workers = workers
        self._leases = leases
        self._mailboxes = mailboxes
        self._environment = environment
        self._events = events
        self._measures = leases.sizing.measures
        self._copying = self._measures.copying
        self._spec = spec
        driver = spec.program.update.driver.__name__
        self.merger = Merger(spec.graph, store.replica, spec.settings.workers, driver)
        self.versions = VersionUse(store.ledger)
        self.failures = Failures(store.ledger, leases, workers, events)
        self.conduct = Conduct(store.ledger)
        moments = KeptMoments(spec.graph, workers, MomentsFile(store.ledger.path.parent / "moments"))
        moments.resume()
        self.recovery = Recovery(store, leases, self.failures, self.conduct, moments, events)
        share, chance = spec.settings.spot_checks, environment.chance
        due = lambda least: share > 0 and chance() < max(share, least)  # noqa: E731
        self.checks = SpotChecks(store, leases, workers, self.merger, self.recovery, events, due)
        leases.appointments = self.checks
        self.tails = Tails(spec, store.ledger, store.replica)
        self._keeper = VersionKeeper(store, leases.epochs, self.tails, self.versions, self.checks)
        self._untrained = Untrained(spec.graph)
        self._pushes = Pushes(
            store, leases, self.checks, self.merger, self.recovery, self._untrained, events, environment.hook
        )
        self.replies = Replies(spec, store, leases, self.versions, moments, mailboxes, environment.codec)
        self.limits = message_limits(spec.graph, store.replica.state)
        mailboxes.limit(self.limits.payload)
        self._set_aside = SetAside(store.ledger.path.parent / "set-aside")
        self._nonsensical: list[tuple[WorkerRecord, str]] = []
        self._told_of_cutting = False

    def handle(self, messages: list[Message], *, granting: bool = True) -> int:
        """Hear all messages as one group; return how many pushes were merged. Raises StorageError on a full disk.

        The list is emptied: each push may be as large as the replica, and is let go of when it is merged.
        """
        drafts, malformed = self._newest(messages)
        messages.clear()
        if not drafts and not malformed:
            return 0
        now, hook, cpu = self._environment.clock(), self._environment.hook, self._environment.cpu
        began = cpu()
        with self.ledger.transaction():
            merged = self._pushes.merge(drafts, now)
            for draft in drafts:
                self._hear(draft, now)
            for problem in malformed:
                self._turn_away(problem, now)
            hook("before-commit")
        hook("after-commit")
        self._fields.committed(merged)
        if merged and self.replies.push_s == 0.0:  # the first: it sizes what follows it already
            self.replies.push_s = (cpu() - began) / len(merged)
        self.replies.drift = self.merger.drift
        # Chunks are cut only now, so that they hold the fields that were just credited.
        cutting, nbytes = cpu(), self._copying.nbytes
        with self.ledger.transaction():
            self._grant([d for d in drafts if granting and not d.dropping and self._is_trusted(d.record)], now)
        cutting, nbytes = cpu() - cutting, self._copying.nbytes - nbytes
        self._copying.grant(sum(d.grant is not None for d in drafts), nbytes, cutting)
        if cutting > LONG_S:
            self._tell_of_cutting(nbytes, cutting)
        hook("after-grants")
        leave = self._leases.epochs.finished() or self.failures.stop_because is not None
        for draft in drafts:
            self.replies.send(draft, leave=leave or self.conduct.quarantined(draft.record.name))
        for problem in malformed:
            self._mailboxes.discard(problem.message.worker, problem.message.number)
        hook("after-answers")
        self._keeper.tidy(now)
        if merged:  # the cost of a chunk is not one of a push
            self.replies.push_s = _running_mean(self.replies.push_s, (cpu() - began - cutting) / len(merged))
        return len(merged)

    def _tell_of_cutting(self, nbytes: int, seconds: float) -> None:
        """Once: chunks of a size that was asked for may be larger than any that gridml chooses."""
        if self._told_of_cutting:
            return
        self._told_of_cutting = True
        text = f"cutting chunks of {nbytes / 1e6:,.0f} MB took {seconds:.1f} s, in which no worker was heard; "
        advice = "smaller ones take less: leave --chunk out, or ask for less with it, or with --chunk-bytes"
        self._events.record("warning", {"bytes": nbytes, "cutting_s": seconds}, text + advice)

    def release(self, record: WorkerRecord, because: str, now: float, *, reserved_until_s: float | None = None) -> None:
        """Free what a worker holds that has ended, from its last credit. Must be called inside a transaction.

        With `reserved_until_s` it is started again, and may until then bring what it could not send.
        """
        held = [*self.ledger.leases.of(record.name).values()]
        versions = self.versions.forget(record)
        self._measures.speeds.drop(record)
        self.conduct.forget(record.name)
        self.merger.habits.forget(record.name)  # a machine has one vote, however many workers it goes through
        if lost := self._untrained.forget(record.name):
            self._say_not_taken(record, lost, because)
        for lease in held:
            lease.reserved_versions = versions if reserved_until_s is not None else ()
            self._leases.end(lease, now, because, reserved_until_s=reserved_until_s)

    def _say_not_taken(self, record: WorkerRecord, names: Sequence[str], because: str) -> None:
        """Say what a worker changed that waited for another worker to change it, too."""
        more = f" and {len(names) - 1:,} more tensors" if len(names) > 1 else ""
        text = f"what {record.name} changed of {names[0]}{more} is not in the replica ({because}): "
        why = "no other worker has changed it, and no optimiser trains it"
        self._events.record("warning", {"worker": record.name, "tensors": len(names)}, text + why)

    def failed(self, record: WorkerRecord, why: str, last_words: str, now: float) -> bool:
        """Count what a worker was training as failed by it, which cannot say so itself; return whether it was at work.

        That is the lease that its heartbeat names, and where it never beat, the one it was given first.
        """
        heartbeat, held = self._mailboxes.heartbeat(record.name), self.ledger.leases.of(record.name)
        if heartbeat is None or heartbeat.lease == BEGUN:
            lease, at = next(iter(held.values()), None), None
        else:
            lease, at = held.get(heartbeat.lease), heartbeat.upto + 1
        if lease is None:
            return False
        at = None if at is None else min(max(at, lease.upto + 1), lease.stop)  # whatever the heartbeat says
        self.failures.record(lease, Failure(lease.id, lease.term, why, last_words, -1, -1), now, upto=at)
        return True

    def take_lost(self) -> list[Lost]:
        """Return the workers to give up since this was last asked: those that fail what others do, that are not to be
        heard any more, and that are trusted no more."""
        nonsensical, self._nonsensical = self._nonsensical, []
        return [
            *(Lost(record, GivenUpFor.FAILURES, why) for record, why in self.failures.take_replaceable()),
            *(Lost(record, GivenUpFor.NONSENSE, why) for record, why in nonsensical),
            *(Lost(self._workers.of(name), GivenUpFor.BLAME, why) for name, why in self.conduct.take_dismissed()),
        ]

    def _newest(self, messages: Sequence[Message]) -> tuple[list[Draft], list[Malformed]]:
        """The newest message of each worker, opened; and all that make no sense.

        A worker writes again only when it has been answered, so an older message is a late copy. It must not be heard:
        it would say that the worker lacks what it was given since.
        """
        newest: dict[str, Draft] = {}
        malformed = []
        for message in messages:
            draft = self._open(message)
            if isinstance(draft, Malformed):
                malformed.append(draft)
            elif message.number < draft.record.number:
                self._mailboxes.discard(message.worker, message.number)
            else:
                newest[message.worker] = draft
        return list(newest.values()), malformed

    def _open(self, message: Message) -> Draft | Malformed:
        """A message's content, within its bounds. Whatever it holds, nothing raises."""
        record = self._workers.of(message.worker)
        if message.problem:
            return Malformed(message, record, message.problem)
        problem = None
        try:
            sync, content = self._environment.codec.read(message.payload, self.limits.header)
        except MalformedPush as error:
            sync, content, problem = error.sync, NOTHING, str(error)
        except Exception as error:  # of the payload alone: nothing else has been looked at
            return Malformed(message, record, described(error))
        if sync.worker != message.worker:
            return Malformed(message, record, f"it speaks for {sync.worker}")
        return Draft(message, sync, content, record, problem, len(message.payload))

    def _turn_away(self, malformed: Malformed, now: float) -> None:
        """Free what the sender of a message that makes no sense holds: who knows what it trains."""
        self._set_message_aside(malformed.message, malformed.record, malformed.reason)
        self.release(malformed.record, f"a message that makes no sense: {malformed.reason}", now)

    def _set_message_aside(self, message: Message, record: WorkerRecord, reason: str) -> None:
        """Keep a message that could not be taken, and count it against its worker alone."""
        self._set_aside.keep(message, reason)
        record.malformed += 1
        heard, why = after_malformed(record.malformed)
        facts = {"worker": record.name, "machine": record.machine, "messages": record.malformed}
        self._events.record("warning", facts, f"{record.name} sent what makes no sense: {reason}; {why}")
        if not heard and self._is_expected(record):
            self._nonsensical.append((record, why))

    def _is_trusted(self, record: WorkerRecord) -> bool:
        """Whether a worker may be given work."""
        return self._is_expected(record) and not self.conduct.quarantined(record.name)

    def _is_expected(self, record: WorkerRecord) -> bool:
        """Whether a record is that of a worker that has not ended, and not one of nobody."""
        return self._workers.get(record.name) is record

    def _hear(self, draft: Draft, now: float) -> None:
        """Write down what the worker said of itself: measures, failures, refused work, that it leaves."""
        sync, record = draft.sync, draft.record
        if self._is_expected(record):  # not one that has ended, whose last push was brought home
            self.versions.hear(record, sync.have, draft.message.number)
            self._measures.hear(record, sync, now, worked=draft.verdict is Verdict.MERGED)
            record.spoke = True
            record.show_life(now)
        else:
            self._untrained.forget(record.name)
            self.merger.habits.forget(record.name)
        self.ledger.worker_reported(sync, now, draft.nbytes)
        self.ledger.worker_sent(sync.worker, record.bytes_down, now)
        record.bytes_down = 0
        if draft.problem is not None:
            self._set_message_aside(draft.message, record, draft.problem)
        for note in sync.note.splitlines():
            self._show_note(record, note)
        for problem in self.recovery.moments.take_problems():
            self._events.record("warning", {}, problem)
        if sync.failure is not None:
            lease = self.ledger.leases.get(sync.failure.lease)
            if lease is not None and lease.worker == sync.worker and lease.term == sync.failure.term:
                self.recovery.fail(lease, sync.have)
                self.failures.record(lease, sync.failure, now)
        if sync.leaving:
            record.took_leave = True
            self.release(record, "the worker left", now)
        elif draft.verdict is Verdict.REFUSED:
            lease = self.ledger.leases.get(draft.push.lease)
            if lease is not None and lease.worker == sync.worker:
                self._leases.end(lease, now, f"refused: {draft.reason}")

    def _show_note(self, record: WorkerRecord, note: str) -> None:
        """Tell the user what a worker went on without: each text once, and so many of a worker that may send any."""
        if not note.strip() or note in record.notes or len(record.notes) >= MAX_NOTES:
            return
        record.notes.add(note)
        last = "" if len(record.notes) < MAX_NOTES else "; its further notes are not shown"
        self._events.record("warning", {"worker": record.name}, f"{record.name}: {note}{last}")

    def _grant(self, drafts: Sequence[Draft], now: float) -> None:
        """Grant leases to those that want any. Once half as many bytes were cut as one chunk may have, the others ask
        again: however many want one at once, the loop is not silent for longer than one and a half take."""
        most = self._copying.nbytes + self._spec.settings.chunk_bytes / 2
        for draft in drafts:
            if draft.sync.wants and self._copying.nbytes >= most:
                continue
            if draft.verdict is Verdict.MERGED:
                self.replies.interval(draft.record)  # a chunk is worth the push that ends it, as this one shows
            draft.grant = self._leases.grant(draft.record, draft.sync, now)
            if draft.grant is not None:
                self.checks.granted(draft.grant)
        for draft in drafts:  # it may have been cut for another worker of the group, or given to it
            if draft.grant is not None and self.ledger.leases.get(draft.grant.id) is not draft.grant:
                draft.grant = None


def _running_mean(mean: float, new: float) -> float:
    return new if mean == 0 else 0.8 * mean + 0.2 * new
