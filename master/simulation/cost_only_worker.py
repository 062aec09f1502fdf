"""Workers that only let simulated time pass, and the carrier of their messages, between objects of one process.

One simulated step trains all batches up to the next push. `CostOnlyWorker.progress` returns the state of the step at
any time. A message without a reply is sent again.

The program has a given number of vertices, one replicated vertex without tensors, and an f that does nothing. A
simulated run needs a program file like any other run; `source` returns the text of that file.

It has no files and polls only the mailboxes with messages. So the cost of a master's turn depends on the messages that
arrived, not on the number of workers. The carrier drops a damaged payload, as a real one does after checking its
SHA-256.

`MergingTime` simulates the time that merging takes: a number of seconds for each push, which pass before the master's
next turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, final

from chunk_model.goodput import Costs
from gridml.aggregates import mean
from gridml.carriers.base import BEGUN, LEFT, Heartbeat, MasterMailboxes, Message
from gridml.model.batch import Batch
from gridml.model.graph import Graph
from gridml.model.program import Program
from gridml.model.stages import MiniBatch, exchange
from gridml.model.update import update
from gridml.model.vertex import Vertex, edge
from gridml.protocol.bundle import MAX_HEADER_BYTES
from gridml.protocol.messages import Failure, Reply, Sync, Verdict
from gridml.protocol.payload import Arrived, Payload
from gridml.protocol.push import (
    BundleCodec,
    Codec,
    InProcessCodec,
    InProcessPayload,
    PushContent,
    ReplicaPart,
    in_process_payload,
)
from gridml.protocol.worker_actions import (
    Began,
    BeginChunk,
    Copied,
    EndChunk,
    Evicted,
    Leave,
    Replied,
    Send,
    TakeSnapshot,
    Train,
    Trained,
    TrainingFailed,
    Wait,
    busy_seconds,
)
from gridml.protocol.worker_state import WorkerOptions, WorkerState
from master.simulation.faulty_network import Delivery, NetworkTraffic, VirtualClock

Deliver = Callable[[int, bytes], None]  # called with the number and the payload of a reply
#: Returns (time up to which a process has lived, its lease, the vertex up to which the lease is trained).
ProgressSource = Callable[[], tuple[float, int, int]]
BEAT_S = 0.5  # seconds between two heartbeats of a live process, as in remote.stepped


def extrapolated(heartbeat: Heartbeat, lived_s: float) -> Heartbeat:
    """Return the present heartbeat of a process that has repeated `heartbeat` every `BEAT_S` until `lived_s`.

    Repeats are computed when the master reads them, so they need no actions of the clock.
    """
    return heartbeat._replace(number=heartbeat.number + int(lived_s / BEAT_S))


@final
class WireCodec(Codec):
    """Passes messages on as objects. Hostile messages are bytes, which the real codec reads."""

    def __init__(self) -> None:
        self._handed_over, self._written = InProcessCodec(), BundleCodec()

    def read(self, payload: Arrived, max_header: int = MAX_HEADER_BYTES) -> tuple[Sync, PushContent]:
        codec = self._handed_over if isinstance(payload, InProcessPayload) else self._written
        return codec.read(payload, max_header)

    def write(self, reply: Reply, replica: ReplicaPart) -> Payload:
        return self._handed_over.write(reply, replica)


@dataclass
class _Box:
    """The mailbox of one worker."""

    deliver: Deliver | None = None  # None until the worker's process listens
    progress: ProgressSource | None = None
    messages: dict[int, bytes] = field(default_factory=dict)  # messages that arrived and are not answered, by number
    heartbeat: Heartbeat | None = None  # the last one that the worker sent; its repeats are computed on reading


@final
class Wire(MasterMailboxes):
    """Both ends of the carrier. It outlives every master. A payload takes `travel_s` plus the delay by `delivery`."""

    carries_chunks = False

    def __init__(self, clock: VirtualClock, delivery: Delivery | None, travel_s: float = 0.0) -> None:
        self._clock = clock
        self._delivery = delivery
        self._travel_s = travel_s
        self._boxes: dict[str, _Box] = {}
        self._waiting: dict[str, None] = {}  # workers with messages, as a set in order of arrival
        self.traffic = NetworkTraffic()

    # --- the worker's end

    def listen(self, worker: str, deliver: Deliver, progress: ProgressSource | None = None) -> None:
        """Connect a worker's process. Replies go to `deliver`; `progress` gives the present state for heartbeats.
        Raises FileNotFoundError for a worker without a mailbox."""
        box = self._box(worker)
        box.deliver, box.progress = deliver, progress

    def send(self, worker: str, number: int, payload: bytes) -> None:
        """Send a message. Raises FileNotFoundError if the mailbox was closed."""
        self._box(worker)
        self._travel(payload, lambda: self._arrive(worker, number, payload))

    def beat(self, worker: str, lease: int, upto: int) -> None:
        box = self._boxes.get(worker)
        if box is not None:
            box.heartbeat = Heartbeat(lease, upto, 1 if box.heartbeat is None else box.heartbeat.number + 1)

    def _box(self, worker: str) -> _Box:
        if worker not in self._boxes:
            raise FileNotFoundError(f"the mailbox of {worker} was closed")
        return self._boxes[worker]

    def _travel(self, payload: bytes, arrive: Callable[[], None]) -> None:
        self.traffic.sent += 1
        now = self._clock.now_s + self._travel_s
        if self._delivery is None:
            self._clock.at(now, arrive)
            return
        # `Chances` returns an undamaged payload as the same object, so no digest is needed.
        whole = [delay for delay, arrived in self._delivery(payload) if arrived is payload]
        self.traffic.lost += not whole
        for delay in whole:
            self._clock.at(now + delay, arrive)

    def _arrive(self, worker: str, number: int, payload: bytes) -> None:
        box = self._boxes.get(worker)
        if box is not None:
            box.messages[number] = payload
            self._waiting[worker] = None

    def _hand_over(self, worker: str, number: int, payload: bytes) -> None:
        box = self._boxes.get(worker)
        if box is not None and box.deliver is not None:
            box.deliver(number, payload)

    # --- the master's end

    def open(self, worker: str) -> None:
        self._boxes.setdefault(worker, _Box())

    def collect(self) -> list[Message]:
        return [Message(worker, *max(self._boxes[worker].messages.items())) for worker in self._waiting]

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        if worker in self._boxes:
            # Bytes are not copied, because the copy of an `InProcessPayload` would lose its message object.
            carried = payload if isinstance(payload, bytes) else bytes(payload)
            self._travel(carried, lambda: self._hand_over(worker, number, carried))
        self.discard(worker, number)

    def discard(self, worker: str, number: int) -> None:
        box = self._boxes.get(worker)
        if box is None:
            return
        if len(box.messages) == 1 and number in box.messages:  # the usual case, without a new dict
            box.messages.clear()
        else:
            box.messages = {n: payload for n, payload in box.messages.items() if n > number}
        if not box.messages:
            self._waiting.pop(worker, None)

    def publish(self, name: str, payload: Payload) -> None:
        """Do nothing: this carrier has no chunks."""

    def retract(self, name: str) -> None:
        pass

    def heartbeat(self, worker: str) -> Heartbeat | None:
        box = self._boxes.get(worker)
        if box is None or box.heartbeat is None or box.progress is None:
            return None if box is None else box.heartbeat
        lived_s, lease, upto = box.progress()
        last = box.heartbeat
        if last.lease == lease and last.upto <= upto:  # otherwise it is hostile, and stays as it was sent
            last = last._replace(upto=upto)
        return extrapolated(last, lived_s)

    def clear(self) -> None:
        self._boxes.clear()
        self._waiting.clear()

    def close(self, worker: str) -> None:
        self._boxes.pop(worker, None)
        self._waiting.pop(worker, None)


@final
class MergingTime(Codec):
    """Wraps `codec`, and adds `merge_s` to `spent_s` for each reply to a merged push.

    Replies leave immediately, so a reply is too early by at most the merging time of one turn's pushes. The rate of
    merged pushes is right, because messages that arrive during the merging time wait for the next turn.
    """

    def __init__(self, codec: Codec, merge_s: float) -> None:
        self.spent_s = 0.0  # total seconds of merging; never reset
        self._codec = codec
        self._merge_s = merge_s

    def read(self, payload: Arrived, max_header: int = MAX_HEADER_BYTES) -> tuple[Sync, PushContent]:
        return self._codec.read(payload, max_header)

    def write(self, reply: Reply, replica: ReplicaPart) -> Payload:
        if reply.verdict is Verdict.MERGED:
            self.spent_s += self._merge_s
        return self._codec.write(reply, replica)


RESEND_S = 15.0  # seconds without a reply after which a message is sent again, as by real workers
TINY = 1e-6  # tolerance in vertices, for rounding of the clock when a time is converted to vertices


class WireEnd(Protocol):
    """The worker's end of the wire, and the clock."""

    @property
    def now_s(self) -> float: ...
    def send(self, number: int, payload: bytes) -> None: ...
    def beat(self, lease: int, upto: int) -> None: ...


