"""Output of `gridml rollback`, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from chunk_model.goodput import Costs
from master.backends.script import Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.result import verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.rundir import version_name
from master.store.settings import Settings
from remote.stepped import Trainer

COMMAND = "rollback"
COSTS = Costs(exec_s=0.01, start_s=0.5, push_s=0.02)
PROGRAM = Path(__file__).parents[2] / "programs" / "tallies.py"


def test_versions_are_listed_gone_back_to_and_refused(gridml: Callable[..., tuple[int, str, str]]) -> None:
    settings = Settings(PROGRAM, "simulated", 2, options=SimulatedOptions(None, None))
    play_scenario(settings, Scenario(Steady(2), COSTS), Path("run"), trainer=Trainer(PROGRAM, COSTS))
    status, out, _ = gridml("run")
    assert status == 0
    assert "4,000 vertices credited, 2,000 since, the end of epoch 2 (e2)" in out
    status, out, _ = gridml("run", "--json")
    newest = json.loads(out)[0]
    assert newest["credited"] == 6000 and newest["undoes"] == 0 and newest["epoch"] == 2
    status, out, _ = gridml("run", "--to", "e1", "--json")
    assert status == 0 and json.loads(out)["undone"]["vertices"] == 4000
    assert verify_credits(Path("run")).credited == 2000
    status, out, _ = gridml("run", "--to", "e1")
    assert "0 vertices were undone" in out and "gridml resume run" in out
    status, _, err = gridml("run", "--to", "e2")
    assert status == 2 and "expected the end of an epoch (e1)" in err


def test_a_damaged_version_is_refused_and_not_offered_any_more(gridml: Callable[..., tuple[int, str, str]]) -> None:
    settings = Settings(PROGRAM, "simulated", 2, options=SimulatedOptions(None, None))
    play_scenario(settings, Scenario(Steady(2), COSTS), Path("run"), trainer=Trainer(PROGRAM, COSTS))
    points = json.loads(gridml("run", "--json")[1])
    first = next(point["version"] for point in points if point["epoch"] == 0)
    (Path("run") / "versions" / version_name(first)).write_bytes(b"damaged")
    status, _, err = gridml("run", "--to", "e1")
    assert status == 7 and "is damaged" in err and "gridml rollback run" in err
    assert [p["version"] for p in json.loads(gridml("run", "--json")[1])] == [
        point["version"] for point in points if point["version"] != first
    ]
    assert gridml("run", "--to", "e2")[0] == 0
    assert verify_credits(Path("run")).credited == 4000
