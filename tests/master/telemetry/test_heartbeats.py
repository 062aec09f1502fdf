"""A worker is given up after silence, sooner if the back end cannot reach it, and not while it sends heartbeats."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gridml.carriers.base import Heartbeat
from master.state.failures import GiveUpReason
from master.state.worker_records import LostWorker, WorkerRecord, WorkerStatus, WorkerTable
from master.telemetry.staffing import MAX_DOUBLINGS, MAX_STARTUP_S, STUCK, Heartbeats

LIMIT = 120.0


@pytest.fixture
def read() -> dict[str, Heartbeat]:
    """Each worker's current heartbeat."""
    return {}


@pytest.fixture
def workers() -> WorkerTable:
    workers = WorkerTable()
    workers.add_ended(["w0"])
    workers.move(workers.add("w1"), WorkerStatus.QUEUED)
    return workers


@pytest.fixture
def w1(workers: WorkerTable) -> WorkerRecord:
    return workers.of("w1")


@pytest.fixture
def heartbeats(workers: WorkerTable, read: dict[str, Heartbeat]) -> Heartbeats:
    return Heartbeats(workers, read.get, LIMIT)


@pytest.fixture
def begin(workers: WorkerTable, heartbeats: Heartbeats, w1: WorkerRecord) -> Callable[[float], None]:
    """A function that lets w1 run, like an event of the back end."""

    def begin(now: float) -> None:
        workers.move(w1, WorkerStatus.RUNNING)
        heartbeats.watch(w1, now)

    return begin


def given_up(heartbeats: Heartbeats, now: float) -> list[str]:
    return [lost.record.name for lost in heartbeats.lost(now) if lost.because is GiveUpReason.SILENCE]


def every_second(
    heartbeats: Heartbeats, until: float, then: Callable[[float], None] = lambda now: None, since: float = 0.0
) -> float | None:
    """Return the second at which a worker is given up; None if none is given up before `until`."""
    for now in range(int(since), int(until)):
        then(float(now))
        if given_up(heartbeats, float(now)):
            return float(now)
    return None


def test_who_waits_is_not_silent(heartbeats: Heartbeats, workers: WorkerTable) -> None:
    assert workers.count(WorkerStatus.QUEUED) == 1
    assert every_second(heartbeats, 1000) is None


def test_silence_has_a_limit(heartbeats: Heartbeats, workers: WorkerTable, begin: Callable[[float], None]) -> None:
    begin(0.0)
    assert workers.count(WorkerStatus.QUEUED) == 0
    assert every_second(heartbeats, 1000) == LIMIT + 1


def test_whose_heartbeat_goes_on_is_not_given_up(
    heartbeats: Heartbeats, read: dict[str, Heartbeat], begin: Callable[[float], None]
) -> None:
    begin(0.0)
    assert every_second(heartbeats, 1000, lambda now: read.update(w1=Heartbeat(1, int(now), int(now)))) is None


def test_who_is_long_at_one_batch_is_not_given_up(
    heartbeats: Heartbeats, read: dict[str, Heartbeat], begin: Callable[[float], None]
) -> None:
    begin(0.0)
    assert every_second(heartbeats, STUCK * LIMIT, lambda now: read.update(w1=Heartbeat(1, 64, int(now)))) is None


def test_who_trains_nothing_for_ten_silences_is_stuck(
    heartbeats: Heartbeats, read: dict[str, Heartbeat], begin: Callable[[float], None]
) -> None:
    begin(0.0)
    lost: list[tuple[int, LostWorker]] = []
    for now in range(int(500 + STUCK * LIMIT + 3 * LIMIT)):
        read["w1"] = Heartbeat(1, 64 if now < 500 else 128, now)  # one step of progress
        lost += [(now, one) for one in heartbeats.lost(float(now))]
    at_s, first = lost[0]
    assert first.because is GiveUpReason.STUCK and "its process lives" in first.reason
    assert 500 + STUCK * LIMIT < at_s <= 500 + STUCK * LIMIT + 2 * LIMIT


def test_an_old_heartbeat_is_no_sign_of_life(
    heartbeats: Heartbeats, read: dict[str, Heartbeat], begin: Callable[[float], None]
) -> None:
    read["w1"] = Heartbeat(1, 64, 7)
    begin(0.0)
    assert every_second(heartbeats, 1000) == LIMIT + 1


