"""A worker that only takes time: it keeps to the worker's protocol as a real one does, and trains nothing.

It takes many batches in one step, up to the next push, and can say at any time how far it has come in that; a
message without an answer is sent again, as couriers do.

Its program is one of which only the costs matter: a given number of vertices beside one replicated vertex, and an f
that does nothing. A simulated run is a run as any other, so it needs a program file; `source` writes one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol, final

from chunk_model.goodput import Costs
from gridml.aggregates import mean
from gridml.carriers.base import BEGUN, LEFT
from gridml.model.batch import Batch
from gridml.model.graph import Graph
from gridml.model.program import Program
from gridml.model.update import update
from gridml.model.vertex import Vertex, edge
from gridml.protocol.codec import InProcessPayload, in_process_payload
from gridml.protocol.messages import Failure, Reply, Sync
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

RESEND_S = 15.0  # as couriers do
TINY = 1e-6  # of a vertex: what rounding adds to a time is no work


class WireEnd(Protocol):
    """A worker's end of the wire, with its time."""

    @property
    def now_s(self) -> float: ...
    def send(self, number: int, payload: bytes) -> None: ...
    def beat(self, lease: int, upto: int) -> None: ...


@final
class CostOnlyWorker:
    """The life of one worker process, one wait at a time: a `master.simulation.simulated.SimulatedWorker`. `speed`
    divides its training time; f `fails` at whatever it trains."""

    def __init__(
        self, options: WorkerOptions, costs: Costs, wire: WireEnd, speed: float = 1.0, *, fails: bool = False
    ) -> None:
        self._options = options
        self._costs = costs
        self._wire = wire
        self._vertex_s = costs.exec_s / speed
        self._fails = fails
        self._number = 0  # of the last message
        self._sync: Sync | None = None  # the message under way,
        self._reply: Reply | None = None  # and its answer
        self._posted_s = self._sent_s = self._travel_s = 0.0  # when it was sent first, and last; the last push's way
        self._evicted = self._training = False
        self._lease, self._upto, self._stop = BEGUN, 0, 0  # the lease in hand, how far it is trained, and being trained
        self._step_s = 0.0  # since when
        self._ended_s = math.inf
        self.woken: Callable[[], None] = lambda: None  # called when something comes that a wait may be cut short for
        self.interruptible = False  # whether the wait that was yielded last may be cut short

    def evict(self) -> None:
        """SIGTERM: push what there is and leave."""
        self._evicted = True
        self.interruptible = self.interruptible or self._training
        self.woken()

    def receive(self, number: int, payload: bytes) -> None:
        """Take a reply from the wire."""
        if number == self._number and self._sync is not None and isinstance(payload, InProcessPayload):
            message = payload.message
            if isinstance(message, Reply):
                if self._reply is None and self._sync.push is not None:
                    self._travel_s = self._wire.now_s - self._posted_s
                self._reply = message
                self.woken()

    def progress(self) -> tuple[float, int, int]:
        """Until when its process has lived, the lease in hand, and how far that is trained."""
        lived_s = min(self._wire.now_s, self._ended_s)
        passed = int((lived_s - self._step_s) / self._vertex_s + TINY) if self._stop > self._upto else 0
        return lived_s, self._lease, min(self._stop, self._upto + passed)

    def life(self) -> Iterator[float]:
        """Everything it does. Yields the seconds to wait before it goes on."""
        try:
            yield self._costs.boot_s
            yield from self._live()
        except FileNotFoundError:
            return  # the mailbox was closed: the master has given it up
        finally:  # whoever ends it closes the generator
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
                self.interruptible, self._training = action.overdue, True
                self._upto, self._step_s = action.lease.start + action.start, now_s
                self._stop = self._upto + rows
                yield rows * self._vertex_s
                self.interruptible = self._training = False
                began_s, now_s = now_s, wire.now_s
                if self._evicted or (action.overdue and self._reply is not None):  # it may have been cut short
                    trained = (now_s - began_s) / self._vertex_s
                    rows = min(rows, math.ceil(trained - TINY) if self._evicted else round(trained))
                # Else it was waited out and all is trained: half of the clock's last digit does not move it.
                if self._evicted:  # the vertex in hand is trained to its end
                    yield began_s + rows * self._vertex_s - now_s
                    now_s = wire.now_s
                stop = action.start + rows
                self._upto = self._stop = action.lease.start + stop
                wire.beat(action.lease.id, action.lease.start + stop)
                if self._sync is not None and self._reply is None and now_s - self._sent_s > RESEND_S - self._vertex_s:
                    self._send_again()
                state.handle(Trained(stop), now_s)
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
        """How many rows to train in one step: up to the next push, or until the last one is to be sent again."""
        rows = action.due - action.start
        if action.due_s < now_s + rows * self._vertex_s:
            rows = max(1, math.ceil((action.due_s - now_s) / self._vertex_s))
        if self._sync is not None:
            rows = min(rows, max(1, int((self._sent_s + RESEND_S - now_s) / self._vertex_s)))
        return rows

    def _wait(self, seconds: float) -> Iterator[float]:
        """Wait; and send the message under way again when that is due."""
        due_s = math.inf if self._sync is None else self._sent_s + RESEND_S
        self.interruptible = True
        yield min(seconds, due_s - self._wire.now_s)
        self.interruptible = False
        if self._reply is None and self._wire.now_s >= due_s:
            self._send_again()

    def _send_again(self) -> None:
        if self._sync is not None:
            self._sent_s = self._wire.now_s
            self._wire.send(self._number, in_process_payload(self._sync))


class Network(Vertex):
    """Stands for what is trained; it has no tensors, so none travels."""

    aggregate = mean()


class Item(Vertex):
    network = edge(Network)


@update(batch=1)
def train(items: Batch[Item], network: Network) -> None:
    """Nothing: time is all that it takes."""


def program_of(vertices: int, epochs: int) -> Program:
    """Return a program of `vertices` vertices, trained `epochs` times."""

    def graph() -> Graph:
        g = Graph()
        network = g.add(Network)
        g.add(Item, vertices, network=network)
        return g

    return Program(graph, train, epochs=epochs, shuffle="none")


def source(vertices: int, epochs: int) -> str:
    """Return the text of a program file."""
    return (
        '"""Vertices that only cost time, written by gridml simulate."""\n\n'
        "from master.simulation.cost_only_worker import program_of\n\n"
        f"program = program_of({vertices}, {epochs})\n"
    )
