"""One worker of three with false state beside its weights costs a run at most 1.5 points of accuracy."""

from __future__ import annotations

import pytest

from benchmarks.hostile_state import HOSTILE, Game, play

HONEST = 0.744  # the worst of three seeds in benchmarks/results/hostile_state.md


@pytest.mark.long
@pytest.mark.parametrize("attack", ["order, out of range", "order, in range", "moments, in part"])
def test_a_lie_beside_the_weights_costs_little(attack: str) -> None:
    ended = play(Game(attack, 3, 1))
    assert ended.ended == "finished"
    assert ended.accuracy > HONEST - 0.015
    assert set(ended.quarantined) <= {HOSTILE}
