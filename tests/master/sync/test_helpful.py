"""The number of helpful workers, from the common part and the spread of their pushes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.sync.spread import MIN_PUSHES, Spread, helpful_workers, noise_scale

SIZES = st.floats(1e-6, 1e6)


@given(SIZES, SIZES, st.floats(1, 1e4))
def test_half_of_the_work_is_lost_by_one_worker_more_than_help(common: float, noise: float, vertices: float) -> None:
    """With known |G|² and tr(Σ), the gain of c workers agrees with the formula of Pollux."""
    spread = Spread(100.0, common, 0.0, vertices * common + noise, vertices)
    scale, known = noise_scale(spread)
    assert known and scale == pytest.approx(noise / common, rel=1e-6, abs=1e-8 * vertices)

    def worth(workers: float) -> float:
        return workers * (scale + vertices) / (scale + workers * vertices)

    helpful, _ = helpful_workers(spread)
    assert helpful is not None and helpful >= 1
    assert worth(1e12) <= helpful + 1 + 1e-6  # for any number of workers
    assert worth(2 + scale / vertices) == pytest.approx((2 + scale / vertices) / 2)
    assert worth(helpful) > helpful / 2


def test_it_is_said_only_when_enough_was_seen() -> None:
    spread = Spread(MIN_PUSHES - 1, 1.0, 0.1, 2.0, 1.0)
    assert helpful_workers(spread) == (None, "15 pushes were compared with those of others, expected 16")
    assert helpful_workers(Spread(0.0, 0.0, 0.0, 0.0, 0.0))[0] is None
    assert helpful_workers(Spread(50.0, 0.0, 0.0, 0.0, 10.0))[0] is None  # nothing moves
    assert helpful_workers(Spread(50.0, 0.0, 0.0, 1.0, 10.0)) == (None, "the pushes have no direction in common")


def test_where_noise_hides_the_common_direction_it_is_a_lower_bound() -> None:
    sure = Spread(100.0, 1.0, 0.01, 110.0, 10.0)
    unsure = Spread(100.0, 0.5, 1.0, 105.0, 10.0)
    assert helpful_workers(sure) == (
        11,
        "the noise of the pushes is as large as what they have in common at 100 vertices, and a push has 10",
    )
    count, reason = helpful_workers(unsure)
    assert count == 1 + int(100.0 / 2.5 / 10.0) and "at no fewer than 40 vertices" in reason
    opposed, _ = helpful_workers(Spread(100.0, -3.0, 1.0, 100.0, 10.0))
    assert opposed == 6 and math.isfinite(noise_scale(Spread(100.0, -3.0, 1.0, 100.0, 10.0))[0])
