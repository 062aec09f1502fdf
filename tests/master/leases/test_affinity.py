"""Leases of a placed graph: each is within one part, and workers stay in their part."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridml.model.update import Update
from gridml.protocol.messages import Sync
from master.leases.leases import Leases
from master.simulation import cost_only_worker
from master.simulation.cost_only_worker import Wire
from master.simulation.faulty_network import VirtualClock
from master.state.lease_records import LeaseState
from master.state.worker_records import WorkerStatus, WorkerTable
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.settings import Settings, SizeSettings
from master.store.spec import RunSpec, SavedPlacement, save
from tests.support.effort import examples
from tests.support.in_ledger import credits_of

SIZES, CHUNK = (100, 100, 60), 25
COUNT = sum(SIZES)
SHARED = np.array([[9, 1, 5], [1, 9, 4], [5, 4, 9]], np.int64)


@dataclass
class Desk:
    """The leases of a run without workers; the test acts for them."""

    leases: Leases
    ledger: Ledger
    workers: WorkerTable
    placement: SavedPlacement
    parts: list[int] = field(default_factory=list)  # of the leases, in turn

    def ask(self, worker: str) -> LeaseState | None:
        record = self.workers.add(worker)
        if record.status is None:
            self.workers.move(record, WorkerStatus.RUNNING)
        with self.ledger.transaction():
            lease = self.leases.grant(record, Sync(worker, wants=True), 0.0)
        if lease is not None:
            parts = self.placement.parts
            assert parts.offsets[parts.part_of(lease.start) + 1] >= lease.stop, "it crosses a border"
            self.parts.append(parts.part_of(lease.start))
        return lease

    def train(self, lease: LeaseState, upto: int | None = None) -> None:
        with self.ledger.transaction():
            self.ledger.credit(lease, lease.stop if upto is None else upto, 0, 0.0, 0.0)
            if not lease.left:
                self.leases.end(lease, 0.0, "trained to its end")

    def die(self, worker: str) -> None:
        with self.ledger.transaction():
            for lease in [*self.ledger.leases.of(worker).values()]:
                self.leases.end(lease, 0.0, "its worker is gone")
        self.workers.end(self.workers.of(worker))

    def part(self, worker: str) -> int:
        """Grant a worker its next lease, train it, and return its part."""
        lease = self.ask(worker)
        assert lease is not None
        self.train(lease)
        return self.parts[-1]

    def reasons(self) -> list[str]:
        return [reason for (reason,) in self.ledger._db.execute("SELECT reason FROM leases ORDER BY id")]


def leases_of(spec: RunSpec, ledger: Ledger, table: WorkerTable) -> Leases:
    events = Events(ledger, ledger.path.with_name("events.log"), lambda *event: None, VirtualClock())
    return Leases(spec, SizeSettings(CHUNK), ledger, table, Wire(VirtualClock(), None), events)


def desk_of(folder: Path, workers: int = 3, batch: int = 1) -> Desk:
    """A desk whose graph has three parts; the first and the last are nearest."""
    program = cost_only_worker.program_of(COUNT, epochs=2)
    program = replace(program, update=Update(program.shape.function, batch, 1))
    settings = Settings(Path("program.py"), backend="simulated", workers=workers, chunk=CHUNK)
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], SIZES)).astype(np.int32)
    placement = save(folder / "placement.safetensors", labels, np.zeros_like(labels), SHARED, durable=False)
    spec, table = RunSpec(settings, program, program.graph(), placement), WorkerTable(workers)
    ledger = Ledger(folder / "ledger.db", shared_disk=False, create=True, durable=False)
    desk = Desk(leases_of(spec, ledger, table), ledger, table, placement)
    with ledger.transaction():
        desk.leases.epochs.open_first(0.0)
    return desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return desk_of(tmp_path)


def test_newcomers_get_parts_of_their_own_and_keep_them(desk: Desk) -> None:
    assert [desk.part(worker) for worker in ("w1", "w2", "w3")] == [0, 1, 2]
    assert [desk.part(worker) for worker in ("w3", "w1", "w2", "w1")] == [2, 0, 1, 0]
    assert "its own part 0" in desk.reasons()[-1]


def test_who_is_done_helps_the_nearest_and_comes_back_in_the_next_epoch(desk: Desk) -> None:
    for worker in ("w1", "w2", "w3"):
        desk.part(worker)
    assert [desk.part("w1") for _ in range(4)] == [0, 0, 0, 2]  # of 60 in part 2 there are 10 left
    assert "part 2, which others work on, the nearest to its own" in desk.reasons()[-1]
    assert [desk.part("w3"), desk.part("w3")] == [2, 1], "now nothing is left in part 2"
    assert [desk.part("w2"), desk.part("w2")] == [1, 1]
    assert [desk.part(worker) for worker in ("w1", "w2", "w3")] == [0, 1, 2]


def test_the_part_of_a_dead_worker_goes_to_a_newcomer(desk: Desk) -> None:
    for worker in ("w1", "w2", "w3"):
        desk.part(worker)
    held = desk.ask("w2")
    assert held is not None
    desk.train(held, held.start + 5)
    desk.die("w2")
    again = desk.ask("w4")
    assert again is not None
    assert again.start == held.start + 5, "from the last credit on"
    assert desk.part("w1") == 0
    desk.train(again)
    assert desk.part("w4") == 1


def test_without_a_new_worker_the_part_of_a_dead_one_goes_to_a_finished_one(desk: Desk) -> None:
    for worker in ("w1", "w2", "w3"):
        desk.part(worker)
    desk.die("w2")
    taken = [desk.part("w1") for _ in range(4)]
    assert taken == [0, 0, 0, 1], "the only one without a worker, though part 2 is nearer"
    assert desk.part("w1") == 1


def test_who_stands_still_leaves_its_part_to_others(desk: Desk) -> None:
    for worker in ("w1", "w2", "w3"):
        desk.part(worker)
    desk.workers.move(desk.workers.of("w1"), WorkerStatus.SUSPENDED)
    assert desk.part("w4") == 0
    desk.workers.move(desk.workers.of("w1"), WorkerStatus.RUNNING)
    assert desk.workers.others_by_part(desk.workers.of("w4"), 3) == [1, 1, 1]


def test_a_master_that_takes_over_knows_who_is_at_home_where(desk: Desk, tmp_path: Path) -> None:
    for worker in ("w1", "w2", "w3"):
        desk.part(worker)
    lease = desk.ask("w2")
    assert lease is not None
    table = WorkerTable(3)
    table.add("w2")
    later = leases_of(desk.leases._spec, desk.ledger, table)
    later.adopt(lease)
    assert table.of("w2").assignment.part == 1
    after = Desk(later, desk.ledger, table, desk.placement)
    desk.train(lease)
    assert [after.part("w5"), after.part("w2")] == [0, 1]


def test_less_than_a_batch_is_not_left_behind_at_the_end_of_a_part(tmp_path: Path) -> None:
    desk = desk_of(tmp_path, batch=16)
    stops = []
    for _ in range(3):
        desk.part("w1")
        stops.append(max(stop for _, _, stop in credits_of(desk.ledger)))
    assert stops == [32, 64, SIZES[0]], "and not 96"


@settings(max_examples=examples(30), deadline=None)  # each has a ledger of its own
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_every_vertex_is_leased_once_for_any_deaths(
    tmp_path_factory: pytest.TempPathFactory, seed: int, workers: int
) -> None:
    """A worker gets vertices of another part only if none are free in its own."""
    desk = desk_of(tmp_path_factory.mktemp("desk"), workers)
    names, number, chance = [f"w{k}" for k in range(workers)], workers, random.Random(seed)
    credited = 0
    while credited < 2 * COUNT:
        name = chance.choice(names)
        held = next(iter(desk.ledger.leases.of(name).values()), None)
        if chance.random() < 0.1:
            desk.die(name)
            names.remove(name)
            names.append(f"w{number}")
            number += 1
        elif held is not None:
            desk.train(held, chance.randint(held.upto + 1, held.stop))
        else:
            home = desk.workers.add(name).assignment.part
            oldest = desk.ledger.spans[0].epoch if desk.ledger.spans else None
            own = home is not None and any(
                span.epoch == oldest and desk.placement.parts.part_of(span.start) == home for span in desk.ledger.spans
            )
            if desk.ask(name) is not None and own:
                assert desk.parts[-1] == home
        credited = desk.ledger.credited
    credits = sorted(credits_of(desk.ledger))
    for epoch in (0, 1):
        at = 0
        for _, start, stop in (credit for credit in credits if credit[0] == epoch):
            assert start == at
            at = stop
        assert at == COUNT
    desk.ledger.close()
