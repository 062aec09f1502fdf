"""The master of a real run is killed with SIGKILL at twenty random instants; the run still ends with exact credits."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gridml.errors import RunError

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(1200)]
GRIDML = shutil.which("gridml", path=str(Path(sys.executable).parent)) or "gridml"
MNIST = Path(__file__).parents[2] / "examples" / "mnist.py"
KILLS = 20


def test_twenty_kills_of_the_master(tmp_path: Path) -> None:
    root = tmp_path / "run"
    chance = random.Random(20)
    command = [GRIDML, "run", str(MNIST), "--run-dir", str(root), "--epochs", "12"]
    killed = 0
    for _ in range(KILLS):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=chance.uniform(1.5, 9.0))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        _, said = process.communicate()
        in_vain = process.returncode == RunError.exit_status and "in a row killed before anything was credited" in said
        assert process.returncode in (0, -signal.SIGKILL) or in_vain, said  # then a person resumes it
        if (root / "ledger.db").exists():
            command = [GRIDML, "resume", str(root)]
        else:
            shutil.rmtree(root, ignore_errors=True)  # killed before there was a run
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=600, check=False).returncode == 0
    found = json.loads(subprocess.run([GRIDML, "report", str(root), "--json"], capture_output=True, check=True).stdout)
    for epoch in found["epochs"]:
        assert (epoch["credited"], epoch["duplicated"], epoch["lost"]) == (60_000, 0, 0)
    assert found["epochs"][-1]["metrics"]["accuracy"] > 0.98
    assert killed >= KILLS // 2, f"only {killed} kills hit a living master; the run was over too soon"
