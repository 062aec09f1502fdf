"""The master's side of `sync`: judge what workers pushed, merge and credit it in one transaction, and answer.

Order of effects, which makes a kill at any instant harmless:
  1. merge in memory; write the new version and the patch of local fields, durable
  2. one transaction: version, credits, ended leases; then the patch is applied to the fields
  3. another one: new leases, whose chunks hold what was credited
  4. answers; a message stays in its mailbox until it is answered, and a repeated push is recognised
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gridml.aggregates import Merge
from gridml.carriers.base import MasterMailboxes, Message
from gridml.engine.pace import ask_again_s, batch_size, push_every
from gridml.errors import UserCodeError
from gridml.protocol.attempts import job_of
from gridml.protocol.codec import BundleCodec, Codec, MalformedPush
from gridml.protocol.messages import Failure, Pace, Push, Reply, Sync, Verdict
from gridml.protocol.push import NOTHING, Fields, PushContent, ReplicaPart
from master.decisions.admission import LeaseFacts, admit
from master.decisions.leasing import LeaseRow
from master.decisions.staffing import after_failure
from master.leases.leases import Grants
from master.records import Correspondence, Correspondent
from master.store.ledger import Ledger
from master.store.local_fields import LocalFields
from master.store.replica import Replica, Touched, union, without
from master.store.rundir import command
from master.store.settings import Settings
from master.sync.merger import Merged, Merger

HOPE_S = 600.0  # how long a worker that is started again may take to bring what it could not send before
SPARE_VERSIONS, SPARE_BYTES = 16, 1 << 28  # old versions are removed a few at a time: each time is a transaction
Hook = Callable[[str], None]


@dataclass
class Draft:
    """An answer being made."""

    message: Message
    sync: Sync
    content: PushContent
    problem: str | None = None  # why the tensors beside the sync make no sense
    verdict: Verdict | None = None
    reason: str = ""
    fast_forward: bool = False
    drop_optimiser: bool = False

    @property
    def dropping(self) -> bool:
        """Whether the worker will drop its replica and its leases, and ask for new ones."""
        return self.verdict is Verdict.REFUSED or self.sync.failure is not None


class Exchange:
    """Hears workers and answers them. `hook` is told the name of each commit point; tests end the process there."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        replica: Replica,
        merger: Merger,
        fields: LocalFields,
        grants: Grants,
        mailboxes: MasterMailboxes,
        clock: Callable[[], float],
        hook: Hook,
        codec: Codec | None = None,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._replica = replica
        self._merger = merger
        self._fields = fields
        self._grants = grants
        self._mailboxes = mailboxes
        self._clock = clock
        self._hook = hook
        self._codec = codec or BundleCodec()
        self._cpu = cpu  # seconds of this thread
        self.known = Correspondence()
        self._enough_versions = 0  # how many are kept before any is removed
        self.push_s = 0.0  # CPU seconds from a push's message to its answer,
        self.grant_s = 0.0  # and to cut the chunk of a lease: running means
        self.news: list[tuple[str, str]] = []  # (kind, text) of what a person should hear of
        self.stop_because: UserCodeError | None = None  # the user's code failed too often

    def handle(self, messages: Sequence[Message], *, granting: bool = True) -> int:
        """Hear all messages as one group; returns how many pushes were merged. Raises StorageError on a full disk."""
        drafts = self._newest(messages)
        if not drafts:
            return 0
        now, began = self._clock(), self._cpu()
        with self._ledger.transaction():
            merged = self._merge(drafts, now)
            for draft in drafts:
                self._note(draft, now)
            self._hook("before-commit")
        self._hook("after-commit")
        self._fields.committed([m for _, m in merged])
        # Chunks are cut only now, so that they hold the fields that were just credited.
        cutting = self._cpu()
        with self._ledger.transaction():
            grants = [
                None if d.dropping or not granting else self._grants.grant(d.sync, self.live(), now) for d in drafts
            ]
        cutting = self._cpu() - cutting
        began += cutting  # the cost of a chunk, not of a push
        if granted := sum(grant is not None for grant in grants):
            self.grant_s = _running_mean(self.grant_s, cutting / granted)
        self._hook("after-grants")
        for draft, grant in zip(drafts, grants, strict=True):
            # Read again: it may have been cut for another worker of the group, or given to it.
            self._answer(draft, None if grant is None else self._ledger.leases.get(grant.id))
        self._hook("after-answers")
        self._forget_versions()
        if merged:
            self.push_s = _running_mean(self.push_s, (self._cpu() - began) / len(merged))
        return len(merged)

    def live(self) -> int:
        """Workers that hold a lease."""
        return len(self._ledger.held)

    def gone(self, worker: str, because: str, now: float, *, heir: bool = False) -> None:
        """A worker has ended: its leases are free again from their last credit. Must be called inside a transaction.

        With an `heir` it is started again, and may then bring what it could not send.
        """
        held = [*self._ledger.held.get(worker, {}).values()]
        self.known.end(worker, now + HOPE_S if heir and held else None)
        self._grants.gone(worker)
        for row in held:
            self._grants.end(row, now, because)
            if heir:
                self._grants.hope(row, now + HOPE_S)

    def crashed(self, worker: str, detail: str, last_words: str, now: float) -> None:
        """A worker ended and nobody asked for it: what it was training may be why, and counts as failed once."""
        heartbeat = self._mailboxes.heartbeat(worker)
        row = None if heartbeat is None else self._ledger.leases.get(heartbeat[0])
        if heartbeat is not None and row is not None and row.worker == worker:
            failure = Failure(row.id, row.term, f"the worker ended with {detail}", last_words, -1, -1)
            self._fail(row, failure, now)

    def _newest(self, messages: Sequence[Message]) -> list[Draft]:
        """The newest message of each worker, opened.

        A worker writes again only when it has been answered, so an older message is a late copy. It must not be heard:
        it would say that the worker lacks what it was given since.
        """
        found: dict[str, Draft] = {}
        for message in messages:
            known, draft = self.known.workers.get(message.worker), self._open(message)
            if draft is None or (known is not None and message.number < known.number):
                self._mailboxes.discard(message.worker, message.number)
                if draft is None:
                    self.news.append(("warning", f"{message.worker} sent what is no sync; is its gridml another one?"))
            else:
                found[message.worker] = draft
        return list(found.values())

    def _open(self, message: Message) -> Draft | None:
        """A message's content, None for one that makes no sense, and would make none if it was sent again."""
        try:
            sync, content = self._codec.read(message.payload)
            draft = Draft(message, sync, content)
        except MalformedPush as error:
            draft = Draft(message, error.sync, NOTHING, str(error))
        except ValueError:
            return None
        return draft if draft.sync.worker == message.worker else None

    # --- pushes

    def _merge(self, drafts: Sequence[Draft], now: float) -> list[tuple[LeaseRow, Fields]]:
        """Merge every push of the group on top of each other and credit them to one new version."""
        accepted: list[tuple[Draft, Push, float]] = []
        fields: list[Fields] = []
        self._replica.begin_version()
        version = self._replica.version + 1
        pending = 0
        taken: dict[int, LeaseRow] = {}
        for draft in drafts:
            push = draft.sync.push
            if push is None:
                continue
            row = taken.get(push.lease) or self._ledger.leases.get(push.lease)
            base_credit = self._ledger.credited_at(push.base)
            facts = self._facts(row, push, draft.sync.worker, now)
            draft.verdict, draft.reason = admit(push, draft.sync.worker, facts, base_kept=base_credit is not None)
            if draft.verdict is not Verdict.MERGED or base_credit is None:
                continue
            row = row or self._reopen(push, draft.sync.worker, now)
            others = self._ledger.credited + pending - base_credit
            told = Merge(version, push.base, push.vertices, others, max(1, self.live()))
            problem, outcome = self._try(draft, row, push, told)
            if outcome is None:
                draft.verdict, draft.reason, draft.drop_optimiser = Verdict.REFUSED, problem, True
                self._failed(draft, Failure(row.id, row.term, problem, "", -1, -1), now)
                continue
            merged, changed = outcome
            self._replica.put(merged.modules, merged.rows, version)
            draft.fast_forward = merged.fast_forward
            taken[row.id] = row._replace(upto=push.upto, sequence=push.sequence)
            pending += push.vertices
            accepted.append((draft, push, told.staleness))
            fields.append(changed)
        if not accepted:
            return []
        if len(accepted) > 1:
            for draft, _, _ in accepted:
                draft.fast_forward = False
        return self._commit(accepted, fields, version, now)

    def _commit(
        self,
        accepted: Sequence[tuple[Draft, Push, float]],
        fields: Sequence[Fields],
        version: int,
        now: float,
    ) -> list[tuple[LeaseRow, Fields]]:
        """Write the new version and credit it; epochs that this completes are flushed and closed."""
        rows = []
        epochs = {self._ledger.leases[push.lease].epoch for _, push, _ in accepted}
        for _, push, staleness in accepted:
            row = self._ledger.credit(self._ledger.leases[push.lease], push.upto, version, staleness, now)
            self._grants.credited(row, now)
            rows.append(row)
        complete = [e for e in epochs if self._grants.complete(e)]
        if complete:
            flushed = self._merger.flush(max(1, self.live()))
            if flushed:
                self._replica.put(flushed, {}, version)
                for draft, _, _ in accepted:
                    draft.fast_forward = False
        self._hook("before-version")
        sha256 = self._replica.commit_version(version)
        self._hook("after-version")
        self._ledger.add_version(version, sha256, len(accepted), now)
        if self._fields.any:
            self._ledger.add_patch(version, min(epochs), self._fields.write_patch(version, fields))
            self._hook("after-patch")
        for row in rows:
            if row.upto >= row.stop:
                self._grants.end(row, now, "trained to its end")
        for epoch in complete:
            self._ledger.close_epoch(epoch, version, now)
            self._say(now, "epoch", f"epoch {epoch + 1} is credited in full, in version {version}")
        return list(zip(rows, fields, strict=True))

    def _try(self, draft: Draft, row: LeaseRow, push: Push, told: Merge) -> tuple[str, tuple[Merged, Fields] | None]:
        """(reason, what the push would change), None when the gate refuses it."""
        replica, fields = draft.content.replica, draft.content.fields
        problem = (
            draft.problem
            or self._merger.check(replica)
            or self._grants.cuts_component(row.epoch, push.upto)
            or self._fields.check(fields, self._grants.allowed(row), self._grants.trained(row, push.upto))
        )
        if problem is not None:
            return problem, None
        base = self._replica.base(push.base, self._ledger.sha256_of(push.base))
        try:
            merged, reason = self._merger.merge(replica, base, told)
        except UserCodeError as error:
            self.stop_because = error
            return str(error), None
        return reason, None if merged is None else (merged, fields)

    def _facts(self, row: LeaseRow | None, push: Push, worker: str, now: float) -> LeaseFacts | None:
        if row is not None:
            return LeaseFacts(row.worker, row.term, row.start, row.stop, row.upto, row.sequence, open=True)
        found = self._ledger.closed_lease(push.lease)
        if found is None:
            return None
        row, because = found
        heir = job_of(worker) == job_of(row.worker)
        untouched = (
            heir
            and self._grants.hoped_for(row, now)
            and self._ledger.span_left(row, push.upto) is not None
            and self._grants.cuts_component(row.epoch, push.upto) is None
        )
        holder = worker if heir else row.worker
        return LeaseFacts(holder, row.term, row.start, row.stop, row.upto, row.sequence, False, because, untouched)

    def _reopen(self, push: Push, worker: str, now: float) -> LeaseRow:
        """The lease of a push that has come after it ended, and that nobody else has replaced."""
        found = self._ledger.closed_lease(push.lease)
        assert found is not None, "it was judged"
        self._say(now, "late", f"{worker} brings {push.vertices:,} vertices of lease {push.lease}, which had ended")
        return self._grants.reopen(found[0], push.upto, worker)

    # --- everything else a sync says

    def _note(self, draft: Draft, now: float) -> None:
        """Write down what the worker said of itself: measures, failures, refused work, that it leaves."""
        sync = draft.sync
        known = self.known.hear(sync, draft.message.number)
        self._grants.sizing.measures.heard(sync, now)
        self._ledger.worker_said(sync.worker, now, sync.trained, sync.train_s, len(draft.message.payload), sync.kind)
        self._ledger.worker_sent(sync.worker, known.bytes_down)
        known.bytes_down = 0
        if sync.failure is not None:
            self._failed(draft, sync.failure, now)
        if sync.leaving:
            self.known.left.add(sync.worker)
            self.gone(sync.worker, "the worker left", now)
        elif draft.verdict is Verdict.REFUSED:
            self._end_own(sync, now, draft.reason)

    def _end_own(self, sync: Sync, now: float, because: str) -> None:
        row = None if sync.push is None else self._ledger.leases.get(sync.push.lease)
        if row is not None and row.worker == sync.worker:
            self._grants.end(row, now, f"refused: {because}")

    def _failed(self, draft: Draft, failure: Failure, now: float) -> None:
        """f or the replica it made failed: give the range to another worker, or stop the run."""
        row = self._ledger.leases.get(failure.lease)
        if row is not None and row.worker == draft.sync.worker and row.term == failure.term:
            self._fail(row, failure, now)

    def _fail(self, row: LeaseRow, failure: Failure, now: float) -> None:
        self._ledger.add_failure(row.worker, row.epoch, failure, now)
        again, reason = after_failure(row.tries + 1)
        self._grants.end(row, now, failure.message, failed=True)
        chunk = f"chunk [{row.start}, {row.stop}) of epoch {row.epoch + 1}"
        place = f"{self._grants.driver} {failure.first} to {failure.last} in {chunk}" if failure.first >= 0 else chunk
        self._say(now, "failure", f"{place}: {failure.message}; {reason}")
        if not again and self.stop_because is None:
            self.stop_because = UserCodeError(
                f"{place} {reason}: {failure.message}\n"
                f"Mend the program, then go on from the last credit: {command('resume', self._ledger.path.parent)}",
                failure.traceback,
            )

    def _say(self, now: float, kind: str, text: str) -> None:
        self._ledger.event(now, kind, text)
        self.news.append((kind, text))

    # --- answers

    def _answer(self, draft: Draft, grant: LeaseRow | None) -> None:
        sync = draft.sync
        known = self.known.workers.get(sync.worker) or Correspondent()  # one that leaves is not remembered
        version = self._replica.version
        lacking = ReplicaPart()
        if self._replica.state and not draft.dropping:
            lacking = self._replica.outgoing(*self._lacking(draft, known, grant))
        row = None if sync.push is None else self._ledger.leases.get(sync.push.lease)
        pace = self._pace(sync.worker, known)
        reply = Reply(
            version=version,
            pace=pace,
            verdict=draft.verdict,
            reason=draft.reason,
            fast_forward=draft.fast_forward,
            lease=None if grant is None else self._grants.describe(grant),
            stop_at=None if row is None else row.stop,
            drop_optimiser=draft.drop_optimiser,
            leave=self._grants.finished() or self.stop_because is not None,
            wait_s=ask_again_s(len(self.known.workers) - self.live()),
            process=sync.process,
        )
        payload = self._codec.write(reply, lacking)
        if known is self.known.workers.get(sync.worker):
            self.known.told(known, version)
        known.bytes_down += len(payload)
        self._mailboxes.answer(draft.message.worker, draft.message.number, payload)

    def _lacking(self, draft: Draft, known: Correspondent, grant: LeaseRow | None) -> tuple[Touched, int, Touched]:
        """(vertices the worker's leases touch, the version it has of them, those it has no replica of)."""
        sync, worker = draft.sync, draft.sync.worker
        # What the worker names it has heard of, so it has the replica that came with it. Any other answer may be lost.
        named = {*sync.holds} if sync.push is None else {*sync.holds, sync.push.lease}
        known.holding = {lease: touched for lease, touched in known.holding.items() if lease in named}
        touched = self._grants.touched(worker)
        fresh = touched if sync.have < 0 else without(touched, union(known.holding.values()))
        if grant is not None:
            known.holding[grant.id] = self._grants.touched_by(grant)
            if not self._grants.ahead:
                fresh = union([fresh, known.holding[grant.id]])  # its chunk's rows start from the master's
        return touched, self._replica.version if draft.fast_forward else sync.have, fresh

    def _pace(self, worker: str, known: Correspondent) -> Pace:
        live = max(1, self.live())
        update = self._grants.program.update
        size = batch_size(update.batch or 1, update.min_batch, live)
        every = self._settings.push_every
        if every is None:
            ruled, _ = push_every(live, size, known.rate, known.push_s + self.push_s, self._settings.push_budget)
            every, _ = self._grants.sizing.push_every(worker, ruled, size, live, self.push_s)
        self._grants.told(worker, every)
        return Pace(live, self._ledger.credited, self._grants.total, every)

    def _forget_versions(self) -> None:
        """Remove versions that no worker can name as its base, but for the newest and those to be judged."""
        kept = self._ledger.kept_versions
        if len(kept) < self._enough_versions:
            return
        now, needed = self._clock(), {self._replica.version, self._ledger.get("backup_version")}
        needed.update(self._grants.unevaluated())
        old = [v for v in kept if v not in needed and not self.known.stands_on(v, now)]
        spare = max(1, min(SPARE_VERSIONS, SPARE_BYTES // max(1, self._size())))
        if len(old) >= spare:
            with self._ledger.transaction():
                for version in old:
                    self._ledger.forget_version(version)
            for version in old:
                self._replica.forget(version)
            old = []
        self._enough_versions = len(kept) + max(1, spare - len(old))

    def _size(self) -> int:
        return self._replica.state.nbytes


def _running_mean(mean: float, new: float) -> float:
    return new if mean == 0 else 0.8 * mean + 0.2 * new
