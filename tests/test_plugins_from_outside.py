"""Another package adds a back end and a carrier: one module and two entry points, and gridml offers both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
PROGRAM = Path(__file__).parent / "programs" / "counts.py"

LAB = '''
"""Processes of this machine as seats of a lab, whose messages a courier carries: both wrap what gridml has."""

from dataclasses import dataclass
from typing import Annotated

import typer

from gridml.carriers.directory import DirectoryMailbox, DirectoryMailboxes
from gridml.carriers.registry import Carrier, Connection
from master.state.jobs import BackendFacts, BackendOptions
from master.backends.local import Local
from master.backends.local_plugin import worker_command
from master.ports.plugin import BackendPlugin, Command
from master.backends.script import Steady


@dataclass(frozen=True)
class LabOptions(BackendOptions):
    seats: Annotated[int, typer.Option(help="Seats of the lab.")] = 1

    @property
    def facts(self):
        return BackendFacts(max_idle=1, carriers=("courier",))


class LabPlugin(BackendPlugin):
    name = "lab"
    options = LabOptions
    command = Command(
        verb="lab",
        help="Train a program in the lab.",
        example="gridml lab mnist.py --seats 4",
        workers=3,
        workers_help="Workers at once.",
    )

    def make(self, settings, directory):
        seats = LabOptions.among(settings.options).seats
        return Local(worker_command(settings, directory), Steady(seats), directory.logs)


class CourierMailboxes(DirectoryMailboxes):
    def __init__(self, root):
        super().__init__(root)
        (root / "served").write_text("by the courier")

    def stop(self):
        super().stop()
        self._mail.with_name("served").unlink(missing_ok=True)


class Courier(Carrier):
    name = "courier"
    remote = False
    mailboxes = "lab_pool:CourierMailboxes"

    def connect(self, job, directory):
        (directory / "carried").touch()
        return Connection(lambda: [job], lambda worker: DirectoryMailbox(directory, worker))
'''


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of processes in which the package is installed."""
    site = tmp_path / "site"
    info = site / "lab_pool-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "lab_pool.py").write_text(LAB)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-pool\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[gridml.backends]\nlab = lab_pool:LabPlugin\n[gridml.carriers]\ncourier = lab_pool:Courier\n"
    )
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}


def gridml(environment: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gridml", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_run_on_a_back_end_by_a_carrier_of_another_package(environment: dict[str, str], tmp_path: Path) -> None:
    root = tmp_path / "run"  # sixteen seconds for one worker, so that the other starts in time
    done = gridml(environment, "lab", PROGRAM.with_name("slow_count.py"), "--seats", "2", "--run-dir", root)
    assert done.returncode == 0, done.stderr
    settings = json.loads((root / "settings.json").read_text())
    assert (settings["backend"], settings["carrier"], settings["lab"]) == ("lab", "courier", {"seats": 2})
    assert (root / "carried").exists()  # the worker's side was loaded,
    assert not (root / "served").exists()  # and so was the master's, which was closed
    report = json.loads(gridml(environment, "report", root, "--json").stdout)
    assert report["status"] == "finished" and report["backend"] == "lab" and report["workers"] == 3
    assert all((epoch["duplicated"], epoch["lost"]) == (0, 0) for epoch in report["epochs"]) and report["epochs"]
    assert {machine["machine"] for machine in report["machines"]} == {"slot-1", "slot-2"}
    assert "finished" in gridml(environment, "status", root).stdout


def test_its_command_is_offered_with_its_options(environment: dict[str, str]) -> None:
    assert "Train a program in the lab." in gridml(environment, "--help").stdout
    said = gridml(environment, "lab", "--help").stdout
    assert "--seats" in said and "Seats of the lab." in said and "Example: gridml lab mnist.py --seats 4" in said
    assert "--foreground" not in said and "--carrier" not in said  # there is no choice


def test_without_the_package_its_runs_say_what_is_missing(environment: dict[str, str], tmp_path: Path) -> None:
    root = tmp_path / "run"
    assert gridml(environment, "lab", PROGRAM, "--run-dir", root).returncode == 0
    done = gridml({**os.environ}, "report", root)
    assert done.returncode == 2 and "there is no back end 'lab'" in done.stderr and "Traceback" not in done.stderr
