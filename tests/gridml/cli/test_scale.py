"""Output of `gridml scale`, as text and as JSON, and requests that are rejected."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from chunk_model.goodput import Costs
from gridml.errors import RunError
from master.backends.local_plugin import MAX_PROCESSES
from master.backends.registry import read_settings
from master.backends.script import Steady
from master.launch import create
from master.ports.environment import Environment
from master.scaling import REQUESTED
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.ledger import Ledger
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from remote.stepped import Trainer

COMMAND = "scale"
COSTS = Costs(exec_s=0.01, start_s=0.5, push_s=0.02)
PROGRAM = Path(__file__).parents[2] / "programs" / "tallies.py"
Gridml = Callable[..., tuple[int, str, str]]


def submitted(workers: int = 2) -> None:
    """Create a run without a master."""

    def nowhere(settings: Settings, directory: RunDirectory) -> None:
        raise AssertionError("no master is wanted here")

    create(Settings(PROGRAM, workers=workers), Path("run"), Environment(nowhere, durable=False))  # type: ignore[arg-type]


def test_a_run_without_a_master_is_asked_for_its_next_one(gridml: Gridml) -> None:
    submitted(workers=2)
    status, out, _ = gridml("run", "--workers", "5")
    assert status == 0 and "--workers 5 instead of 2" in out and "gridml resume run" in out
    assert (Path("run") / REQUESTED).read_text() == "5\n"
    status, out, _ = gridml("run", "--workers", "7", "--json")
    assert json.loads(out) == {"run_dir": "run", "workers": 7, "before": 2, "master": None}
    assert (Path("run") / REQUESTED).read_text() == "7\n"  # the last request counts


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("0", "--workers is 0; expected at least 1. Stop the run, to go on later, with: gridml cancel run"),
        ("-4", "--workers is -4; expected at least 1"),
        ("two", "valid integer"),
        ("2.5", "valid integer"),
        ("", "valid integer"),
        (str(MAX_PROCESSES + 1), f"expected at most {MAX_PROCESSES:,}: each is a process of this machine"),
        ("9" * 40, "expected at most 1,000,000"),
    ],
)
def test_a_number_that_makes_no_sense(mistake: Callable[..., str], given: str, said: str) -> None:
    submitted()
    mistake(["scale", "run", "--workers", given], 2, said)
    assert not (Path("run") / REQUESTED).exists()


def test_no_number_at_all(mistake: Callable[..., str]) -> None:
    mistake(["scale", "run"], 2, "--workers")


def test_what_is_no_run(mistake: Callable[..., str]) -> None:
    mistake(["scale", "nothing", "--workers", "3"], 7, "nothing is not a run")


def test_a_run_that_has_finished(gridml: Gridml) -> None:
    settings = Settings(PROGRAM, "simulated", 2)
    play_scenario(settings, Scenario(Steady(2), COSTS), Path("run"), trainer=Trainer(PROGRAM, COSTS))
    status, out, err = gridml("run", "--workers", "4", "--json")
    assert status == RunError.exit_status and json.loads(out)["exit_status"] == status
    assert "run has finished: no vertex is left" in err and not (Path("run") / REQUESTED).exists()


def test_the_settings_stay_until_a_master_takes_the_request_up(gridml: Gridml) -> None:
    submitted(workers=2)
    gridml("run", "--workers", "5")
    ledger = Ledger(RunDirectory(Path("run")).ledger, shared_disk=False)
    assert read_settings(Path("run"), ledger.get("settings")).workers == 2
    ledger.close()
