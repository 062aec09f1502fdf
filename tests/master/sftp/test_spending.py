"""The cost of instances, and the decision whether a run may continue within its budget."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridml.errors import UsageError
from master.sftp.spending import (
    HOUR_S,
    LEAVE_S,
    MIN_BILLED_S,
    MIN_STAY_S,
    Basis,
    BudgetState,
    InstanceUsage,
    Spend,
    affordable,
    charge,
    check_budget,
    dollars_between,
    estimated,
    may_spend,
    offer,
    price_at,
    spent,
)

LOOK_S = 60.0  # between two checks of the budget
# Prices of whole cents at whole seconds, so that a sum over seconds is exact but for rounding.
PRICES = st.integers(0, 300).map(lambda cents: cents / 100)
STEPS = st.lists(st.tuples(st.integers(0, 9_000), PRICES), min_size=1, max_size=12, unique_by=lambda s: s[0]).map(
    sorted
)


def summed(steps: list[tuple[int, float]], start: int, stop: int) -> float:
    """Return the cost as the sum of the prices of all seconds."""
    total = 0.0
    for second in range(start, stop):
        price = steps[0][1]
        for since, each in steps:
            if since <= second:
                price = each
        total += price / HOUR_S
    return total


@given(STEPS, st.integers(0, 9_000), st.integers(0, 5_000))
def test_the_integral_is_the_sum_over_every_second(steps: list[tuple[int, float]], start: int, lasts: int) -> None:
    assert dollars_between(steps, start, start + lasts) == pytest.approx(summed(steps, start, start + lasts))
    assert price_at(steps, start) == pytest.approx(HOUR_S * summed(steps, start, start + 1))


@given(STEPS, st.integers(0, 9_000), st.integers(0, 9_000), st.booleans())
def test_a_stay_costs_its_seconds_60_at_least_and_nothing_if_taken_within_the_hour(
    steps: list[tuple[int, float]], launched: int, lasts: int, taken: bool
) -> None:
    cost = charge(InstanceUsage("m", "a", launched, launched + lasts, taken, 2.0), steps, 1e9)
    whole = summed(steps, launched, launched + max(60, lasts))
    assert cost.free == (taken and lasts < 3600)
    assert cost.dollars == pytest.approx(0.0 if cost.free else whole)
    assert cost.on_demand == pytest.approx(2.0 * max(60, lasts) / 3600)
    assert cost.seconds == lasts


def test_who_lives_still_is_billed_until_now_and_not_free_yet() -> None:
    living = charge(InstanceUsage("m", "a", 100.0, None, True, 0.2), [(0.0, 0.1)], 1_900.0)
    assert (living.free, living.dollars, living.seconds) == (False, pytest.approx(0.05), 1_800.0)


def test_a_market_without_history_counts_at_its_full_price_if_that_is_known() -> None:
    known, unknown = (charge(InstanceUsage("m", "a", 0.0, HOUR_S, False, full), None, HOUR_S) for full in (0.2, 0.0))
    assert (known.dollars, known.basis) == (pytest.approx(0.2), Basis.ON_DEMAND)
    assert (unknown.dollars, unknown.basis) == (0.0, Basis.NOTHING)


def test_stays_in_several_markets_add_up() -> None:
    stays = [
        InstanceUsage("m", "a", 0.0, 3 * HOUR_S),
        InstanceUsage("m", "b", 0.0, None),
        InstanceUsage("m", "b", 0.0, 10.0, taken=True),
    ]
    prices = {"m/a": [[0.0, 0.1], [HOUR_S, 0.3]], "m/b": [[0.0, 1.0]]}
    assert spent(stays, prices, 2 * HOUR_S) == pytest.approx(0.1 + 2 * 0.3 + 2 * 1.0)


def test_leaving_comes_before_the_money_is_gone() -> None:
    assert may_spend(BudgetState(10.0, 1.0, 4.0, 0.0, 1.0))[0] is Spend.GO_ON
    decision, reason = may_spend(BudgetState(10.0, 9.0, 2.0, 0.0, 1.5))
    assert (decision, reason) == (
        Spend.NO_MORE,
        "$9.00 of $10.00 spent; with one more the rest would last 17 min at $3.50/h",
    )
    assert may_spend(BudgetState(10.0, 9.9, 2.0))[0] is Spend.LEAVE
    assert may_spend(BudgetState(10.0, 9.9, 0.5, under_way=1.5))[0] is Spend.LEAVE, "what is asked for is paid, too"
    assert may_spend(BudgetState(10.0, 10.0, 0.0))[0] is Spend.LEAVE


def test_as_many_instances_are_affordable_as_can_stay_a_while() -> None:
    hours = (LEAVE_S + MIN_STAY_S) / HOUR_S
    assert affordable(BudgetState(1.0, 0.0, 0.0, another=0.2)) == int(1.0 / (0.2 * hours))
    assert affordable(BudgetState(1.0, 0.5, 0.0, another=0.2)) == int(0.5 / (0.2 * hours))
    assert affordable(BudgetState(1.0, 0.0, 3.5, another=0.2)) == 0, "those that are there have it"
    assert affordable(BudgetState(1.0, 0.0, 0.0)) == 0, "the price is unknown"
    assert affordable(BudgetState(1.0, 2.0, 0.0, another=0.2)) == 0


@given(
    budget=st.floats(0.5, 10.0),
    full=st.floats(0.05, 4.0),
    wanted=st.integers(1, 8),
    shares=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30),
    boots=st.integers(0, 3),
)
@settings(deadline=None)
def test_a_fleet_that_asks_once_a_minute_never_exceeds_its_budget(
    budget: float, full: float, wanted: int, shares: list[float], boots: int
) -> None:
    """The budget holds for any prices below the full price. Instances start `boots` checks after the request, and are
    billed from then on until LEAVE_S - LOOK_S after the request to leave."""
    steps = [(10 * LOOK_S * k, full * share) for k, share in enumerate(shares)]
    launched: list[float] = []
    for look in range(600):
        now_s = look * LOOK_S
        stays = [InstanceUsage("m", "a", at_s) for at_s in launched if at_s <= now_s]
        coming = len(launched) - len(stays)
        sofar = spent(stays, {"m/a": steps}, now_s)
        decision, _ = may_spend(BudgetState(budget, sofar, full * len(stays), full * coming, full))
        if decision is Spend.LEAVE:
            left_s = now_s + LEAVE_S - LOOK_S
            bill = spent([InstanceUsage("m", "a", at_s, max(at_s, left_s)) for at_s in launched], {"m/a": steps}, 1e9)
            assert bill <= budget + 1e-9
            return
        if decision is Spend.GO_ON and len(launched) < wanted:
            launched.append(now_s + boots * LOOK_S)
    assert not launched or spent([InstanceUsage("m", "a", at_s) for at_s in launched], {"m/a": steps}, now_s) <= budget


@pytest.mark.parametrize("budget", [0.0, -1.0, 0.049, math.nan, math.inf])
def test_a_budget_below_an_instance_hour_is_refused(budget: float) -> None:
    with pytest.raises(UsageError, match=r"less than one instance-hour, which is \$0.05|expected"):
        check_budget(budget, 0.05, 0.2)


def test_a_budget_that_could_not_keep_one_instance_is_refused() -> None:
    with pytest.raises(UsageError, match=r"may cost up to \$4/h"):
        check_budget(1.0, 0.05, 4.0)
    check_budget(0.07, 0.05, 0.2)


def test_an_estimate_names_the_cheapest_and_the_dearest_market() -> None:
    day = 24 * HOUR_S
    offers = [
        offer("c5.large", "a", [(0.0, 0.02), (day / 2, 0.04)], day, 0.1),
        offer("c5.large", "b", [(0.0, 0.05), (2 * day, 9.0)], day, 0.1),
    ]
    assert (offers[0].average, offers[0].highest, offers[1].highest) == (pytest.approx(0.03), 0.04, 0.05)
    assert estimated(offers, 4, 2.0) == [
        "4 instances: $0.16/h in c5.large in a, $0.2/h in c5.large in b, at the prices of now; on demand $0.4/h",
        "in the past c5.large was $0.03/h on average and $0.04/h at most there; prices may change while the run goes "
        "on",
        "the budget of $2 lasts 10 to 12.5 h",
    ]
    with pytest.raises(UsageError, match="no market has a spot price"):
        estimated([], 4)


@pytest.mark.parametrize(
    ("full", "max_price", "most"),
    [(0.2, None, 0.2), (0.2, 0.1, 0.1), (0.2, 0.5, 0.2), (0.0, 0.1, 0.1), (0.0, None, 0.06)],
)
def test_what_an_instance_may_cost(full: float, max_price: float | None, most: float) -> None:
    assert offer("m", "a", [(0.0, 0.06), (9.0, 0.04)], 10.0, full).at_most(max_price) == most


def test_a_minute_is_billed_at_least() -> None:
    assert charge(InstanceUsage("m", "a", 0.0, 1.0), [(0.0, 1.0)], 1.0).dollars == pytest.approx(MIN_BILLED_S / HOUR_S)
