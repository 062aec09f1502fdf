"""Sizes in force: asked for when there is more to know, on another thread, and every change is told once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from gridml.protocol.messages import Push, Sync
from master.backends.condor.options import CondorOptions
from master.leases.chunk_sizing import Sizing
from master.store.settings import Settings


class Later(Executor):
    """Does what it is asked when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.asked.append(lambda: future.set_result(fn(*args, **kwargs)))
        return future


class Failing(Executor):
    """Nothing that it is asked succeeds."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(KeyError("a fault of the fit"))
        return future


def tell(told: list[str]) -> Callable[[str, str], None]:
    return lambda what, why: told.append(f"{what}. {why}")


def sizing(**values: Any) -> Sizing:
    return Sizing(Settings(Path("p.py"), workers=4, **values), 1_000_000, 10)


def lived(found: Sizing, count: int, life_s: float, *, begin_s: float = 1.0, start: int = 0) -> None:
    """Workers that trained ten vertices a second, and were killed."""
    for i in range(start, start + count):
        worker, age = f"w{i}", life_s * (0.5 + (i % 11) / 10)
        found.measures.runs(worker, 0.0)
        push = Push(1, 1, 1, 0, 100, 100)
        found.measures.heard(
            Sync(worker, push=push, trained=100, train_s=10.0, push_s=0.1, travel_s=0.2, begun=1,
                 begun_vertices=100, begin_s=begin_s), 1.0,
        )  # fmt: skip
        found.measures.ended(worker, age, died=True)


def test_nothing_is_known_at_first() -> None:
    found, later, told = sizing(), Later(), list[str]()
    assert not found.turn(0.0, 4, 0.0, 0.0, later, tell(told))
    assert found.chunk("w1") is None
    assert found.push_every("w1", 640, 10, 4, 0.0)[0] == 640
    assert not later.asked and not told


def test_a_fit_is_made_elsewhere_and_told_once() -> None:
    found, later, told = sizing(), Later(), list[str]()
    lived(found, 20, 60.0)
    for now in (100.0, 101.0, 102.0):
        assert not found.turn(now, 4, 0.0, 0.0, later, tell(told))
    assert len(later.asked) == 1 and not told
    later.asked.pop()()
    assert found.turn(103.0, 4, 0.0, 0.0, later, tell(told))
    assert not found.turn(104.0, 4, 0.0, 0.0, later, tell(told))
    assert len(told) == 1
    assert "vertices a chunk" in told[0]
    size = found.chunk("a worker that has not spoken")
    assert size is not None and size[0] > 10
    assert 10 <= found.push_every("a worker that has not spoken", 640, 10, 4, 0.0)[0] < 640


def test_the_same_again_is_no_news() -> None:
    found, later, told = sizing(), Later(), list[str]()
    lived(found, 20, 60.0)
    for number, now in enumerate((100.0, 200.0, 300.0)):
        found.turn(now, 4, 0.0, 0.0, later, tell(told))
        later.asked.pop()()
        found.turn(now + 1, 4, 0.0, 0.0, later, tell(told))
        lived(found, 40 * (number + 1), 60.0, start=1000 * (number + 1))
    assert len(told) == 1


def test_a_fast_worker_gets_more_for_the_same_seconds() -> None:
    found, later = sizing(), Later()
    lived(found, 20, 60.0)
    found.turn(100.0, 4, 0.0, 0.0, later, lambda what, why: None)
    later.asked.pop()()
    found.turn(101.0, 4, 0.0, 0.0, later, lambda what, why: None)
    found.measures.speeds.put("slow", 5.0)
    found.measures.speeds.put("fast", 20.0)
    slow, fast = found.chunk("slow"), found.chunk("fast")
    assert slow is not None and fast is not None
    assert fast[0] == pytest.approx(4 * slow[0], abs=4)


def test_where_no_chunk_can_finish_a_person_hears_it_once() -> None:
    found, later, told = sizing(options=CondorOptions(chunks_per_job=1)), Later(), list[str]()
    lived(found, 20, 0.1, begin_s=500.0)
    for now in (100.0, 200.0):
        found.turn(now, 4, 0.0, 0.0, later, tell(told))
        later.asked.pop()()
        assert not found.turn(now + 1, 4, 0.0, 0.0, later, tell(told))
        lived(found, 40, 0.1, begin_s=500.0, start=1000)
    assert len(told) == 1
    assert "no chunk would ever finish" in told[0]
    assert found.chunk("w1") is None


def test_who_asks_for_both_sizes_needs_no_fit() -> None:
    found, later = sizing(chunk=100, push_every=50), Later()
    lived(found, 20, 60.0)
    assert not found.turn(100.0, 4, 0.0, 0.0, later, lambda what, why: None)
    assert not later.asked


def test_a_fit_that_fails_leaves_sizes_as_they_were() -> None:
    found, later, told = sizing(), Later(), list[str]()
    lived(found, 20, 60.0)
    found.turn(100.0, 4, 0.0, 0.0, later, tell(told))
    later.asked.pop()()
    assert found.turn(101.0, 4, 0.0, 0.0, later, tell(told))
    before = found.chunk("w")
    for number, now in enumerate((200.0, 300.0)):
        lived(found, 40 * (number + 1), 60.0, start=1000 * (number + 1))
        assert not found.turn(now, 4, 0.0, 0.0, Failing(), tell(told))
    assert found.chunk("w") == before
    assert len(told) == 2
    assert "sizes stay as they were" in told[1] and "KeyError: 'a fault of the fit'" in told[1]


@pytest.mark.parametrize(("many", "around_s"), [(0, 3.0 + 0.25 + 0.5), (1, 3.0 + 0.25 + 0.5 + 7.0 + 20.0)])
def test_what_passes_around_a_chunk(many: int, around_s: float) -> None:
    found = sizing(options=CondorOptions(chunks_per_job=many))
    assert found.around_s("w1") == 0.0  # nothing is known
    measures = found.measures
    measures.submitted("w1", 0.0)
    measures.runs("w1", 20.0)
    for number in range(1, 6):
        push = Push(number, 1, 1, 0, 100, 100)
        said = Sync(
            "w1", push=push, trained=100 * number, train_s=float(number), push_s=0.1, travel_s=0.5,
            begun=number, begun_vertices=100, begin_s=3.0, end_s=0.25,
        )  # fmt: skip
        measures.heard(said, 27.0)
    assert found.around_s("w1") == pytest.approx(around_s)


def test_measures_that_make_no_sense_are_no_facts() -> None:
    found, later, told = sizing(), Later(), list[str]()
    lived(found, 20, 60.0)
    found.measures.all.boots.append(-5.0)
    found.measures.all.ends.append(float("inf"))
    assert not found.turn(100.0, 4, 0.0, 0.0, later, tell(told))
    assert not later.asked and not told
