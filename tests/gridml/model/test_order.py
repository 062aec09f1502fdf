"""The order of an epoch: a permutation, a pure function of its seed, and its units are never cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.model.order import BLOCK, EpochOrder, PlacedParts, Shuffle, Units, ascending

SHUFFLES: list[Shuffle] = ["all", "block", "none"]
shuffles = st.sampled_from(SHUFFLES)
seeds = st.integers(0, 2**63)
epochs = st.integers(0, 1000)


@st.composite
def units(draw: st.DrawFn) -> Units:
    """Units of random sizes over a random numbering of the vertices."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=30))
    members = draw(st.permutations(range(sum(sizes))))
    return Units(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.array(members, np.int64))


@given(st.integers(0, 3 * BLOCK), seeds, epochs, shuffles)
def test_an_order_is_a_permutation(count: int, seed: int, epoch: int, shuffle: Shuffle) -> None:
    order = EpochOrder(count, seed, epoch, shuffle)
    np.testing.assert_array_equal(np.sort(order.vertices(0, count)), np.arange(count))


@given(st.integers(0, 500), seeds, epochs, shuffles, st.data())
def test_parts_of_an_order_join_to_the_whole_and_depend_on_its_arguments_only(
    count: int, seed: int, epoch: int, shuffle: Shuffle, data: st.DataObject
) -> None:
    middle = data.draw(st.integers(0, count))
    whole = EpochOrder(count, seed, epoch, shuffle).vertices(0, count)
    again = EpochOrder(count, seed, epoch, shuffle)
    np.testing.assert_array_equal(np.concatenate([again.vertices(0, middle), again.vertices(middle, count)]), whole)


