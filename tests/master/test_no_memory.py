"""A master without memory for a push says so, blames no worker, and goes on from the last credit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chunk_model.goodput import Costs
from gridml.errors import RunError
from master.backends.script import Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.launch import resume
from master.simulation.scenario import Scenario
from master.simulation.world import World, play_scenario
from master.store.settings import Settings
from master.sync.merger import Merger
from master.views.report import report
from remote.stepped import Trainer

FILE, COSTS = Path(__file__).parents[1] / "programs" / "factors.py", Costs(exec_s=0.3, start_s=1.0, push_s=0.1)


def test_a_master_without_memory_ends_with_what_to_do_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge, merges = Merger.merge, 0

    def sometimes(self: Merger, *arguments: Any) -> Any:
        nonlocal merges
        merges += 1
        if merges == 3:
            raise MemoryError("Unable to allocate 3.7 GiB")
        return merge(self, *arguments)

    monkeypatch.setattr(Merger, "merge", sometimes)
    root, scenario = tmp_path / "run", Scenario(Steady(2), COSTS, seed=1)
    with pytest.raises(RunError, match=r"no memory left to merge a push of [\d,]+ bytes \(Unable to allocate 3.7 GiB"):
        play_scenario(Settings(FILE, "simulated", 2, seed=1), scenario, root, trainer=Trainer(FILE, COSTS, 1))
    settings = Settings(FILE, "simulated", 2, seed=1, options=SimulatedOptions(None, None))
    world = World(settings, scenario, Trainer(FILE, COSTS, 1))
    run = resume(root, world.environment(lambda topic, text, facts: None))
    world.drive(run)
    with run:
        run.finish()
    found = report(root)
    assert all((epoch.duplicated, epoch.lost) == (0, 0) for epoch in found.epochs) and not found.failures
