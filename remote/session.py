"""A worker's life: fetch a chunk and its replica, train, push every so often, take newer replicas between two batches.

What is done when is the protocol's (`gridml.protocol.worker_state`); here it is done, with an engine, a mailbox and a
courier.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from gridml.caching.chunk_cache import ChunkCache
from gridml.caching.master_copy import MasterCopy
from gridml.carriers.base import LEFT, WorkerMailbox
from gridml.engine.engine import Engine
from gridml.engine.pace import batch_size, next_batch
from gridml.engine.snapshot import Snapshot
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
from gridml.protocol.push import PushContent, ReplicaPart
from gridml.protocol.worker_state import WorkerOptions, WorkerState
from remote.courier import Courier

POLL_S = 0.05  # how often a waiting worker looks whether it must leave


@dataclass(frozen=True)
class SessionOptions(WorkerOptions):
    """Of a worker that really trains: the user's file, and what an earlier process of the same job got no answer to,
    and what keeps the chunks that it was sent."""

    source: Path = Path()
    unanswered: UnansweredPush | None = None
    cache: ChunkCache | None = None


@final
class Session:
    """The life of one worker process. `evicted()` says whether the machine asked it to leave.

    It is written as a generator, so that one thread can drive thousands of workers under a clock of its own.
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
        unanswered = options.unanswered
        self.state = WorkerState(options, clock(), None if unanswered is None else unanswered.push)
        self._reason: actions.Reason | None = None  # why it left
        self._snapshot: Snapshot | None = None  # of the last push,
        self._content: Callable[[], PushContent] = PushContent  # and what travels with it,
        self._logged: tuple[Logged, ...] = ()  # what f logged of it, too
        self._master = MasterCopy(engine.program.types())
        self._compress = NONE
        self._gather = False  # what optimisers remember, for the next push
        self._brought = ReplicaPart()  # with the last reply
        self._arrived = ReplicaPart()  # to start the next chunk from

    @property
    def undelivered(self) -> UnansweredPush | None:
        """The push of an earlier process, as long as it has no answer."""
        return None if self.state.undelivered is None else self._options.unanswered

    @property
    def saving(self) -> bool:
        """Whether it ended only to have a push carried where it outlives this machine."""
        return self._reason is actions.Reason.SAVING

    def run(self) -> None:
        """Train until there is nothing more to do or the machine is taken away. The mailbox stays open."""
        try:
            for action in self.life():
                if isinstance(action, actions.Wait):
                    self._courier.wait(min(action.seconds, POLL_S))
        finally:
            self._courier.close()

    def life(self) -> Iterator[actions.Action]:
        """Do all that a worker does. Yields each action that takes time: once it is done, so that a clock may be moved
        by what it took, and a Wait for whoever drives to wait, which a reply or an eviction may cut short."""
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
        """Report what has happened meanwhile. Raises what made the courier fail."""
        answer = self._courier.take()
        if answer is not None:
            reply, self._brought = answer
            self._master.take(self._brought, fast_forward=reply.fast_forward)
            self._compress = reply.pace.compress
            self._gather |= reply.moments  # answers that come before the next push do not take it back
            if reply.verdict in (Verdict.MERGED, Verdict.REPEATED):
                self._engine.replicated.acknowledge_push()
            if reply.forget_rows:
                self._engine.keep_rows()
            if not self._brought:
                self._snapshot = None  # it can be large
            costs = self._courier.last_push_s, self._courier.last_travel_s
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
        self._mailbox.beat(lease.id, lease.start)  # first: what the chunk may do to this process is then known of
        try:
            payload = self._mailbox.fetch(lease.chunk, lease.sha256)
            chunk = Chunk.decode(payload)
            if self._cache is not None:
                incomplete, chunk = chunk, self._cache.with_borrowed_rows(chunk)
                self._cache.put(lease.sha256, payload, incomplete)  # not before: it may make room for it
        except (OSError, ValueError):
            return actions.ChunkFailed()
        try:
            self._engine.begin(chunk)
        except SharedFileError as error:
            return actions.TrainingFailed(Failure(lease.id, lease.term, str(error), "", -1, -1))
        if self._arrived:  # nothing was trained since it was asked for
            self._engine.restart(self._arrived)
            self._arrived = ReplicaPart()
            for note in self._engine.notes:
                print(note, file=sys.stderr)
        return actions.Began()

    def _train(self, action: actions.Train) -> actions.Event:
        """Train one batch."""
        lease, start = action.lease, action.start
        program, batch = self._engine.program, self._engine.program.update.batch or 1
        size = batch_size(batch, program.min_target_batch, action.live)
        trained = min(action.stop, lease.stop - lease.untrained - lease.start)  # what lies beyond is credited with it
        if trained <= start:
            self._mailbox.beat(lease.id, lease.start + action.stop)
            return actions.Trained(action.stop, whole=True)
        # The batches of one worker alone are the loop's, with a short one at an epoch's end.
        alike = action.live > 1 or bool((lease.start + start) % batch)
        count = next_batch(trained - start, size, lease.fewest, alike=alike)
        stop, whole = self._engine.batch_end(start, count, trained)
        step = program.update.steps(action.per_epoch)
        epochs = max(1, action.total // action.per_epoch)
        self._engine.at = at = Progress(
            lease.epoch, action.version, action.share, step.at(action.credited, epochs), epochs * step.per_epoch
        )
        try:
            self._engine.train(start, stop, program.factor(at), size / batch)
        except BatchFailed as failure:
            return self._failed(lease, failure)
        stop = action.stop if stop == trained else stop
        self._mailbox.beat(lease.id, lease.start + stop)
        return actions.Trained(stop, whole, self._engine.is_accumulating)

    def _failed(self, lease: Lease, failure: BatchFailed) -> actions.TrainingFailed:
        cause = failure.__cause__ or failure
        if isinstance(cause, SharedFileError):  # the machine's, and not f's
            return actions.TrainingFailed(Failure(lease.id, lease.term, str(cause), "", -1, -1))
        trace = printable(user_traceback(cause, self._options.source), MAX_TRACEBACK_CHARS)
        said = described(cause), trace, failure.first, failure.last
        return actions.TrainingFailed(Failure(lease.id, lease.term, *said))

    def _take_snapshot(self, action: actions.TakeSnapshot) -> actions.Event:
        try:
            snapshot = self._engine.snapshot(self._master.modules)
        except BatchFailed as failure:
            return self._failed(action.lease, failure)
        fields, compress = self._engine.changed_fields(action.start, action.stop), self._compress
        moments = self._engine.moments() if self._gather else {}
        self._gather = False

        def carried() -> PushContent:
            content, rounded = self._master.carry(self._engine.wire(snapshot), compress)
            self._snapshot = replace(snapshot, replica=snapshot.replica.updated(rounded))  # what is rebased upon
            return replace(content, fields=fields, replica=replace(content.replica, moments=moments))

        self._logged = snapshot.logged
        if snapshot.arriving:  # from a device: it trains on while its courier waits for that
            self._content = carried
        else:
            content = carried()
            self._content = lambda: content
        return actions.Copied()

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
            assert sync.push is not None, "a snapshot is taken to be pushed"
            sync = sync._replace(push=sync.push._replace(logged=self._logged))
        elif action.content is actions.Content.OUTBOX and self._options.unanswered is not None:
            unanswered = self._options.unanswered.content  # but moments: nobody has asked this process for any
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
                self._master.forget()
                self._engine.forget_rows()
                self._engine.recorder.forget()
            case actions.Use.KEEP:
                self._engine.replicated.take(brought.rows)
                self._arrived = self._arrived.updated(ReplicaPart(brought.modules, moments=brought.moments))
            case actions.Use.REBASE:
                assert snapshot is not None, "what was pushed last is kept until its answer comes"
                self._engine.rebase(snapshot, brought, action.live)

    def _keep_only(self, action: actions.KeepOnly) -> None:
        self._engine.keep_only(action.modules)
        self._master.keep_only(action.modules)
        arrived = {key: tensors for key, tensors in self._arrived.modules.items() if key in action.modules}
        self._arrived = ReplicaPart(arrived, moments=self._arrived.moments)


def _joined(note: str, more: Iterable[str]) -> str:
    """Return a note with one line more for each text that is not in it yet; the middle of a long one is left out."""
    lines = dict.fromkeys([*note.splitlines(), *(" ".join(text.split()) for text in more)])
    return printable("\n".join(lines), MAX_MESSAGE_CHARS)
