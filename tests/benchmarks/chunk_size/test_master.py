from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.chunk_size.master import play_lives
from benchmarks.chunk_size.traces import MODES, Mode, costs_of
from chunk_model.replay import replay

MEAN_S = 2700.0
COSTS = costs_of(MEAN_S, 1e4, 0.05, 0.01)


@pytest.mark.parametrize("mode", MODES[:2], ids=str)
def test_the_real_master_and_the_replay_agree_on_the_same_lives(mode: Mode) -> None:
    lives = np.random.default_rng(3).exponential(MEAN_S, 40)
    played = play_lives(lives, COSTS, mode, 900, None)
    bare = mode.costs(COSTS if mode.many else replace(COSTS, boot_s=0.0))
    assert played.workers == len(lives)
    assert played.goodput == pytest.approx(replay(lives, bare, 900, None, mode.many).goodput, rel=1e-3)
