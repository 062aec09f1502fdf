"""A worker's measurements of its own costs: to begin and end a chunk, and to push; idle time does not count."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import gridml
from gridml.caching.master_copy import Rebasing, ReplicatedRows
from gridml.carriers.base import WorkerMailbox
from gridml.engine.engine import Engine, Snapshot
from gridml.model.stepping import Stepping
from gridml.protocol.messages import NO_PUSH, Lease, Pace, Reply, Sync, Verdict
from gridml.protocol.push import PushContent, ReplicaPart
from master.simulation.faulty_network import VirtualClock
from remote.courier import Courier
from remote.session import ChunkFetcher, Session, SessionOptions


class SlowEngine(Engine):
    """An engine that takes two seconds to begin a chunk, a tenth for a vertex, a quarter for a snapshot."""

    def __init__(self, program: gridml.Program, clock: VirtualClock) -> None:
        self.program = program
        self.notes = []
        self._stepping = Stepping()
        self.replicated = ReplicatedRows({}, Rebasing({}))
        self._time = clock

    def begin(self, chunk: Any) -> None:
        self._time.sleep(2.0)

    def batch_end(self, at: int, size: int, count: int) -> tuple[int, bool]:
        return min(at + 10, count), True

    def train(self, start: int, stop: int, rate: float = 1.0, scale: float = 1.0, others: int = 0) -> None:
        self._time.sleep(0.1 * (stop - start))

    def snapshot(self, known: object = None) -> Snapshot:
        self._time.sleep(0.25)
        return Snapshot(ReplicaPart(), frozenset())

    def changed_fields(self, start: int, stop: int) -> Any:
        return {}

    def wire(self, snapshot: Any) -> ReplicaPart:
        return ReplicaPart()


class Answers(Courier):
    """A mailbox that delivers the next reply three seconds after each sync."""

    last_push_s = 0.5
    last_travel_s = 3.0

    def __init__(self, clock: VirtualClock, replies: list[Reply]) -> None:
        self.clock = clock
        self.replies = deque(replies)
        self.syncs: list[Sync] = []
        self.due_s: float | None = None

    @property
    def busy(self) -> bool:
        return self.due_s is not None

    def post(self, sync: Sync, content: Callable[[], PushContent]) -> None:
        self.syncs.append(sync)
        self.due_s = self.clock.now_s + 3.0

    def take(self) -> tuple[Reply, ReplicaPart] | None:
        if self.due_s is None or self.clock.now_s < self.due_s:
            return None
        self.due_s = None
        return self.replies.popleft(), ReplicaPart()

    def wait(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    def close(self) -> None:
        pass


class Shelf(WorkerMailbox):
    """Chunks without content."""

    poll_s = (0.1, 0.1)

    def send(self, number: int, payload: bytes) -> None:
        raise NotImplementedError

    def receive(self, number: int) -> bytes | None:
        raise NotImplementedError

    def fetch(self, name: str, sha256: str) -> bytes:
        return b""

    def beat(self, lease: int, upto: int) -> None:
        pass

    def close(self) -> None:
        pass


class Network(gridml.Vertex):
    aggregate = gridml.mean()


class Item(gridml.Vertex):
    network = gridml.edge(Network)


@gridml.update(batch=10)
def train(items: gridml.Batch[Item], network: Network) -> None:
    """Do nothing: the engine does not call it."""


def lease(number: int, start: int, stop: int) -> Lease:
    return Lease(number, 1, 0, start, stop, f"lease-{number}", "")


def test_a_worker_measures_what_its_chunks_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.session.Chunk.decode", lambda payload: None)
    clock, merged = VirtualClock(100.0), Verdict.MERGED
    pace = Pace(push_every=NO_PUSH)
    courier = Answers(
        clock,
        [
            Reply(0, pace, lease=lease(1, 0, 40)),
            Reply(1, pace, merged, lease=lease(2, 40, 70)),  # the answer to the push at the end of the first
            Reply(2, pace, merged),  # to the one at the end of the second: no more work
            Reply(2, pace, wait_s=60.0),
            Reply(2, pace, lease=lease(3, 70, 80)),
            Reply(3, pace, merged),
            Reply(3, pace, leave=True),
        ],
    )
    program = gridml.Program(lambda: gridml.Graph(), train)
    options = SessionOptions("w1", "x86_64 avx2")
    session = Session(options, SlowEngine(program, clock), Shelf(), courier, lambda: False, clock)
    session.run()
    first, second, third = (sync for sync in courier.syncs if sync.push is not None)
    assert {sync.kind for sync in courier.syncs} == {"x86_64 avx2"}
    assert (first.begun, first.begun_vertices, first.begin_s) == (1, 40, pytest.approx(2.0))
    assert (first.trained, first.train_s) == (40, pytest.approx(4.0))
    assert (first.push_s, first.travel_s) == (pytest.approx(0.75), 3.0)
    assert (second.begun, second.begun_vertices) == (2, 30)
    assert second.end_s == pytest.approx(3.25, abs=0.1)  # the snapshot, and the travel time of the push
    assert third.begun == 3
    assert third.end_s == pytest.approx(6.25, abs=0.2)  # the push and one request, not the minute without work


class Library(Shelf):
    """Chunks by name, the first fetch of some of which fails."""

    def __init__(self, *torn: str) -> None:
        self.fetched: list[tuple[str, str]] = []  # chunk, and the thread that fetched it
        self.torn = {*torn}

    def fetch(self, name: str, sha256: str) -> bytes:
        self.fetched.append((name, threading.current_thread().name))
        if name in self.torn:
            self.torn.remove(name)
            raise OSError("torn")
        return name.encode()


def test_the_chunk_of_the_next_lease_is_fetched_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.session.Chunk.decode", lambda payload: payload.decode())
    library, main = Library("torn"), threading.current_thread().name
    fetcher = ChunkFetcher(library, ahead=True)
    leases = {name: replace(lease(1, 0, 10), chunk=name, sha256=name) for name in ("one", "two", "torn")}
    fetcher.expect(leases["one"])
    assert fetcher.take(leases["one"]) == (b"one", "one")
    fetcher.expect(leases["one"])
    assert fetcher.take(leases["two"]) == (b"two", "two"), "another lease came instead"
    fetcher.expect(leases["torn"])
    assert fetcher.take(leases["torn"]) == (b"torn", "torn"), "what failed ahead is fetched again"
    by_main = [name for name, thread in library.fetched if thread == main]
    assert by_main == ["two", "torn"]
    assert [name for name, _ in library.fetched].count("one") == 2

    alone = ChunkFetcher(library := Library(), ahead=False)
    alone.expect(leases["one"])
    assert alone.take(leases["one"])[1] == "one"
    assert library.fetched == [("one", main)]
