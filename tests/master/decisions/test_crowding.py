"""How many workers a run is long enough for."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from master.decisions.crowding import FEW, NOTABLE, PUSHES_EACH, USUAL, Length, worth_asking

LENGTHS = st.builds(Length, st.integers(1, 10**12), st.floats(1, 1e9), st.integers(1, 1_000))


def count_of(length: Length, before: int | None = None) -> int:
    count, _ = worth_asking(length, before)
    assert count is not None
    return count


@given(LENGTHS)
def test_each_worker_pushes_often_enough_and_one_more_would_not(length: Length) -> None:
    count = count_of(length)
    pushes = length.vertices / length.interval
    assert count == FEW or pushes / count >= length.pushes_each
    assert pushes / (count + 1) < length.pushes_each


@given(LENGTHS, LENGTHS)
def test_a_longer_run_and_shorter_intervals_are_for_more(length: Length, other: Length) -> None:
    longer = Length(
        max(length.vertices, other.vertices), min(length.interval, other.interval), pushes_each=length.pushes_each
    )
    assert count_of(longer) >= count_of(length) >= FEW


@given(LENGTHS, st.integers(FEW, 10**9))
def test_a_number_that_hardly_changes_stays(length: Length, before: int) -> None:
    count, new = count_of(length, before), count_of(length)
    if before / NOTABLE < new < before * NOTABLE:
        assert count == before
    else:
        assert count == new


@given(LENGTHS, st.integers(FEW, 10**9))
def test_it_comes_to_rest(length: Length, before: int) -> None:
    first = count_of(length, before)
    assume(first != before)
    assert count_of(length, first) == first


def test_the_reason_has_the_figures() -> None:
    count, reason = worth_asking(Length(163_840))
    assert (count, USUAL, PUSHES_EACH) == (16, 1_024, 10)
    assert reason == (
        "163,840 vertices are 160 pushes of 1,024, and of more than 16 workers each would bring fewer than 10"
    )


def test_whoever_says_so_gets_all() -> None:
    assert worth_asking(Length(1, pushes_each=0)) == (None, "however seldom each pushes")
