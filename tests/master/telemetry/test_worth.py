"""What workers are worth, and how many may share each batch."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.engine.pace import MAX_ADDED_PARTS, PaceFacts, TypicalCosts, choose_pace
from master.telemetry.worth import (
    MARGIN,
    MIN_WORKERS,
    STAYS_S,
    KeptTraining,
    RunLength,
    WorthFacts,
    kept_share,
    sharing_workers,
    worker_limit,
    worth,
)

SHORT = RunLength(36_000, 64)


def alone(
    push_s: float = 0.006,
    batch: int = 64,
    *,
    min_batch: int = 1,
    travel_s: float = 0.001,
    merging_s: float = 0.0,
    lives_s: float = math.inf,
    can_add: bool = True,
) -> PaceFacts:
    """Return the facts of a worker that trains a vertex in 3 ms."""
    speed, typical = 1 / 0.003, TypicalCosts(1 / 0.003, push_s, travel_s) if can_add else None
    return PaceFacts(1, batch, min_batch, False, speed, push_s, 0.03, 0.0, merging_s, lives_s, typical=typical)


def trained(credited: int, share: float) -> KeptTraining:
    kept = KeptTraining()
    kept.add(credited, share)
    return kept


def test_one_worker_is_worth_its_goodput_and_is_not_mentioned() -> None:
    assert worth(WorthFacts(1, trained(1_000, 1.0), 10.0, 12.0)) == (None, "one worker is wanted")


def test_before_anything_was_credited_nothing_is_known() -> None:
    assert worth(WorthFacts(4, KeptTraining(), 0.0, 5.0)) == (None, "nothing was credited yet")
    assert worth(WorthFacts(4, trained(10, 1.0), 0.0, 5.0))[0] is None


def test_what_is_kept_counts_at_the_time_of_one_worker() -> None:
    """Three of four workers' time is credited; all of it counts where rows are merged."""
    assert worth(WorthFacts(4, trained(1_000, 1.0), 30.0, 10.0)) == (3.0, "one would need 30 s for what took 10 s")
    found, reason = worth(WorthFacts(4, trained(1_000, 0.625), 40.0, 10.0))
    assert found == 2.5
    assert reason == "one would need 25 s for what took 10 s (an estimate: 62% of what they train is kept)"


@given(st.integers(1, 10_000), st.booleans(), st.booleans())
def test_more_workers_keep_less_of_each_and_more_in_all(live: int, averages: bool, added: bool) -> None:
    one, more = (kept_share(count, averages=averages, added=added) for count in (live, live + 1))
    assert 0 < more <= one <= 1
    assert (live + 1) * more > live * one
    assert kept_share(live, averages=averages, added=True) >= kept_share(live, averages=True, added=False)


def test_a_single_worker_keeps_all() -> None:
    assert kept_share(1, averages=True, added=False) == kept_share(0, averages=True, added=True) == 1.0


def test_cheap_pushes_let_as_many_share_a_batch_as_it_has_parts() -> None:
    assert sharing_workers(alone(), 0) == (MAX_ADDED_PARTS, "no more than 16 workers share a batch")


def test_dear_pushes_let_few_or_none_share_it() -> None:
    count, reason = sharing_workers(alone(push_s=0.015), 0)
    assert 2 <= count < MAX_ADDED_PARTS
    assert reason == f"pushes cost too much for more than {count} workers to share a batch"
    assert sharing_workers(alone(push_s=1.0), 0) == (0, "")


@pytest.mark.parametrize(
    "facts",
    [
        alone(can_add=False),
        alone(min_batch=64),
        alone(travel_s=1.0),  # a part is trained before the push of the last one has arrived
        alone(merging_s=0.3),  # the master merges no faster
        alone(lives_s=0.001),  # workers do not live for a part
        alone()._replace(asked=512),
    ],
)
def test_none_share_where_steps_are_not_added(facts: PaceFacts) -> None:
    assert sharing_workers(facts, 16)[0] == 0


def test_until_costs_are_measured_the_number_stays() -> None:
    assert sharing_workers(None, 0) == (0, "more are asked for if pushes turn out to be cheap")
    assert sharing_workers(None, 16)[0] == 16


@given(st.floats(1e-4, 1.0), st.integers(2, 512), st.integers(0, 16))
def test_those_that_share_add_their_steps_at_the_full_rate(push_s: float, batch: int, before: int) -> None:
    count, _ = sharing_workers(alone(push_s, batch), 0)
    if count:
        chosen, _ = choose_pace(alone(push_s, batch)._replace(live=count))
        assert chosen.added and chosen.rate == chosen.batch / batch
    fewer, more = (sharing_workers(alone(push_s, batch), each)[0] for each in (0, 16))
    assert fewer <= more
    assert min(max(before, fewer), more) == sharing_workers(alone(push_s, batch), before)[0]


def test_costs_that_are_high_for_a_moment_release_no_worker() -> None:
    dear = alone(travel_s=3.0)
    assert sharing_workers(dear, 16, STAYS_S / 2)[0] == 16
    assert sharing_workers(dear, 16, STAYS_S)[0] == 0


@given(st.floats(1e-4, 0.1), st.lists(st.floats(0.83, 1.2), min_size=1, max_size=20))
def test_costs_that_vary_by_less_than_the_margin_move_no_worker(push_s: float, noise: list[float]) -> None:
    """From one answer on, costs within a factor of MARGIN of each other never change it again."""
    assert MARGIN > 1.2 / 0.83
    first, _ = sharing_workers(alone(push_s), 0)
    highest = first
    for factor in noise:
        after, _ = sharing_workers(alone(factor * push_s), highest)
        assert after >= highest  # it rises to the best of what was seen, and does not fall again
        highest = after


def test_the_limit_is_that_of_the_way_that_is_worth_more() -> None:
    assert worker_limit(SHORT)[0] == worker_limit(SHORT, (0, ""))[0] == MIN_WORKERS
    assert worker_limit(SHORT, (16, "why")) == (16, "why")
    assert worker_limit(SHORT, (2, "why"))[0] == MIN_WORKERS
    # 12 workers that are averaged are worth 3.75, and 8 that share each batch 5.6.
    long = RunLength(12 * 150 * 64, 64)
    assert worker_limit(long)[0] == 12
    assert worker_limit(long, (8, "why")) == (8, "why")
    assert worker_limit(long, (4, "why"))[0] == 12
    assert worker_limit(RunLength(1, 1, steps_each=0), (16, "why"))[0] is None


def test_a_run_says_that_more_may_be_asked_for_until_costs_are_known() -> None:
    limit, reason = worker_limit(SHORT, sharing_workers(None, 0))
    assert limit == MIN_WORKERS
    assert reason.endswith("fewer than 150; more are asked for if pushes turn out to be cheap")
