"""An idle worker finds the range of a straggler, and a search costs the same for any number of open leases."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gridml.protocol.messages import NO_PUSH, Push, Sync
from master.leases import policy
from master.leases.leases import Leases
from master.leases.policy import Holding
from master.leases.stealing import LOOK_S
from master.simulation import cost_only_worker
from master.simulation.cost_only_worker import Wire
from master.simulation.faulty_network import VirtualClock
from master.state import lease_records
from master.state.lease_records import MAX_CANDIDATES, LeaseState
from master.state.spans import Span
from master.state.worker_records import WorkerTable
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.settings import Settings
from master.store.spec import RunSpec

CHUNK_SIZE = policy.chunk_size
RATE = 1.0  # vertices per second of a worker by default
EVERY = 100  # vertices between two pushes; a lease of 100 is therefore never cut
PUSH_S, TRAVEL_S = 0.1, 0.1  # the cost of a push, and its time to the answer


@dataclass
class Desk:
    """The leases of a run without workers; the test acts for them and sets the time."""

    leases: Leases
    ledger: Ledger
    workers: WorkerTable
    count: int  # requested workers

    def measure(self, worker: str, rate: float) -> None:
        """Report a worker's speed, and return its push interval."""
        push = Push(0, 0, 1, 0, 1, 1)
        sync = Sync(worker, push=push, trained=1000, train_s=1000 / rate, push_s=PUSH_S, travel_s=TRAVEL_S)
        record = self.workers.add(worker)
        self.leases.sizing.measures.handle_sync(record, sync, 0.0)
        record.assignment.push_every = EVERY

    def ask(self, worker: str, now: float) -> LeaseState | None:
        with self.ledger.transaction():
            return self.leases.grant(self.workers.add(worker), Sync(worker, wants=True), now)

    def lease(self, worker: str, now: float, rate: float = RATE) -> LeaseState:
        self.measure(worker, rate)
        lease = self.ask(worker, now)
        assert lease is not None
        return lease

    def credit(self, lease: LeaseState, upto: int, now: float) -> None:
        """Credit a push; the last one ends the lease."""
        with self.ledger.transaction():
            self.ledger.credit(lease, upto, 1, 0.0, now)
            self.leases.credit(lease, now)
            if not lease.left:
                self.leases.end(lease, now, "trained to its end")

    def train(self, began: dict[int, float], now: float) -> None:
        """Let all open leases be trained until now, at RATE since they `began`, and pushed."""
        for lease in list(self.ledger.leases):
            if lease.id in began:
                upto = min(lease.stop, lease.start + int((now - PUSH_S - TRAVEL_S - began[lease.id]) * RATE))
                if upto > lease.upto:
                    self.credit(lease, upto, now)

    def stragglers(self) -> list[str]:
        rows = self.ledger._db.execute("SELECT text FROM events WHERE topic = 'straggler'")
        return [text for (text,) in rows]


def desk_of(
    ledger: Ledger,
    vertices: int,
    workers: int,
    *,
    epochs: int = 1,
    push_every: int | None = None,
    chunk: int | None = None,
) -> Desk:
    """A maker of desks over a ledger, of a run with epochs of a given number of vertices."""
    program, table = cost_only_worker.program_of(vertices, epochs), WorkerTable(workers)
    settings = Settings(Path("program.py"), backend="simulated", workers=workers, push_every=push_every, chunk=chunk)
    spec = RunSpec(settings, program, program.graph())
    events = Events(ledger, ledger.path.with_name("events.log"), lambda *event: None, VirtualClock())
    return Desk(Leases(spec, settings, ledger, table, Wire(VirtualClock(), None), events), ledger, table, workers)


