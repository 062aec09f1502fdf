"""Outliers among workers that trained the same range."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from master.trust.similarity import (
    CLOSE_SHARE,
    MAX_ODD,
    MIN_AGREEMENT,
    MIN_CHECKS,
    MIN_SHARE_OF_USUAL,
    Similarity,
    is_malicious,
    is_outlier,
    judge,
    min_share,
    usual_similarity,
)
from master.trust.spot_checks import MAX_CHECKS

NETWORK = "Network"
USUAL = {NETWORK: 0.6}
shares = st.floats(0.1, 1.0)


def three(low: float, high: float) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(low, high), min_size=3, max_size=3)


def like(cosine: float) -> Similarity:
    return {NETWORK: cosine}


def among(*true: bool, other: float = 0.0) -> dict[tuple[int, int], Similarity]:
    """Return similarities of repetitions, of which some are honest."""
    numbered = list(enumerate(true, 1))
    return {(a, b): like(1.0 if one and two else other) for (a, one), (b, two) in combinations(numbered, 2)}


def test_a_push_as_alike_as_usual_is_repeated_once() -> None:
    outcome = judge([like(0.5)], {}, USUAL)
    assert (outcome.again, outcome.odd, outcome.similarity) == (False, (), like(0.5))
    assert outcome.reason == "the cosine between push and repetition of Network is 0.5, usually 0.6"


def test_an_unlike_push_is_repeated_again_and_so_is_any_while_nothing_is_known() -> None:
    assert judge([like(0.1)], {}, USUAL).again
    assert judge([like(0.9)], {}, {}).again


def test_where_two_repetitions_agree_an_unlike_push_is_believed_to_be_so() -> None:
    outcome = judge([like(0.1), like(0.1)], among(True, True), USUAL)
    assert (outcome.again, outcome.odd, outcome.similarity) == (False, (), like(0.1))


def test_where_two_repetitions_agree_another_is_odd_even_if_nothing_is_known() -> None:
    outcome = judge([like(0.0), like(0.6), like(0.6)], among(False, True, True), {})
    assert (outcome.again, outcome.odd, outcome.similarity) == (False, (1,), like(0.6))
    outcome = judge([like(0.6), like(0.0), like(0.6)], among(True, False, True), {})
    assert outcome.odd == (2,)


@given(
    st.lists(st.floats(-1.0, MIN_AGREEMENT - 0.01), min_size=3, max_size=3),
    st.lists(st.floats(-1, 1), min_size=3, max_size=3),
)
def test_without_repeatability_of_f_there_are_no_outliers(between: list[float], to_push: list[float]) -> None:
    alike = {pair: like(cosine) for pair, cosine in zip(combinations((1, 2, 3), 2), between, strict=True)}
    outcome = judge([like(cosine) for cosine in to_push], alike, USUAL)
    assert (outcome.odd, outcome.similarity) == ((), None)


@given(st.integers(0, 3), st.booleans(), shares)
def test_one_liar_of_four_machines_is_the_odd_one(liar: int, settled: bool, usually: float) -> None:
    """Honest steps agree; a false one is similar to none, whether it is the push or a repetition."""
    honest = [machine != liar for machine in range(1, 4)]
    expected = {NETWORK: usually} if settled else {}
    to_push = [like(usually if liar != 0 and true else 0.0) for true in honest]
    for repeated in range(1, 4):
        alike = {pair: value for pair, value in among(*honest).items() if max(pair) <= repeated}
        outcome = judge(to_push[:repeated], alike, expected)
        if not outcome.again:
            break
    assert not outcome.again
    assert set(outcome.odd) <= {liar} - {0}
    if not settled and 0 < liar <= 2:
        assert outcome.odd == (liar,)
    assert outcome.similarity == like(0.0 if liar == 0 else usually)


honest = st.lists(st.floats(0.3, 1.0), min_size=8, max_size=MAX_CHECKS)


@given(honest, honest, st.lists(st.floats(-0.05, 0.05), min_size=7, max_size=MAX_CHECKS))
def test_who_goes_elsewhere_strays_and_the_others_do_not(
    one: list[float], other: list[float], bad: list[float]
) -> None:
    machines = [[like(cosine) for cosine in cosines] for cosines in (one, other, bad)]
    assert [is_outlier(own, [m for m in machines if m is not own])[0] for own in machines] == [False, False, True]


def test_who_looks_suspicious_is_looked_at_more_closely() -> None:
    assert min_share(like(0.5), 0, USUAL) == 0
    assert min_share(like(0.1), 0, USUAL) == CLOSE_SHARE
    assert min_share(like(0.5), 1, USUAL) == CLOSE_SHARE
    assert min_share(like(0.1), 0, {}) == 0, "the usual similarity is not known"


def test_a_few_checks_prove_nothing() -> None:
    others = [[like(0.6)] * 8] * 2
    assert not is_outlier([like(0.0)] * 3, others)[0]
    assert is_outlier([like(0.0)] * MAX_CHECKS, others)[0]
    assert not is_outlier([like(0.0)] * MAX_CHECKS, [])[0]


def test_machines_whose_pushes_are_alike_by_chance_do_not_stray() -> None:
    """Honest steps agree little if every push is one batch and most of a step is the optimiser's memory. One in
    thousands is an outlier by chance, so the seeds are fixed."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        machines = [[like(cosine) for cosine in rng.uniform(-0.2, 1.0, MAX_CHECKS)] for _ in range(4)]
        assert not any(is_outlier(own, [m for m in machines if m is not own])[0] for own in machines)


def test_what_is_usual_needs_several_machines_each_with_one_vote() -> None:
    assert usual_similarity([[like(0.5)] * 20]) == {}
    assert usual_similarity([[like(0.5)], [like(0.7)]]) == {}
    many, few = [like(0.5)] * 20, [like(0.7)] * (MIN_CHECKS // 2)
    assert usual_similarity([many, few]) == like(0.6)
    assert usual_similarity([many, few, few]) == like(0.7)


def test_groups_without_a_direction_are_not_compared() -> None:
    nowhere = [{NETWORK: 0.5, "noise": -0.01}] * MIN_CHECKS
    assert usual_similarity([nowhere, nowhere]) == like(0.5)


@given(st.dictionaries(st.sampled_from("abc"), st.floats(-1, 1)), st.dictionaries(st.sampled_from("abc"), shares))
def test_a_push_is_confirmed_or_repeated(cosines: dict[str, float], expected: dict[str, float]) -> None:
    outcome = judge([cosines], {}, expected)
    unlike = any(
        cosines[group] < MIN_SHARE_OF_USUAL * usually for group, usually in expected.items() if group in cosines
    )
    assert outcome.again == (unlike or not expected)
    assert (outcome.similarity is None) == outcome.again


def test_a_machine_may_be_odd_once() -> None:
    assert [is_malicious(times)[0] for times in range(MAX_ODD + 2)] == [False] * MAX_ODD + [True, True]
