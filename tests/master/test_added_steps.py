"""Workers that share each batch: their steps are added, and together train as a plain loop does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from master.backends.script import Script, ScriptedLives, Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import Settings
from remote.stepped import Trainer

PROGRAM = Path(__file__).parents[1] / "programs" / "steep.py"


def played(root: Path, workers: int, *, push_every: int | None = None, kills: bool = False) -> tuple[float, float, int]:
    """Play a run whose pushes cost the time of two vertices; return (excess error, duration, pushes of whole or part
    batches)."""
    costs = Costs(exec_s=0.003, start_s=0.1, push_s=0.005, boot_s=1.0)
    script: Script = Steady(workers)
    if kills:
        script = ScriptedLives(workers, Exponential(3.0), 1, grace_s=0.5, late=0)
    speeds = MachineSpeeds(sigma=0.3) if workers > 1 else MachineSpeeds()
    scenario = Scenario(script, costs, speeds, travel_s=0.0005, turn_s=0.001, seed=0)
    settings = Settings(
        PROGRAM, "simulated", workers, steps_each=0, push_every=push_every, options=SimulatedOptions(None, None)
    )
    play_scenario(settings, scenario, root, trainer=Trainer(PROGRAM, costs, 0))
    with opened(root) as ledger:
        *_, (metrics, closed_s) = ledger.execute("SELECT metrics, closed_s FROM epochs ORDER BY epoch")
        (began_s,) = ledger.execute("SELECT min(submitted_s) FROM workers").fetchone()
        (parts,) = ledger.execute("SELECT count(*) FROM credits WHERE stop - start <= 64").fetchone()
    return json.loads(metrics)["excess"], closed_s - began_s, parts


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("workers", [4, 16])
def test_workers_that_share_batches_train_as_one_does(tmp_path: Path, workers: int, kills: bool) -> None:
    alone, alone_s, _ = played(tmp_path / "loop", 1)
    added, added_s, parts = played(tmp_path / "added", workers, kills=kills)
    averaged, *_ = played(tmp_path / "averaged", workers, push_every=128)
    print(workers, kills, alone, added, averaged, alone_s / added_s, parts)
