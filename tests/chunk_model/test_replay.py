"""Replay: lives counted by hand and by an independent event loop, and the confidence interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_model.families import Exponential
from chunk_model.goodput import ChunkError, Costs, chunk_goodput
from chunk_model.replay import Floats, replay

# Powers of two, so that sums of times are exact and an event at the very instant of death is one in both programs.
COSTS = Costs(exec_s=0.75, copy_s=0.25, start_s=8, end_s=2, wait_s=4, boot_s=16)
PUSHED = Costs(exec_s=0.75, copy_s=0.25, start_s=8, end_s=2, wait_s=4, boot_s=16, push_s=0.5)


def slowly(life: float, costs: Costs, n: int, push_every: int | None, many: bool) -> tuple[float, float, float]:
    """Return (credited, paid_s, lost_s) of one life, by an independent event loop."""
    clock = costs.boot_s if many else 0.0
    credited = lost = 0.0
    while True:
        clock += costs.start_s + n * costs.copy_s
        for first in range(0, n, push_every or n):
            size = min(push_every or n, n - first)
            before, clock = clock, clock + size * costs.exec_s
            done = clock + (costs.end_s if costs.push_s is None else costs.push_s)
            if done > life:
                return credited, costs.wait_s + life, lost + max(0.0, min(life, clock) - before)
            credited, clock = credited + size, done
        if costs.push_s is not None:
            clock += costs.end_s
        if not many:
            return credited, costs.wait_s + min(life, clock), lost
        if clock > life:
            return credited, costs.wait_s + life, lost


def test_by_hand() -> None:
    """Chunks of 10 take 8 + 10 + 2: a life of 19 s loses all ten, one of 100 s delivers ten and is released."""
    replayed = replay(np.array([19.0, 100.0]), COSTS, 10)
    assert (replayed.credited, replayed.paid_s, replayed.lost_s) == (10, 19 + 20 + 2 * 4, 7.5)
    assert replayed.goodput == pytest.approx(10 * 0.75 / 47)
    # The chunk is copied by 10.5 s; pushes of 4, 4 and 2 are over at 14, 17.5 and 19.5 s: two by 18.5 s.
    assert replay(np.array([18.5]), PUSHED, 10, 4).credited == 8
    assert replay(np.array([18.5]), PUSHED, 10, 4).lost_s == 1
    # Boot 16 s, then 20 s a chunk, the fourth until 96 s.
    assert replay(np.array([96.0]), COSTS, 10, many=True).credited == 40


@given(
    st.lists(st.integers(0, 4000).map(lambda quarters: quarters / 4), min_size=1, max_size=5),
    st.integers(1, 60),
    st.one_of(st.none(), st.integers(1, 70)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 8, 1 << 16]),
)
def test_every_way_of_counting_agrees(
    lives: list[float], n: int, push_every: int | None, pushed: bool, many: bool, events: int
) -> None:
    """The timetable, the division for lives that outlast it, and the independent event loop agree."""
    costs = PUSHED if pushed else COSTS
    every = push_every if pushed else None
    expected = np.array([slowly(life, costs, n, every, many) for life in lives]).sum(axis=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chunk_model.replay._EVENTS", events)
        replayed = replay(np.array(lives), costs, n, every, many)
    assert (replayed.credited, replayed.paid_s, replayed.lost_s) == pytest.approx(tuple(expected), rel=1e-12)


def test_the_interval_covers_the_truth_95_times_in_100() -> None:
    life, rng = Exponential(100.0), np.random.default_rng(2)
    truth = chunk_goodput(life, COSTS, 40)
    runs = [replay(life.sample(rng, 100), COSTS, 40) for _ in range(1000)]
    covered = sum(run.low <= truth <= run.high for run in runs)
    assert 920 <= covered <= 975


def test_lives_that_end_together_are_one_observation() -> None:
    lives = np.repeat(np.array([10.0, 50.0, 90.0]), 40)
    instants = np.repeat(np.array([1.0, 2.0, math.nan]), 40)
    alone = replay(lives, COSTS, 20)
    together = replay(lives, COSTS, 20, instants=instants)
    assert together.goodput == alone.goodput and together.high - together.low > 2 * (alone.high - alone.low)
    one = replay(lives, COSTS, 20, instants=np.zeros(120))
    assert (one.low, one.high) == (0, 1)


def test_nothing_was_paid() -> None:
    nothing = replay(np.zeros(3), Costs(exec_s=1.0), 5)
    assert (nothing.goodput, nothing.low, nothing.high, nothing.paid_s) == (0, 0, 1, 0)


@pytest.mark.parametrize(
    ("lives", "n", "push_every", "instants", "message"),
    [
        (np.zeros(0), 1, None, None, "at least one time"),
        (np.zeros((2, 2)), 1, None, None, "got shape"),
        (np.array([1.0, math.nan]), 1, None, None, "finite and at least 0"),
        (np.array([-1.0]), 1, None, None, "finite and at least 0"),
        (np.ones(2), 0, None, None, "at least 1 vertex"),
        (np.ones(2), 5, 0, None, "at least 1 vertex"),
        (np.ones(2), 5, 2, None, "give push_s"),
        (np.ones(2), 5, None, np.zeros(3), "one moment for each of 2 lives"),
    ],
)
def test_bad_input_is_refused(
    lives: Floats, n: int, push_every: int | None, instants: Floats | None, message: str
) -> None:
    with pytest.raises(ChunkError, match=message):
        replay(lives, COSTS, n, push_every, instants=instants)
