"""How long the tail of an epoch is, and which versions are kept for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from master.decisions.tail import KEPT_BYTES, MOST, marks, span, tail_of

COUNTS = st.integers(1, 10**9)


@given(COUNTS, st.integers(1, 100), st.data(), st.floats(0, 1))
def test_it_is_no_longer_than_an_epoch_nor_than_a_quarter_of_what_is_credited(
    epoch: int, epochs: int, data: st.DataObject, rate: float
) -> None:
    credited = epoch * data.draw(st.integers(1, epochs))
    width = span(credited, epoch, epoch * epochs, rate)
    assert 0 <= width <= min(epoch, 0.25 * credited)
    assert width <= span(epoch * epochs, epoch, epoch * epochs, 1.0)


def test_where_the_rate_has_fallen_to_nothing_there_is_none() -> None:
    assert span(6_000, 1_000, 6_000, 0.0) == 0
    assert marks(6_000, 0, 1) == []


@given(st.integers(0, 10**9), COUNTS, st.integers(0, 1 << 31))
def test_its_marks_lie_apart_before_the_end_and_take_no_more_than_their_share_of_the_disk(
    end: int, width: int, nbytes: int
) -> None:
    places = marks(end + width, width, nbytes)
    assert places == sorted(set(places))
    assert all(end < place < end + width for place in places)
    assert len(places) < MOST
    assert (len(places) + 1) * nbytes <= KEPT_BYTES or not places


@given(st.lists(st.integers(0, 40), min_size=1, max_size=80), st.integers(1, 500))
def test_what_is_kept_for_it_on_the_way_is_all_that_it_needs(credits: list[int], width: int) -> None:
    total, versions = 0, {0: 0}
    for version, credited in enumerate(credits, 1):
        total += credited
        versions[version] = total
    wanted, kept = marks(total, min(width, total), 1), {0: 0}
    for version in range(1, len(credits) + 1):
        kept[version] = versions[version]
        needed = {version, *tail_of(kept, wanted, version)}
        kept = {each: credited for each, credited in kept.items() if each in needed}
    newest = len(credits)
    assert tail_of(kept, wanted, newest) == tail_of(versions, wanted, newest)
    brute = {min((v for v in versions if v < newest and versions[v] >= mark), default=newest) for mark in wanted}
    assert tail_of(versions, wanted, newest) == sorted(brute - {newest})
