"""Epochs that do not overlap, on machines that die, are slow, and whose messages are lost: what f reads of an earlier
epoch is all of it, and no worker waits longer at an epoch's end than the last pieces of work take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.protocol import bundle
from master.backends.script import ScriptedLives
from master.simulation import cost_only_worker
from master.simulation.faulty_network import Chances
from master.simulation.result import verify_credits
from master.simulation.scenario import Absent, MachineSpeeds, Scenario, Storms
from master.simulation.world import play_scenario
from master.store.settings import Settings
from master.views.report import report
from remote.stepped import Trainer
from tests.support.effort import first

COSTS = Costs(exec_s=0.5, start_s=2.0, push_s=0.1, boot_s=1.0)
FAULTS = Chances(lose=0.05, repeat=0.05, truncate=0.03, corrupt=0.03, delay_s=5.0)
SLOW = MachineSpeeds(0.2, 4.0, 0.4)  # the fastest are some ten times as fast as the slowest
SUMS = (Path(__file__).parents[2] / "programs" / "in_turn.py").read_text()
COUNT, EPOCHS = 120, 5


@pytest.mark.parametrize("seed", first(2, [1, 2, 0, 3]))  # with spot checks and without
def test_sums_are_whole_whatever_happens_to_machines_messages_and_masters(tmp_path: Path, seed: int) -> None:
    source = tmp_path / "sums.py"
    source.write_text(SUMS.replace("= 17, 5, 4", f"= {COUNT}, 5, {EPOCHS}"))
    lives = ScriptedLives(6, Exponential(40.0), seed=seed, gap_s=5.0, grace_s=10.0)
    script = Storms(Absent(lives, 0.1, seed), 60.0, 0.5, seed)
    scenario = Scenario(script, COSTS, SLOW, FAULTS, crash_every_s=45.0, turn_s=0.5, limit_s=1e5, seed=seed)
    root, checks = tmp_path / "run", 0.2 if seed % 2 else 0.0
    settings = Settings(source, backend="simulated", workers=6, spot_checks=checks)
    world = play_scenario(settings, scenario, root, trainer=Trainer(source, COSTS, seed))
    assert verify_credits(root).credited == COUNT * EPOCHS
    assert world.pool.tally.kills > 3 and world.masters > 1 and world.workers.traffic.lost > 0
    _, sums = bundle.decode((root / "final.safetensors").read_bytes())
    np.testing.assert_array_equal(sums["Total/sums"], np.full((5, EPOCHS + 1), COUNT // 5))
    np.testing.assert_array_equal(sums["Total/incomplete"], np.zeros(5))


def wall_s(folder: Path, vertices: int, *, overlap: bool) -> float:
    """Seconds of a run of five epochs on four machines of different speeds that die."""
    folder.mkdir()
    program = folder / "costs.py"
    text = cost_only_worker.source(vertices, 5).replace("program = ", "from dataclasses import replace\n\nprogram = ")
    program.write_text(f"{text}program = replace(program, overlap={overlap})\n")
    scenario = Scenario(ScriptedLives(4, Exponential(600.0), seed=1, gap_s=5.0, grace_s=10.0), COSTS, SLOW, seed=1)
    play_scenario(Settings(program, backend="simulated", workers=4), scenario, folder / "run")
    assert verify_credits(folder / "run").credited == 5 * vertices
    return report(folder / "run").wall_s


@pytest.mark.parametrize(("vertices", "most"), [(800, 1.12), (2400, 1.05)])
def test_what_it_costs_is_the_end_of_each_epoch(tmp_path: Path, vertices: int, most: float) -> None:
    """Epochs of about 100 and 300 s: docs/merge_rules.md has the figures."""
    overlapping = wall_s(tmp_path / "overlapping", vertices, overlap=True)
    in_turn = wall_s(tmp_path / "in turn", vertices, overlap=False)
    assert overlapping < in_turn < most * overlapping
