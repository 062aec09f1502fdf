"""A run says what its workers are worth, in its report, its status and on its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chunk_model.goodput import Costs
from gridml.cli.main import command_line
from master.backends.script import Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened, read_clock, read_facts
from master.store.settings import Settings
from master.telemetry.worth import KeptTraining, kept_share
from master.views.page.document import read_page_facts
from master.views.progress import read_progress
from master.views.report import Report, report
from remote.stepped import Trainer

PROGRAMS = Path(__file__).parents[2] / "programs"
VERTICES, EXEC_S = 9_600, 0.003


def played(root: Path, workers: int = 4, push_s: float = 0.003, crash_every_s: float | None = None) -> Report:
    """Play a run of 9,600 vertices, of which each takes 3 ms."""
    file, costs = PROGRAMS / "steep.py", Costs(exec_s=EXEC_S, start_s=0.1, push_s=push_s, boot_s=1.0)
    settings = Settings(file, "simulated", workers, steps_each=0, options=SimulatedOptions(None, None))
    scenario = Scenario(Steady(workers), costs, travel_s=0.0005, turn_s=0.001, crash_every_s=crash_every_s)
    play_scenario(settings, scenario, root, trainer=Trainer(file, costs))
    return report(root)


def kept(root: Path) -> KeptTraining:
    with opened(root) as ledger:
        return KeptTraining(**read_facts(ledger)[KeptTraining.FACT])


def test_workers_whose_steps_are_added_are_worth_nearly_their_number(tmp_path: Path) -> None:
    found = played(tmp_path)
    trained = kept(tmp_path)
    assert trained.credited == VERTICES
    assert trained.kept / VERTICES > 0.9 * kept_share(4, averages=True, added=True)
    assert found.worth == pytest.approx(trained.kept * EXEC_S / found.wall_s, rel=1e-3)
    assert 2.0 < found.worth < 4.0


def test_workers_that_are_averaged_are_worth_less(tmp_path: Path) -> None:
    found = played(tmp_path, push_s=0.3)
    assert kept(tmp_path).kept / VERTICES < 0.8
    assert found.worth is not None and 1.0 < found.worth < 2.5


def test_all_views_say_the_same(tmp_path: Path) -> None:
    found = played(tmp_path)
    text = f"{found.worth:.2g}"
    assert found.worth_because is not None and found.worth_because.startswith("one would need ")
    with opened(tmp_path) as ledger:
        progress = read_progress(ledger, read_clock(ledger, tmp_path).end_s)
    assert (progress.worth, progress.worth_because) == (pytest.approx(found.worth), found.worth_because)
    status = CliRunner().invoke(command_line(), ["status", str(tmp_path)]).output
    assert f"worth {text} workers" in " ".join(status.split())
    assert f"The workers are worth {text} of one: {found.worth_because}" in " ".join(status.split())
    answer = json.loads(CliRunner().invoke(command_line(), ["status", str(tmp_path), "--json"]).output)
    assert answer["worth"] == pytest.approx(found.worth)
    assert f"{text} workers: {found.worth_because}" in str(found)
    assert read_page_facts(tmp_path).to_json()["report"]["worth"] == pytest.approx(found.worth)


def test_of_one_worker_nothing_is_said(tmp_path: Path) -> None:
    found = played(tmp_path, workers=1)
    assert found.worth is None and found.worth_because is None


def test_later_masters_go_on_counting(tmp_path: Path) -> None:
    """What a killed master did not record is left out of both sums: the share that is kept stays right."""
    assert played(tmp_path, crash_every_s=1.5).masters >= 3
    trained = kept(tmp_path)
    assert VERTICES / 2 < trained.credited <= VERTICES
    assert 0.5 < trained.kept / trained.credited <= 1.0