Make = Callable[..., Desk]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a desk with as many chunks as workers, with these sizes in turn."""
    number = itertools.count()

    def make(workers: int, *sizes: int) -> Desk:
        chunks = itertools.cycle(sizes)

        def chunk_size(facts: policy.ChunkFacts) -> tuple[int, str]:
            return min(facts.left, next(chunks)), "the test's"

        monkeypatch.setattr(policy, "chunk_size", chunk_size)
        ledger = Ledger(tmp_path / f"{next(number)}.db", shared_disk=False, create=True, durable=False)
        desk = desk_of(ledger, sum(itertools.islice(itertools.cycle(sizes), workers)), workers)
        with ledger.transaction():
            desk.leases.epochs.open_first(0.0)
        return desk

    return make


@pytest.mark.parametrize(
    ("asked", "epochs", "size", "reason"),
    [
        (None, 2, EVERY, "one push interval"),
        (EVERY, 2, 25, "1/8 of a worker's share of the epoch"),  # the push interval may exceed any lease
        (10**9, 1, 25, "1/8 of a worker's share of the epoch"),
    ],
)
def test_a_chunk_is_what_a_worker_pushes_at_once_unless_that_was_asked_for(
    tmp_path: Path, asked: int | None, epochs: int, size: int, reason: str
) -> None:
    ledger = Ledger(tmp_path / "ledger.db", shared_disk=False, create=True, durable=False)
    desk = desk_of(ledger, 800, 4, epochs=epochs, push_every=asked)
    with ledger.transaction():
        desk.leases.epochs.open_first(0.0)
    lease = desk.lease("w1", 0.0)
    assert lease.left == size
    assert reason in ledger._db.execute("SELECT reason FROM leases").fetchone()[0]


def test_an_epoch_that_is_followed_does_not_taper_off(tmp_path: Path) -> None:
    for epochs, last in ((2, EVERY), (1, 25)):
        ledger = Ledger(tmp_path / f"{epochs}.db", shared_disk=False, create=True, durable=False)
        desk = desk_of(ledger, 800, 4, epochs=epochs)
        with ledger.transaction():
            desk.leases.epochs.open_first(0.0)
        sizes = [lease.left for lease in (desk.lease(f"w{k}", 0.0) for k in range(8))]
        assert sizes[-1] == last


class Seen(list[list[Holding]]):
    """The holdings that each search has seen."""

    @property
    def leases(self) -> list[list[int]]:
        return [[held.lease for held in look] for look in self]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """A record of the leases in each search; every search considers a cut first."""
    seen, cut = Seen(), policy.cut

    def spied(
        holdings: Sequence[Holding], batch: int, push_every: int, rate: float | None = None
    ) -> tuple[tuple[int, int] | None, str]:
        seen.append([*holdings])
        return cut(holdings, batch, push_every, rate)

    monkeypatch.setattr(policy, "cut", spied)
    return seen


def all_leased(desk: Desk, every_s: float) -> dict[int, float]:
    """Grant every worker a lease, one after the other; return when each lease began."""
    began = {}
    for k in range(desk.count):
        lease = desk.lease(f"w{k}", k * every_s)
        began[lease.id] = k * every_s
    assert not desk.ledger.spans
    return began


def test_one_of_thousands_that_stops_is_found_within_a_few_looks(make: Make, looks: Seen) -> None:
    desk = make(2000, 100)
    began = all_leased(desk, 0.2)
    stopped = 1001
    del began[stopped]
    desk.measure("idle", 2.5)  # it would take 40 seconds, so the stopped worker must be late by three times that
    for now in (400.0, 410.0, 420.0):
        desk.train(began, now)
        assert desk.ask("idle", now) is None
        assert len(looks[-1]) == 2 * MAX_CANDIDATES
    desk.train(began, 426.0)
    assert len(desk.ledger.leases) > 300
    taken = desk.ask("idle", 426.0)
    assert taken is not None
    assert taken.start == (stopped - 1) * 100
    assert len(desk.stragglers()) == 1
    assert len(looks) == 4


def test_one_of_thousands_that_slows_down_is_cut(make: Make, looks: Seen) -> None:
    desk = make(2000, 2000)
    began = all_leased(desk, 0.1)
    slow = desk.ledger.leases[1001]
    began_s, stop = began.pop(slow.id), slow.stop
    for now in (700.0, 1400.0, 2120.0):
        desk.train(began, now)
        desk.credit(slow, slow.start + int((now - began_s) / 4), now)
    desk.measure(slow.worker, RATE / 4)
    desk.measure("idle", RATE)
    assert len(desk.ledger.leases) > 700
    taken = desk.ask("idle", 2120.0)
    assert taken is not None
    assert slow.start < taken.start < taken.stop == stop
    assert slow.stop == taken.start
    assert len(looks) == 1
    assert not desk.stragglers()


def test_a_lease_without_a_push_before_its_end_is_not_cut(tmp_path: Path) -> None:
    """A cut lease is not cut again before its holder knows: another worker may ask in the same turn."""
    ledger = Ledger(tmp_path / "ledger.db", shared_disk=False, create=True, durable=False)
    desk = desk_of(ledger, 100, 2, push_every=NO_PUSH, chunk=1000)
    with ledger.transaction():
        desk.leases.epochs.open_first(0.0)
    lease = desk.ask("w1", 0.0)
    assert lease is not None and lease.left == 100
    assert desk.ask("w2", 0.0) is None
    assert desk.ledger.leases[lease.id].left == 100


def test_leases_that_are_all_late_do_not_hide_each_other(make: Make, looks: Seen) -> None:
    desk = make(500, 100)
    all_leased(desk, 0.0)
    desk.measure("idle", RATE)  # no gain for a worker as slow as they
    now = 102.0
    for _ in range(2 * 500 // MAX_CANDIDATES):
        assert desk.ask("idle", now) is None
        now += LOOK_S
    seen = {lease for look in looks.leases for lease in look}
    assert seen == {*range(1, 501)}


def test_who_stays_late_is_looked_at_more_rarely(make: Make, looks: Seen) -> None:
    desk = make(2 * MAX_CANDIDATES + 4, 100)
    all_leased(desk, 0.0)
    desk.measure("idle", RATE)
    gaps = []
    for begin_s, until_s in ((110.0, 130.0), (1100.0, 1120.0)):
        looks.clear()
        now = begin_s
        while now < until_s:
            desk.ask("idle", now)
            now += 0.5
        gaps.append(sum(1 in look[:MAX_CANDIDATES] for look in looks.leases))
    assert 0 < gaps[1] < gaps[0]


@pytest.mark.parametrize(
    "odd",
    [
        {"train_s": 1e-300, "travel_s": 9e15},
        {"train_s": 1e-305, "begin_s": 9e15},
        {"trained": 2**52, "train_s": 1e-290, "travel_s": 9e15},
        {"train_s": 5e-324},
        {"travel_s": 1e9, "begin_s": 1e9, "end_s": 1e9, "push_s": 1e9},
        {"train_s": 1e9},
        {"trained": 2**52, "train_s": 2**52 * 1e-12, "travel_s": 1e9},
    ],
)
def test_whatever_a_worker_tells_its_leases_are_granted(
    make: Make, monkeypatch: pytest.MonkeyPatch, odd: dict[str, float]
) -> None:
    desk = make(20, 1000)  # a share for each, as the upper limit for any reported costs
    monkeypatch.setattr(policy, "chunk_size", CHUNK_SIZE)
    values = {"trained": 1000, "train_s": 1.0, "begin_s": 0.1, "travel_s": 0.1, "push_s": 0.1, **odd}
    for k in range(20):
        push = Push(0, 0, 1, 0, 1, 1)
        sync = Sync(f"w{k}", push=push, begun=2, begun_vertices=100, wants=True, **values)  # type: ignore[arg-type]
        desk.leases.sizing.measures.handle_sync(desk.workers.add(f"w{k}"), sync, 0.0)
        assert desk.ask(f"w{k}", float(k)) is not None


def test_ranges_of_epochs_that_are_complete_are_forgotten(make: Make) -> None:
    desk = make(1, 100)
    desk.leases.epochs.epochs_requested = 2
    desk.measure("slow", RATE)
    desk.measure("quick", 100.0)
    slow = desk.ask("slow", 0.0)
    assert slow is not None
    desk.leases._stealing._ranges.add(Span(0, 0, 50), 1)
    desk.credit(slow, 100, 100.0)
    assert desk.ask("slow", 100.0) is not None
    taken = desk.ask("quick", 1000.0)
    assert taken is not None and taken.epoch == 1
    assert len(desk.stragglers()) == 1
    assert desk.leases._stealing._ranges.epochs == [1]


def test_a_look_sees_a_few_leases_however_many_there_are(make: Make, looks: Seen) -> None:
    for workers in (3, 2 * MAX_CANDIDATES, 50, 1500):
        desk = make(workers, 100)
        all_leased(desk, 0.01)
        desk.measure("idle", RATE)
        looks.clear()
        for k in range(20):
            desk.ask("idle", 50.0 + k)
        assert {len(look) for look in looks} == {min(workers, 2 * MAX_CANDIDATES)}
        assert len(looks) == 20


def test_ten_thousand_that_idle_look_once(make: Make, looks: Seen) -> None:
    desk = make(50, 100)
    all_leased(desk, 0.0)
    looks.clear()
    with desk.ledger.transaction():
        for k in range(10_000):
            idle = desk.workers.add(f"idle{k}")
            assert desk.leases.grant(idle, Sync(idle.name, wants=True), 10.0 + LOOK_S * k / 10_000) is None
    assert len(looks) == 1
    desk.ask("idle0", 10.0 + LOOK_S)
    assert len(looks) == 2


def test_what_a_few_looks_cut_is_what_looking_at_all_would(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def cuts() -> list[tuple[str, int]]:
        desk = make(300, *random.Random(1).sample(range(1000, 9000), 300))
        desk.train(all_leased(desk, 1.0), 400.0)
        leases = [desk.lease(f"idle{k}", 400.0 + k / 100) for k in range(40)]
        return [(lease.worker, lease.stop - lease.start) for lease in leases]  # the order of equal ones is not defined

    few = cuts()
    monkeypatch.setattr(lease_records, "MAX_CANDIDATES", 10_000)
    assert few == cuts()
    assert len({size for _, size in few}) > 10


def test_a_lease_that_was_cut_takes_no_place_of_another(make: Make, looks: Seen) -> None:
    desk = make(61, 8000, *[1000] * 30, *[6000] * 30)
    all_leased(desk, 0.0)
    for idle in ("one", "two"):
        desk.lease(idle, 1.0)
    assert 1 in looks.leases[0]
    assert 1 not in looks.leases[1]  # its rest is in the middle of the order now


def test_leases_that_ended_are_not_looked_at(make: Make, looks: Seen) -> None:
    desk = make(40, 100)
    began = all_leased(desk, 0.0)
    desk.train({lease: 0.0 for lease in began if lease > 3}, 150.0)
    desk.ask("idle", 150.0)
    assert sorted(looks.leases[-1]) == [1, 2, 3]
    desk.train(began, 151.0)
    desk.ask("idle", 152.0)
    assert looks[-1] == []


def test_a_worker_is_not_looked_at_for_itself(make: Make, looks: Seen) -> None:
    desk = make(3, 100)
    all_leased(desk, 0.0)
    push = Push(2, 1, 1, 0, 150, 50)
    with desk.ledger.transaction():  # its push reports that it still has lease 2
        desk.leases.grant(desk.workers.of("w1"), Sync("w1", wants=True, push=push), 50.0)
    assert sorted(looks.leases[-1]) == [1, 3]


def test_a_new_master_looks_at_the_leases_that_it_has_taken_over(make: Make, looks: Seen) -> None:
    desk = make(100, 100)
    all_leased(desk, 0.0)
    desk.ledger.close()
    next_desk = desk_of(Ledger(desk.ledger.path, shared_disk=False, durable=False), 10_000, 100)
    for lease in next_desk.ledger.leases:
        next_desk.leases.adopt(lease)
        next_desk.measure(lease.worker, RATE)
    next_desk.measure("idle", 2.5)
    looks.clear()
    now = 1000.0
    while not next_desk.stragglers() and now < 2000.0:  # none of them works any more
        next_desk.ask("idle", now)
        now += 1.0
    assert {lease for look in looks.leases for lease in look} == {*range(1, 101)}
    assert {held.since_s for held in looks[0]} == {0.0}  # their history is not known
    assert now < 1000.0 + 1.3 * (100.0 + 3 * 41.0)


def test_a_lease_that_is_opened_again_is_looked_at(make: Make, looks: Seen) -> None:
    desk = make(1, 100)
    lease = desk.lease("w0", 0.0)
    with desk.ledger.transaction():
        desk.leases.end(lease, 10.0, "the worker is gone", reserved_until_s=100.0)
    desk.ask("idle", 10.0)
    with desk.ledger.transaction():
        for taken in list(desk.ledger.leases):
            desk.leases.end(taken, 11.0, "released")
        desk.leases.reopen(lease, 100, "w0")
    desk.ask("idle", 12.0)
    assert looks.leases[-1] == [lease.id]


def test_a_range_remembers_that_it_was_overtaken(make: Make, looks: Seen) -> None:
    desk = make(2, 100)
    all_leased(desk, 0.0)
    desk.measure("quick", 100.0)
    desk.measure("other", 100.0)
    first = desk.ask("quick", 120.0)
    second = desk.ask("other", 120.0)
    assert first is not None
    assert second is not None
    desk.ask("idle", 121.0)
    assert {held.lease: held.times_reassigned for held in looks[-1]} == {first.id: 1, second.id: 1}
    desk.measure("third", 100.0)
    third = desk.ask("third", 1e6)
    assert third is not None
    desk.ask("idle", 1e6 + 1)
    assert next(held.times_reassigned for held in looks[-1] if held.lease == third.id) == 2


def test_the_same_is_done_again_in_the_same_way(make: Make) -> None:
    def played() -> list[tuple[object, ...]]:
        desk, chance = make(300, 100), random.Random(1)
        began = all_leased(desk, 0.01)
        for lease in chance.sample(sorted(began), 20):
            del began[lease]
        for k in range(60):
            now = 90.0 + k
            desk.train(began, now)
            desk.measure(f"idle{k}", chance.choice([1.0, 30.0, 100.0]))
            desk.ask(f"idle{k}", now)
        return [*desk.ledger._db.execute("SELECT * FROM leases"), *desk.ledger._db.execute("SELECT * FROM events")]

    first = played()
    assert first == played()
    assert any("leased a second time" in str(row) for row in first)
