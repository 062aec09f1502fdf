"""The worker's protocol as a state machine: events in, actions out, without I/O, clock or thread.

The driver asks for the next action, performs it, and reports the outcome, each time with the time of its own clock. The
machine derives the costs that it reports to the master from those times. Replies and evictions are reported between two
actions.

Exact credit rests on these invariants:
- A push covers whole batches of one lease, from the end of the last push of that lease.
- The next sync is sent only after the reply to the last one, so at most one push is under way.
- The work of a refused push is dropped, and trained again under another lease: the next sync holds no lease and no
  version.
- Nothing is sent after Leave.
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

GOODBYE_TIMEOUT_S = 5.0  # for which an evicted worker waits for a reply
MAX_WAIT_S = 1800.0  # for which a worker waits for a reply: an idle machine should go to another job


@dataclass(frozen=True)
class WorkerOptions:
    """The identity and the limits of a worker."""

    worker: str
    kind: str = ""  # of its machine
    chunks: int | None = None  # after which it leaves
    patience_s: float = math.inf  # for which it waits idle for the reply to a push, before it saves the push and leaves


@dataclass(slots=True)
class _Work:
    """A lease in training. Always pushed <= at."""

    lease: Lease
    count: int  # rows of the lease; fewer once it was shortened
    at: int = 0  # rows [0, at) are trained
    pushed: int = 0  # rows [0, pushed) were sent,
    sequence: int = 0  # in this many pushes
    whole: bool = True  # `at` cuts no component
    gathering: bool = False  # gradients of rows before `at` wait for a step that follows later rows
    shortened: bool = False  # by a reply
    ended_s: float = 0.0  # time of the last batch

    @property
    def tainted(self) -> bool:
        """True if the master shortened the lease where no batch of this worker can end. The rows beyond belong to
        another worker, so the work cannot be pushed."""
        return self.at > self.count or (self.shortened and 0 < self.count - self.at < self.lease.fewest)


@dataclass(slots=True)
class _PendingSync:
    """A sync without a reply."""

    sync: Sync
    work: _Work | None  # the work that it pushes
    trained: int  # vertices in the life of the process when it was sent
    waiting_s: float | None = None  # time since which the worker has only waited for the reply,
    leaving_s: float | None = None  # and since which it has done so evicted


@final
class WorkerState:
    """The state of one worker process. Mutated only by `handle` and `next_action`.

    `undelivered` is the unanswered push of an earlier process of the same job. It is sent before anything else, and
    merged unless another worker has trained the same positions.
    """

    def __init__(self, options: WorkerOptions, now_s: float, undelivered: Push | None = None) -> None:
        self.answered = False  # whether any reply came
        self.trained = 0  # vertices in the life of this process
        self.undelivered = undelivered
        self._options = options
        self._chunks_left = math.inf if options.chunks is None else options.chunks
        self._pace = Pace()
        self._version = -1  # of the replica
        self._heard = ""  # `Reply.answer` of the last reply
        self._copies: Copies | None = None  # after the last push with a reply
        self._ahead: deque[Lease] = deque()  # leases not begun yet, in the order of their replies
        self._ready: dict[int, int] = {}  # by lease: the position before which batches may begin; absent: no limit
        self._work: _Work | None = None  # the lease in hand
        self._beginning: Lease | None = None  # of a BeginChunk without an event yet
        # At most one of these two is set: the work goes from a snapshot to its push.
        self._to_copy: _Work | None = None
        self._to_push: _Work | None = None
        self._under_way: _PendingSync | None = None
        self._adopt: Adopt | None = None
        self._keep_only: KeepOnly | None = None
        self._failure: Failure | None = None  # to report
        self._evicted = False
        self._reason: Reason | None = None  # to leave; the first one is kept
        self._ask_again_s = now_s  # before this time the master has no lease
        self._pushed_s = now_s  # time of the last push
        self._action_s = now_s  # time of the last action
        self._counted = 0  # of `trained`, the vertices that `_pace.credited` includes
        self._ended_s: float | None = None  # time of the last lease's end, until the next one is begun
        self._sync = Sync(options.worker, kind=options.kind)  # the fields that every sync repeats: identity and costs
        self._train_s = 0.0  # as in Sync
        self._copy_s = self._carry_s = 0.0  # time of the last snapshot; CPU time of the last push

    # --- events

    def handle(self, event: Event, now_s: float) -> None:
        """Handle an event at `now_s`. Valid are the events that the last action asks for, Replied while a sync is under
        way, and Evicted and MailboxClosed at any time."""
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
            self._beginning = None  # so the next sync no longer holds the lease
        elif isinstance(event, TrainingFailed):
            self._failure = event.failure
            self._beginning = None  # where the chunk itself could not be begun
            self._work, self._to_copy = self._to_copy or self._work, None  # where the snapshot showed the failure
        elif isinstance(event, Evicted):
            self._evicted = True
        elif isinstance(event, MailboxClosed):
            self._leave(Reason.MAILBOX_CLOSED)

    def _handle_trained(self, trained: Trained, now_s: float) -> None:
        work = self._work
        assert work is not None and work.at <= trained.stop, "only rows of the lease in hand are trained"
        self.trained += trained.stop - work.at
        self._train_s += now_s - self._action_s
        work.at, work.whole, work.ended_s = trained.stop, trained.whole, now_s
        work.gathering = trained.gathering

    def _handle_begun(self, now_s: float) -> None:
        lease, self._beginning = self._beginning, None
        assert lease is not None, "a chunk is begun only after BeginChunk"
        self._work = _Work(lease, lease.stop - lease.start)
        self._chunks_left -= 1
        self._sync = self._sync._replace(
            begun=self._sync.begun + 1, begun_vertices=self._work.count, begin_s=now_s - self._action_s
        )

    def _handle_reply(self, replied: Replied, now_s: float) -> None:
        answered, self._under_way = self._under_way, None
        assert answered is not None, "a reply answers the sync under way"
        reply, self._carry_s = replied.reply, replied.carry_s
        self._sync = self._sync._replace(travel_s=replied.travel_s)
        self.answered = True
        self._version, self._pace, self._counted = reply.version, reply.pace, answered.trained
        self._heard = reply.answer
        self._ready.update(reply.ready)
        if reply.lease is not None:
            self._ahead.append(reply.lease)
        elif answered.sync.wants and answered.sync.push is None:
            self._ask_again_s = now_s + reply.wait_s
            self._measure_end(now_s)  # the wait for work is no cost of a chunk
        if self.undelivered is not None:
            self.undelivered = None
            self._drop()  # the lease and the replica of this reply were for the earlier process
        elif answered.sync.failure is not None or reply.verdict is Verdict.REFUSED:
            failed = answered.sync.failure is not None
            self._failure = None if failed else self._failure
            self._drop(forget_optimisers=failed or reply.drop_optimiser)
        else:
            if (push := answered.sync.push) is not None:  # the version that its copies have for certain
                self._copies = Copies(push.lease, reply.version if reply.fast_forward else push.base)
            if replied.brings and not answered.sync.leaving:  # a goodbye has no snapshot to rebase on
                use = Use.KEEP if self._work is None else Use.REBASE
                self._adopt = Adopt(use, reply.pace.live, reply.lease is not None and reply.lease.afresh)
            if answered.work is not None and reply.stop_at is not None:
                answered.work.count = reply.stop_at - answered.work.lease.start
                answered.work.shortened = True
            self._keep_leased()
        if reply.lease is not None and reply.lease.afresh:
            self._copies = None  # replaced by those of an older version
        if reply.leave:
            self._leave(Reason.DISMISSED)
        elif answered.sync.leaving:
            self._leave(Reason.EVICTED if self._evicted else Reason.CHUNKS_DONE)

    def _keep_leased(self) -> None:
        """Release the module vertices that no held lease touches, where all held leases name theirs. The master relies
        on no others, as it knows the leases from `Sync.holds`."""
        held = [*self._ahead] if self._work is None else [self._work.lease, *self._ahead]
        touched = [lease.modules for lease in held if lease.modules is not None]
        if not held or len(touched) < len(held):
            return
        self._keep_only = KeepOnly(
            frozenset((name, index) for each in touched for name in each for index in each[name])
        )
        self._copies = None  # they may be among the released vertices

    def _drop(self, *, forget_optimisers: bool = False) -> None:
        """Drop the replica and all leases, because they are based on work that will not be credited.

        The next sync holds no lease and no version, so the master assigns the leases again from their last credit, to
        this worker or to another.
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
        """Return the next action. After the first Leave, always Leave."""
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
            sync = self._sync._replace(push=self.undelivered)
            return self._wait(now_s) if self._under_way else self._send(sync, Content.OUTBOX)
        if self._failure is not None:
            sync = self._sync._replace(failure=self._failure)
            return self._wait(now_s) if self._under_way else self._send(sync)
        if self._evicted:
            return self._wait(now_s) if self._under_way else self._say_goodbye()
        if self._work is not None:
            return self._advance(self._work, now_s)
        return self._obtain(now_s)

    def _advance(self, work: _Work, now_s: float) -> Action:
        """Train the lease in hand, push when due, and release it at its end."""
        if work.at < work.count and not work.tainted:
            ready = work.lease.start + work.at < self._ready.get(work.lease.id, work.lease.stop)
            if self._under_way is not None and not ready:
                return self._wait(now_s)
            if self._under_way is None and (self._push_is_due(work, now_s) or (not ready and work.at > work.pushed)):
                return self._copy(work)  # the reply brings the rows of the next batches
            if ready:
                return self._train(work, now_s)
            self._drop()  # the reply did not bring the missing rows
            return self.next_action(now_s)
        if self._under_way is not None:
            return self._wait(now_s)  # that push may be refused, which drops the lease
        if work.tainted:
            self._drop()
            return self.next_action(now_s)
        self._ready.pop(work.lease.id, None)
        self._work, self._ended_s = None, work.ended_s
        if work.pushed < work.at:
            self._to_copy = work  # the next chunk is begun while this push is under way
        return EndChunk(work.lease)

    def _obtain(self, now_s: float) -> Action:
        """Begin a lease that was assigned ahead, or ask for one."""
        if self._ahead:
            self._measure_end(now_s)
            self._beginning = self._ahead.popleft()
            return BeginChunk(self._beginning)
        if self._under_way is not None:
            return self._wait(now_s)
        if self._chunks_left <= 0:
            return self._send(self._sync._replace(leaving=True))
        if now_s < self._ask_again_s:
            return Wait(self._ask_again_s - now_s)
        return self._send(self._sync._replace(wants=True))

    def _measure_end(self, now_s: float) -> None:
        if self._ended_s is not None:
            self._sync = self._sync._replace(end_s=now_s - self._ended_s)
            self._ended_s = None

    def _push_is_due(self, work: _Work, now_s: float) -> bool:
        every = self._pace.push_every
        if work.at == work.pushed or not work.whole or (work.gathering and not self._is_late(every, now_s)):
            return False
        nearly_done = work.count - work.at < every // 2  # then one push at the end is enough
        return (work.at - work.pushed >= every and not nearly_done) or now_s >= self._due_s(every)

    def _is_late(self, every: int, now_s: float) -> bool:
        """Return whether a push must not wait longer for an optimiser step, as a kill would lose too much work. The
        accumulated gradients are then stepped early; a single worker never does, to match a plain loop."""
        return self._pace.live > 1 and now_s >= self._due_s(every) + self._pace.push_s

    def _due_s(self, every: int) -> float:
        """Return the time at which a push is due, whatever number of vertices is trained."""
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
        """Push the training since the last push, whose snapshot was taken."""
        lease, self._to_push = work.lease, None
        work.sequence += 1
        push = Push(lease.id, lease.term, work.sequence, self._version, lease.start + work.at, work.at - work.pushed)
        work.pushed = work.at
        self._pushed_s = now_s
        wants = not self._evicted and self._wants_ahead(work)
        send = self._send(self._sync._replace(wants=wants, leaving=self._evicted, push=push), Content.SNAPSHOT)
        assert self._under_way is not None
        self._under_way.work = work
        return send

    def _wants_ahead(self, work: _Work) -> bool:
        """Return whether a push asks for a lease. One should be ahead whenever another ends, so that the worker never
        waits for a reply. Where this push ends its lease, the lease ahead is about to begin and does not count."""
        ahead = len(self._ahead)
        ready = ahead - (work.at >= work.count)
        return ready < 1 and self._chunks_left > ahead

    def _say_goodbye(self) -> Action:
        """On eviction push what is trained, if a push may end there; else only say goodbye, as grace time is short."""
        work = self._work
        if work is not None and work.whole and work.pushed < work.at <= work.count:
            return self._copy(work)
        return self._send(self._sync._replace(leaving=True))

    def _wait(self, now_s: float) -> Action:
        """Wait for the reply up to a limit, then leave."""
        under_way = self._under_way
        assert under_way is not None
        if under_way.waiting_s is None:
            under_way.waiting_s = now_s
        until_s, reason = under_way.waiting_s + MAX_WAIT_S, Reason.NO_ANSWER
        patient_s = under_way.waiting_s + self._options.patience_s
        if under_way.work is not None and patient_s < until_s:  # an undelivered push is saved already
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

    def _send(self, base: Sync, content: Content = Content.NOTHING) -> Send:
        """Send a sync with the fields of `base` and the current state."""
        assert self._under_way is None, "one sync at a time"
        ahead = [lease.id for lease in self._ahead]
        holds = tuple(ahead) if self._work is None else (self._work.lease.id, *ahead)
        copies = None if holds or base.push is not None else self._copies
        sync = base._replace(have=self._version, holds=holds, heard=self._heard, copies=copies)
        sync = sync._replace(trained=self.trained, train_s=self._train_s, push_s=self._carry_s + self._copy_s)
        self._under_way = _PendingSync(sync, None, self.trained)
        return Send(sync, content)
