"""The gate: pushes that are not finite are refused, and outliers are shortened, from the first push on."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.sync.gate import (
    MAJORITY,
    MAX_STEPS,
    MAX_WAIT_S,
    NEWEST_STEPS,
    OUTLIER,
    REFUSED_BEYOND,
    REPLICA_SHARE,
    TOO_SHORT,
    UNMOVED,
    RecentSteps,
    Step,
    StepHistory,
    check_movement,
    gate,
    step_size,
)

lengths = st.floats(1e-12, 1e12)
counts = st.integers(1, 10**6)
FLOAT32 = 3.4e38


@st.composite
def step_history(draw: st.DrawFn) -> RecentSteps:
    sizes = sorted([draw(lengths), draw(lengths)])
    return RecentSteps(sizes[1], sizes[0], draw(counts), draw(st.integers(1, MAX_STEPS)))


def habit(size: float, vertices: int = 100) -> RecentSteps:
    return RecentSteps(size, size, vertices, MAX_STEPS)


def step(size: float, *others: RecentSteps, vertices: int = 100, own: float = 0.0) -> Step:
    """Return a step with this length per root of a vertex."""
    return Step("Network", size**2 * vertices, FLOAT32, own, others)


@given(st.lists(step_history()), st.booleans(), lengths)
def test_what_is_not_finite_is_refused_whatever_it_is(others: list[RecentSteps], alone: bool, size: float) -> None:
    decision = gate("Network/0/model/weight", [step(size, *others)], 100, alone=alone)
    assert decision.scale is None
    assert "Network/0/model/weight is not finite" in decision.reason
    assert not decision.flagged, "a program that diverges makes everybody push such"


@given(st.lists(step_history(), max_size=9), lengths, counts, st.floats(0, 1e12))
def test_a_step_is_never_longer_than_it_was_nor_than_its_bound(
    others: list[RecentSteps], size: float, vertices: int, own: float
) -> None:
    pushed = step(size, *others, vertices=vertices, own=own)
    decision = gate(None, [pushed], vertices, alone=False)
    if decision.scale is None:
        return
    assert 0 < decision.scale <= 1
    if others:
        usual = sorted(h.longest for h in others)[len(others) // 2]
        reach = math.sqrt(max(1.0, vertices / sorted(h.vertices for h in others)[len(others) // 2]))
        assert size * decision.scale <= OUTLIER * usual * reach * (1 + 1e-6)
    elif own > 0:
        assert math.sqrt(pushed.sumsq) * decision.scale <= REPLICA_SHARE * own * (1 + 1e-6)


@given(st.lists(lengths, min_size=2, max_size=9), lengths)
def test_one_worker_moves_the_bound_at_most_within_the_honest_spread(honest: list[float], hostile: float) -> None:
    decision = gate(None, [step(1e15, *map(habit, honest), habit(hostile), own=1e30)], 100, alone=False)
    assert decision.scale is not None
    bound = 1e15 * decision.scale
    assert min(honest) * (1 - 1e-6) <= bound <= max(honest) * (1 + 1e-6)


def test_an_outlier_is_shortened_to_what_the_median_other_worker_does() -> None:
    decision = gate(None, [step(100.0, habit(1.0), habit(2.0), habit(90.0))], 100, alone=False)
    assert decision.scale == pytest.approx(0.02), "to what is usual"
    assert decision.reason == "the step of Network is 10 times as long as 5 times what 3 other workers do; shortened"
    assert decision.flagged


def test_a_refused_step_of_a_rate_that_is_too_high_says_to_lower_it() -> None:
    for one in (step(1e12, own=1.0), step(1e12, habit(1.0), own=1.0)):
        decision = gate(None, [one], 100, alone=False)
        assert decision.scale is None and decision.reason.endswith(". Lower the learning rate")
    others = [habit(1.0), habit(1.0), habit(1.0)]  # with the same rate: then it is not too high
    decision = gate(None, [step(1e12, *others, own=1.0)], 100, alone=False)
    assert decision.scale is None and "learning rate" not in decision.reason


@given(st.integers(3, 9), st.floats(0, 1e12), st.floats(1.0, 2 * OUTLIER), st.data())
def test_one_liar_of_three_or_more_neither_throttles_nor_frees_others(
    workers: int, hostile: float, longest: float, data: st.DataObject
) -> None:
    """Honest steps lie within OUTLIER of one another; the liar's are of any length, 0 to 1e12."""
    honest = [data.draw(st.floats(1.0, min(longest, OUTLIER))) for _ in range(workers - 1)]
    others = [*map(habit, honest[1:]), habit(hostile)]
    assert gate(None, [step(honest[0], *others)], 100, alone=False) == (1.0, "accepted", False, False, None)
    decision = gate(None, [step(hostile, *map(habit, honest), own=1e30)], 100, alone=False)
    assert decision.scale is not None
    assert hostile * decision.scale <= OUTLIER * max(honest) * (1 + 1e-6)
    assert decision.flagged == (decision.scale < 1), "a worker that goes further than a majority allows is blamed"