@pytest.mark.parametrize("shuffle", ["all", "block"])
def test_seed_and_epoch_both_matter(shuffle: Shuffle) -> None:
    orders = {EpochOrder(1000, seed, epoch, shuffle).vertices(0, 1000).tobytes() for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


def test_an_order_stays_what_it_was_in_earlier_releases() -> None:
    """A resumed run relies on the same order, because credits are positions."""
    assert EpochOrder(10, 5, 3, "all").vertices(0, 10).tolist() == [9, 1, 0, 3, 4, 2, 7, 8, 6, 5]
    assert EpochOrder(10, 5, 3, "block").vertices(0, 10).tolist() == [9, 1, 0, 3, 4, 2, 7, 8, 6, 5]


def test_no_shuffle_keeps_the_order_of_the_graph() -> None:
    np.testing.assert_array_equal(EpochOrder(50, 1, 2, "none").vertices(0, 50), np.arange(50))


@given(st.integers(1, 4 * BLOCK), seeds, epochs)
def test_block_shuffle_stays_inside_blocks(count: int, seed: int, epoch: int) -> None:
    order = EpochOrder(count, seed, epoch, "block").vertices(0, count)
    np.testing.assert_array_equal(order // BLOCK, np.arange(count) // BLOCK)


def test_block_shuffle_mixes_a_block_and_blocks_differ() -> None:
    order = EpochOrder(2 * BLOCK, 0, 0, "block").vertices(0, 2 * BLOCK)
    first, second = order[:BLOCK], order[BLOCK:] - BLOCK
    assert (first != np.arange(BLOCK)).mean() > 0.99
    assert (first != second).mean() > 0.99


@given(units(), seeds, epochs, shuffles)
def test_an_order_of_units_is_a_permutation_that_keeps_each_unit_together(
    parts: Units, seed: int, epoch: int, shuffle: Shuffle
) -> None:
    count = len(parts.members)
    order = EpochOrder(count, seed, epoch, shuffle, parts)
    vertices = order.vertices(0, count)
    np.testing.assert_array_equal(np.sort(vertices), np.arange(count))
    ends = order.ends(0, count)
    assert ends is not None
    ordered = {tuple(part) for part in np.split(vertices, ends[:-1])}
    assert ordered == {tuple(part) for part in np.split(parts.members, parts.offsets[1:-1])}


@given(units(), seeds, shuffles, st.data())
def test_ranges_between_boundaries_never_cut_a_unit(
    parts: Units, seed: int, shuffle: Shuffle, data: st.DataObject
) -> None:
    count = len(parts.members)
    order = EpochOrder(count, seed, 0, shuffle, parts)
    start = order.boundary(data.draw(st.integers(0, count)))
    stop = order.boundary(data.draw(st.integers(start, count)))
    unit_of = np.empty(count, np.int64)
    unit_of[parts.members] = np.repeat(np.arange(len(parts.offsets) - 1), np.diff(parts.offsets))
    inside = order.vertices(start, stop)
    outside = np.concatenate([order.vertices(0, start), order.vertices(stop, count)])
    assert len(inside) == stop - start
    assert not set(unit_of[inside]) & set(unit_of[outside])
    ends = order.ends(start, stop)
    assert ends is not None
    assert ends.tolist() == [i + 1 for i in range(len(inside)) if i + 1 == len(inside) or
                             unit_of[inside[i]] != unit_of[inside[i + 1]]]  # fmt: skip


@given(units(), seeds, shuffles, st.integers(-5, 200))
def test_a_boundary_is_the_first_end_of_a_unit_from_a_position_on(
    parts: Units, seed: int, shuffle: Shuffle, position: int
) -> None:
    count = len(parts.members)
    order = EpochOrder(count, seed, 0, shuffle, parts)
    ends = order.ends(0, count)
    assert ends is not None
    expected = min((e for e in (0, *ends.tolist()) if e >= position), default=count)
    assert order.boundary(position) == expected


@given(st.integers(0, 50), st.integers(-5, 60))
def test_without_units_every_position_is_a_boundary(count: int, position: int) -> None:
    order = EpochOrder(count, 0, 0, "all")
    assert order.boundary(position) == min(max(position, 0), count)
    assert order.ends(0, count) is None


def test_the_largest_unit() -> None:
    assert Units(np.array([0, 2, 7, 8]), np.arange(8)).largest == 5
    assert Units(np.array([0]), np.arange(0)).largest == 0


@st.composite
def placed(draw: st.DrawFn) -> PlacedParts:
    """Parts of vertices whose labels are drawn; none is empty."""
    count = draw(st.integers(1, 6))
    labels = [*range(count), *draw(st.lists(st.integers(0, count - 1), max_size=60))]
    sections = draw(st.none() | st.lists(st.integers(0, 3), min_size=len(labels), max_size=len(labels)).map(np.array))
    return PlacedParts.of(np.array(draw(st.permutations(labels)), np.int32), count, sections)


@given(placed(), seeds, epochs, shuffles)
def test_a_part_stands_at_the_same_positions_in_every_epoch_and_holds_the_same_vertices(
    parts: PlacedParts, seed: int, epoch: int, shuffle: Shuffle
) -> None:
    count = len(parts.members)
    order = EpochOrder(count, seed, epoch, shuffle, parts=parts)
    np.testing.assert_array_equal(np.sort(order.vertices(0, count)), np.arange(count))
    for part in range(parts.count):
        start, stop = parts.offsets[part : part + 2].tolist()
        expected = parts.members[start:stop]
        np.testing.assert_array_equal(np.sort(order.vertices(start, stop)), np.sort(expected))
        if shuffle == "none":
            np.testing.assert_array_equal(order.vertices(start, stop), expected)
        for position in (start, stop - 1):
            assert (parts.part_of(position), parts.offsets[part + 1]) == (part, stop)
    again = EpochOrder(count, seed, epoch, shuffle, parts=parts)
    np.testing.assert_array_equal(again.vertices(0, count), order.vertices(0, count))


@given(placed(), seeds, epochs, shuffles)
def test_sections_of_a_part_stay_whole(parts: PlacedParts, seed: int, epoch: int, shuffle: Shuffle) -> None:
    borders = parts.section_borders.tolist()
    assert {*parts.offsets.tolist()} <= {*borders}
    order = EpochOrder(len(parts.members), seed, epoch, shuffle, parts=parts)
    section = np.empty(len(parts.members), np.int64)
    section[parts.members] = np.repeat(np.arange(len(borders) - 1), np.diff(borders))
    stands = section[order.vertices(0, len(section))]
    assert len(borders) - 1 == 1 + (np.diff(stands) != 0).sum()
    if shuffle != "all":
        np.testing.assert_array_equal(stands, np.sort(stands))


def test_sections_of_a_part_come_in_another_order_in_every_epoch() -> None:
    parts = PlacedParts.of(np.zeros(1_000, np.int32), 1, np.repeat(np.arange(10), 100))
    first, second = (EpochOrder(1_000, 0, epoch, "all", parts=parts).vertices(0, 1_000) // 100 for epoch in (1, 2))
    assert [*first[::100]] != [*second[::100]] != [*range(10)]
    assert sorted(first[::100]) == [*range(10)]


def test_parts_are_shuffled_each_in_its_own_way() -> None:
    parts = PlacedParts.of(np.repeat([0, 1], 2 * BLOCK), 2)
    whole = {}
    for shuffle in SHUFFLES:
        first, second = EpochOrder(4 * BLOCK, 3, 1, shuffle, parts=parts).vertices(0, 4 * BLOCK).reshape(2, 2 * BLOCK)
        whole[shuffle] = first
        assert np.array_equal(first, second - 2 * BLOCK) is (shuffle == "none")
    assert (whole["all"] // BLOCK != whole["none"] // BLOCK).mean() > 0.4
    np.testing.assert_array_equal(whole["block"] // BLOCK, whole["none"] // BLOCK)
    assert (whole["block"] != whole["none"]).mean() > 0.99
    assert not np.array_equal(whole["all"], EpochOrder(4 * BLOCK, 3, 2, "all", parts=parts).vertices(0, 2 * BLOCK))


def test_an_order_of_parts_stays_what_it_was_in_earlier_releases() -> None:
    parts = PlacedParts.of(np.array([0, 1] * 5), 2)
    assert EpochOrder(10, 5, 3, "all", parts=parts).vertices(0, 10).tolist() == [8, 2, 6, 0, 4, 5, 3, 1, 7, 9]
    assert EpochOrder(10, 5, 3, "block", parts=parts).vertices(0, 10).tolist() == [8, 2, 6, 0, 4, 5, 3, 1, 7, 9]


@given(st.lists(st.lists(st.integers(0, 40) | st.integers(0, 2**40)), min_size=1, max_size=3))
def test_a_union_is_sorted_and_a_new_array(sets: list[list[int]]) -> None:
    ids = [np.array(each, np.int64) for each in sets]
    for given_ids in (ids, [np.unique(np.concatenate(ids))]):
        found = ascending(*given_ids)
        assert found.dtype == np.int64 and found.tolist() == sorted({id for each in sets for id in each})
        assert not any(np.may_share_memory(found, each) for each in given_ids)


def test_a_late_descent_is_seen() -> None:
    assert ascending(np.array([*range(5_000), 7])).tolist() == [*range(5_000)]
