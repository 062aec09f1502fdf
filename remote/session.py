"""A worker's session: fetches chunks and replicas, trains, pushes, and rebases onto newer replicas between batches.

The state machine (`gridml.protocol.worker_state`) decides the next action; the session performs it with an engine, a
mailbox and a courier.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from gridml.caching.chunk_cache import ChunkCache
from gridml.caching.master_copy import MasterCopy, Unmerged
from gridml.carriers.base import LEFT, WorkerMailbox
from gridml.engine.engine import Engine, Snapshot
from gridml.engine.pace import batch_and_rate, next_batch, steps_missed
from gridml.engine.update_runner import BatchFailed
from gridml.model.chunk import Chunk
from gridml.model.program import user_traceback
from gridml.model.schedule import Progress
from gridml.model.shared import SharedFileError
from gridml.protocol import worker_actions as actions
from gridml.protocol.compression import NONE
from gridml.protocol.foreign import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS, described, printable
from gridml.protocol.messages import Failure, Lease, Logged, Verdict
from gridml.protocol.outbox import UnansweredPush
from gridml.protocol.payload import Arrived
from gridml.protocol.push import PushContent, ReplicaPart
from gridml.protocol.worker_state import WorkerOptions, WorkerState
from remote.courier import Courier

POLL_S = 0.05  # a waiting worker checks for an eviction this often


@dataclass(frozen=True)
class SessionOptions(WorkerOptions):
    """The options of a worker that really trains."""

    source: Path = Path()  # the user's file
    unanswered: UnansweredPush | None = None  # a push from the outbox of an earlier process of the job
    cache: ChunkCache | None = None
    fetch_ahead: bool = False  # True: fetch the next chunk on a thread; False: the session starts no thread


@final
class ChunkFetcher:
    """Fetches chunks. With `ahead`, a thread fetches the chunk of the next lease while the worker trains another."""

    def __init__(self, mailbox: WorkerMailbox, *, ahead: bool) -> None:
        self._mailbox = mailbox
        self._ahead = ahead
        self._expected: tuple[str, Future[tuple[Arrived, Chunk]]] | None = None  # (SHA-256, fetch) of the next chunk

    def expect(self, lease: Lease) -> None:
        """Start to fetch the chunk of the lease that will be begun next."""
        if self._ahead:
            self._expected = lease.sha256, Future()
            thread = threading.Thread(
                target=self._resolve, args=(self._expected[1], lease), name="fetcher", daemon=True
            )
            thread.start()

    def take(self, lease: Lease) -> tuple[Arrived, Chunk]:
        """Return the chunk of a lease and its payload. Raises what `WorkerMailbox.fetch` and `Chunk.decode` do."""
        expected, self._expected = self._expected, None
        if expected is not None and expected[0] == lease.sha256 and expected[1].exception() is None:
            return expected[1].result()
        return self._fetched(lease)  # nothing was fetched ahead, or that failed

    def _fetched(self, lease: Lease) -> tuple[Arrived, Chunk]:
        payload = self._mailbox.fetch(lease.chunk, lease.sha256)
        return payload, Chunk.decode(payload)

    def _resolve(self, future: Future[tuple[Arrived, Chunk]], lease: Lease) -> None:
        try:
            future.set_result(self._fetched(lease))
        except Exception as error:
            future.set_exception(error)


@final
class Session:
    """The session of one worker process. The function `evicted` returns whether the machine is being reclaimed.

    The loop of a session is a generator, so that one thread can drive thousands of simulated workers by a virtual
    clock.
    """

    def __init__(
        self,
        options: SessionOptions,
        engine: Engine,
        mailbox: WorkerMailbox,
        courier: Courier,
        evicted: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._options = options
        self._engine = engine
        self._mailbox = mailbox
        self._courier = courier
        self._evicted = evicted
        self._clock = clock
        self._cache = options.cache
        self._fetcher = ChunkFetcher(mailbox, ahead=options.fetch_ahead)
        unanswered = options.unanswered
        self.state = WorkerState(options, clock(), None if unanswered is None else unanswered.push)
        self._reason: actions.Reason | None = None  # the reason why the session ended
        self._snapshot: Snapshot | None = None  # of the last push; kept until its reply, to rebase from it
        self._content: Callable[[], PushContent] = PushContent  # returns the tensors of the next push
        self._logged: tuple[Logged, ...] = ()  # values that f logged, for the next push
        self._master = MasterCopy(engine.program.types())
        self._unmerged = Unmerged(self._master)
        self._compress = NONE  # format of the next push
        self._gather = False  # True if the next push includes the moments of optimisers
        self._brought = ReplicaPart()  # the replica of the last reply, until it is adopted
        self._arrived = ReplicaPart()  # the replica from which the next chunk starts

    @property
    def undelivered(self) -> UnansweredPush | None:
        """The push of an earlier process, until it has a reply."""
        return None if self.state.undelivered is None else self._options.unanswered

    @property
    def saving(self) -> bool:
        """True if the session ended only to save a push, in the outbox, which outlives this machine."""
        return self._reason is actions.Reason.SAVING

    def run(self) -> None:
        """Train until no work is left or the machine is reclaimed. The mailbox stays open."""
        try:
            for action in self.life():
                if isinstance(action, actions.Wait):
                    self._courier.wait(min(action.seconds, POLL_S))
        finally:
            self._courier.close()

    def life(self) -> Iterator[actions.Action]:
        """Perform all actions. Yields each action that takes time once it is done, so that the driver can advance a
        virtual clock. Also yields each Wait; then the driver waits until a reply, an eviction or the timeout."""
        while True:
            self._poll_courier()
            action = self.state.next_action(self._clock())
            if isinstance(action, actions.Leave):
                self._reason = action.reason
                self._mailbox.beat(LEFT, 0)
                return
            event = self._perform(action)
            if not isinstance(action, actions.Send | actions.Adopt | actions.KeepOnly):
                yield action
            if event is not None:
                self.state.handle(event, self._clock())

    def _poll_courier(self) -> None:
        """Report replies and evictions to the state machine. Raises the errors of the courier."""
        answer = self._courier.take()
        if answer is not None:
            reply, self._brought = answer
            self._master.take(self._brought, fast_forward=reply.fast_forward)
            self._compress = reply.pace.compress
            self._gather |= reply.moments  # a later reply does not cancel a request for moments
            if reply.verdict in (Verdict.MERGED, Verdict.REPEATED):
                self._engine.replicated.acknowledge_push()
            self._brought = self._engine.replicated.whole(self._brought)
            self._unmerged.answered(reply.gathered, reply.round)
            if reply.lease is not None and reply.lease.afresh:
                self._unmerged.forget()
            if reply.forget_rows:
                self._engine.keep_rows()
            if not self._brought:
                self._snapshot = None  # nothing to rebase: free its memory
            if reply.lease is not None:
                self._fetcher.expect(reply.lease)
            costs = self._courier.last_push_s, max(0.0, self._courier.last_travel_s - reply.held_s)
            self.state.handle(actions.Replied(reply, bool(self._brought), *costs), self._clock())
        elif self._courier.gone:
            self.state.handle(actions.MailboxClosed(), self._clock())
        if self._evicted():
            self.state.handle(actions.Evicted(), self._clock())

    def _perform(self, action: actions.Action) -> actions.Event | None:
        match action:
            case actions.Train():
                return self._train(action)
            case actions.BeginChunk():
                return self._begin(action)
            case actions.TakeSnapshot():
                return self._take_snapshot(action)
            case actions.Send():
                self._send(action)
            case actions.Adopt():
                self._adopt(action)
            case actions.KeepOnly():
                self._keep_only(action)
        return None

    def _begin(self, action: actions.BeginChunk) -> actions.Event:
        lease = action.lease
        # The heartbeat comes first, so that the master can attribute a crash of this process to the chunk.
        self._mailbox.beat(lease.id, lease.start)
        try:
            payload, chunk = self._fetcher.take(lease)
            if self._cache is not None:
                incomplete, chunk = chunk, self._cache.with_borrowed_rows(chunk)
                # Added after borrowed rows are filled in: `put` may evict payloads that the chunk borrows from.
                self._cache.put(lease.sha256, payload, incomplete)
        except (OSError, ValueError):
            return actions.ChunkFailed()
        try:
            self._engine.begin(chunk)
        except SharedFileError as error:
            return actions.TrainingFailed(Failure(lease.id, lease.term, str(error), "", -1, -1))
        if self._arrived:  # it replaces the engine's replica: nothing was trained since the sync that it answers
            self._engine.restart(self._arrived)
            self._arrived = ReplicaPart()
            for note in self._engine.notes:
                print(note, file=sys.stderr)
        return actions.Began()

    def _train(self, action: actions.Train) -> actions.Event:
        """Train one batch."""
        lease, start = action.lease, action.start
        program, keeps_rate = self._engine.program, self._engine.program.shape.keeps_rate
        batch, live, added = program.shape.batch or 1, action.live, action.added
        others = action.others
        how = {"keeps_rate": keeps_rate, "gathered": action.gathered}
        size, scale = batch_and_rate(batch, program.min_target_batch, live, added, others, **how)
        missed = steps_missed(others) if added else 0.0
        # Rows before `trained` are trained. The rest of the lease is credited with the last batch, without training.
        trained = min(action.stop, lease.stop - lease.untrained - lease.start)
        if trained <= start:
            self._mailbox.beat(lease.id, lease.start + action.stop)
            return actions.Trained(action.stop, whole=True)
        # A single worker has the batches of a plain loop, with a short batch at the end of an epoch.
        alike = live > 1 or bool((lease.start + start) % batch)
        count = next_batch(trained - start, size, lease.fewest, alike=alike)
        stop, whole = self._engine.batch_end(start, count, trained)
        step = program.shape.steps(action.per_epoch)
        epochs = max(1, action.total // action.per_epoch)
        self._engine.at = at = Progress(
            lease.epoch, action.version, action.share, step.at(action.credited, epochs), epochs * step.per_epoch
        )
        try:
            self._engine.train(start, stop, program.factor(at), scale, missed)
        except BatchFailed as failure:
            return self._failed(lease, failure)
        stop = action.stop if stop == trained else stop
        self._mailbox.beat(lease.id, lease.start + stop)
        return actions.Trained(stop, whole, self._engine.is_accumulating)

    def _failed(self, lease: Lease, failure: BatchFailed) -> actions.TrainingFailed:
        cause = failure.__cause__ or failure
        if isinstance(cause, SharedFileError):  # a fault of the machine, not of f
            return actions.TrainingFailed(Failure(lease.id, lease.term, str(cause), "", -1, -1))
        trace = printable(user_traceback(cause, self._options.source), MAX_TRACEBACK_CHARS)
        said = described(cause), trace, failure.first, failure.last
        return actions.TrainingFailed(Failure(lease.id, lease.term, *said))

    def _take_snapshot(self, action: actions.TakeSnapshot) -> actions.Event:
        began_s = self._clock()
        try:
            self._engine.finish_batches(self._master.modules)
            trained_s = self._clock() - began_s
            snapshot = self._engine.snapshot(self._master.modules)
        except BatchFailed as failure:
            return self._failed(action.lease, failure)
        fields, compress = self._engine.changed_fields(action.start, action.stop), self._compress
        moments = self._engine.moments() if self._gather else {}
        self._gather = False

        def carried() -> PushContent:
            part = self._unmerged.push(self._engine.wire(snapshot))
            content, rounded = self._master.carry(part, compress)
            # The snapshot gets the values as the master reconstructs them, so that rebasing keeps the rounding error.
            gathered = self._unmerged.pushed(part.updated(rounded))
            self._snapshot = replace(snapshot, replica=snapshot.replica.updated(rounded).updated(gathered))
            rows, changes = self._engine.replicated.as_changes(content.replica.rows)
            return replace(
                content,
                fields=fields,
                replica=replace(content.replica, rows=rows, moments=moments),
                changes=changes,
            )

        self._logged = snapshot.logged
        if snapshot.arriving:  # copies from a device: training continues while the courier waits for them
            self._content = carried
        else:
            content = carried()
            self._content = lambda: content
        return actions.Copied(trained_s)

    def _send(self, action: actions.Send) -> None:
        content: Callable[[], PushContent] = PushContent
        sync = action.sync
        if sync.wants and self._cache is not None:
            sync = sync._replace(cached=self._cache.names())
        if self._engine.notes:
            sync = sync._replace(note=_joined(sync.note, self._engine.notes))
            self._engine.notes.clear()
        if action.content is actions.Content.SNAPSHOT:
            content, self._content = self._content, PushContent
            assert sync.push is not None, "only a push has a snapshot"
            sync = sync._replace(push=sync.push._replace(logged=self._logged))
        elif action.content is actions.Content.OUTBOX and self._options.unanswered is not None:
            # Moments are left out: they were requested from the earlier process only.
            unanswered = self._options.unanswered.content
            unanswered = replace(unanswered, replica=replace(unanswered.replica, moments={}))
            content = lambda: unanswered  # noqa: E731
        self._courier.post(sync, content)

    def _adopt(self, action: actions.Adopt) -> None:
        brought, self._brought = self._brought, ReplicaPart()
        snapshot, self._snapshot = self._snapshot, None
        if action.forget_optimisers:
            self._engine.forget_optimisers()
            self._arrived = replace(self._arrived, moments={})
        match action.use:
            case actions.Use.DROP:
                self._arrived = ReplicaPart()
                self._unmerged.forget()
                self._master.forget()
                self._engine.forget_rows()
                self._engine.recorder.forget()
            case actions.Use.KEEP:
                self._engine.replicated.take(brought.rows)
                modules = self._unmerged.on(brought).modules
                self._arrived = self._arrived.updated(ReplicaPart(modules, moments=brought.moments))
            case actions.Use.REBASE:
                assert snapshot is not None, "a snapshot is kept until the reply to its push"
                merged = replace(snapshot, replica=self._unmerged.push(snapshot.replica))
                self._engine.rebase(merged, brought, action.live)

    def _keep_only(self, action: actions.KeepOnly) -> None:
        self._engine.keep_only(action.modules)
        self._master.keep_only(action.modules)
        self._unmerged.keep_only(action.modules)
        arrived = {key: tensors for key, tensors in self._arrived.modules.items() if key in action.modules}
        self._arrived = ReplicaPart(arrived, moments=self._arrived.moments)


def _joined(note: str, more: Iterable[str]) -> str:
    """Return a note with a line added for each new text. A note that gets too long loses its middle."""
    lines = dict.fromkeys([*note.splitlines(), *(" ".join(text.split()) for text in more)])
    return printable("\n".join(lines), MAX_MESSAGE_CHARS)