def test_who_goes_further_than_both_others_is_blamed() -> None:
    decision = gate(None, [step(1000.0, habit(1.0), habit(100.0))], 100, alone=False)
    assert decision.scale == pytest.approx(100 / 1000), "to what the longer of them does"
    assert decision.flagged
    assert gate(None, [step(1000.0, habit(1.0), habit(1000.0))], 100, alone=False).scale == 1.0


def test_the_longer_of_two_steps_is_shortened_without_blame() -> None:
    decision = gate(None, [step(10.0, habit(1.0))], 100, alone=False)
    assert decision.scale == pytest.approx(0.5)
    assert not decision.flagged
    assert MAJORITY == 2


def test_one_that_makes_tiny_steps_cannot_have_the_other_refused() -> None:
    decision = gate(None, [step(1.0, habit(1e-9), own=100.0)], 100, alone=False)
    assert decision.scale is not None


def test_pushes_of_more_vertices_may_go_further_than_a_random_walk() -> None:
    others = habit(1.0, vertices=100), habit(1.0, vertices=100)
    straight = math.sqrt(400 / 100)  # four times the vertices and the length: twice the size
    assert gate(None, [step(OUTLIER * straight, *others, vertices=400)], 400, alone=False).scale == 1.0
    assert gate(None, [step(OUTLIER * straight * 1.01, *others, vertices=400)], 400, alone=False).scale != 1.0
    assert gate(None, [step(OUTLIER * 1.01, *others, vertices=25)], 25, alone=False).scale != 1.0


@pytest.mark.parametrize("others", [(), (habit(1.0),), (habit(1.0), habit(1.0))])
def test_what_overflows_or_is_no_step_of_training_is_refused(others: tuple[RecentSteps, ...]) -> None:
    for sumsq in (FLOAT32, 1e60, sys.float_info.max):
        decision = gate(None, [Step("Network", sumsq, FLOAT32, 1.0, others)], 100, alone=False)
        assert decision.scale is None
        assert "overflows" in decision.reason
    assert gate(None, [step(2 * REFUSED_BEYOND * OUTLIER, *others, own=1.0)], 100, alone=False).scale is None


def test_the_worst_of_several_groups_decides() -> None:
    usual = habit(1.0), habit(1.0)
    decision = gate(None, [step(10.0, *usual), Step("Other", 50.0**2 * 100, FLOAT32, 0.0, usual)], 100, alone=False)
    assert decision.scale == pytest.approx(0.02)
    assert "Other" in decision.reason


def test_one_worker_alone_is_taken_whole() -> None:
    assert gate(None, [step(1e30, habit(1.0), own=1.0)], 100, alone=True) == (1.0, "accepted", False, False, None)


def test_what_begins_at_zero_has_no_bound_until_another_has_pushed() -> None:
    assert gate(None, [step(1e9)], 100, alone=False).scale == 1.0
    assert gate(None, [], 100, alone=False).scale == 1.0


def test_zeros_are_an_outlier_even_where_steps_are_long() -> None:
    """The step to zeros is as long as the replica, independent of other steps."""
    others = habit(3.0), habit(3.0)
    zeros = gate(None, [step(10.0, *others, own=100.0)], 100, alone=False)
    assert zeros.scale == pytest.approx(0.3) and zeros.flagged
    others = habit(9.0), habit(9.0)
    assert gate(None, [step(10.0, *others, own=100.0)], 100, alone=False).scale == 1.0, "others go as far"


@pytest.mark.parametrize("claimed", [100, 800, 100_000])
@pytest.mark.parametrize("undone", [1.0, 2.0])
def test_a_push_that_claims_many_vertices_may_not_undo_the_replica(claimed: int, undone: float) -> None:
    """A step grows with its vertices. If it takes the replica back, the others' steps of 100 vertices bound it as they
    are."""
    others = habit(3.0), habit(3.0)
    backwards = Step("Network", (100.0 * undone) ** 2, FLOAT32, 100.0, others, undone=undone)
    decision = gate(None, [backwards], claimed, alone=False)
    assert decision.scale == pytest.approx(3.0 * 10 / (100 * undone)) and decision.flagged


