"""Policies of spot pools as pure functions: back-off and timeouts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from master.backends.ec2.answers import (
    ACCOUNT_PAUSE_S,
    FIRST_ENROLMENT_S,
    NOTICE_S,
    POOL_PAUSE_S,
    SHUTDOWN_S,
    Refusal,
    Refusals,
    SpotPool,
    after_refusal,
    concerns_account,
    is_boot_overdue,
    is_master_unreachable,
    is_overdue,
    no_pool_left,
    pools_to_ask,
)

A, B = SpotPool("c5.xlarge", "x-1a"), SpotPool("m5.xlarge", "x-1b")
passing = st.sampled_from([Refusal.CAPACITY, Refusal.PRICE, Refusal.QUOTA, Refusal.OTHER])


@given(st.lists(passing, min_size=1, max_size=40), st.booleans())
def test_pauses_double_up_to_a_limit(refusals: list[Refusal], of_account: bool) -> None:
    first_s, most_s = ACCOUNT_PAUSE_S if of_account else POOL_PAUSE_S
    refused, pauses = Refusals(), []
    for because in refusals:
        refused, reason = after_refusal(refused, because, 1000.0, of_account=of_account)
        pauses.append(refused.until_s - 1000.0)
        assert str(because) in reason and not refused.for_good
    assert pauses == [min(most_s, first_s * 2**n) for n in range(len(refusals))]


def test_a_pool_is_left_alone_for_as_long_as_it_was_said() -> None:
    refused, _ = after_refusal(Refusals(), Refusal.CAPACITY, 0.0)
    for now, asked in ((0.0, [B]), (POOL_PAUSE_S[0] - 1, [B]), (POOL_PAUSE_S[0], [A, B])):
        assert pools_to_ask([A, B], {A: refused}, Refusals(), now)[0] == asked


def test_what_the_account_is_refused_holds_for_all_pools() -> None:
    account, _ = after_refusal(Refusals(), Refusal.QUOTA, 0.0, of_account=True)
    pools, reason = pools_to_ask([A, B], {}, account, 1.0)
    assert pools == [] and "quota" in reason
    denied, _ = after_refusal(Refusals(), Refusal.DENIED, 0.0, of_account=True)
    assert pools_to_ask([A, B], {}, denied, 1e9)[0] == []


def test_a_pool_that_is_unsuited_is_never_asked_again() -> None:
    refused, reason = after_refusal(Refusals(), Refusal.UNSUITED, 0.0)
    assert refused.for_good and "not asked again" in reason
    assert pools_to_ask([A, B], {A: refused}, Refusals(), 1e9)[0] == [B]
    assert no_pool_left([A, B], {A: refused}) == (False, "some pool may have capacity later")
    assert no_pool_left([A, B], {A: refused, B: refused})[0]
    no_capacity, _ = after_refusal(Refusals(), Refusal.CAPACITY, 0.0)
    assert not no_pool_left([A, B], {A: refused, B: no_capacity})[0]


def test_only_a_quota_and_unknown_errors_concern_the_account() -> None:
    assert concerns_account({Refusal.QUOTA, Refusal.CAPACITY})[0]
    assert concerns_account({Refusal.OTHER})[0]
    assert not concerns_account({Refusal.OTHER, Refusal.CAPACITY})[0]
    assert not concerns_account({Refusal.CAPACITY})[0]
    assert not concerns_account(set())[0]


def test_an_instance_boots_too_long_from_its_patience_on() -> None:
    assert not is_boot_overdue(100.0, 399.9, 300.0)[0]
    assert is_boot_overdue(100.0, 400.0, 300.0)[0]


def test_a_master_is_out_of_reach_where_the_oldest_instance_is_silent() -> None:
    assert not is_master_unreachable([], 1e9, any_enrolled=False)[0]
    assert not is_master_unreachable([0.0], FIRST_ENROLMENT_S - 1, any_enrolled=False)[0]
    silent, reason = is_master_unreachable([5.0, 0.0], FIRST_ENROLMENT_S, any_enrolled=False)
    assert silent and reason.startswith("2 instances run")
    assert not is_master_unreachable([0.0], 1e9, any_enrolled=True)[0]


def test_who_is_to_be_taken_may_stay_for_its_notice() -> None:
    assert not is_overdue(0.0, SHUTDOWN_S - 1, notified=False)[0]
    assert is_overdue(0.0, SHUTDOWN_S, notified=False)[0]
    assert not is_overdue(0.0, NOTICE_S - 1, notified=True)[0]
    assert is_overdue(0.0, NOTICE_S, notified=True)[0]
