"""The three drivers of a worker's protocol send the same messages in the same life: the real session, the simulator's
stepped one, and the cost-only one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunk_model.goodput import Costs
from gridml.carriers.base import WorkerMailbox
from gridml.engine.engine import Engine
from gridml.model.chunk import Chunk, cut
from gridml.model.loading import load
from gridml.model.program import Program
from gridml.protocol import bundle
from gridml.protocol.messages import NO_PUSH, Lease, Pace, Reply, Sync, Verdict, sync_from, to_json
from gridml.protocol.push import InProcessPayload, ReplicaPart, in_process_payload
from gridml.protocol.worker_state import WorkerOptions
from master.simulation import cost_only_worker
from master.simulation.cost_only_worker import CostOnlyWorker
from master.simulation.faulty_network import VirtualClock
from master.simulation.simulated import SimulatedWorker
from remote.courier import Courier
from remote.session import Session, SessionOptions
from remote.stepped import Trainer

COSTS = Costs(exec_s=0.5, copy_s=0.125, start_s=2.0, push_s=0.25, boot_s=4.0)


@dataclass(frozen=True)
class Recorded:
    """A life: each sync is answered with the next reply, after its delay in seconds; at `evicted_s` the machine is
    taken away. The expected messages are given by the numbers of syncs and of pushes."""

    replies: tuple[tuple[float, Reply], ...]
    syncs: int
    pushes: int
    evicted_s: float | None = None
    chunks: int | None = None
    costs: Costs = COSTS


def lease(number: int, rows: int = 20) -> Lease:
    return Lease(number, 1, 0, 100 * number, 100 * number + rows, f"lease-{number}", "")


def given(number: int, rows: int = 20, every: int = 5) -> Reply:
    return Reply(0, Pace(total=1000, push_every=every), lease=lease(number, rows))


def merged(version: int, every: int = 5, **more: Any) -> Reply:
    return Reply(version, Pace(total=1000, push_every=every), Verdict.MERGED, **more)


LEAVE = (0.5, Reply(9, leave=True))
LIVES = {
    "two leases, one ahead, and nothing to do in between": Recorded(
        (
            (0.5, given(1)),
            (1.0, merged(1)),
            (0.5, merged(2, lease=lease(2, 12))),
            *((0.5, merged(3 + k)) for k in range(4)),
            (0.5, Reply(7, wait_s=3.0)),
            (0.5, Reply(7, wait_s=2.0)),
            (0.5, given(3, 7)),
            (1.5, merged(8)),
            LEAVE,
        ),
        syncs=12,
        pushes=9,
    ),
    "answers that come late": Recorded(
        ((1.0, given(1, 60)), (6.5, merged(1)), (9.0, merged(2)), (20.0, merged(3)), (2.0, merged(4)), LEAVE),
        syncs=6,
        pushes=4,
    ),
    "a push is refused, and another at the end of a lease": Recorded(
        (
            (0.5, given(1)),
            (1.0, merged(1)),
            (3.5, Reply(4, Pace(push_every=5), Verdict.REFUSED)),
            (0.5, given(2, 10, 8)),
            (2.0, Reply(5, Pace(push_every=5), Verdict.REFUSED, lease=lease(3))),
            LEAVE,
        ),
        syncs=6,
        pushes=3,
    ),
    "a lease is cut, another behind the worker's back": Recorded(
        (
            (0.5, given(1)),
            (1.0, merged(1, stop_at=113)),
            (0.5, merged(2, stop_at=113)),
            (0.5, merged(3)),
            (0.5, given(2, 20)),
            (4.5, merged(4, stop_at=207)),
            LEAVE,
        ),
        syncs=7,
        pushes=4,
    ),
    "a slow f pushes by the clock": Recorded(
        ((0.5, given(1, 12, 1000)), (8.0, merged(1, 1000)), (8.0, merged(2, 1000)), LEAVE),
        syncs=4,
        pushes=3,
        costs=replace(COSTS, exec_s=8.0),
    ),
    "a lease to be trained afresh, in one push": Recorded(
        (
            (0.5, given(1, 10)),
            (0.5, merged(1)),
            (0.5, merged(2, NO_PUSH, lease=replace(lease(2, 12), afresh=True))),
            (0.5, merged(3)),
            LEAVE,
        ),
        syncs=5,
        pushes=3,
    ),
    "as many chunks as it was to train": Recorded(
        ((0.5, given(1, 4)), (0.5, merged(1)), (0.5, Reply(1))), syncs=3, pushes=1, chunks=1
    ),
    "evicted while it trains": Recorded(
        ((0.5, given(1, 20, 1)), *((0.5, merged(k, 1)) for k in range(1, 20))), syncs=4, pushes=3, evicted_s=10.9
    ),
    "evicted while it trains, long before a push is due": Recorded(
        ((0.5, given(1, 20, 1000)), (0.5, merged(1, 1000))), syncs=2, pushes=1, evicted_s=10.9
    ),
    "evicted while a push has no answer": Recorded(
        ((0.5, given(1, 20)), (4.0, merged(1))), syncs=3, pushes=2, evicted_s=15.9
    ),
    "evicted while it waits for its first lease, which never comes": Recorded((), syncs=1, pushes=0, evicted_s=9.0),
    "evicted while there is no work": Recorded(((0.5, Reply(0, wait_s=5.0)),), syncs=2, pushes=0, evicted_s=6.0),
}


class Desk:
    """A recorder of syncs that answers them by the script. `deliver` passes the reply to the k-th sync."""

    def __init__(self, life: Recorded, clock: VirtualClock, deliver: Callable[[int, Reply], None]) -> None:
        self.life = life
        self.clock = clock
        self.syncs: list[tuple[float, Sync]] = []
        self.deliver = deliver

    def hear(self, sync: Sync) -> None:
        number = len(self.syncs)
        self.syncs.append((self.clock.now_s, sync))
        if number < len(self.life.replies):
            delay_s, reply = self.life.replies[number]
            self.clock.at(self.clock.now_s + delay_s, lambda: self.deliver(number + 1, reply))


def drive(worker: SimulatedWorker, clock: VirtualClock, life: Recorded) -> None:
    """Drive a simulated worker like the simulated pool."""
    steps, wakes, ended = worker.life(), itertools.count(), False
    due = -1

    def step(number: int) -> None:
        nonlocal ended, due
        if ended or number != due:
            return
        try:
            seconds = next(steps)
        except StopIteration:
            ended = True
            return
        due = next(wakes)
        this = due
        clock.at(clock.now_s + seconds, lambda: step(this))

    def woken() -> None:
        nonlocal due
        if worker.is_interruptible and not ended:
            worker.is_interruptible = False
            due = next(wakes)
            this = due
            clock.at(clock.now_s, lambda: step(this))

    worker.woken = woken
    clock.at(0.0, lambda: step(-1))
    if life.evicted_s is not None:
        clock.at(life.evicted_s, worker.evict)
    while not ended:
        assert clock.next_s is not None and clock.next_s < 1e5
        clock.advance(clock.next_s)


def cost_only(life: Recorded, program: Path) -> list[tuple[float, Sync]]:
    clock = VirtualClock()

    class End:
        @property
        def now_s(self) -> float:
            return clock.now_s

        def send(self, number: int, payload: bytes) -> None:
            assert isinstance(payload, InProcessPayload) and isinstance(payload.message, Sync)
            if number > len(desk.syncs):  # otherwise it is a repetition
                desk.hear(payload.message)

        def beat(self, lease: int, upto: int) -> None:
            pass

    desk = Desk(life, clock, lambda number, reply: worker.receive(number, in_process_payload(reply)))
    worker = CostOnlyWorker(WorkerOptions("w1", "x86_64", life.chunks), life.costs, End())
    drive(worker, clock, life)
    return desk.syncs


class Mailbox(WorkerMailbox):
    """A worker's mailbox whose messages arrive at once."""

    def __init__(self, chunks: dict[str, bytes], hear: Callable[[Sync], None]) -> None:
        self.chunks = chunks
        self.hear = hear
        self.sent = 0
        self.arrived: dict[int, bytes] = {}

    def send(self, number: int, payload: bytes) -> None:
        if number > self.sent:  # otherwise it is a repetition
            self.sent = number
            self.hear(sync_from(bundle.decode(payload)[0])._replace(process=""))

    def receive(self, number: int) -> bytes | None:
        return self.arrived.get(number)

    def fetch(self, name: str, sha256: str) -> bytes:
        return self.chunks[name]

    def beat(self, lease: int, upto: int) -> None:
        pass

    def close(self) -> None:
        pass


