"""Ticks: a pass is cut into mini-batches of parts without gap or overlap, and slack bounds how far parts are apart.
Consistency: what follows from the bound of a program."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gridml
from gridml.model.order import EpochOrder
from gridml.model.ticks import Consistency, ReadBound, Ticks, may_begin

degrees = st.lists(st.integers(0, 9) | st.integers(0, 500), min_size=1, max_size=80).map(np.array)
by_size = st.builds(Ticks.of, st.integers(1, 300), st.integers(1, 20), st.integers(1, 50))
made = by_size | st.builds(Ticks.by_edges, degrees, st.integers(1, 20), st.integers(1, 100))


@given(st.integers(1, 300), st.integers(1, 20), st.integers(1, 50))
def test_mini_batches_cover_a_pass_and_parts_are_alike(vertices: int, parts: int, size: int) -> None:
    ticks = Ticks.of(vertices, parts, size)
    sizes = np.diff(ticks.mini_batches(np.arange(vertices)).ends, prepend=0)
    assert len(sizes) == ticks.parts * ticks.count and ticks.parts == min(parts, vertices)
    assert sizes.min() >= 1 and sizes.sum() == vertices and sizes.max() == ticks.largest
    assert ticks.largest <= (size if size > 1 else 2)
    of_parts = sizes.reshape(ticks.parts, ticks.count).sum(1)
    assert of_parts.max() - of_parts.min() <= 1
    # Fewer mini-batches would be too large.
    assert ticks.count == 1 or of_parts.max() > size * (ticks.count - 1)


@given(degrees, st.integers(1, 20), st.integers(1, 100), st.integers(0, 3))
def test_mini_batches_have_nearly_equal_edges(edges: np.ndarray, parts: int, wanted: int, epoch: int) -> None:
    ticks = Ticks.by_edges(edges, parts, wanted)
    order = EpochOrder(len(edges), 1, epoch, "all", ticks=ticks)
    assert order.mini_batches is not None
    ends = order.mini_batches.ends
    assert len(ends) == ticks.parts * ticks.count and ticks.parts == min(parts, len(edges))
    sizes = np.diff(ends, prepend=0)
    assert sizes.min() >= 1 and sizes.max() <= ticks.largest <= len(edges) and ends[-1] == len(edges)
    work = np.clip(edges, 1, wanted)
    share = work.sum() / len(ends)
    # Where a part has too few vertices for more mini-batches, a share may exceed what is wanted.
    assert share <= wanted or ticks.count == len(edges) // ticks.parts
    at = order.vertices(0, len(edges))
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        assert work[at[begin : end - 1]].sum() <= share, "none has a share before its last vertex"
        if share <= wanted:
            assert (edges[at[begin : end - 1]] <= wanted).all(), "a larger vertex is the last of its mini-batch"
    # None begins later than its share asks, unless those before it have one vertex each.
    begins = np.concatenate([[0], np.cumsum(work[at])])[ends - sizes]
    late = begins >= np.arange(len(ends)) * share + wanted + 1
    assert (sizes[:-1][late[1:]] == 1).all()


def test_vertices_with_many_edges_are_few_in_a_mini_batch() -> None:
    edges = np.array([3, 1, 0, 40, 2, 2, 1, 1, 9, 1])
    ticks = Ticks.by_edges(edges, 1, 10)
    made = ticks.mini_batches(np.arange(10))
    assert np.split(edges, made.ends[:-1])[0].tolist() == [3, 1, 0, 40]
    assert [int(part.sum()) for part in np.split(edges, made.ends[:-1])] == [44, 2, 13, 1]
    # As many in another order, and in two parts.
    assert len(ticks.mini_batches(np.arange(10)[::-1]).ends) == 4
    both = Ticks.by_edges(edges, 2, 10)
    assert (both.parts, both.count) == (2, 2)
    assert [part.tolist() for part in np.split(edges, both.mini_batches(np.arange(10)).ends[:-1])] == [
        [3, 1, 0, 40], [2], [2, 1, 1, 9], [1],
    ]  # fmt: skip


@given(made)
def test_every_position_has_its_mini_batch(ticks: Ticks) -> None:
    order = EpochOrder(ticks.vertices, 1, 0, "all", ticks=ticks)
    batches = order.mini_batches
    assert batches is not None
    for position in range(ticks.vertices):
        part, tick = batches.place(position)
        end = int(batches.ends[part * ticks.count + tick])
        assert batches.stop(position) == end == order.boundary(position + 1)
    assert len(batches.borders) == ticks.parts - 1
    assert [batches.place(border) for border in batches.borders] == [(part, 0) for part in range(1, ticks.parts)]
    ends = order.ends(0, ticks.vertices)
    assert ends is not None and ends.tolist() == batches.ends.tolist()
    np.testing.assert_array_equal(np.sort(order.vertices(0, ticks.vertices)), np.arange(ticks.vertices))


@given(made, st.integers(0, 4), st.randoms(use_true_random=False))
def test_parts_that_begin_when_they_may_stay_within_slack_and_reach_the_end(
    ticks: Ticks, slack: int, chance: object
) -> None:
    """Parts begin and complete mini-batches in any order that `may_begin` allows."""
    draw = np.random.default_rng(chance.getrandbits(32))  # type: ignore[attr-defined]
    clocks, training = [0] * ticks.parts, set[int]()
    for _ in range(2 * ticks.parts * ticks.count):
        able = [
            part
            for part in range(ticks.parts)
            if part not in training and clocks[part] < ticks.count and may_begin(clocks, part, clocks[part], slack)[0]
        ]
        assert able or training, "no part waits for ever"
        if able and (not training or draw.random() < 0.5):
            part = int(draw.choice(able))
            assert clocks[part] - min(clocks) <= slack
            training.add(part)
        else:
            part = int(draw.choice(sorted(training)))
            training.remove(part)
            clocks[part] += 1
    assert clocks == [ticks.count] * ticks.parts and not training


def test_the_reasons_name_what_is_waited_for() -> None:
    assert may_begin([2, 0], 0, 2, 1) == (
        False,
        "part 2 is at mini-batch 1, and slack 1 lets none be further ahead",
    )
    assert may_begin([2, 0], 0, 3, 9) == (False, "mini-batch 3 of part 1 is not complete")
    assert may_begin([2, 1], 0, 2, 1)[0]
    assert Ticks.of(12, 2, 3).mini_batches(np.arange(12)).clocks([4, 9]) == [1, 1]


class Total(gridml.Vertex):
    sum = gridml.array("int64")
    aggregate = gridml.add()


class Cell(gridml.Vertex):
    value = gridml.array("int64", mutable=True)
    left = gridml.edge("Cell")


class Row(gridml.Vertex):
    total = gridml.edge(Total)


@gridml.update
def follow(cell: Cell, left: Cell) -> None: ...
@gridml.update
def count(row: Row, total: Total) -> None: ...
@gridml.exchange(over=Row)
def add_up(row: Row, total: Total) -> None: ...


@pytest.mark.parametrize(
    ("given", "bound", "asked"),
    [
        ({"replicates": False}, ReadBound.PASS, "is_bsp is_sequential"),
        ({"replicates": False, "is_sequential": True}, ReadBound.PASS, "is_bsp is_sequential"),
        ({"replicates": True}, ReadBound.NONE, "grants_ahead"),
        ({"replicates": True, "is_sequential": True}, ReadBound.NONE, "grants_ahead is_sequential"),
        ({"replicates": True, "slack": 0}, ReadBound.TICKS, "waits merges_whole_ticks is_sequential"),
        ({"replicates": True, "slack": 2}, ReadBound.TICKS, "waits is_sequential"),
        ({"replicates": True, "slack": 2, "at_owner": True}, ReadBound.TICKS, "waits merges_whole_ticks is_sequential"),
        (
            {"replicates": False, "slack": 0, "is_linked": True},
            ReadBound.TICKS,
            "is_bsp waits merges_whole_ticks is_sequential",
        ),
    ],
)
def test_what_follows_from_a_consistency(given: dict[str, Any], bound: ReadBound, asked: str) -> None:
    made = Consistency.of(**given)
    names = ("is_bsp", "grants_ahead", "waits", "merges_whole_ticks", "is_sequential")
    assert " ".join(name for name in names if getattr(made, name)) == asked
    assert (made.bound, made.slack) == (bound, given.get("slack", math.inf))


def test_the_consistency_of_a_program_is_that_of_its_types_and_stages() -> None:
    def of(work: Any, **more: Any) -> Consistency:
        return gridml.Program(gridml.Graph, work, **more).consistency

    assert of(follow) == Consistency.of(replicates=False)
    assert of(count) == of([gridml.MiniBatch([count], size=1)]) == Consistency(ReadBound.NONE)
    assert of(count, overlap=False) == Consistency(ReadBound.NONE, is_sequential=True)
    assert of([gridml.MiniBatch([add_up], size=3)]) == Consistency(ReadBound.NONE)
    assert of([gridml.MiniBatch([add_up], size=3, slack=1)]) == Consistency(ReadBound.TICKS, 1, is_sequential=True)


@given(st.integers(1, 40), st.integers(1, 5), st.none() | st.integers(1, 9), st.integers(1, 3), st.integers(1, 4))
def test_a_vertex_has_a_position_for_every_phase_and_block(
    vertices: int, parts: int, size: int | None, phases: int, blocks: int
) -> None:
    blocks = blocks if size is None else 1  # of a replicated type: parts are not divided
    ticks = Ticks.of(vertices, parts, size, phases, blocks)
    order = EpochOrder(vertices, 1, 0, "all", ticks=ticks)
    batches = order.mini_batches
    assert batches is not None and order.count == ticks.positions == vertices * phases * blocks
    assert ticks.count == Ticks.of(vertices, parts, size).count * phases * blocks
    found = np.bincount(order.vertices(0, ticks.positions), minlength=vertices)
    assert (found == phases * blocks).all()
    starts = [0, *batches.ends[:-1].tolist()]
    for number, (start, stop) in enumerate(zip(starts, batches.ends.tolist(), strict=True)):
        part, tick = batches.place(start)
        assert (part, tick) == divmod(number, ticks.count) == batches.place(stop - 1)
        if tick % (phases * blocks):  # another phase, or block, has the same vertices
            before = order.vertices(starts[number - 1], start)
            np.testing.assert_array_equal(order.vertices(start, stop), before)
        assert ticks.block(tick) == tick // phases % blocks


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.randoms(use_true_random=False))
def test_no_phase_but_the_first_begins_before_all_parts_have_done_the_one_before(
    parts: int, count: int, phases: int, slack: int, chance: object
) -> None:
    draw = np.random.default_rng(chance.getrandbits(32))  # type: ignore[attr-defined]
    ticks = Ticks.of(parts * count, parts, 1, phases)
    clocks = [0] * parts
    while min(clocks) < ticks.count:
        able = [
            part
            for part, clock in enumerate(clocks)
            if clock < ticks.count and may_begin(clocks, part, clock, ticks.slack_of(clock, slack))[0]
        ]
        assert able, "no part waits for ever"
        part = int(draw.choice(able))
        mini_batch, phase = divmod(clocks[part], phases)
        assert min(clocks) >= (clocks[part] if phase else max(0, mini_batch - slack) * phases)
        clocks[part] += 1
