"""A worker's life: fetch a chunk and its replica, train, push every so often, take newer replicas between two batches.

Invariants, on which exact credit rests:
- a push covers whole batches of one lease, from where the last push of that lease ended;
- the next push of this process is sent only after the reply to the last one;
- what a refused push held is dropped, and trained again under the lease that covers it then.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from gridml.carriers.base import WorkerMailbox
from gridml.engine.engine import BatchFailed, Engine, Snapshot
from gridml.engine.pace import batch_size, evenly
from gridml.model.chunk import Chunk
from gridml.model.program import Program, user_traceback
from gridml.protocol.messages import Failure, Lease, Pace, Push, Reply, Sync, Verdict
from gridml.protocol.outbox import UnansweredPush
from gridml.protocol.push import PushContent, ReplicaPart
from remote.courier import Courier

PUSH_AT_LEAST_S = 30.0  # a slow f pushes by the clock: what a kill may cost is bounded, and silence means something
LAST_WORDS_S = 5.0  # how long a worker that must leave waits for an answer
LOOK_S = 0.05  # how often a waiting worker looks whether it must leave
ABANDONED_S = 1800.0  # how long it waits for an answer: a machine that does nothing is somebody else's


Answer = TypeVar("Answer")
Waiting = Generator[float, None, Answer]  # yields seconds to wait


class Leaving(Exception):
    """There is nothing more to do, or the machine is being taken away."""


@dataclass
class Work:
    """A lease being trained: rows [0, at) are trained, rows [0, pushed) were sent in `sequence` pushes.

    `whole` says that `at` cuts no component, so that a push may end there.
    """

    lease: Lease
    at: int = 0
    pushed: int = 0
    sequence: int = 0
    whole: bool = True

    @property
    def count(self) -> int:
        return self.lease.stop - self.lease.start


@dataclass(frozen=True)
class Travelling:
    """A push under way: its work, what it held, and how many vertices this process had trained when it was taken."""

    work: Work
    snapshot: Snapshot
    trained: int


class Session:
    """The life of the process `worker`. `evicted()` says whether the machine asked it to leave; it leaves by itself
    after `chunks`, and when a push had no answer for `patience_s` while there was nothing to train. `unanswered` is
    what
    an earlier process of the same job got no answer to; `kind` says what machine this is.

    It is written as a generator, so that one thread can drive thousands of workers under a clock of its own.
    """

    def __init__(
        self,
        worker: str,
        program: Program,
        source: Path,
        carrier: WorkerMailbox,
        courier: Courier,
        evicted: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
        chunks: int | None = None,
        unanswered: UnansweredPush | None = None,
        patience_s: float = math.inf,
        engine: Engine | None = None,
        kind: str = "",
    ) -> None:
        self._worker = worker
        self._program = program
        self._source = source
        self._carrier = carrier
        self._courier = courier
        self._evicted = evicted
        self._clock = clock
        self._left = chunks  # to begin before leaving
        self._unanswered = unanswered  # to deliver before training
        self._patience_s = patience_s
        self.saving = False  # whether it ended only to have a push carried where it outlives this machine
        self._engine = engine or Engine(program)
        self._pace = Pace()
        self._version = -1
        self._next: deque[Lease] = deque()
        self._work: Work | None = None
        self._travelling: Travelling | None = None
        self._arrived = ReplicaPart()  # a replica to start the next chunk from
        self._sent_s = clock()
        self._trained = 0  # vertices trained in this life
        self._counted = 0  # those of them that pace.credited counts
        self._train_s = 0.0
        self._kind = kind
        self._begun = self._begun_vertices = 0  # chunks, and vertices of the last one
        self._begin_s = self._end_s = 0.0  # what its beginning took, and the end of the one before it
        self._ended_s: float | None = None  # when the last lease was trained to its end, until another is in hand
        self._snapshot_s = 0.0  # what taking the last push's snapshot took
        self.answered = False  # whether the master ever did

    def run(self) -> None:
        """Train until there is nothing more to do or the machine is taken away. The carrier stays open."""
        try:
            for seconds in self.life():
                if seconds > 0:
                    self._courier.wait(seconds)
        finally:
            self._courier.close()

    def life(self) -> Waiting[None]:
        """All that a worker does, one batch or one look for a reply at a time.

        Yields the seconds to wait before the next, which a reply may cut short: 0 when there is work to do.
        """
        try:
            if self._unanswered is not None:
                yield from self._deliver(self._unanswered)
            while True:
                if self._work is None:
                    self._begin((yield from self._obtain()))
                else:
                    yield from self._advance(self._work)
                yield 0.0
        except Leaving:
            pass

    def _deliver(self, unanswered: UnansweredPush) -> Waiting[None]:
        """Send what an earlier process of this job got no answer to; the master takes it if nobody else has trained
        it."""
        self._courier.post(self._sync(push=unanswered.push), lambda: unanswered.content)
        reply, _ = yield from self._await()
        self._unanswered = None
        self._hear(reply)
        self._version = -1  # this process has no replica yet,
        self._next.clear()  # and what came with an answer to the process before it was not for this one
        if reply.leave:
            raise Leaving

    def _obtain(self) -> Waiting[Lease]:
        """The next lease: one that came ahead, or ask until there is one."""
        while not self._next:
            yield from self._leave_if_asked()
            if self._travelling is not None:
                yield from self._settle(wait=True)
            elif self._done:
                yield from self._ask(self._sync(leaving=True))
                raise Leaving
            else:
                reply, replica = yield from self._ask(self._sync(wants=True))
                self._counted = self._trained
                self._arrived = self._arrived.updated(replica)
                if reply.leave:
                    raise Leaving
                if reply.lease is None:
                    self._end_measured()  # that there is no work is no cost of a chunk
                    yield reply.wait_s
        self._end_measured()
        return self._next.popleft()

    def _end_measured(self) -> None:
        if self._ended_s is not None:
            self._end_s, self._ended_s = self._clock() - self._ended_s, None

    @property
    def _done(self) -> bool:
        """Whether no further chunk is wanted."""
        return self._left is not None and self._left <= 0

    def _begin(self, lease: Lease) -> None:
        began = self._clock()
        try:
            chunk = Chunk.decode(self._carrier.fetch(lease.chunk, lease.sha256))
        except (OSError, ValueError):
            return  # the lease has ended meanwhile, or the file is damaged: the next sync does not hold it any more
        self._engine.begin(chunk)
        if self._arrived:  # nothing was trained since these were asked for
            self._engine.restart(self._arrived)
            self._arrived = ReplicaPart()
        self._work = Work(lease)
        self._left = None if self._left is None else self._left - 1
        self._carrier.beat(lease.id, lease.start)
        self._begun, self._begun_vertices, self._begin_s = self._begun + 1, self._work.count, self._clock() - began

    def _advance(self, work: Work) -> Waiting[None]:
        """One batch, and what is due after it; or the end of the lease."""
        if work.at >= work.count:
            yield from self._finish(work)
            return
        yield from self._train(work)
        yield from self._settle()
        yield from self._leave_if_asked()
        if self._work is work and work.whole and not self._courier.busy:
            late = self._clock() - self._sent_s > PUSH_AT_LEAST_S
            due = late or work.at - work.pushed >= self._pace.push_every
            nearly_done = work.count - work.at < self._pace.push_every // 2  # the push at the end will do
            if due and (late or not nearly_done):
                self._push(work)

    def _finish(self, work: Work) -> Waiting[None]:
        """Push what is left of a lease and let go of it; the next one is begun while that push travels."""
        ended = self._clock()
        yield from self._settle(wait=True)
        if self._work is not work or work.at < work.count:
            return  # the push before was refused: the lease is gone, or some of it is to be trained again
        if work.at > work.count:  # the lease was cut behind our back: what lies beyond belongs to another worker
            self._drop()
            return
        self._work, self._ended_s = None, ended
        if work.at > work.pushed:
            self._push(work)

    def _train(self, work: Work) -> Waiting[None]:
        declared = self._program.update
        whole = declared.batch or 1
        size = batch_size(whole, declared.min_batch, self._pace.live)
        if size < whole or (work.lease.start + work.at) % whole:  # else these are the batches of one worker alone
            size = evenly(work.count - work.at, size)
        stop, work.whole = self._engine.batch_end(work.at, size, work.count)
        share = min(1.0, (self._pace.credited + self._trained - self._counted) / self._pace.total)
        began = self._clock()
        try:
            self._engine.train(work.at, stop, self._program.schedule(share))
        except BatchFailed as failure:
            yield from self._report(work, failure)
            return
        self._train_s += self._clock() - began
        self._trained += stop - work.at
        work.at = stop
        self._carrier.beat(work.lease.id, work.lease.start + work.at)

    def _push(self, work: Work, *, leaving: bool = False) -> None:
        """Send what was trained since the last push. The snapshot is taken here, the rest is the courier's."""
        began = self._clock()
        snapshot = self._engine.snapshot()
        fields = self._engine.changed_fields(work.pushed, work.at)
        work.sequence += 1
        self._sent_s = self._clock()
        push = Push(
            lease=work.lease.id,
            term=work.lease.term,
            sequence=work.sequence,
            base=self._version,
            upto=work.lease.start + work.at,
            vertices=work.at - work.pushed,
        )
        work.pushed = work.at
        self._travelling = Travelling(work, snapshot, self._trained)
        wire = self._engine.wire(snapshot)
        self._snapshot_s = self._clock() - began
        wants = not self._next and not self._done
        self._courier.post(self._sync(wants=wants, push=push, leaving=leaving), lambda: PushContent(wire, fields))

    def _settle(self, *, wait: bool = False) -> Waiting[None]:
        """Hear the reply to the push under way, if there is one and it has come."""
        travelling = self._travelling
        if travelling is None:
            return
        heard = (yield from self._await()) if wait else self._courier.take()
        if heard is None:
            return
        reply, replica = heard
        self._travelling = None
        self._counted = travelling.trained
        self._hear(reply)
        if reply.verdict is Verdict.REFUSED:
            if reply.drop_optimiser:
                self._engine.forget_optimisers()
            self._drop()
            if reply.leave:
                raise Leaving
            return
        if self._work is None:
            self._arrived = self._arrived.updated(replica)  # nothing was trained since the push
        elif replica:
            self._engine.rebase(travelling.snapshot, replica, self._pace.live)
        work = travelling.work
        if reply.stop_at is not None:
            work.lease = replace(work.lease, stop=reply.stop_at)

    def _drop(self) -> None:
        """Forget the replica, and the local fields of the chunks in hand: they stand on work that will not be credited.

        The next sync holds no lease and no version, so the master gives them again, here or elsewhere, from their last
        credit.
        """
        self._work = None
        self._next.clear()
        self._arrived = ReplicaPart()
        self._version = -1

    def _report(self, work: Work, failure: BatchFailed) -> Waiting[None]:
        """Tell the master that f failed. What the lease trained since its last push is dropped with the batch."""
        yield from self._settle(wait=True)
        cause = failure.__cause__ or failure
        told = Failure(
            lease=work.lease.id,
            term=work.lease.term,
            message=f"{type(cause).__name__}: {cause}",
            traceback=user_traceback(cause, self._source),
            first=failure.first,
            last=failure.last,
        )
        reply, _ = yield from self._ask(self._sync(failure=told))
        self._counted = self._trained
        self._engine.forget_optimisers()
        self._drop()
        if reply.leave:
            raise Leaving

    def _leave_if_asked(self) -> Waiting[None]:
        """On eviction: push what there is, say goodbye, and go; all within the grace the machine gives."""
        if not self._evicted():
            return
        yield from self._settle(wait=True)
        work = self._work
        if not self._courier.busy:
            if work is not None and work.whole and work.pushed < work.at <= work.count:
                self._push(work, leaving=True)
            else:
                self._courier.post(self._sync(leaving=True), PushContent)
            yield from self._await()
        raise Leaving

    def _ask(self, sync: Sync) -> Waiting[tuple[Reply, ReplicaPart]]:
        """A sync without a push, and its reply."""
        self._courier.post(sync, PushContent)
        reply, replica = yield from self._await()
        self._hear(reply)
        return reply, replica

    def _await(self) -> Waiting[tuple[Reply, ReplicaPart]]:
        """The reply to the sync under way. Raises Leaving when there will be none, or it comes too late."""
        asked_s, leave_s = self._clock(), None
        while not self._courier.gone:
            heard = self._courier.take()
            if heard is not None:
                return heard
            if self._evicted():
                leave_s = self._clock() + LAST_WORDS_S if leave_s is None else leave_s
                if self._clock() >= leave_s:
                    break
            self._lose_patience(self._clock() - asked_s)
            yield LOOK_S
        self._courier.take()  # raises where the courier failed
        raise Leaving

    def _lose_patience(self, waited_s: float) -> None:
        """A push without an answer is put where it survives the machine, once; and nobody waits for ever."""
        if self._courier.unanswered is not None and self._unanswered is None and waited_s > self._patience_s:
            self.saving = True
            raise Leaving
        if waited_s > ABANDONED_S:
            raise Leaving

    def _hear(self, reply: Reply) -> None:
        self.answered = True
        self._version = reply.version
        self._pace = reply.pace
        if reply.lease is not None:
            self._next.append(reply.lease)

    def _sync(
        self,
        *,
        wants: bool = False,
        leaving: bool = False,
        push: Push | None = None,
        failure: Failure | None = None,
    ) -> Sync:
        held = [*self._next] if self._work is None else [self._work.lease, *self._next]
        return Sync(
            worker=self._worker,
            have=self._version,
            holds=tuple(lease.id for lease in held),
            wants=wants,
            leaving=leaving,
            push=push,
            failure=failure,
            trained=self._trained,
            train_s=self._train_s,
            push_s=self._courier.last_push_s + self._snapshot_s,
            travel_s=self._courier.last_travel_s,
            kind=self._kind,
            begun=self._begun,
            begun_vertices=self._begun_vertices,
            begin_s=self._begin_s,
            end_s=self._end_s,
        )