def chunks_of(program: Program, life: Recorded) -> dict[str, bytes]:
    """The chunks of all leases."""
    graph = program.graph()
    leases = [reply.lease for _, reply in life.replies if reply.lease is not None]
    return {
        one.chunk: cut(graph, "Item", np.arange(one.start, one.stop), None, None, bsp=False).encode() for one in leases
    }


def stepped(life: Recorded, program: Path) -> list[tuple[float, Sync]]:
    clock = VirtualClock()

    def deliver(number: int, reply: Reply) -> None:
        mailbox.arrived[number] = bundle.encode(to_json(reply._replace(process="only")), {})
        worker.notice_reply()

    desk = Desk(life, clock, deliver)
    mailbox = Mailbox(chunks_of(load(program), life), desk.hear)
    worker = Trainer(program, life.costs)(WorkerOptions("w1", "x86_64", life.chunks), mailbox, clock, 1.0)
    drive(worker, clock, life)
    return desk.syncs


class PricedEngine(Engine):
    """An engine that only takes time."""

    def __init__(self, program: Program, costs: Costs, clock: VirtualClock) -> None:
        super().__init__(program)
        self.costs = costs
        self.clock = clock

    def begin(self, chunk: Chunk) -> None:
        super().begin(chunk)
        self.clock.advance(self.clock.now_s + self.costs.start_s + chunk.count * self.costs.copy_s)

    def train(self, start: int, stop: int, factor: float, scale: float = 1.0, others: int = 0) -> None:
        super().train(start, stop, factor, scale, others)
        self.clock.advance(self.clock.now_s + (stop - start) * self.costs.exec_s)

    def snapshot(self, *known: Any) -> Any:
        self.clock.advance(self.clock.now_s + (self.costs.push_s or 0.0))
        return super().snapshot(*known)