@final
class CostOnlyWorker:
    """One worker process, as a generator of waits. Implements `master.simulation.simulated.SimulatedWorker`.

    `speed` divides the training time. With `fails`, f fails on every batch.
    """

    def __init__(
        self, options: WorkerOptions, costs: Costs, wire: WireEnd, speed: float = 1.0, *, fails: bool = False
    ) -> None:
        self._options = options
        self._costs = costs
        self._wire = wire
        self._vertex_s = costs.exec_s / speed
        self._fails = fails
        self._number = 0  # number of the last message
        # At most one message is under way: `_sync`. `_reply` is its reply. The loop takes both and resets them to None.
        self._sync: Sync | None = None
        self._reply: Reply | None = None
        # `_posted_s`, `_sent_s`: times at which `_sync` was sent first and last. `_travel_s`: round trip of the last
        # push.
        self._posted_s = self._sent_s = self._travel_s = 0.0
        self._evicted = self._training = False
        # In the present lease, vertices before `_upto` are trained. The step that began at `_step_s` trains the
        # vertices from `_upto` to `_stop`.
        self._lease, self._upto, self._stop = BEGUN, 0, 0
        self._step_s = 0.0
        self._ended_s = math.inf  # end of the process
        self.woken: Callable[[], None] = lambda: None  # set by the pool; call it to end an interruptible wait early
        self.is_interruptible = False  # True: the wait that was yielded last can be ended early

    def evict(self) -> None:
        """Handle SIGTERM: push the trained vertices and leave."""
        self._evicted = True
        self.is_interruptible = self.is_interruptible or self._training
        self.woken()

    def receive(self, number: int, payload: bytes) -> None:
        """Handle a reply from the wire. Duplicates and replies to earlier messages are dropped."""
        if number == self._number and self._sync is not None and isinstance(payload, InProcessPayload):
            message = payload.message
            if isinstance(message, Reply):
                if self._reply is None and self._sync.push is not None:
                    self._travel_s = self._wire.now_s - self._posted_s
                self._reply = message
                self.woken()

    def progress(self) -> tuple[float, int, int]:
        """Return (last time at which the process lived, its present lease, position up to which that lease is
        trained)."""
        lived_s = min(self._wire.now_s, self._ended_s)
        passed = int((lived_s - self._step_s) / self._vertex_s + TINY) if self._stop > self._upto else 0
        return lived_s, self._lease, min(self._stop, self._upto + passed)

    def life(self) -> Iterator[float]:
        """Run the process. Yields the seconds of each wait."""
        try:
            yield self._costs.boot_s
            yield from self._live()
        except FileNotFoundError:
            return  # the mailbox was closed: the master has given up this worker
        finally:  # this also runs when the pool kills the process, because the pool drops this generator
            self._ended_s = self._wire.now_s

    def _live(self) -> Iterator[float]:
        wire, now_s = self._wire, self._wire.now_s
        state = WorkerState(self._options, now_s)
        while True:
            if self._reply is not None:
                reply, self._reply, self._sync = self._reply, None, None
                state.handle(Replied(reply, False, 0.0, self._travel_s), now_s)
            if self._evicted:
                state.handle(Evicted(), now_s)
            action = state.next_action(now_s)
            if isinstance(action, Train) and self._fails:
                yield self._vertex_s
                now_s = wire.now_s
                state.handle(
                    TrainingFailed(Failure(action.lease.id, action.lease.term, "a bad machine", "", -1, -1)), now_s
                )
            elif isinstance(action, Train):
                rows = self._rows(action, now_s)
                self.is_interruptible, self._training = action.overdue, True
                self._upto, self._step_s = action.lease.start + action.start, now_s
                self._stop = self._upto + rows
                yield rows * self._vertex_s
                self.is_interruptible = self._training = False
                began_s, now_s = now_s, wire.now_s
                # After a full wait all rows are trained, although the rounded clock may give fewer rows. So the time
                # is converted to rows only if the wait can have ended early.
                if self._evicted or (action.overdue and self._reply is not None):
                    trained = (now_s - began_s) / self._vertex_s
                    rows = min(rows, math.ceil(trained - TINY) if self._evicted else round(trained))
                if self._evicted:  # a batch cannot be interrupted: the vertex in training is completed
                    yield began_s + rows * self._vertex_s - now_s
                    now_s = wire.now_s
                stop = action.start + rows
                self._upto = self._stop = action.lease.start + stop
                wire.beat(action.lease.id, action.lease.start + stop)
                if self._sync is not None and self._reply is None and now_s - self._sent_s > RESEND_S - self._vertex_s:
                    self._send_again()
                state.handle(Trained(stop, whole=stop >= action.lease.fewest), now_s)
            elif isinstance(action, TakeSnapshot):
                yield busy_seconds(action, self._costs)
                now_s = wire.now_s
                state.handle(Copied(), now_s)
            elif isinstance(action, Send):
                self._number += 1
                self._sync, self._posted_s = action.sync, now_s
                self._send_again()
            elif isinstance(action, BeginChunk):
                self._lease, self._upto, self._stop = action.lease.id, action.lease.start, action.lease.start
                wire.beat(action.lease.id, action.lease.start)
                yield busy_seconds(action, self._costs)
                now_s = wire.now_s
                state.handle(Began(), now_s)
            elif isinstance(action, EndChunk):
                yield busy_seconds(action, self._costs)
                now_s = wire.now_s
            elif isinstance(action, Wait):
                yield from self._wait(action.seconds)
                now_s = wire.now_s
            elif isinstance(action, Leave):
                wire.beat(LEFT, 0)
                return

    def _rows(self, action: Train, now_s: float) -> int:
        """Return the number of rows of one step. The step ends with the next push, or when the message under way must
        be sent again, whichever is earlier."""
        rows = action.due - action.start
        if action.due_s < now_s + rows * self._vertex_s:
            rows = max(1, math.ceil((action.due_s - now_s) / self._vertex_s))
        if self._sync is not None:
            rows = min(rows, max(1, int((self._sent_s + RESEND_S - now_s) / self._vertex_s)))
        return rows

    def _wait(self, seconds: float) -> Iterator[float]:
        """Wait at most `seconds` for a reply. Send the message again if `RESEND_S` pass after it was last sent."""
        due_s = math.inf if self._sync is None else self._sent_s + RESEND_S
        self.is_interruptible = True
        yield min(seconds, due_s - self._wire.now_s)
        self.is_interruptible = False
        if self._reply is None and self._wire.now_s >= due_s:
            self._send_again()

    def _send_again(self) -> None:
        if self._sync is not None:
            self._sent_s = self._wire.now_s
            self._wire.send(self._number, in_process_payload(self._sync))


class Network(Vertex):
    """The replicated vertex. It has no tensors, so messages contain none."""

    aggregate = mean()


class Item(Vertex):
    network = edge(Network)


@update(batch=1)
def train(items: Batch[Item], network: Network) -> None:
    """Train nothing."""


@exchange(over=Item)
def look(item: Item, network: Network) -> None:
    """Do nothing."""


def program_of(vertices: int, epochs: int, slack: int | None = None, parts: int = 1, size: int = 1) -> Program:
    """Return a program that trains `vertices` vertices for `epochs` epochs. With a `slack` it is a stage, on
    mini-batches of `size` vertices, in that number of `parts`."""

    def graph() -> Graph:
        g = Graph()
        network = g.add(Network)
        g.add(Item, vertices, network=network)
        return g

    work = train if slack is None else [MiniBatch([look], size, slack, parts)]
    return Program(graph, work, epochs=epochs, shuffle="none")


def source(*options: int) -> str:
    """Return the text of a program file; `options` are those of `program_of`, in order."""
    return (
        '"""Vertices that only cost time, written by gridml simulate."""\n\n'
        "from master.simulation.cost_only_worker import program_of\n\n"
        f"program = program_of({', '.join(map(str, options))})\n"
    )
