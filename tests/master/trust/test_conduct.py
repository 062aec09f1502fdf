"""Workers that push more than their machine can have trained, and workers that are no longer trusted."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.trust.trust import (
    MAX_PUSHES,
    MIN_FLAGS,
    MIN_PUSHES,
    SLACK,
    SLACK_ANY_KIND,
    CreditPace,
    is_echo,
    quarantine,
    too_fast,
)

HONEST = (False,) * MAX_PUSHES


def pace(rate: float, kind: str = "cpu", pushes: int = MIN_PUSHES) -> CreditPace:
    return CreditPace(round(rate * 100), 100.0, pushes, kind)


@given(st.floats(0.1, 1e6), st.lists(st.sampled_from(["cpu", "gpu"]), max_size=5))
def test_who_is_no_faster_than_others_is_never_too_fast(rate: float, kinds: list[str]) -> None:
    assert not too_fast(pace(rate), [pace(rate, kind) for kind in kinds])[0]


def test_a_worker_is_held_against_the_fastest_other_of_its_kind() -> None:
    others = [pace(10.0), pace(20.0), pace(1e6, "gpu")]
    fast, reason = too_fast(pace(20.0 * SLACK * 1.01), others)
    assert fast
    assert "10 times what the fastest other worker of its kind trains" in reason
    assert not too_fast(pace(20.0 * SLACK), others)[0]


def test_a_kind_of_its_own_is_held_against_all_with_more_slack() -> None:
    others = [pace(10.0), pace(20.0)]
    assert not too_fast(pace(20.0 * SLACK_ANY_KIND, "rare"), others)[0]
    assert too_fast(pace(20.0 * SLACK_ANY_KIND * 1.01, "rare"), others)[0]


@pytest.mark.parametrize("others", [[], [pace(1.0)], [pace(1.0), pace(1.0, pushes=MIN_PUSHES - 1)], [pace(0.0)] * 3])
def test_with_few_witnesses_nothing_is_too_fast(others: list[CreditPace]) -> None:
    assert not too_fast(pace(1e9), others)[0]


def test_what_comes_in_no_time_at_all_is_too_fast() -> None:
    assert too_fast(CreditPace(100, 0.0, 1), [pace(1.0, ""), pace(1.0, "")])[0]


def test_who_is_blamed_thrice_where_others_are_not_is_trusted_no_more() -> None:
    out, reason = quarantine([True] * MIN_FLAGS, [HONEST, HONEST])
    assert out and "3 of its last 3 pushes are not what others bring" in reason
    assert not quarantine([True] * (MIN_FLAGS - 1), [HONEST, HONEST])[0]


def test_where_others_are_blamed_as_well_the_program_is_to_blame() -> None:
    half = (True, False) * 4
    assert not quarantine([True] * MIN_FLAGS, [half, half])[0]
    assert quarantine([True] * MIN_FLAGS, [(True, *HONEST), HONEST])[0]


def flags(lengths: list[float]) -> int:
    """Return the flags that steps of these lengths count for, of which none is usual."""
    return sum(not is_echo(length, before) for before, length in pairwise([0.0, *lengths]))


@given(st.floats(1e-9, 1e9), st.floats(0.5, 0.99), st.integers(1, 100))
def test_the_momentum_of_one_long_step_counts_once(first: float, momentum: float, steps: int) -> None:
    assert flags([first * momentum**step for step in range(steps)]) == 1


@given(st.floats(1e-9, 1e9), st.integers(1, 100))
def test_steps_that_stay_long_count_each(length: float, steps: int) -> None:
    assert flags([length] * steps) == steps
    assert flags([length * (1 + step % 2) for step in range(steps)]) == 1 + steps // 2
    assert not is_echo(None, 1.0), "a push that is flagged for another reason"


@pytest.mark.parametrize("others", [[], [HONEST], [HONEST, ()]])
def test_one_other_is_no_majority(others: list[tuple[bool, ...]]) -> None:
    assert not quarantine([True] * MAX_PUSHES, others)[0]


def test_a_run_without_spot_checks_does_not_load_them() -> None:
    beyond = "{'master.trust.spot_checks', 'master.trust.similarity'}"
    program = f"import sys, master.wiring; sys.exit(bool({beyond} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
