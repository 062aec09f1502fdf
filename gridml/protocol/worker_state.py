"""A worker's protocol as a state machine: events in, actions out, without I/O, clock or thread.

Whoever drives it asks for the next action, performs it, and reports what came of it, each time with the time by its own
clock; the machine measures by those times what things cost. Replies and evictions are reported between two actions.

Invariants, on which exact credit rests:
- a push covers whole batches of one lease, from where the last push of that lease ended;
- the next sync is sent only after the reply to the last one, so at most one push is under way;
- what a refused push held is dropped, and trained again under the lease that covers it then: the sync after it holds no
  lease and no version;
- nothing is sent after Leave.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import final

from gridml.protocol.messages import NO_PUSH, Copies, Failure, Lease, Pace, Push, Sync, Verdict
from gridml.protocol.worker_actions import (
    Action,
    Adopt,
    Began,
    BeginChunk,
    ChunkFailed,
    Content,
    Copied,
    EndChunk,
    Event,
    Evicted,
    KeepOnly,
    Leave,
    MailboxClosed,
    Reason,
    Replied,
    Send,
    TakeSnapshot,
    Train,
    Trained,
    TrainingFailed,
    Use,
    Wait,
)

GOODBYE_TIMEOUT_S = 5.0  # how long a worker that must leave waits for an answer
MAX_WAIT_S = 1800.0  # how long it waits for an answer: a machine that does nothing is somebody else's


@dataclass(frozen=True)
class WorkerOptions:
    """Who a worker is: its name, and what `kind` of machine it runs on. It leaves by itself after `chunks` chunks, and
    when a push had no answer for `patience_s` seconds while there was nothing to train."""

    worker: str
    kind: str = ""
    chunks: int | None = None
    patience_s: float = math.inf


@dataclass(slots=True)
class _Work:
    """A lease of `count` rows being trained: rows [0, at) are trained, rows [0, pushed) were sent in `sequence` pushes.

    `whole` says that `at` cuts no component, `gathering` that an optimiser step is to follow rows before and after it,
    `shortened` that it was cut. `ended_s` is when it was trained to its end.
    """

    lease: Lease
    count: int
    at: int = 0
    pushed: int = 0
    sequence: int = 0
    whole: bool = True
    gathering: bool = False
    shortened: bool = False
    ended_s: float = 0.0

    @property
    def tainted(self) -> bool:
        """Whether it was cut behind its worker's back where no batch can end: what lies beyond belongs to another."""
        return self.at > self.count or (self.shortened and 0 < self.count - self.at < self.lease.fewest)


@dataclass(slots=True)
class _PendingSync:
    """A sync without a reply, and the work whose push it holds; `trained` vertices when what it says was true.

    `waiting_s` and `leaving_s` are when the worker began to do nothing but wait for the reply, and to do so evicted.
    """

    sync: Sync
    work: _Work | None
    trained: int
    waiting_s: float | None = None
    leaving_s: float | None = None


