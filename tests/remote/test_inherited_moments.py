"""Adam of a new worker starts with the run's moments, if any worker has contributed some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from chunk_model.goodput import Costs
from master.backends.script import PlannedLife, Script
from master.simulation.result import verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.settings import Settings
from remote.stepped import SteppedEngine, Trainer

COSTS = Costs(exec_s=0.5, copy_s=0.01, start_s=1.0, push_s=0.1, boot_s=2.0)


class Killed(Script):
    """One machine, whose worker is killed after every `life_s` seconds."""

    slots = 1

    def __init__(self, life_s: float) -> None:
        self._life_s = life_s

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(free_s, self._life_s)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Record, at each engine's first batch, the steps of its Adam and its largest second moment."""
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    first: list[tuple[float, float]] = []
    engines: list[SteppedEngine] = []
    train = SteppedEngine.train

    def spy(engine: SteppedEngine, *given: Any, **options: Any) -> None:
        if engine not in engines:
            engines.append(engine)
            states = engine._modules["Network"].optimisers(0)["model"].state.values()
            first.append(max(((float(s["step"]), float(s["exp_avg_sq"].max())) for s in states), default=(0.0, 0.0)))
        train(engine, *given, **options)

    monkeypatch.setattr(SteppedEngine, "train", spy)
    return first


@pytest.mark.parametrize("compress", ["none", "int8"])
def test_a_successor_goes_on_with_the_moments_of_who_was_killed(
    tmp_path: Path, programs: Path, begun: list[tuple[float, float]], compress: str
) -> None:
    settings = Settings(
        programs / "adam.py", backend="simulated", workers=1, chunk=400, push_every=32, compress=compress
    )
    trainer = Trainer(programs / "adam.py", COSTS)
    play_scenario(settings, Scenario(Killed(100.0), COSTS), tmp_path / "run", trainer=trainer)
    assert verify_credits(tmp_path / "run").credited == 1000
    assert begun[0] == (0, 0)
    assert len(begun) > 4
    assert all(steps >= 8 and square > 0 for steps, square in begun[1:]), "as of the second push or a later one"
    assert [steps for steps, _ in begun] == sorted(steps for steps, _ in begun)
    assert begun[-1][0] > begun[1][0], "who comes later has more behind it"