class DeskCourier(Courier):
    """A carrier between a session and a desk."""

    def __init__(self, life: Recorded, clock: VirtualClock) -> None:
        self.clock = clock
        self.desk = Desk(life, clock, self.deliver)
        self.reply: Reply | None = None
        self.posted: tuple[float, Sync] | None = None

    @property
    def busy(self) -> bool:
        return self.posted is not None

    def post(self, sync: Sync, tensors: Any) -> None:
        assert not self.busy
        tensors()
        self.posted = self.clock.now_s, sync
        self.desk.hear(sync)

    def deliver(self, number: int, reply: Reply) -> None:
        assert self.posted is not None
        sent_s, sync = self.posted
        if sync.push is not None:
            self.last_travel_s = self.clock.now_s - sent_s
        self.reply = reply

    def take(self) -> Any:
        if self.reply is None:
            return None
        reply, self.reply, self.posted = self.reply, None, None
        return reply, ReplicaPart()

    def wait(self, seconds: float) -> None:
        until_s = self.clock.now_s + seconds
        while self.reply is None and self.clock.next_s is not None and self.clock.next_s <= until_s:
            self.clock.advance(self.clock.next_s)
        if self.reply is None:
            self.clock.advance(until_s)

    def close(self) -> None:
        pass


def session(life: Recorded, program: Path) -> list[tuple[float, Sync]]:
    clock = VirtualClock(life.costs.boot_s)
    courier = DeskCourier(life, clock)
    loaded = load(program)
    Session(
        SessionOptions("w1", "x86_64", life.chunks, source=program),
        PricedEngine(loaded, life.costs, clock),
        Mailbox(chunks_of(loaded, life), courier.desk.hear),
        courier,
        lambda: life.evicted_s is not None and clock.now_s >= life.evicted_s,
        clock,
    ).run()
    return courier.desk.syncs


def fields(said: tuple[float, Sync]) -> dict[str, Any]:
    """Return the content and time of each sync. Times are rounded to 0.1 s, the polling interval of a session."""
    parts = {"at_s": said[0], **said[1]._asdict()}
    return {n: pytest.approx(v, abs=0.1) if isinstance(v, float) else v for n, v in parts.items()}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("same_life") / "cost.py"
    path.write_text(cost_only_worker.source(1000, 1))
    return path


@pytest.mark.parametrize("name", LIVES)
def test_the_three_drivers_say_the_same(name: str, program: Path) -> None:
    life = LIVES[name]
    expected = [fields(said) for said in cost_only(life, program)]
    assert (len(expected), sum(said["push"] is not None for said in expected)) == (life.syncs, life.pushes)
    for driver in (stepped, session):
        syncs = [{"at_s": at_s, **sync._asdict()} for at_s, sync in driver(life, program)]
        assert len(syncs) == len(expected), driver.__name__
        for number, (sync, wanted) in enumerate(zip(syncs, expected, strict=True)):
            assert sync == wanted, f"sync {number} of {driver.__name__}"


def test_ending_a_chunk_takes_as_long_in_both_simulations(program: Path) -> None:
    life = next(iter(LIVES.values()))
    life = replace(life, costs=replace(COSTS, end_s=1.0))
    said = cost_only(life, program)
    assert said[-1][1].end_s >= 1.0
    syncs = [{"at_s": at_s, **sync._asdict()} for at_s, sync in stepped(life, program)]
    assert syncs == [fields(one) for one in said]
