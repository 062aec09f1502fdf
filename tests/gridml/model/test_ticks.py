"""Ticks: a pass is cut into mini-batches of parts without gap or overlap, and slack bounds how far parts are apart."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridml.model.order import EpochOrder
from gridml.model.ticks import Ticks, may_begin

made = st.builds(Ticks.of, st.integers(1, 300), st.integers(1, 20), st.integers(1, 50))


@given(st.integers(1, 300), st.integers(1, 20), st.integers(1, 50))
def test_mini_batches_cover_a_pass_and_parts_are_alike(vertices: int, parts: int, size: int) -> None:
    ticks = Ticks.of(vertices, parts, size)
    sizes = np.diff(ticks.ends, prepend=0)
    assert len(sizes) == ticks.parts * ticks.count and ticks.parts == min(parts, vertices)
    assert sizes.min() >= 1 and sizes.sum() == vertices and sizes.max() == ticks.largest
    assert ticks.largest <= (size if size > 1 else 2)
    of_parts = sizes.reshape(ticks.parts, ticks.count).sum(1)
    assert of_parts.max() - of_parts.min() <= 1
    # Fewer mini-batches would be too large.
    assert ticks.count == 1 or of_parts.max() > size * (ticks.count - 1)


@given(made)
def test_every_position_has_its_mini_batch(ticks: Ticks) -> None:
    order = EpochOrder(ticks.vertices, 1, 0, "all", ticks=ticks)
    for position in range(ticks.vertices):
        part, tick = ticks.place(position)
        end = int(ticks.ends[part * ticks.count + tick])
        assert ticks.stop(position) == end == order.boundary(position + 1)
    assert len(ticks.borders) == ticks.parts - 1
    assert [ticks.place(border) for border in ticks.borders] == [(part, 0) for part in range(1, ticks.parts)]
    ends = order.ends(0, ticks.vertices)
    assert ends is not None and ends.tolist() == ticks.ends.tolist()
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
    assert Ticks.of(12, 2, 3).clocks([4, 9]) == [1, 1]
