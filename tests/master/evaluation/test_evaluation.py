"""The limits of evaluate: time, memory, and tries."""

from __future__ import annotations

from master.evaluation.subprocess_evaluator import MAX_LIMIT_S, MIN_LIMIT_S, limit_s, max_memory, should_retry


def test_the_limit_follows_the_epoch_within_bounds() -> None:
    assert limit_s(0.0) == limit_s(10.0) == MIN_LIMIT_S
    assert limit_s(7200.0) == 72_000.0
    assert limit_s(1e12) == MAX_LIMIT_S < 2**31 / 1000, "which is the most that poll takes, in milliseconds"


def test_half_of_the_memory_is_for_others() -> None:
    assert max_memory(64 << 30) == 32 << 30


def test_a_process_that_dies_is_tried_once_more() -> None:
    assert should_retry(1) == (True, "it is tried once more")
    assert should_retry(2) == (False, "2 times in a row")