@final
class WorkerState:
    """Everything that the life of one worker process depends on. `undelivered` is a push that an earlier process of the
    same job got no answer to: it is sent before anything else, and taken if nobody else has trained it."""

    def __init__(self, options: WorkerOptions, now_s: float, undelivered: Push | None = None) -> None:
        self.answered = False  # whether the master ever did
        self.trained = 0  # vertices trained in this life
        self.undelivered = undelivered
        self._options = options
        self._chunks_left = math.inf if options.chunks is None else options.chunks
        self._pace = Pace()
        self._version = -1  # of the replica
        self._heard = ""  # the last reply
        self._copies: Copies | None = None  # after the last push that was answered
        self._ahead: deque[Lease] = deque()
        self._ready: dict[int, int] = {}  # by lease: the position before which batches may begin, where not everywhere
        self._work: _Work | None = None
        self._beginning: Lease | None = None
        self._to_copy: _Work | None = None  # the next action takes its snapshot,
        self._to_push: _Work | None = None  # and the one after sends it
        self._under_way: _PendingSync | None = None
        self._adopt: Adopt | None = None
        self._keep_only: KeepOnly | None = None
        self._failure: Failure | None = None  # to report
        self._evicted = False
        self._reason: Reason | None = None  # to leave
        self._ask_again_s = now_s  # no lease is to be had before
        self._pushed_s = now_s  # when the last push was sent
        self._action_s = now_s  # when the last action was given
        self._counted = 0  # the vertices trained that pace.credited counts
        self._ended_s: float | None = None  # when the last lease was trained to its end, until another is in hand
        self._said = Sync(options.worker, kind=options.kind)  # in every sync: who it is, and what its work costs
        self._train_s = 0.0  # as in Sync
        self._copy_s = self._carry_s = 0.0  # what the last push took of training, and of this machine

    # --- events

    def handle(self, event: Event, now_s: float) -> None:
        """Take what happened in, at `now_s`. Only events that the last action asks for, Replied where a sync has no
        reply yet, and Evicted and MailboxClosed at any time make sense."""
        if isinstance(event, Trained):
            self._handle_trained(event, now_s)
        elif isinstance(event, Replied):
            self._handle_reply(event, now_s)
        elif isinstance(event, Copied):
            self._to_push, self._to_copy = self._to_copy, None
            self._copy_s = now_s - self._action_s
        elif isinstance(event, Began):
            self._handle_begun(now_s)
        elif isinstance(event, ChunkFailed):
            self._beginning = None  # the next sync does not hold it any more
        elif isinstance(event, TrainingFailed):
            self._failure = event.failure
            self._beginning = None  # where not even the chunk could be begun
            self._work, self._to_copy = self._to_copy or self._work, None  # where it came out with the snapshot
        elif isinstance(event, Evicted):
            self._evicted = True
        elif isinstance(event, MailboxClosed):
            self._leave(Reason.MAILBOX_CLOSED)

    def _handle_trained(self, trained: Trained, now_s: float) -> None:
        work = self._work
        assert work is not None and work.at <= trained.stop, "rows are trained when there are some to train"
        self.trained += trained.stop - work.at
        self._train_s += now_s - self._action_s
        work.at, work.whole, work.ended_s = trained.stop, trained.whole, now_s
        work.gathering = trained.gathering

    def _handle_begun(self, now_s: float) -> None:
        lease, self._beginning = self._beginning, None
        assert lease is not None, "a chunk is begun when there is one to begin"
        self._work = _Work(lease, lease.stop - lease.start)
        self._chunks_left -= 1
        self._said = self._said._replace(
            begun=self._said.begun + 1, begun_vertices=self._work.count, begin_s=now_s - self._action_s
        )

    def _handle_reply(self, replied: Replied, now_s: float) -> None:
        answered, self._under_way = self._under_way, None
        assert answered is not None, "a reply is the reply to something"
        reply, self._carry_s = replied.reply, replied.carry_s
        self._said = self._said._replace(travel_s=replied.travel_s)
        self.answered = True
        self._version, self._pace, self._counted = reply.version, reply.pace, answered.trained
        self._heard = reply.answer
        self._ready.update(reply.ready)
        if reply.lease is not None:
            self._ahead.append(reply.lease)
        elif answered.sync.wants and answered.sync.push is None:
            self._ask_again_s = now_s + reply.wait_s
            self._measure_end(now_s)  # that there is no work is no cost of a chunk
        if self.undelivered is not None:
            self.undelivered = None
            self._drop()  # what comes with the answer to the process before is not for this one
        elif answered.sync.failure is not None or reply.verdict is Verdict.REFUSED:
            failed = answered.sync.failure is not None
            self._failure = None if failed else self._failure
            self._drop(forget_optimisers=failed or reply.drop_optimiser)
        else:
            if (push := answered.sync.push) is not None:  # what its copies are for certain
                self._copies = Copies(push.lease, reply.version if reply.fast_forward else push.base)
            if replied.brings and not answered.sync.leaving:  # a goodbye has no snapshot to rebase on
                use = Use.KEEP if self._work is None else Use.REBASE
                self._adopt = Adopt(use, reply.pace.live, reply.lease is not None and reply.lease.afresh)
            if answered.work is not None and reply.stop_at is not None:
                answered.work.count = reply.stop_at - answered.work.lease.start
                answered.work.shortened = True
            self._keep_leased()
        if reply.lease is not None and reply.lease.afresh:
            self._copies = None  # those of an older version have come
        if reply.leave:
            self._leave(Reason.DISMISSED)
        elif answered.sync.leaving:
            self._leave(Reason.EVICTED if self._evicted else Reason.CHUNKS_DONE)

    def _keep_leased(self) -> None:
        """Keep the module vertices of the leases that are held, where it is known which they are. The master counts on
        no others: it knows by what the next sync holds."""
        held = [*self._ahead] if self._work is None else [self._work.lease, *self._ahead]
        touched = [lease.modules for lease in held if lease.modules is not None]
        if not held or len(touched) < len(held):
            return
        self._keep_only = KeepOnly(
            frozenset((name, index) for each in touched for name in each for index in each[name])
        )
        self._copies = None  # they may be among what goes

    def _drop(self, *, forget_optimisers: bool = False) -> None:
        """Forget the replica and the chunks in hand: they stand on work that will not be credited.

        The next sync holds no lease and no version, so the master gives them again, here or elsewhere, from their last
        credit.
        """
        self._work = None
        self._ahead.clear()
        self._ready.clear()
        self._version, self._heard = -1, ""
        self._copies = None
        self._adopt = Adopt(Use.DROP, self._pace.live, forget_optimisers)

    def _leave(self, reason: Reason) -> None:
        self._reason = self._reason or reason

    # --- actions

    def next_action(self, now_s: float) -> Action:
        """What is to be done now; Leave for ever after the first one."""
        self._action_s = now_s
        if self._adopt is not None:
            adopt, self._adopt = self._adopt, None
            return adopt
        if self._keep_only is not None:
            keep_only, self._keep_only = self._keep_only, None
            return keep_only
        if self._reason is not None:
            return Leave(self._reason)
        if self._to_copy is not None:
            return self._copy(self._to_copy)
        if self._to_push is not None:
            return self._push(self._to_push, now_s)
        if self.undelivered is not None:
            said = self._said._replace(push=self.undelivered)
            return self._wait(now_s) if self._under_way else self._send(said, Content.OUTBOX)
        if self._failure is not None:
            said = self._said._replace(failure=self._failure)
            return self._wait(now_s) if self._under_way else self._send(said)
        if self._evicted:
            return self._wait(now_s) if self._under_way else self._say_goodbye()
        if self._work is not None:
            return self._advance(self._work, now_s)
        return self._obtain(now_s)

    def _advance(self, work: _Work, now_s: float) -> Action:
        """Train a lease, push where that is due, and let go of the lease at its end."""
        if work.at < work.count and not work.tainted:
            ready = work.lease.start + work.at < self._ready.get(work.lease.id, work.lease.stop)
            if self._under_way is not None and not ready:
                return self._wait(now_s)
            if self._under_way is None and (self._push_is_due(work, now_s) or (not ready and work.at > work.pushed)):
                return self._copy(work)  # the answer brings rows for what follows
            if ready:
                return self._train(work, now_s)
            self._drop()  # what it lacks will not come
            return self.next_action(now_s)
        if self._under_way is not None:
            return self._wait(now_s)  # that push may be refused, and the lease gone with it
        if work.tainted:
            self._drop()
            return self.next_action(now_s)
        self._ready.pop(work.lease.id, None)
        self._work, self._ended_s = None, work.ended_s
        if work.pushed < work.at:
            self._to_copy = work  # the next chunk is begun while that push travels
        return EndChunk(work.lease)

    def _obtain(self, now_s: float) -> Action:
        """Begin a lease that came ahead, or ask for one."""
        if self._ahead:
            self._measure_end(now_s)
            self._beginning = self._ahead.popleft()
            return BeginChunk(self._beginning)
        if self._under_way is not None:
            return self._wait(now_s)
        if self._chunks_left <= 0:
            return self._send(self._said._replace(leaving=True))
        if now_s < self._ask_again_s:
            return Wait(self._ask_again_s - now_s)
        return self._send(self._said._replace(wants=True))

    def _measure_end(self, now_s: float) -> None:
        if self._ended_s is not None:
            self._said = self._said._replace(end_s=now_s - self._ended_s)
            self._ended_s = None

    def _push_is_due(self, work: _Work, now_s: float) -> bool:
        every = self._pace.push_every
        if work.at == work.pushed or not work.whole or (work.gathering and not self._is_late(every, now_s)):
            return False
        nearly_done = work.count - work.at < every // 2  # the push at the end will do
        return (work.at - work.pushed >= every and not nearly_done) or now_s >= self._due_s(every)

    def _is_late(self, every: int, now_s: float) -> bool:
        """Whether a push waits so long for an optimiser step that a kill would cost too much: gradients that are
        gathered are then stepped with it. One worker alone steps as a loop does."""
        return self._pace.live > 1 and now_s >= self._due_s(every) + self._pace.push_s

    def _due_s(self, every: int) -> float:
        """When a push is due whatever is trained."""
        return self._pushed_s + self._pace.push_s if every < NO_PUSH else math.inf

    def _train(self, work: _Work, now_s: float) -> Train:
        every, stop = self._pace.push_every, work.count
        due, due_s = work.pushed + every, self._due_s(every)
        overdue = self._under_way is not None and (due <= work.at or due_s <= now_s)
        if overdue:
            due_s = math.inf
        if overdue or due <= work.at or stop - due < every // 2:
            due = stop
        pace = self._pace
        credited = min(pace.total, pace.credited + self.trained - self._counted)
        per_epoch = pace.per_epoch or pace.total
        return Train(
            work.lease, work.at, stop, due, due_s, overdue, pace.live, credited, pace.total, per_epoch, self._version
        )

    def _copy(self, work: _Work) -> TakeSnapshot:
        self._to_copy = work
        return TakeSnapshot(work.lease, work.pushed, work.at)

    def _push(self, work: _Work, now_s: float) -> Send:
        """Send what was trained since the last push, of which there is a snapshot."""
        lease, self._to_push = work.lease, None
        work.sequence += 1
        push = Push(lease.id, lease.term, work.sequence, self._version, lease.start + work.at, work.at - work.pushed)
        work.pushed = work.at
        self._pushed_s = now_s
        wants = not self._evicted and self._wants_ahead(work)
        send = self._send(self._said._replace(wants=wants, leaving=self._evicted, push=push), Content.SNAPSHOT)
        assert self._under_way is not None
        self._under_way.work = work
        return send

    def _wants_ahead(self, work: _Work) -> bool:
        """Whether a push asks for a lease: one is to lie ready whenever another ends, so that nobody waits for an
        answer. Where this push ends its lease, the one that is ahead is about to begin."""
        ahead = len(self._ahead)
        ready = ahead - (work.at >= work.count)
        return ready < 1 and self._chunks_left > ahead

    def _say_goodbye(self) -> Action:
        """On eviction push what there is, if it may end there; the machine gives little time."""
        work = self._work
        if work is not None and work.whole and work.pushed < work.at <= work.count:
            return self._copy(work)
        return self._send(self._said._replace(leaving=True))

    def _wait(self, now_s: float) -> Action:
        """Wait for the reply, but not for ever."""
        under_way = self._under_way
        assert under_way is not None
        if under_way.waiting_s is None:
            under_way.waiting_s = now_s
        until_s, reason = under_way.waiting_s + MAX_WAIT_S, Reason.NO_ANSWER
        patient_s = under_way.waiting_s + self._options.patience_s
        if under_way.work is not None and patient_s < until_s:  # what is delivered for another process is saved already
            until_s, reason = patient_s, Reason.SAVING
        if self._evicted:
            if under_way.leaving_s is None:
                under_way.leaving_s = now_s
            if under_way.leaving_s + GOODBYE_TIMEOUT_S < until_s:
                until_s, reason = under_way.leaving_s + GOODBYE_TIMEOUT_S, Reason.EVICTED
        if now_s < until_s:
            return Wait(until_s - now_s)
        self._leave(reason)
        return Leave(reason)

    def _send(self, said: Sync, content: Content = Content.NOTHING) -> Send:
        """Send what is `said`, with what is so at every sync."""
        assert self._under_way is None, "the reply to the last sync comes first"
        ahead = [lease.id for lease in self._ahead]
        holds = tuple(ahead) if self._work is None else (self._work.lease.id, *ahead)
        copies = None if holds or said.push is not None else self._copies
        sync = said._replace(have=self._version, holds=holds, heard=self._heard, copies=copies)
        sync = sync._replace(trained=self.trained, train_s=self._train_s, push_s=self._carry_s + self._copy_s)
        self._under_way = _PendingSync(sync, None, self.trained)
        return Send(sync, content)
