"""The worker's protocol as a state machine: events in, actions out, without I/O, clock or thread.

The driver asks for the next action, performs it, and reports the outcome. Each call passes the time of the driver's
clock; from these times the state machine derives the costs that it reports to the master. The driver reports replies
and evictions between two actions.

Exact credit rests on these invariants:
- A push covers whole batches of one lease, and begins where the last push of that lease ended.
- The next sync is sent only after the reply to the last one, so at most one push is under way.
- The work of a refused push is dropped. The next sync names no lease and no version, so the master assigns the work
  again.
- Nothing is sent after Leave.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import final

from gridml.protocol.messages import MAX_PUSH_INTERVAL_S, NO_PUSH, Copies, Failure, Lease, Pace, Push, Sync, Verdict
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

GOODBYE_TIMEOUT_S = 5.0  # an evicted worker waits this long for a reply
# If a worker waited for a lease longer than this share of the duration of the lease before, it asks for the next lease
# already at half of this one. Shorter waits are accepted, because a lease that comes early is trained on an older
# replica.
MAX_WAITING = 0.1
MAX_WAIT_S = 1800.0  # a worker that is not evicted waits this long at most, because another job could use the machine


@dataclass(frozen=True)
class WorkerOptions:
    """The identity and the limits of a worker."""

    worker: str
    kind: str = ""  # of its machine, such as "x86_64 avx2"
    chunks: int | None = None  # the worker leaves after this many chunks; None: no limit
    patience_s: float = math.inf  # after waiting idle so long for the reply to a push, the worker saves it and leaves


@dataclass(slots=True)
class _Work:
    """A lease in training. Rows count from its start. Always pushed <= at."""

    lease: Lease
    count: int  # rows of the lease; fewer after a reply has shortened it
    at: int = 0  # rows [0, at) are trained
    pushed: int = 0  # rows [0, pushed) were sent
    sequence: int = 0  # number of pushes sent so far
    whole: bool = True  # a push that ends at `at` cuts no component (local vertices that edges connect)
    averaged: bool = False  # some rows in [pushed, at) were trained without `Pace.added`
    is_accumulating: bool = False  # gradients of rows before `at` have not been used by an optimiser step yet
    shortened: bool = False  # a reply has moved the end of the lease
    begun_s: float = 0.0
    ended_s: float = 0.0  # time of the last batch

    @property
    def tainted(self) -> bool:
        """True if the master shortened the lease to a row at which no batch of this worker can end. The rows after
        that row belong to another worker, so the work cannot be pushed."""
        return self.at > self.count or (self.shortened and 0 < self.count - self.at < self.lease.fewest)


@dataclass(slots=True)
class _PendingSync:
    """A sync without a reply."""

    sync: Sync
    work: _Work | None  # the work that it pushes
    trained: int  # vertices that the process had trained when the sync was sent
    waiting_s: float | None = None  # time at which the worker began to wait idle for the reply
    leaving_s: float | None = None  # time at which the worker, evicted, began to wait for the reply


@final
class WorkerState:
    """The state of one worker process. Mutated only by `handle` and `next_action`.

    `undelivered` is the unanswered push of an earlier process of the same job. It is sent before anything else. The
    master merges it unless another worker has trained the same positions.
    """

    def __init__(self, options: WorkerOptions, now_s: float, undelivered: Push | None = None) -> None:
        self.answered = False  # True after the first reply
        self.trained = 0  # vertices trained in the life of this process
        self.undelivered = undelivered
        self._options = options
        self._chunks_left = math.inf if options.chunks is None else options.chunks
        self._pace = Pace()
        self._version = -1  # of the replica
        self._heard = ""  # `Reply.answer` of the last reply
        self._copies: Copies | None = None  # module tensors still held after the last answered push
        self._ahead: deque[Lease] = deque()  # the leases ahead: assigned, not begun yet; in the order of their replies
        self._ready: dict[int, int] = {}  # by lease id: batches must begin before this position; no entry: anywhere
        self._work: _Work | None = None  # the lease in hand: begun, not ended yet
        self._beginning: Lease | None = None  # BeginChunk was returned for this lease; no event has answered it yet
        # At most one of these two is set: first a snapshot of the work is taken, then the work is pushed.
        self._to_copy: _Work | None = None
        self._to_push: _Work | None = None
        self._under_way: _PendingSync | None = None  # the sync that has no reply yet
        self._adopt: Adopt | None = None  # the next action, if set
        self._keep_only: KeepOnly | None = None  # the next action after `_adopt`, if set
        self._failure: Failure | None = None  # to report in the next sync
        self._evicted = False
        self._reason: Reason | None = None  # the first reason to leave; None: the worker stays
        self._ask_again_s = now_s  # the worker asks for no lease before this time: the master has none
        self._has_waited = False  # the worker waited for the lease in hand longer than `MAX_WAITING` allows
        self._lease_s = 0.0  # seconds that the last lease took
        self._gives_ahead = True  # False if the last push within a lease asked for another lease and got none
        self._pushed_s = now_s  # time of the last push, in rounds that of the last reply
        self._action_s = now_s  # time at which the last action was returned; its duration counts from here
        self._counted = 0  # `trained` when the last answered sync was sent: `_pace.credited` cannot include later rows
        self._ended_s: float | None = None  # time of the last batch of the last lease; None once the next one begins
        self._sync = Sync(options.worker, kind=options.kind)  # the fields that every sync repeats: identity and costs
        self._train_s = 0.0  # as in Sync
        self._copy_s = self._carry_s = 0.0  # seconds that the last snapshot took; CPU seconds of sending the last push

    # --- events

    def handle(self, event: Event, now_s: float) -> None:
        """Handle an event at `now_s`. Valid events: those that the last action asks for; Replied while a sync is under
        way; Evicted and MailboxClosed at any time."""
        if isinstance(event, Trained):
            self._handle_trained(event, now_s)
        elif isinstance(event, Replied):
            self._handle_reply(event, now_s)
        elif isinstance(event, Copied):
            self._to_push, self._to_copy = self._to_copy, None
            self._copy_s = now_s - self._action_s - event.trained_s
            self._train_s += event.trained_s
        elif isinstance(event, Began):
            self._handle_begun(now_s)
        elif isinstance(event, ChunkFailed):
            self._beginning = None  # the next sync does not name the lease, so the master assigns it again
        elif isinstance(event, TrainingFailed):
            self._failure = event.failure
            self._beginning = None  # the failed action may have been BeginChunk,
            self._work, self._to_copy = self._to_copy or self._work, None  # or TakeSnapshot: its work is dropped too
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
        work.is_accumulating = trained.is_accumulating
        work.averaged |= not self._pace.added

    def _handle_begun(self, now_s: float) -> None:
        lease, self._beginning = self._beginning, None
        assert lease is not None, "a chunk is begun only after BeginChunk"
        self._work = _Work(lease, lease.stop - lease.start, begun_s=now_s)
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
        if reply.pace.gathered:  # the master counts the seconds until the next tick from now on
            self._pushed_s = now_s
        self._ready.update(reply.ready)
        if answered.sync.wants and answered.work is not None and answered.work is self._work:
            self._gives_ahead = reply.lease is not None
        if reply.lease is not None:
            self._ahead.append(reply.lease)
        elif answered.sync.wants and answered.sync.push is None:
            self._ask_again_s = now_s + reply.wait_s
            self._measure_end(now_s)  # the wait for work is no cost of a chunk
        if self.undelivered is not None:
            self.undelivered = None
            self._drop()  # the lease and the replica of this reply belong to the earlier process
        elif answered.sync.failure is not None or reply.verdict is Verdict.REFUSED:
            failed = answered.sync.failure is not None
            self._failure = None if failed else self._failure
            self._drop(forget_optimisers=failed or reply.drop_optimiser)
        else:
            if (push := answered.sync.push) is not None:  # record the version that the held tensors certainly include
                self._copies = Copies(push.lease, reply.version if reply.fast_forward else push.base)
            if replied.brings and not answered.sync.leaving:  # a goodbye has no snapshot to rebase on
                use = Use.KEEP if self._work is None else Use.REBASE
                self._adopt = Adopt(use, reply.pace.live, reply.lease is not None and reply.lease.afresh)
            if answered.work is not None and reply.stop_at is not None:
                answered.work.count = reply.stop_at - answered.work.lease.start
                answered.work.shortened = True
            self._keep_leased()
        if reply.lease is not None and reply.lease.afresh:
            self._copies = None  # the reply replaces the held tensors by those of an older version
        if reply.leave:
            self._leave(Reason.DISMISSED)
        elif answered.sync.leaving:
            self._leave(Reason.EVICTED if self._evicted else Reason.CHUNKS_DONE)

    def _keep_leased(self) -> None:
        """Release the module vertices that no held lease touches. Does nothing unless every held lease lists its module
        vertices. The master knows the held leases from `Sync.holds`, and expects the worker to have their module
        vertices, but no others."""
        held = [*self._ahead] if self._work is None else [self._work.lease, *self._ahead]
        touched = [lease.modules for lease in held if lease.modules is not None]
        if not held or len(touched) < len(held):
            return
        self._keep_only = KeepOnly(
            frozenset((name, index) for each in touched for name in each for index in each[name])
        )
        self._copies = None  # some of these copies may have been released now

    def _drop(self, *, forget_optimisers: bool = False) -> None:
        """Drop the replica and all leases: they are based on work that will not be credited.

        The next sync names no lease and no version. So the master assigns the leases again, to this worker or another,
        from the last credited position of each.
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
            self._drop()  # there was nothing to push, and the last reply did not bring the missing rows
            return self.next_action(now_s)
        if self._under_way is not None:
            return self._wait(now_s)  # the push under way may be refused; then this lease is dropped
        if work.tainted:
            self._drop()
            return self.next_action(now_s)
        self._ready.pop(work.lease.id, None)
        self._work, self._ended_s, self._lease_s = None, work.ended_s, work.ended_s - work.begun_s
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
            self._has_waited = now_s - self._ended_s > MAX_WAITING * self._lease_s
            self._ended_s = None

    def _push_is_due(self, work: _Work, now_s: float) -> bool:
        every = self._pace.push_every
        if work.at == work.pushed or not work.whole or (work.is_accumulating and not self._is_late(every, now_s)):
            return False
        if self._has_none_ahead(work) and 2 * work.at >= work.count:
            return True
        nearly_done = work.count - work.at < every // 2  # if so, one push at the end of the lease is enough
        return (work.at - work.pushed >= every and not nearly_done) or now_s >= self._timely_s(work, every, now_s)

    def _has_none_ahead(self, work: _Work) -> bool:
        """Return whether no lease is ahead although the worker had to wait too long for the lease in hand.

        If so, a push at half of this lease asks for the next one. In later leases that is not needed: the push at the
        end of each lease asks for another lease while the next one is trained. A master that cannot merge the pushes of
        all workers every MAX_PUSH_INTERVAL_S gets no additional ones: the worker may have waited for just that.
        """
        idle = self._has_waited and not self._ahead and self._under_way is None and self._chunks_left > 0
        asks = self._pace.push_every < NO_PUSH and self._pace.push_s <= MAX_PUSH_INTERVAL_S
        return idle and asks and self._gives_ahead and not work.sequence

    def _is_late(self, every: int, now_s: float) -> bool:
        """Return whether a push must stop waiting for an optimiser step, because a kill would lose too much work. Then
        the optimiser steps early, with the gradients accumulated so far. Always False for a single worker, which must
        match a plain loop."""
        return self._pace.live > 1 and now_s >= self._due_s(every) + self._pace.push_s

    def _due_s(self, every: int) -> float:
        """Return the time at which a push is due, however few vertices are trained by then."""
        return self._pushed_s + self._pace.push_s if every < NO_PUSH else math.inf

    def _timely_s(self, work: _Work, every: int, now_s: float) -> float:
        """Return the time at which a push is due by the clock; infinity if the lease ends soon after it, at the pace so
        far, since one push at its end is enough then."""
        due_s, trains_s = self._due_s(every), now_s - work.begun_s
        if not work.at or trains_s <= 0:
            return due_s
        ends_s = now_s + (work.count - work.at) / work.at * trains_s
        # The push of a round is waited for, but not for long.
        soon_s = self._pace.push_s / (4 if self._pace.gathered else 2)
        return math.inf if 0 <= ends_s - max(now_s, due_s) < soon_s else due_s

    def _train(self, work: _Work, now_s: float) -> Train:
        every, stop = self._pace.push_every, work.count
        due, due_s = work.pushed + every, self._timely_s(work, every, self._action_s)
        overdue = self._under_way is not None and (due <= work.at or due_s <= now_s)
        if overdue:
            due_s = math.inf
        if overdue or due <= work.at or stop - due < every // 2:
            due = stop
        if 2 * work.at < work.count and self._has_none_ahead(work):
            due = min(due, (work.count + 1) // 2)
        pace = self._pace
        credited = min(pace.total, pace.credited + self.trained - self._counted)
        per_epoch = pace.per_epoch or pace.total
        return Train(
            work.lease,
            work.at,
            stop,
            due,
            due_s,
            overdue,
            pace.live,
            credited,
            pace.total,
            per_epoch,
            self._version,
            pace.added,
            pace.others,
            pace.gathered,
        )

    def _copy(self, work: _Work) -> TakeSnapshot:
        self._to_copy = work
        return TakeSnapshot(work.lease, work.pushed, work.at)

    def _push(self, work: _Work, now_s: float) -> Send:
        """Push what was trained since the last push. The snapshot has been taken."""
        lease, self._to_push = work.lease, None
        work.sequence += 1
        push = Push(lease.id, lease.term, work.sequence, self._version, lease.start + work.at, work.at - work.pushed)
        push = push._replace(added=not work.averaged)
        work.pushed, work.averaged = work.at, False
        self._pushed_s = now_s
        wants = not self._evicted and self._wants_ahead(work)
        send = self._send(self._sync._replace(wants=wants, leaving=self._evicted, push=push), Content.SNAPSHOT)
        assert self._under_way is not None
        self._under_way.work = work
        return send

    def _wants_ahead(self, work: _Work) -> bool:
        """Return whether a push asks for a lease. Whenever a lease ends, the next one should be here already, so that
        the worker need not wait for a reply. If this push ends its lease, the first lease ahead does not count: it is
        about to begin."""
        ahead = len(self._ahead)
        ready = ahead - (work.at >= work.count)
        return ready < 1 and self._chunks_left > ahead

    def _say_goodbye(self) -> Action:
        """On eviction push what is trained, if a push can end there. Otherwise only send a goodbye message: the grace
        period is too short to train more."""
        work = self._work
        if work is not None and work.whole and work.pushed < work.at <= work.count:
            return self._copy(work)
        return self._send(self._sync._replace(leaving=True))

    def _wait(self, now_s: float) -> Action:
        """Wait for the reply, and leave when the time limit is reached."""
        under_way = self._under_way
        assert under_way is not None
        if under_way.waiting_s is None:
            under_way.waiting_s = now_s
        until_s, reason = under_way.waiting_s + MAX_WAIT_S, Reason.NO_ANSWER
        patient_s = under_way.waiting_s + self._options.patience_s
        if under_way.work is not None and patient_s < until_s:  # a push from the outbox (no work) is saved already
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
