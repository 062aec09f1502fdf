"""When a run has trained enough, and that no epoch is under way when it has."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

import gridml
from master.decisions.stopping import StoppingFacts, may_begin, standing, stops

WANTED = gridml.early_stopping("loss", patience=2, min_delta=0.1)


def facts(*values: float, pending: int = 0) -> StoppingFacts:
    return StoppingFacts(tuple(enumerate(values)), pending)


def test_it_stops_after_so_many_evaluations_without_progress() -> None:
    assert stops(facts(), WANTED)[0] is False
    assert stops(facts(3.0, 2.0, 2.0), WANTED) == (
        False,
        "1 of 2 evaluations in a row have not brought loss further",
    )
    stop, reason = stops(facts(3.0, 2.0, 1.95, 2.1), WANTED)
    assert stop and "by more than 0.1; its best is 2, after epoch 2" in reason
    assert stops(facts(3.0, 2.0, 2.0, 1.8), WANTED)[0] is False
    assert standing(facts(3.0, 2.0, 2.0, 1.8), WANTED).epoch == 3


def test_what_is_no_number_is_no_progress() -> None:
    stop, reason = stops(facts(math.nan, math.nan), WANTED)
    assert stop and "it never was a number" in reason


def test_an_epoch_waits_for_what_may_end_the_run() -> None:
    assert may_begin(facts(3.0, pending=1), WANTED)[0]
    assert not may_begin(facts(3.0, pending=2), WANTED)[0]
    assert not may_begin(facts(3.0, 3.0, pending=1), WANTED)[0]


@given(
    st.lists(st.sampled_from([1.0, 2.0, 3.0, math.nan]), min_size=1, max_size=30),
    st.integers(1, 5),
    st.integers(1, 3),
    st.lists(st.integers(0, 4), min_size=60, max_size=60),
)
def test_no_epoch_is_under_way_at_the_stop(values: list[float], patience: int, every: int, delays: list[int]) -> None:
    """Epochs begin whenever they may, and are evaluated in order, late by any delay."""
    wanted, judged, begun, trained = gridml.early_stopping("loss", patience), [], 0, 0
    for delay in delays:
        while begun < len(values):
            pending = sum((epoch + 1) % every == 0 for epoch in range(len(judged) * every, begun))
            if not may_begin(StoppingFacts(judged, pending), wanted)[0]:
                break
            begun += 1
        trained = max(trained, begun - delay)
        while (len(judged) + 1) * every <= trained:
            epoch = (len(judged) + 1) * every - 1
            judged.append((epoch, values[epoch]))
            if stops(StoppingFacts(judged, 0), wanted)[0]:
                assert begun == epoch + 1
                return
