"""Edits during a run: it continues with its original program, and reports the edits when it is resumed."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]
COMMAND = [sys.executable, "-P", "-m", "gridml"]
COUNTS = (Path(__file__).parent / "programs" / "slow_count.py").read_text()
LINE = "    time.sleep(0.02)\n"
ENVIRONMENT = {**os.environ, "COLUMNS": "200"}
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that takes its speed from its own module, which f imports on first use."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "pace_of_a_user.py").write_text("PAUSE_S = 0.02\n")
    path = folder / "program.py"
    assert COUNTS.count(LINE) == 1
    path.write_text(COUNTS.replace(LINE, "    import pace_of_a_user\n    time.sleep(pace_of_a_user.PAUSE_S)\n"))
    return path


def edit(program: Path) -> None:
    """Break the user's files, so that no worker could train with them."""
    program.write_text("raise RuntimeError('edited')\n")
    (program.parent / "pace_of_a_user.py").write_text("raise RuntimeError('edited')\n")


def gridml(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, env=ENVIRONMENT)


def test_workers_that_start_after_an_edit_train_what_the_run_was_begun_with(program: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    command = [*COMMAND, "run", program, "--run-dir", root, "--workers", "2", "--lifetime", "exponential(2s)", "--json"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if json.loads(line)["kind"] == "started")
        edit(program)
        *_, last = process.stdout
        assert process.wait() == 0
    report = json.loads(last)["report"]
    assert report["status"] == "finished"
    assert report["lives"] > 2
    assert [(epoch["credited"], epoch["lost"]) for epoch in report["epochs"]] == [(4_000, 0)] * 2


def test_a_run_is_taken_up_as_it_was_and_says_what_has_changed(program: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    assert gridml("run", program, "--run-dir", root, "--workers", "1", "--epochs", "1").returncode == 0
    edit(program)
    again = gridml("resume", root)
    assert again.returncode == 0, again.stderr
    changed = "program.py, pace_of_a_user.py have changed since the run began"
    assert changed in again.stdout + again.stderr
    refused = gridml("resume", root, "--with-changes")
    assert refused.returncode != 0
    assert "RuntimeError: edited" in refused.stderr
    assert "gridml/model" not in refused.stderr


NETWORK = """
from functools import partial
import numpy as np, torch, gridml

class Network(gridml.Vertex):
    model = gridml.module(lambda: torch.nn.Linear(3, 2), partial(torch.optim.SGD, lr=0.1))

class Point(gridml.Vertex):
    place = gridml.array("float32", (3,))
    network = gridml.edge(Network)

@gridml.update(batch=10)
def train(points: gridml.Batch[Point], network: Network) -> None:
    network.step(network.model(points.place).square().mean())

def graph():
    g = gridml.Graph()
    g.add(Point, place=np.ones((200, 3), np.float32), network=g.add(Network))
    return g

program = gridml.Program(graph, train, epochs=1)
"""


def test_another_network_is_refused_at_once_and_the_run_stays_what_it_was(tmp_path: Path, command: Command) -> None:
    program, root = tmp_path / "network.py", tmp_path / "run"
    program.write_text(NETWORK)
    assert command("run", program, "--run-dir", root, "--workers", "1").returncode == 0
    program.write_text(NETWORK.replace("Linear(3, 2)", "Linear(3, 5, bias=False)"))
    for _ in range(2):
        refused = command("resume", root, "--with-changes")
        said = refused.stderr
        assert refused.returncode != 0
        assert "Network/0/model/weight was float32 (2, 3), and is float32 (5, 3)" in said
        assert "Network/0/model/bias was float32 (2,), and is not there" in said
        assert "Traceback" not in said
    assert (root / "program" / "network.py").read_text() == NETWORK
    assert command("resume", root).returncode == 0


def test_a_program_that_is_refused_does_not_become_the_runs(tmp_path: Path, command: Command) -> None:
    program, other, root = tmp_path / "network.py", tmp_path / "other.py", tmp_path / "run"
    program.write_text(NETWORK)
    other.write_text(NETWORK.replace("Linear(3, 2)", "Linear(3, 5)"))
    assert command("run", program, "--run-dir", root, "--workers", "1").returncode == 0
    before = (root / "settings.json").read_text()
    assert "was float32" in command("resume", root, "--program", other).stderr
    assert (root / "settings.json").read_text() == before
    query = "SELECT count(*) FROM events WHERE text LIKE '%changed since%'"
    for text, times in ((NETWORK, 0), (NETWORK + "# mended", 1)):
        program.write_text(text)
        again = command("resume", root)
        assert again.returncode == 0, again.stderr
        with sqlite3.connect(root / "ledger.db") as ledger:
            assert ledger.execute(query).fetchone() == (times,)
