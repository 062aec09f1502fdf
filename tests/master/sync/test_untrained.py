"""Changes of tensors that no optimiser trains: accepted or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from master.sync.buffers import Change, Growth, decide
from master.sync.gate import MAX_WAIT_S

INDEX = Change("Net/0/model/order", True, 2.0**62, False, False, 32, (), 0, 3)
"""`attack2`: an index that a worker sets to 2**62, before any other has pushed."""
WITHIN = replace(INDEX, growth=19.0, is_within=True)
COUNTER = replace(INDEX, name="Net/0/model/bn.num_batches_tracked", growth=1.0, is_number=True)
FLOAT = replace(INDEX, name="Net/0/model/mask", is_whole=False, growth=0.5)
CHANGES = {"index": INDEX, "within": WITHIN, "counter": COUNTER, "float": FLOAT}


@pytest.mark.parametrize("name", CHANGES)
def test_what_one_alone_changes_waits_for_another(name: str) -> None:
    for still in (0, 1):
        taking = decide(replace(CHANGES[name], still=still))
        assert not taking.is_taken
        assert taking.waits


@pytest.mark.parametrize("name", CHANGES)
def test_what_two_others_leave_alone_is_left_out(name: str) -> None:
    taking = decide(replace(CHANGES[name], still=2))
    assert not taking.is_taken
    assert not taking.waits
    assert "2 other workers leave alone" in taking.reason
    assert not decide(replace(CHANGES[name], still=1, workers=2)).is_taken


@pytest.mark.parametrize("name", ["within", "counter", "float"])
def test_what_others_change_too_is_taken(name: str) -> None:
    assert decide(replace(CHANGES[name], others=(Growth(1.0, 1 / 32),), still=1)).is_taken


def test_whole_numbers_grow_as_with_others() -> None:
    counts = Growth(1.0, 1 / 32)
    assert not decide(replace(COUNTER, growth=2.0**62, others=(counts,))).is_taken
    assert not decide(replace(COUNTER, growth=31.0, others=(counts, counts))).is_taken, "one a vertex"
    assert decide(replace(COUNTER, growth=5.0, others=(counts, counts))).is_taken
    tokens = Growth(4096.0, 128.0)
    assert decide(replace(COUNTER, growth=128.0 * 320, vertices=320, others=(tokens,))).is_taken
    slow = Growth(1.0, 1e-9)  # a liar does not throttle honest workers
    assert decide(replace(COUNTER, growth=4096.0, others=(slow, tokens))).is_taken


def test_who_stays_alone_is_taken_within_what_was_made() -> None:
    for alone in ({"waited_s": MAX_WAIT_S}, {"is_last": True}):
        assert decide(replace(FLOAT, **alone)).is_taken  # type: ignore[arg-type]
        assert decide(replace(COUNTER, **alone)).is_taken  # type: ignore[arg-type]
        assert decide(replace(WITHIN, **alone)).is_taken  # type: ignore[arg-type]
        assert not decide(replace(INDEX, **alone)).is_taken  # type: ignore[arg-type]
        assert not decide(replace(COUNTER, growth=33.0, **alone)).is_taken  # type: ignore[arg-type]
        assert not decide(replace(FLOAT, still=1, **alone)).is_taken  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CHANGES)
def test_what_those_that_ended_left_alone_is_not_taken_from_the_last(name: str) -> None:
    """Regression: the other three workers lived for 3 s each, so none was left to contradict the liar's last push."""
    change = replace(CHANGES[name], growth=1.0, is_within=True, is_last=True, waited_s=2.0)
    assert decide(change).is_taken
    left = decide(replace(change, was_left=True))
    assert not left.is_taken and not left.waits
    assert not decide(replace(change, was_left=True, is_last=False, waited_s=2 * MAX_WAIT_S)).is_taken
