"""Current sizes: recomputed on another thread when there are new measurements, and each change is recorded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from gridml.protocol.messages import Push, Sync
from master.leases.sizing import ChunkSizing
from master.state.worker_records import WorkerRecord
from master.store.rundir import EventFacts
from master.store.settings import SizeSettings


class Later(Executor):
    """An executor that runs its tasks on request."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.tasks.append(lambda: future.set_result(fn(*args, **kwargs)))
        return future


class Failing(Executor):
    """An executor whose tasks fail."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(KeyError("a fault of the fit"))
        return future


class Reports(list[str]):
    """A stand-in for Events that keeps the records."""

    def record(self, topic: str, facts: EventFacts, text: str, *, why: str = "") -> None:
        assert topic == "sizing"
        self.append(f"{text}. {why}")


def make(*, many: bool = True, **values: Any) -> ChunkSizing:
    return ChunkSizing(SizeSettings(**values), 1_000_000, 10, many=many)


def live(sizing: ChunkSizing, count: int, life_s: float, *, begin_s: float = 1.0, start: int = 0) -> None:
    """Report workers that trained ten vertices a second, and were killed."""
    for i in range(start, start + count):
        record, age = WorkerRecord(f"w{i}"), life_s * (0.5 + (i % 11) / 10)
        sizing.measures.run(record, 0.0)
        push = Push(1, 1, 1, 0, 100, 100)
        sizing.measures.handle_sync(
            record,
            Sync(record.name, push=push, trained=100, train_s=10.0, push_s=0.1, travel_s=0.2, begun=1,
                 begun_vertices=100, begin_s=begin_s), 1.0,
        )  # fmt: skip
        sizing.measures.end(record, age, died=True)


def test_nothing_is_known_at_first() -> None:
    sizing, later, reports = make(), Later(), Reports()
    assert not sizing.step(0.0, 4, 0.0, later, reports)
    assert sizing.chunk(WorkerRecord("w1")) is None
    assert math.isinf(sizing.max_interval_s(WorkerRecord("w1")))
    assert not later.tasks and not reports


def test_a_fit_runs_on_another_thread_and_is_recorded_once() -> None:
    sizing, later, reports = make(), Later(), Reports()
    live(sizing, 20, 60.0)
    for now in (100.0, 101.0, 102.0):
        assert not sizing.step(now, 4, 0.0, later, reports)
    assert len(later.tasks) == 1 and not reports
    later.tasks.pop()()
    assert sizing.step(103.0, 4, 0.0, later, reports)
    assert not sizing.step(104.0, 4, 0.0, later, reports)
    assert len(reports) == 1
    assert "vertices a chunk" in reports[0]
    silent = WorkerRecord("a worker that has not spoken")
    size = sizing.chunk(silent)
    assert size is not None and size[0] > 10
    assert 0 < sizing.max_interval_s(silent) < 6.4


def test_the_same_again_is_no_news() -> None:
    sizing, later, reports = make(), Later(), Reports()
    live(sizing, 20, 60.0)
    for number, now in enumerate((100.0, 200.0, 300.0)):
        sizing.step(now, 4, 0.0, later, reports)
        later.tasks.pop()()
        sizing.step(now + 1, 4, 0.0, later, reports)
        live(sizing, 40 * (number + 1), 60.0, start=1000 * (number + 1))
    assert len(reports) == 1


def test_a_fast_worker_gets_more_for_the_same_seconds() -> None:
    sizing, later = make(), Later()
    live(sizing, 20, 60.0)
    sizing.step(100.0, 4, 0.0, later, Reports())
    later.tasks.pop()()
    sizing.step(101.0, 4, 0.0, later, Reports())
    slow, fast = WorkerRecord("slow"), WorkerRecord("fast")
    sizing.measures.speeds.put(slow, 5.0)
    sizing.measures.speeds.put(fast, 20.0)
    less, more = sizing.chunk(slow), sizing.chunk(fast)
    assert less is not None and more is not None
    assert more[0] == pytest.approx(4 * less[0], abs=4)


def test_if_no_chunk_can_finish_the_user_is_warned_once() -> None:
    sizing, later, reports = make(many=False), Later(), Reports()
    live(sizing, 20, 0.1, begin_s=500.0)
    for now in (100.0, 200.0):
        sizing.step(now, 4, 0.0, later, reports)
        later.tasks.pop()()
        assert not sizing.step(now + 1, 4, 0.0, later, reports)
        live(sizing, 40, 0.1, begin_s=500.0, start=1000)
    assert len(reports) == 1
    assert "no chunk would ever finish" in reports[0]
    assert sizing.chunk(WorkerRecord("w1")) is None


def test_who_asks_for_both_sizes_needs_no_fit() -> None:
    sizing, later = make(chunk=100, push_every=50), Later()
    live(sizing, 20, 60.0)
    assert not sizing.step(100.0, 4, 0.0, later, Reports())
    assert not later.tasks


def test_a_fit_that_fails_leaves_sizes_as_they_were() -> None:
    sizing, later, reports = make(), Later(), Reports()
    live(sizing, 20, 60.0)
    sizing.step(100.0, 4, 0.0, later, reports)
    later.tasks.pop()()
    assert sizing.step(101.0, 4, 0.0, later, reports)
    before = sizing.chunk(WorkerRecord("w"))
    for number, now in enumerate((200.0, 300.0)):
        live(sizing, 40 * (number + 1), 60.0, start=1000 * (number + 1))
        assert not sizing.step(now, 4, 0.0, Failing(), reports)
    assert sizing.chunk(WorkerRecord("w")) == before
    assert len(reports) == 2
    assert "sizes stay as they were" in reports[1] and "KeyError: 'a fault of the fit'" in reports[1]


@pytest.mark.parametrize(("many", "around_s"), [(True, 3.0 + 0.25 + 0.5), (False, 3.0 + 0.25 + 0.5 + 7.0 + 20.0)])
def test_what_passes_around_a_chunk(many: bool, around_s: float) -> None:
    sizing = make(many=many)
    measures, w1 = sizing.measures, WorkerRecord("w1")
    assert sizing.around_s(w1) == 0.0  # nothing was measured
    measures.submit(w1, 0.0)
    measures.run(w1, 20.0)
    for number in range(1, 6):
        push = Push(number, 1, 1, 0, 100, 100)
        sync = Sync(
            "w1", push=push, trained=100 * number, train_s=float(number), push_s=0.1, travel_s=0.5,
            begun=number, begun_vertices=100, begin_s=3.0, end_s=0.25,
        )  # fmt: skip
        measures.handle_sync(w1, sync, 27.0)
    assert sizing.around_s(w1) == pytest.approx(around_s)


def test_a_chunk_is_told_how_long_the_master_merges_a_push_of_each_worker() -> None:
    sizing, record = make(chunk=10, push_every=10), WorkerRecord("w0")
    live(sizing, 1, 60.0)
    sizing.step(1.0, 40, 0.25, Failing(), Reports())  # needs no fit: both sizes are given
    facts, _ = sizing.facts(record, 1.0, 1_000, 40, followed=False)
    assert facts.merging == round(40 * 0.25 * 10)  # ten vertices a second


def test_measures_that_make_no_sense_are_no_facts() -> None:
    sizing, later, reports = make(), Later(), Reports()
    live(sizing, 20, 60.0)
    sizing.measures.all.boots.append(-5.0)
    sizing.measures.all.ends.append(float("inf"))
    assert not sizing.step(100.0, 4, 0.0, later, reports)
    assert not later.tasks and not reports
