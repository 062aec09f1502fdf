"""Measurements of workers: costs of a chunk by kind, speeds, and an unbiased sample of lives, in bounded memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from gridml.protocol.messages import Push, Sync
from master.state.spans import Delay
from master.state.worker_records import WorkerRecord, WorkerTable
from master.telemetry.measures import (
    MAX_KINDS,
    UNMEASURED_PUSH_S,
    UNMEASURED_TRAVEL_S,
    Lives,
    Measures,
    Speeds,
    died,
    fit_line,
)

points = st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1e4)), min_size=1, max_size=64)


@given(points)
def test_start_and_copy_are_non_negative_least_squares(measured: list[tuple[int, float]]) -> None:
    start_s, copy_s = fit_line(measured)
    n, seconds = np.array(measured, np.float64).T
    matrix = np.column_stack([np.ones_like(n), n])
    best, _ = nnls(matrix, seconds)
    assert start_s >= 0 and copy_s >= 0
    if np.ptp(n) > 0.01 * n.mean():
        ours, theirs = (np.sum((matrix @ x - seconds) ** 2) for x in (np.array([start_s, copy_s]), best))
        assert ours <= theirs * (1 + 1e-6) + 1e-6 * np.sum(seconds**2) + 1e-12


def test_a_line_is_found() -> None:
    assert fit_line([(n, 2.0 + 0.01 * n) for n in (10, 50, 200)]) == pytest.approx((2.0, 0.01))
    assert fit_line([(100, 3.0), (100, 5.0)]) == (4.0, 0.0)
    assert fit_line([(100, 3.0), (100, 5.0)], 0.01) == pytest.approx(
        (3.0, 0.01)
    )  # what copying usually takes is no start
    assert fit_line([(100, 3.0), (100, 5.0)], 0.1) == pytest.approx((0.0, 0.04))
    assert fit_line([(100, 5.0), (200, 4.0)], 0.01) == pytest.approx((3.0, 0.01))
    assert fit_line([(10, 0.0), (20, 10.0)]) == pytest.approx((0.0, 0.4))
    assert fit_line([]) == (0.0, 0.0)


def sync(**values: object) -> Sync:
    return Sync("w1", **values)  # type: ignore[arg-type]


def report(
    measures: Measures, record: WorkerRecord, chunks: int, vertex_s: float, kind: str = "", now: float = 0.0
) -> None:
    """Report `chunks` chunks of 100, 110, … vertices from a worker, with one push each."""
    trained, train_s = 0, 0.0
    for number in range(1, chunks + 1):
        size = 90 + 10 * number
        trained, train_s = trained + size, train_s + size * vertex_s
        push = Push(number, 1, 1, 0, size, size)
        message = sync(
            kind=kind, push=push, trained=trained, train_s=train_s, push_s=0.02, travel_s=0.5,
            begun=number, begun_vertices=size, begin_s=3.0 + 0.01 * size, end_s=0.25,
        )  # fmt: skip
        for _ in range(3):  # a message may come again
            measures.handle_sync(record, message, now)


@pytest.fixture
def w1() -> WorkerRecord:
    return WorkerRecord("w1")


def test_costs_are_those_that_workers_tell(w1: WorkerRecord) -> None:
    measures = Measures()
    assert measures.costs() is None
    measures.submit(w1, 100.0)
    measures.run(w1, 160.0)
    measures.handle_sync(w1, sync(), 165.0)
    assert measures.costs() is None
    report(measures, w1, 5, 0.1, now=200.0)
    costs = measures.costs()
    assert costs is not None
    assert (costs.exec_s, costs.start_s, costs.copy_s) == pytest.approx((0.1, 3.0, 0.01), rel=0.01)
    assert (costs.end_s, costs.push_s, costs.wait_s, costs.boot_s) == pytest.approx((0.25, 0.02, 60.0, 5.0))
    assert measures.travel_s() == pytest.approx(0.5)
    assert w1.measured.speed == pytest.approx(10.0)


def test_where_a_job_has_one_chunk_its_boot_is_part_of_the_start(w1: WorkerRecord) -> None:
    measures = Measures()
    measures.run(w1, 0.0)
    measures.handle_sync(w1, sync(), 7.0)
    report(measures, w1, 5, 0.1, now=9.0)
    costs = measures.costs(many=False)
    assert costs is not None
    assert (costs.boot_s, costs.start_s) == pytest.approx((0.0, 10.0))


def test_kinds_are_measured_separately_and_pooled(w1: WorkerRecord) -> None:
    measures, w2 = Measures(), WorkerRecord("w2")
    report(measures, w1, 5, 0.1, "x86_64")
    report(measures, w2, 5, 0.02, "x86_64 avx2")
    exec_s = {kind: measures.exec_s(kind) for kind in ("x86_64", "x86_64 avx2", "", "never seen")}
    assert exec_s["x86_64"] == pytest.approx(0.1)
    assert exec_s["x86_64 avx2"] == pytest.approx(0.02)
    assert exec_s[""] == exec_s["never seen"] == pytest.approx(0.06, rel=0.01)
    assert w2.measured.kind == "x86_64 avx2"


def test_a_kind_uses_all_measures_until_it_has_enough(w1: WorkerRecord) -> None:
    measures = Measures()
    report(measures, w1, 5, 0.1, "measured")
    report(measures, WorkerRecord("w2"), 1, 0.1, "new")
    new, measured = measures.costs("new"), measures.costs("measured")
    assert new is not None and measured is not None
    assert new.start_s == pytest.approx(measured.start_s, rel=0.1)


def test_another_process_of_a_worker_restarts_its_counts(w1: WorkerRecord) -> None:
    measures = Measures()
    report(measures, w1, 5, 0.1)
    report(measures, w1, 2, 0.2)
    assert w1.measured.speed == pytest.approx(5.0)
    assert measures.all.trained == pytest.approx(100 + 110 + 120 + 130 + 140 + 100 + 110, rel=0.01)


def test_memory_is_bounded_however_much_workers_tell() -> None:
    measures, workers = Measures(), WorkerTable()
    for number in range(2000):
        record = workers.add(f"w{number}")
        report(measures, record, 1, 0.1, f"kind {number}")
        measures.run(record, float(number))
        measures.end(record, number + 1.0, died=True)
        workers.end(record)
    assert len(measures.kinds) == MAX_KINDS
    assert len(measures.all.begun) == 64
    assert measures.speeds.count == 0
    assert not [*workers]
    assert len(measures.lives._sample) <= 512
    assert 256 <= len(measures.lives.observations(2000.0)) <= 512
    assert measures.lives.deaths == 2000


# --- speeds


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.floats(0.001, 1e6)), max_size=60))
def test_the_sum_of_speeds_is_kept(changes: list[tuple[int, float | None]]) -> None:
    speeds, expected = Speeds(), dict[int, float]()
    records = [WorkerRecord(str(number)) for number in range(6)]
    for number, rate in changes:
        if rate is None:
            speeds.drop(records[number])
            expected.pop(number, None)
        else:
            speeds.put(records[number], rate)
            expected[number] = rate
    assert speeds.count == len(expected)
    assert {
        number: record.measured.speed for number, record in enumerate(records) if record.measured.speed is not None
    } == expected
    assert speeds.total == pytest.approx(sum(expected.values()), abs=1e-6)


def test_rounding_does_not_add_up() -> None:
    speeds, slow, fast = Speeds(), WorkerRecord("slow"), WorkerRecord("fast")
    speeds.put(slow, 0.1)
    for _ in range(10_000):
        speeds.put(fast, 1e15)
        speeds.put(fast, 0.2)
    for _ in range(2_000):
        speeds.put(fast, 0.2)
    assert speeds.mean == pytest.approx(0.15)


# --- lives


@pytest.mark.parametrize(
    ("state", "cancelled", "detail", "dead"),
    [
        ("evicted", False, "SIGKILL", True),
        ("evicted", True, "cancelled", False),
        ("lost", False, "exit status 1", True),
        ("lost", False, "its master ended", False),
        ("finished", False, "left", False),
    ],
)
def test_which_ends_are_deaths(state: str, cancelled: bool, detail: str, dead: bool) -> None:
    assert died(state, cancelled, detail) is dead


def test_the_living_are_censored() -> None:
    lives = Lives()
    a, b, c = (WorkerRecord(name) for name in "abc")
    lives.begin(a, 10.0)
    b.measured.kind = "fast"
    lives.begin(b, 20.0)
    lives.begin(c, 30.0)
    lives.begin(a, 40.0)  # it was out of reach; the life is the same
    lives.end(a, 50.0, died=True)
    lives.end(c, 45.0, died=False)
    lives.end(c, 60.0, died=True)  # it had ended
    lives.end(WorkerRecord("never ran"), 60.0, died=True)
    seen = lives.observations(100.0)
    assert seen.duration_s.tolist() == [40.0, 80.0, 15.0]
    assert seen.ended.tolist() == [True, False, False]
    assert (lives.deaths, lives.exposure_s(100.0)) == (1, 135.0)
    assert lives.observations(100.0, "fast").duration_s.tolist() == [80.0]


def test_a_life_is_of_the_kind_that_its_worker_tells(w1: WorkerRecord) -> None:
    measures = Measures()
    measures.run(w1, 20.0)
    measures.handle_sync(w1, sync(kind="fast"), 25.0)
    assert measures.lives.observations(100.0, "fast").duration_s.tolist() == [80.0]


def test_the_sample_is_fair() -> None:
    """1,000 machines with consecutive lives: the death rate in the sample is that of all lives."""
    rng = np.random.default_rng(0)
    lives, heap = Lives(), [(float(end), i) for i, end in enumerate(rng.exponential(100.0, 1000))]
    records = {i: WorkerRecord(f"w{i}") for i in range(1000)}
    for record in records.values():
        lives.begin(record, 0.0)
    number, now = 1000, 0.0
    heap.sort()
    while now < 300.0:
        now, gone = heap.pop(0)
        lives.end(records.pop(gone), now, died=True)
        records[number] = WorkerRecord(f"w{number}")
        lives.begin(records[number], now)
        heap.append((now + float(rng.exponential(100.0)), number))
        heap.sort()
        number += 1
    seen = lives.observations(now)
    assert lives.deaths > 2500
    assert seen.exposure_s / seen.deaths == pytest.approx(100.0, rel=0.2)
    assert lives.exposure_s(now) == pytest.approx(1000 * now, rel=1e-6)


def test_a_worker_given_up_lived_until_its_last_message(w1: WorkerRecord) -> None:
    measures = Measures()
    measures.run(w1, 0.0)
    measures.handle_sync(w1, sync(), 30.0)
    measures.give_up(w1, 150.0)
    measures.end(w1, 151.0, died=False)  # the back end's event after its cancellation
    seen = measures.lives.observations(200.0)
    assert (seen.duration_s.tolist(), seen.ended.tolist()) == ([30.0], [True])


def test_the_ledger_tells_of_the_lives_before() -> None:
    row = {"submitted_s": 0.0, "first_sync_s": 12.0, "cancelled": None, "detail": None, "kind": None}
    measures = Measures()
    w1, w2, w3, w4 = (WorkerRecord(f"w{number}") for number in range(1, 5))
    for record, own in (
        (w1, {"state": "evicted", "started_s": 10.0, "ended_s": 40.0, "kind": "fast"}),
        (w2, {"state": "lost", "detail": "its master ended", "started_s": 10.0, "ended_s": 50.0}),
        (w3, {"state": "running", "started_s": 10.0, "ended_s": None}),
        (w4, {"state": "queued", "started_s": None, "ended_s": None}),
    ):
        measures.recall(record, {**row, **own})
    measures.submit(w3, 99.0)
    measures.run(w3, 100.0)  # the back end repeats the event
    seen = measures.lives.observations(110.0)
    assert seen.duration_s.tolist() == [30.0, 40.0, 100.0]
    assert seen.ended.tolist() == [True, False, False]
    assert measures.lives.observations(110.0, "fast").deaths == 1
    assert measures.speeds.count == 0
    assert not measures.all.waits  # the wait of w3 was seen by a master before


def test_a_clock_that_is_set_back_makes_no_negative_times(w1: WorkerRecord) -> None:
    measures = Measures()
    measures.submit(w1, 100.0)
    measures.run(w1, 40.0)
    measures.handle_sync(w1, sync(), 30.0)
    report(measures, w1, 1, 0.1, now=20.0)
    costs = measures.costs()
    assert costs is not None
    assert (costs.wait_s, costs.boot_s) == (0.0, 0.0)


def test_a_worker_with_messages_before_its_start_event_is_measured(w1: WorkerRecord) -> None:
    measures = Measures()
    measures.submit(w1, 0.0)
    measures.handle_sync(w1, sync(kind="fast"), 9.0)
    measures.run(w1, 10.0)
    measures.handle_sync(w1, sync(kind="fast"), 11.0)
    assert list(measures.kinds["fast"].boots) == list(measures.all.boots) == [0.0]
    assert len(measures.lives.observations(20.0, "fast")) == 1


def test_a_delay_is_that_of_the_kind_and_cautious_while_nothing_has_travelled(w1: WorkerRecord) -> None:
    measures = Measures()
    assert measures.delay() == Delay(0.0, 0.0, UNMEASURED_PUSH_S, UNMEASURED_TRAVEL_S)
    report(measures, w1, 5, 0.1, "measured")
    delay = measures.delay("measured")
    assert (delay.start_s, delay.copy_s) == pytest.approx((3.25, 0.01))
    assert (delay.push_s, delay.travel_s) == pytest.approx((0.02, 0.5))
    assert measures.delay("never seen") == delay


@pytest.mark.parametrize("odd", [math.inf, math.nan, -1.0, 1e300, 9e15])
@pytest.mark.parametrize("what", ["train_s", "begin_s", "end_s", "push_s", "travel_s"])
def test_what_cannot_be_is_not_believed(what: str, odd: float, w1: WorkerRecord) -> None:
    measures = Measures()
    report(measures, w1, 5, 0.1)
    before = measures.costs(), measures.delay(), measures.travel_s(), w1.measured.speed
    values = {"train_s": 100.0, "begin_s": 4.0, "end_s": 0.25, "push_s": 0.02, "travel_s": 0.5, what: odd}
    push = Push(6, 1, 1, 0, 100, 100)
    measures.handle_sync(w1, sync(push=push, trained=550 + 450, begun=6, begun_vertices=100, **values), 9.0)
    costs = measures.costs()
    assert costs is not None and before[0] is not None and w1.measured.speed is not None
    assert costs.exec_s == pytest.approx(before[0].exec_s, rel=0.01)
    assert costs.start_s == pytest.approx(before[0].start_s, rel=0.1)
    assert (costs.end_s, costs.push_s) == pytest.approx((before[0].end_s, before[0].push_s))
    assert measures.delay().travel_s == measures.travel_s() == pytest.approx(before[2])
    assert w1.measured.speed == pytest.approx(before[3], rel=0.01)


@pytest.mark.parametrize("train_s", [5e-324, 1e-300, 1e-9])
def test_zero_training_times_are_rejected(train_s: float, w1: WorkerRecord) -> None:
    measures = Measures()
    measures.handle_sync(w1, sync(trained=10**9, train_s=train_s), 1.0)
    assert measures.exec_s() is None
    assert w1.measured.speed is None


def test_a_held_worker_of_an_earlier_master_starts_a_new_life_on_release(w1: WorkerRecord) -> None:
    measures = Measures()
    row = {"state": "held", "submitted_s": 0.0, "started_s": 10.0, "ended_s": None, "kind": None}
    measures.recall(w1, {**row, "first_sync_s": 12.0, "cancelled": None, "detail": "out of disk"})
    assert measures.lives.exposure_s(1000.0) == 0
    measures.run(w1, 1000.0)
    assert measures.lives.exposure_s(1010.0) == 10.0


def test_what_comes_without_work_is_not_believed(w1: WorkerRecord) -> None:
    measures = Measures()
    measures.run(w1, 100.0)
    claims = sync(trained=10**9, train_s=1.0, begun=1, begun_vertices=8, begin_s=5.0, push_s=0.5)
    measures.handle_sync(w1, claims, 200.0, worked=False)
    assert (measures.exec_s(), w1.measured.speed, w1.measured.message_s) == (None, None, 200.0)
    assert w1.measured.push_s == 0.0  # the cost of a push that is still under way is not fully known
    measures.handle_sync(w1, claims._replace(travel_s=1.0), 200.0, worked=False)
    assert w1.measured.push_s == 0.5
    measures.handle_sync(w1, claims._replace(trained=100, train_s=50.0), 210.0)
    assert measures.exec_s() == pytest.approx(0.5) and [*measures.all.begun] == [(8, 5.0)]


def test_nothing_takes_longer_than_a_worker_lives(w1: WorkerRecord) -> None:
    measures = Measures()
    measures.run(w1, 100.0)
    measures.handle_sync(w1, sync(trained=10, train_s=5.0, begun=2, begun_vertices=8, begin_s=1e6, end_s=1e6), 200.0)
    assert not measures.all.begun and not measures.all.ends
