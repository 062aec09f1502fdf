from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.chunk_size.halves import RANDOM, REFITTED, SECOND_HALF, Choices, Split, evaluate, splits_of
from benchmarks.chunk_size.traces import MODES, Setting, chosen_for, fitted, sweep
from chunk_model.lifetime import Lifetime
from chunk_model.observations import Observations

LIVES = 80
MODE = MODES[0]


@pytest.fixture(scope="module")
def setting() -> Setting:
    """Lives that begin one after the other, some of them censored."""
    rng = np.random.default_rng(5)
    start_s, until_s = np.sort(rng.uniform(0, 40_000, LIVES)), 41_000.0
    duration_s = rng.exponential(2700, LIVES)
    ended = start_s + duration_s <= until_s
    seen = Observations(np.minimum(duration_s, until_s - start_s), ended, np.minimum(start_s + duration_s, until_s))
    law, reason = fitted(seen)
    return Setting("made up", duration_s, law, reason, seen, start_s)


def test_other_lives_are_unseen_and_a_run_refits_after_deaths(setting: Setting) -> None:
    splits = {split.method: split for split in splits_of(setting, 1, 0)}
    late = setting.start_s >= np.median(setting.start_s)  # type: ignore[operator]
    for method in (SECOND_HALF, REFITTED):
        np.testing.assert_array_equal(splits[method].weight, late)
    assert splits[SECOND_HALF].laws == splits[REFITTED].laws[:1]
    assert len(splits[REFITTED].laws) > 1
    plays = splits[REFITTED].plays
    assert (np.diff(plays) >= 0).all()  # lives are in the order in which they begin
    assert plays.max() == len(splits[REFITTED].laws) - 1
    assert 0.3 * LIVES < splits[RANDOM].weight.sum() < 0.7 * LIVES


def test_the_regret_is_that_of_the_sizes_played(setting: Setting) -> None:
    """Two laws, each for its own lives, with weights of the other lives."""
    costs = setting.costs["light"]
    plays = (np.arange(LIVES) % 2).astype(np.intp)
    weight = np.arange(LIVES, dtype=np.float64)
    laws: tuple[Lifetime, ...] = (setting.law, setting.law.scaled(0.1))
    chosen = [(each.chunk, each.push_every) for each in (chosen_for(law, costs, MODE) for law in laws)]
    swept = sweep(setting, costs, MODE, 2, chosen)
    grid = len(swept.chunk) - 2
    splits = [
        Split(SECOND_HALF, laws[:1], np.zeros(LIVES, np.intp), weight),
        Split(REFITTED, laws, plays, weight),
        Split(RANDOM, laws[1:], np.zeros(LIVES, np.intp), weight),
    ]
    swept = replace(
        swept,
        chunk=np.append(swept.chunk[:grid], swept.chunk[[grid, grid, grid + 1, grid + 1]]),
        credited=np.append(swept.credited[:grid], swept.credited[[grid, grid, grid + 1, grid + 1]], axis=0),
        paid_s=np.append(swept.paid_s[:grid], swept.paid_s[[grid, grid, grid + 1, grid + 1]], axis=0),
    )
    row, drawn = evaluate(setting, "light", MODE, Choices(swept, grid, grid), splits, 5)
    assert drawn is None
    best = swept.goodput(weight[None])[0, :grid].max()
    point = grid + 1 + plays
    lives = np.arange(LIVES)
    mine = (weight * swept.credited[point, lives]).sum() / (weight * swept.paid_s[point, lives]).sum() * costs.exec_s
    assert row[REFITTED] == pytest.approx(100 * (1 - mine / best), abs=1e-3)
    alone = swept.goodput(weight[None])[0]
    assert row[SECOND_HALF] == pytest.approx(100 * (1 - alone[grid] / best), abs=1e-3)
    assert row[RANDOM] == pytest.approx(100 * (1 - alone[grid + 3] / best), abs=1e-3)
    assert isinstance(row["95% of random halves"], str)
