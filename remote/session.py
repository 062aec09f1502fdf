"""A worker's life: fetch a chunk and its replica, train, push every so often, take newer replicas between two batches.

Invariants, on which exact credit rests:
- a push covers whole batches of one lease, from where the last push of that lease ended;
- the next push of this process is sent only after the reply to the last one;
- what a refused push held is dropped, and trained again under the lease that covers it then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gridml.carriers.base import WorkerEnd
from gridml.chunk import Chunk
from gridml.engine import BatchFailed, Engine, Snapshot
from gridml.messages import Failure, Lease, Pace, Push, Reply, Sync, Verdict
from gridml.pace import batch_size
from gridml.program import Program, user_traceback
from remote.courier import Courier, Tensors

LAST_WORDS_S = 5.0  # how long a worker that must leave waits for an answer
PATIENCE_S = 0.05  # how often a waiting worker looks whether it must leave


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
    """The life of the process `worker`. `evicted()` says whether the machine asked it to leave."""

    def __init__(
        self, worker: str, program: Program, source: Path, carrier: WorkerEnd, evicted: Callable[[], bool]
    ) -> None:
        self._worker = worker
        self._program = program
        self._source = source
        self._carrier = carrier
        self._evicted = evicted
        self._engine = Engine(program)
        self._courier = Courier(carrier)
        self._pace = Pace()
        self._version = -1
        self._next: deque[Lease] = deque()
        self._work: Work | None = None
        self._travelling: Travelling | None = None
        self._arrived: Tensors = {}  # a replica to start the next chunk from
        self._trained = 0  # vertices trained in this life
        self._counted = 0  # those of them that pace.credited counts
        self._train_s = 0.0

    def run(self) -> None:
        """Train until there is nothing more to do or the machine is taken away."""
        try:
            while True:
                if self._work is None:
                    self._begin(self._obtain())
                else:
                    self._advance(self._work)
        except Leaving:
            pass
        finally:
            self._courier.close()
            self._carrier.close()

    def _obtain(self) -> Lease:
        """The next lease: one that came ahead, or ask until there is one."""
        while not self._next:
            self._leave_if_asked()
            if self._travelling is not None:
                self._settle(wait=True)
            else:
                reply, tensors = self._ask(self._sync(wants=True))
                self._counted = self._trained
                self._arrived.update(tensors)
                if reply.leave:
                    raise Leaving
                if reply.lease is None:
                    self._courier.rest(reply.wait_s)
        return self._next.popleft()

    def _begin(self, lease: Lease) -> None:
        try:
            chunk = Chunk.decode(self._carrier.fetch(lease.chunk, lease.sha256))
        except (OSError, ValueError):
            return  # the lease has ended meanwhile, or the file is damaged: the next sync does not hold it any more
        self._engine.begin(chunk)
        if self._arrived:  # nothing was trained since these were asked for
            self._engine.restart(self._arrived)
            self._arrived = {}
        self._work = Work(lease)
        self._carrier.note(lease.id, lease.start)

    def _advance(self, work: Work) -> None:
        """One batch, and what is due after it; or the end of the lease."""
        if work.at >= work.count:
            self._finish(work)
            return
        self._train(work)
        self._settle()
        self._leave_if_asked()
        if self._work is work and work.whole and not self._courier.busy:
            due = work.at - work.pushed >= self._pace.push_every
            nearly_done = work.count - work.at < self._pace.push_every // 2  # the push at the end will do
            if due and not nearly_done:
                self._push(work)

    def _finish(self, work: Work) -> None:
        """Push what is left of a lease and let go of it; the next one is begun while that push travels."""
        self._settle(wait=True)
        if self._work is not work or work.at < work.count:
            return  # the push before was refused: the lease is gone, or some of it is to be trained again
        if work.at > work.count:  # the lease was cut behind our back: what lies beyond belongs to another worker
            self._drop(*self._ask(self._sync(have=-1)))
            return
        self._work = None
        if work.at > work.pushed:
            self._push(work)

    def _train(self, work: Work) -> None:
        declared = self._program.update
        size = batch_size(declared.batch or 1, declared.min_batch, self._pace.live)
        stop, work.whole = self._engine.batch_end(work.at, size, work.count)
        share = min(1.0, (self._pace.credited + self._trained - self._counted) / self._pace.total)
        began = time.perf_counter()
        try:
            self._engine.train(work.at, stop, self._program.schedule(share))
        except BatchFailed as failure:
            self._report(work, failure)
            return
        self._train_s += time.perf_counter() - began
        self._trained += stop - work.at
        work.at = stop
        self._carrier.note(work.lease.id, work.lease.start + work.at)

    def _push(self, work: Work, *, leaving: bool = False) -> None:
        """Send what was trained since the last push. The snapshot is taken here, the rest happens on the courier's
        thread."""
        snapshot = self._engine.snapshot()
        fields = self._engine.changed_fields(work.pushed, work.at)
        work.sequence += 1
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
        self._courier.post(self._sync(wants=not self._next, push=push, leaving=leaving), lambda: {**wire, **fields})

    def _settle(self, *, wait: bool = False) -> None:
        """Hear the reply to the push under way, if there is one and it has come."""
        travelling = self._travelling
        if travelling is None:
            return
        heard = self._await() if wait else self._courier.take()
        if heard is None:
            return
        reply, tensors = heard
        self._travelling = None
        self._counted = travelling.trained
        self._hear(reply)
        if reply.verdict is Verdict.REFUSED:
            self._drop(reply, tensors)
            return
        if self._work is None:
            self._arrived.update(tensors)  # nothing was trained since the push
        elif tensors:
            self._engine.rebase(travelling.snapshot, tensors, self._pace.live)
        work = travelling.work
        if reply.stop_at is not None:
            work.lease = replace(work.lease, stop=reply.stop_at)

    def _drop(self, reply: Reply, tensors: Tensors) -> None:
        """Forget all that stands on a refused push: the replica, and the local fields of the chunks in hand.

        The next sync holds no lease, so the master gives them again, here or elsewhere, from their last credit.
        """
        if reply.drop_optimiser:
            self._engine.forget_optimisers()
        self._work = None
        self._next.clear()
        self._arrived = dict(tensors)
        if reply.leave:
            raise Leaving

    def _report(self, work: Work, failure: BatchFailed) -> None:
        """Tell the master that f failed. What this lease trained since its last push is dropped with the failed
        batch."""
        self._settle(wait=True)
        cause = failure.__cause__ or failure
        told = Failure(
            lease=work.lease.id,
            term=work.lease.term,
            message=f"{type(cause).__name__}: {cause}",
            traceback=user_traceback(cause, self._source),
            first=failure.first,
            last=failure.last,
        )
        reply, tensors = self._ask(self._sync(failure=told, have=-1))
        self._counted = self._trained
        self._engine.forget_optimisers()
        self._work = None
        self._arrived.update(tensors)
        if reply.leave:
            raise Leaving

    def _leave_if_asked(self) -> None:
        """On eviction: push what there is, say goodbye, and go; all within the grace the machine gives."""
        if not self._evicted():
            return
        until = time.monotonic() + LAST_WORDS_S
        while self._travelling is not None and not self._courier.gone and time.monotonic() < until:
            heard = self._courier.take(PATIENCE_S)
            if heard is not None:
                if heard[0].verdict is Verdict.REFUSED:
                    raise Leaving
                if heard[1]:
                    self._engine.rebase(self._travelling.snapshot, heard[1], heard[0].pace.live)
                self._hear(heard[0])
                self._travelling = None
        work = self._work
        if not self._courier.busy and not self._courier.gone:
            if work is not None and work.whole and work.pushed < work.at <= work.count:
                self._push(work, leaving=True)
            else:
                self._courier.post(self._sync(leaving=True), dict)
            self._courier.take(LAST_WORDS_S)
        raise Leaving

    def _ask(self, sync: Sync) -> tuple[Reply, Tensors]:
        """A sync without a push, and its reply."""
        self._courier.post(sync, dict)
        reply, tensors = self._await()
        self._hear(reply)
        return reply, tensors

    def _await(self) -> tuple[Reply, Tensors]:
        """The reply to the sync under way. Raises Leaving when there will be none."""
        while not self._courier.gone:
            heard = self._courier.take(PATIENCE_S)
            if heard is not None:
                return heard
            if self._evicted():
                heard = self._courier.take(LAST_WORDS_S)
                if heard is None:
                    break
                return heard
        raise Leaving

    def _hear(self, reply: Reply) -> None:
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
        have: int | None = None,
    ) -> Sync:
        held = [*self._next] if self._work is None else [self._work.lease, *self._next]
        return Sync(
            worker=self._worker,
            have=self._version if have is None else have,
            holds=tuple(lease.id for lease in held),
            wants=wants,
            leaving=leaving,
            push=push,
            failure=failure,
            trained=self._trained,
            train_s=self._train_s,
            push_s=self._courier.last_push_s,
        )