def test_a_message_restarts_the_silence(
    heartbeats: Heartbeats, w1: WorkerRecord, begin: Callable[[float], None]
) -> None:
    begin(0.0)
    w1.signs.record_contact(100.0)
    assert every_second(heartbeats, 1000) == LIMIT + 101


def test_who_is_out_of_reach_gets_a_quarter_of_the_time(
    heartbeats: Heartbeats, w1: WorkerRecord, begin: Callable[[float], None]
) -> None:
    begin(0.0)
    heartbeats.lose_sight(w1)
    assert every_second(heartbeats, 1000) == LIMIT / 4 + 1
    begin(0.0)  # in reach again
    assert every_second(heartbeats, 1000) == LIMIT + 1


def test_who_is_in_reach_again_is_compared_with_nothing_of_before(
    heartbeats: Heartbeats, read: dict[str, Heartbeat], begin: Callable[[float], None]
) -> None:
    read["w1"] = Heartbeat(1, 64, 7)
    begin(0.0)
    assert given_up(heartbeats, LIMIT / 2 + 1) == []  # now its heartbeat is read
    begin(100.0)
    assert given_up(heartbeats, 101 + LIMIT) == []  # the master was busy and has seen only one heartbeat


def test_who_has_stopped_is_neither_alive_nor_silent(
    heartbeats: Heartbeats, workers: WorkerTable, w1: WorkerRecord, begin: Callable[[float], None]
) -> None:
    begin(0.0)
    workers.end(w1)
    assert workers.alive == 0 and every_second(heartbeats, 1000) is None
    assert "w0" in workers and "w1" in workers


@pytest.mark.parametrize("status", [WorkerStatus.HELD, WorkerStatus.GIVEN_UP])
def test_who_runs_no_more_is_not_silent(
    heartbeats: Heartbeats,
    workers: WorkerTable,
    w1: WorkerRecord,
    begin: Callable[[float], None],
    status: WorkerStatus,
) -> None:
    begin(0.0)
    workers.move(w1, status)
    assert workers.alive == 0 and every_second(heartbeats, 1000) is None


def test_a_worker_that_does_not_run_is_not_given_up(
    heartbeats: Heartbeats, workers: WorkerTable, w1: WorkerRecord
) -> None:
    heartbeats.lose_sight(w1)
    heartbeats.lose_sight(workers.of("stranger"))
    assert heartbeats.lost(1e9) == []


def test_a_range_at_which_workers_fall_silent_is_borne_twice_as_long(
    workers: WorkerTable, w1: WorkerRecord, read: dict[str, Heartbeat]
) -> None:
    heartbeats = Heartbeats(workers, read.get, LIMIT, lambda worker: 2)
    workers.move(w1, WorkerStatus.RUNNING)
    heartbeats.watch(w1, 0.0)
    assert every_second(heartbeats, 1000) == 4 * LIMIT + 1


def test_it_is_not_borne_for_ever(workers: WorkerTable, w1: WorkerRecord, read: dict[str, Heartbeat]) -> None:
    heartbeats = Heartbeats(workers, read.get, LIMIT, lambda worker: 1000)
    workers.move(w1, WorkerStatus.RUNNING)
    heartbeats.watch(w1, 0.0)
    assert heartbeats.lost(LIMIT * 2**MAX_DOUBLINGS / 2 + 1) == []
    assert given_up(heartbeats, LIMIT * 2**MAX_DOUBLINGS + 1) == ["w1"]


def test_who_starts_has_time_for_it_however_short_a_silence_is(
    workers: WorkerTable, w1: WorkerRecord, read: dict[str, Heartbeat]
) -> None:
    heartbeats = Heartbeats(workers, read.get, 5.0)
    workers.move(w1, WorkerStatus.RUNNING)
    heartbeats.watch(w1, 0.0)
    assert every_second(heartbeats, 100) == MAX_STARTUP_S + 1
    w1.contact.has_reported = True
    heartbeats.watch(w1, 100.0)
    assert every_second(heartbeats, 200, since=100.0) == 106.0
