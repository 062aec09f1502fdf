"""The length of the tail of an epoch, and the versions that are kept for it."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from master.sync.version_use import MAX_BYTES, MAX_TAIL_VERSIONS, tail_candidates, tail_of, tail_width

COUNTS = st.integers(1, 10**9)


@given(COUNTS, st.integers(1, 100), st.data(), st.floats(0, 1))
def test_it_is_no_longer_than_an_epoch_nor_than_a_quarter_of_what_is_credited(
    epoch: int, epochs: int, data: st.DataObject, rate: float
) -> None:
    credited = epoch * data.draw(st.integers(1, epochs))
    width = tail_width(credited, epoch, epoch * epochs, rate)
    assert 0 <= width <= min(epoch, 0.25 * credited)
    assert width <= tail_width(epoch * epochs, epoch, epoch * epochs, 1.0)


def test_where_the_rate_has_fallen_to_nothing_there_is_none() -> None:
    assert tail_width(6_000, 1_000, 6_000, 0.0) == 0
    assert tail_of({0: 0, 1: 10, 2: 20}, 2, 0, 1) == []


STREAMS = st.lists(st.integers(0, 40), min_size=1, max_size=80)  # vertices credited in one version after the other


def versions_of(credits: list[int]) -> dict[int, int]:
    return dict(enumerate(accumulate(credits, initial=0)))


@given(STREAMS, st.integers(1, 500), st.integers(0, 1 << 31))
def test_tail_versions_are_spaced_and_stay_within_their_share_of_the_disk(
    credits: list[int], width: int, nbytes: int
) -> None:
    kept, end = versions_of(credits), len(credits)
    tail = tail_of(kept, end, width, nbytes)
    assert tail == sorted(set(tail))
    assert all(
        version < end and kept[end] - max(width, MAX_TAIL_VERSIONS) < kept[version] < kept[end] for version in tail
    )
    assert len(tail) < MAX_TAIL_VERSIONS
    assert (len(tail) + 1) * nbytes <= MAX_BYTES or not tail


@given(STREAMS, st.integers(1, 500))
def test_what_is_kept_for_it_on_the_way_is_all_that_it_needs(credits: list[int], width: int) -> None:
    versions, kept = versions_of(credits), {0: 0}
    for version in range(1, len(credits) + 1):
        kept[version] = versions[version]
        needed = {version, *tail_candidates(kept, version, width, 1)}
        kept = {each: credited for each, credited in kept.items() if each in needed}
        assert len(needed) <= MAX_TAIL_VERSIONS + 1
    newest = len(credits)
    assert tail_of(kept, newest, width, 1) == tail_of(versions, newest, width, 1)


def test_the_first_version_of_each_piece_is_in_it() -> None:
    versions = {version: 10 * version for version in range(101)}
    assert tail_of(versions, 100, 400, 1) == [65, 70, 75, 80, 85, 90, 95]
    assert tail_of(versions, 98, 400, 1) == [65, 70, 75, 80, 85, 90, 95]
    assert tail_of(versions, 100, 400, MAX_BYTES // 2) == [80]
    assert tail_of(versions, 100, 400, MAX_BYTES) == []


def test_a_copy_of_the_end_is_not_in_its_tail() -> None:
    assert tail_of({1: 50, 2: 100, 3: 100}, 3, 80, 1) == [1]
