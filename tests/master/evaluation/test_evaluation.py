"""How long evaluate may take, how much memory, and how often it is tried."""

from __future__ import annotations

from master.evaluation.apart import LEAST_S, LONGEST_S, after_death, limit_s, most_memory


def test_the_limit_follows_the_epoch_within_bounds() -> None:
    assert limit_s(0.0) == limit_s(10.0) == LEAST_S
    assert limit_s(7200.0) == 72_000.0
    assert limit_s(1e12) == LONGEST_S < 2**31 / 1000, "which is the most that poll takes, in milliseconds"


def test_half_of_the_memory_is_for_others() -> None:
    assert most_memory(64 << 30) == 32 << 30


def test_a_process_that_dies_is_tried_once_more() -> None:
    assert after_death(1) == (True, "it is tried once more")
    assert after_death(2) == (False, "2 times in a row")
