"""Pushes are merged once each, in order, within their lease and their term."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.protocol.messages import Push, Verdict
from master.sync.pushes import MAX_DAMAGED, MAX_MALFORMED, LeaseFacts, admit, after_unreadable

LEASE = LeaseFacts("w1", 1, start=100, stop=200, upto=120, sequence=2, open=True)
NEXT = Push(lease=7, term=1, sequence=3, base=5, upto=140, vertices=20)


def test_the_push_that_continues_its_lease_is_merged() -> None:
    assert admit(NEXT, "w1", LEASE, base_kept=True)[0] is Verdict.MERGED


def test_a_push_to_the_very_end_is_merged() -> None:
    push = NEXT._replace(upto=200, vertices=80)
    assert admit(push, "w1", LEASE, base_kept=True)[0] is Verdict.MERGED


@pytest.mark.parametrize("lease", [LEASE, replace(LEASE, open=False, closed_because="the worker left")])
@pytest.mark.parametrize("base_kept", [True, False])
def test_the_last_push_again_is_recognised_even_when_all_else_has_gone(lease: LeaseFacts, base_kept: bool) -> None:
    again = NEXT._replace(sequence=2, upto=120)
    assert admit(again, "w1", lease, base_kept=base_kept)[0] is Verdict.REPEATED


@pytest.mark.parametrize(
    ("push", "worker", "lease", "base_kept", "says"),
    [
        (NEXT, "w1", None, True, "no lease 7"),
        (NEXT, "w2", LEASE, True, "held by w1"),
        (NEXT._replace(term=2), "w1", LEASE, True, "in term 1"),
        (NEXT, "w1", replace(LEASE, open=False, closed_because="worker evicted"), True, "worker evicted"),
        (NEXT._replace(sequence=4), "w1", LEASE, True, "expected 3"),
        (NEXT._replace(sequence=1, upto=110), "w1", LEASE, True, "expected 3"),
        (NEXT._replace(upto=201, vertices=81), "w1", LEASE, True, "[120, 200)"),
        (NEXT._replace(upto=120, vertices=0), "w1", LEASE, True, "[120, 200)"),
        (NEXT._replace(vertices=19), "w1", LEASE, True, "[120, 200)"),
        (NEXT, "w1", LEASE, False, "version 5"),
    ],
)
def test_everything_else_is_refused_with_its_reason(
    push: Push, worker: str, lease: LeaseFacts | None, base_kept: bool, says: str
) -> None:
    verdict, reason = admit(push, worker, lease, base_kept=base_kept)
    assert verdict is Verdict.REFUSED
    assert says in reason


def test_nothing_is_repeated_before_the_first_push() -> None:
    fresh = replace(LEASE, upto=100, sequence=0)
    assert admit(NEXT._replace(sequence=0, upto=100, vertices=0), "w1", fresh, base_kept=True)[0] is Verdict.REFUSED


pushes = st.builds(
    Push,
    lease=st.just(7),
    term=st.integers(0, 2),
    sequence=st.integers(0, 5),
    base=st.just(0),
    upto=st.integers(-1, 9),
    vertices=st.integers(-1, 9),
)


@given(st.lists(pushes, max_size=30), st.lists(st.integers(0, 9), max_size=3))
def test_whatever_comes_the_merged_pushes_are_disjoint_and_in_order(sent: list[Push], cuts: list[int]) -> None:
    lease = LeaseFacts("w1", 1, start=0, stop=9, upto=0, sequence=0, open=True)
    credited: list[int] = []
    for i, push in enumerate(sent):
        if i % 10 == 9 and cuts:
            lease = replace(lease, stop=max(lease.upto, min(lease.stop, cuts.pop())))
        verdict, _ = admit(push, "w1", lease, base_kept=True)
        if verdict is Verdict.MERGED:
            assert push.upto <= lease.stop
            credited += range(lease.upto, push.upto)
            assert push.vertices == push.upto - lease.upto
            lease = replace(lease, upto=push.upto, sequence=push.sequence)
            assert admit(push, "w1", lease, base_kept=True)[0] is Verdict.REPEATED
    assert credited == list(range(lease.upto))


def test_a_worker_with_invalid_messages_is_tolerated_for_a_while() -> None:
    heard, why = zip(*(after_unreadable(n, 0, 99) for n in range(1, MAX_MALFORMED + 2)), strict=True)
    assert heard == (True,) * (MAX_MALFORMED - 1) + (False, False)
    assert all(str(n) in reason for n, reason in enumerate(why, 1))


@pytest.mark.parametrize(
    ("damaged", "whole", "heard"),
    [
        (1, 0, True),
        (MAX_DAMAGED - 1, 0, True),
        (MAX_DAMAGED, 0, False),
        (MAX_DAMAGED, MAX_DAMAGED, True),
        (9, 8, False),
    ],
)
def test_a_worker_is_rejected_once_most_of_many_messages_are_damaged(damaged: int, whole: int, heard: bool) -> None:
    accepted, why = after_unreadable(0, damaged, whole)
    assert accepted is heard and str(damaged) in why