def test_a_long_push_of_a_fast_worker_may_leave_a_replica_that_begins_near_zero() -> None:
    """A table begins at a hundredth, and a worker trains 64 times as many vertices as the others between two pushes."""
    others = habit(3.0), habit(3.0)
    assert gate(None, [Step("Table", 1_900.0**2, FLOAT32, 10.0, others)], 6_400, alone=False).scale == 1.0


@pytest.mark.parametrize("size", [0.0, UNMOVED / 2])
def test_next_to_nothing_stands_still_where_a_majority_of_others_moves(size: float) -> None:
    others = habit(1.0), habit(3.0)
    decision = check_movement([step(size, *others)], 100)
    assert decision.scale is None and decision.flagged and "others change theirs" in decision.reason
    assert check_movement([step(2 * UNMOVED, *others)], 100).scale == 1.0


def test_who_moves_next_to_nothing_again_and_again_is_blamed_and_merged() -> None:
    for others in ((habit(1.0), habit(3.0)), (habit(1.0), habit(1.0), habit(1e-9))):
        decision = check_movement([step(TOO_SHORT / 2, *others)], 100)
        assert decision.scale == 1.0 and decision.flagged and f"less than {TOO_SHORT:g} times" in decision.reason
        assert not check_movement([step(2 * TOO_SHORT, *others)], 100).flagged
    frozen = step(0.0, habit(0.0), habit(0.0))
    assert not check_movement([frozen, step(TOO_SHORT / 2, *others), step(1.0, *others)], 100).flagged, (
        "one group moves"
    )
    assert not check_movement([step(TOO_SHORT / 2, habit(1.0), habit(1e-9))], 100).flagged, "one liar is no majority"
    assert not check_movement([step(TOO_SHORT / 2, *others)], 100, is_settled=False).flagged, "a process that warms up"
    early = RecentSteps(1.0, 1.0, 100, NEWEST_STEPS - 1)
    assert not check_movement([step(TOO_SHORT / 2, early, early)], 100).flagged, "first steps are long"
    assert not check_movement([step(TOO_SHORT / 2, *others, vertices=10)], 10).flagged, (
        "and those of few vertices short"
    )


def test_standing_still_waits_for_another_to_find_the_same_but_not_for_ever() -> None:
    for others in ([], [habit(1.0)]):
        decision = check_movement([step(0.0, *others)], 100)
        assert decision.scale is None and not decision.flagged
        assert check_movement([step(1e-9, *others)], 100).scale == 1.0
        assert check_movement([step(0.0, *others)], 100, MAX_WAIT_S).scale == 1.0
    for others in ([RecentSteps(1.0, 0.0, 100, 1)], [habit(1.0), habit(1.0), RecentSteps(1.0, 0.0, 100, 1)]):
        assert check_movement([step(0.0, *others)], 100).scale == 1.0
    assert check_movement([], 100).scale == 1.0, "without tensors there is no limit"


def test_a_long_step_among_the_last_of_others_allows_one_and_only_the_newest_say_how_short_a_step_may_be() -> None:
    history = StepHistory()
    for worker in ("a", "b"):
        for size in (8.0, *[0.1] * (MAX_STEPS - 1)):
            history.add(worker, {"Network": size}, 100)
    (a, b) = history.others("c", "Network")
    assert (a.longest, a.shortest) == (b.longest, b.shortest) == (8.0, 0.1)
    assert not gate(None, [step(30.0, a, b)], 100, alone=False).flagged
    for worker in ("a", "b"):
        for size in (4.0, *[0.2] * NEWEST_STEPS):
            history.add(worker, {"Network": size}, 100)
    a, b = history.others("c", "Network")
    assert (a.longest, a.shortest) == (b.longest, b.shortest) == (4.0, 0.2)
    assert gate(None, [step(30.0, a, b)], 100, alone=False).flagged


def test_who_moves_one_group_does_not_stand_still() -> None:
    others = habit(1.0), habit(1.0)
    assert check_movement([step(0.0, *others), step(1.0, *others)], 100).scale == 1.0
    frozen = step(0.0, habit(0.0), habit(0.0))
    assert check_movement([frozen, step(0.0, *others)], 100).scale is None, (
        "a tensor that no worker moves gives no limit"
    )


@given(st.floats(0, 1e100), st.integers(1, 10**6))
def test_sizes_of_steps_are_comparable_between_pushes_of_different_size(sumsq: float, vertices: int) -> None:
    """A random walk of four times the vertices is twice as long, which is the same size."""
    assert step_size(4 * sumsq, 4 * vertices) == pytest.approx(step_size(sumsq, vertices))
    assert step_size(sumsq, vertices) == pytest.approx(math.sqrt(sumsq / vertices))


def test_a_push_without_vertices_divides_by_nothing() -> None:
    assert step_size(4.0, 0) == 2.0
