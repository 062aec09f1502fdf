"""The carrier with faults: each delivery has its effect, and a seed repeats its deliveries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.carriers.base import MasterMailboxes, WorkerMailbox
from gridml.protocol import bundle
from master.simulation.faulty_network import Chances, FaultyNetwork, VirtualClock, corrupted, truncated


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def network(clock: VirtualClock) -> FaultyNetwork:
    return FaultyNetwork(clock)


@pytest.fixture
def master(network: FaultyNetwork) -> MasterMailboxes:
    mailboxes = network.master()
    mailboxes.open("w1")
    return mailboxes


@pytest.fixture
def worker(network: FaultyNetwork, master: MasterMailboxes) -> WorkerMailbox:
    return network.worker("w1")


def numbers(master: MasterMailboxes) -> list[int]:
    return [message.number for message in master.collect()]


def test_what_is_lost_does_not_come(network: FaultyNetwork, master: MasterMailboxes, worker: WorkerMailbox) -> None:
    network.deliver = lambda payload: []
    worker.send(1, b"sync")
    assert numbers(master) == []


def test_what_is_late_comes_later_and_out_of_order(
    network: FaultyNetwork, clock: VirtualClock, master: MasterMailboxes, worker: WorkerMailbox
) -> None:
    network.deliver = lambda payload: [(10.0, payload)]
    worker.send(1, b"first")
    network.deliver = lambda payload: [(0.0, payload)]
    worker.send(2, b"second")
    assert numbers(master) == [2]
    master.answer("w1", 2, b"reply")
    assert worker.receive(2) == b"reply"
    clock.now_s = 10.0
    assert numbers(master) == [1]
    master.discard("w1", 1)
    assert numbers(master) == []


def test_a_copy_comes_again_after_the_answer(
    network: FaultyNetwork, clock: VirtualClock, master: MasterMailboxes, worker: WorkerMailbox
) -> None:
    network.deliver = lambda payload: [(0.0, payload), (5.0, payload)]
    worker.send(1, b"sync")
    assert numbers(master) == [1]
    master.answer("w1", 1, b"reply")
    assert numbers(master) == []
    assert worker.receive(1) == b"reply"
    clock.now_s = 5.0
    assert numbers(master) == [1]
    assert worker.receive(1) == b"reply"  # the reply was repeated, too


@pytest.mark.parametrize("damage", [lambda p: truncated(p, 0.7), lambda p: corrupted(p, 13)])
def test_what_is_damaged_counts_as_none(
    network: FaultyNetwork, master: MasterMailboxes, worker: WorkerMailbox, damage
) -> None:  # type: ignore[no-untyped-def]
    master.publish("chunk", b"rows of the chunk")
    worker.send(1, b"a good sync")
    network.deliver = lambda payload: [(0.0, damage(payload))]
    worker.send(2, b"a damaged sync")
    assert [(message.number, message.is_damaged) for message in master.collect()] == [(2, True), (1, False)]
    assert numbers(master) == [1]
    master.answer("w1", 1, b"a damaged reply")
    assert worker.receive(1) is None
    with pytest.raises(ValueError, match="SHA-256"):
        worker.fetch("chunk", bundle.digest(b"rows of the chunk"))


def test_another_master_finds_what_was_sent(
    network: FaultyNetwork, master: MasterMailboxes, worker: WorkerMailbox
) -> None:
    worker.send(1, b"sync")
    assert numbers(network.master()) == [1]


def test_the_dead_are_not_heard(network: FaultyNetwork, master: MasterMailboxes, worker: WorkerMailbox) -> None:
    network.deliver = lambda payload: [(5.0, payload)]
    worker.send(1, b"on its way when the mailbox is closed")
    master.close("w1")
    with pytest.raises(FileNotFoundError):
        worker.send(2, b"after it")
    with pytest.raises(FileNotFoundError):
        worker.receive(1)
    worker.beat(1, 2)
    assert master.heartbeat("w1") is None


@given(st.binary(max_size=100), st.floats(0, 1, exclude_max=True), st.integers(0, 10_000))
def test_damage_always_shows(payload: bytes, share: float, bit: int) -> None:
    if payload:
        assert bundle.digest(truncated(payload, share)) != bundle.digest(payload)
        assert bundle.digest(corrupted(payload, bit)) != bundle.digest(payload)
    else:
        assert truncated(payload, share) == corrupted(payload, bit) == b""


def test_the_same_seed_draws_the_same_deliveries() -> None:
    chances = Chances(lose=0.2, repeat=0.2, truncate=0.1, corrupt=0.1, delay_s=3.0)
    payloads = [bytes([i]) * 50 for i in range(200)]
    drawn = [
        [deliver(payload) for payload in payloads]
        for deliver in (chances.delivery(7), chances.delivery(7), chances.delivery(8))
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_chances_are_kept_in_the_long_run() -> None:
    deliver = Chances(lose=0.3, repeat=0.2, truncate=0.1, corrupt=0.1, delay_s=2.0).delivery(1)
    arrivals = [deliver(b"payload") for _ in range(5000)]
    kept = [a for a in arrivals if a]
    copies = [copy for a in kept for copy in a]
    assert 1 - len(kept) / 5000 == pytest.approx(0.3, abs=0.03)
    assert sum(len(a) == 2 for a in kept) / len(kept) == pytest.approx(0.2, abs=0.03)
    assert sum(p != b"payload" for _, p in copies) / len(copies) == pytest.approx(0.19, abs=0.03)
    assert all(0 <= delay <= 2.0 for delay, _ in copies)
