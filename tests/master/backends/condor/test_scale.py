"""Scaling on a real pool: more jobs start, and surplus ones push and leave the queue."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from master.simulation.result import verify_credits
from pools.pool import Pool

pytestmark = pytest.mark.real
PROGRAM = Path(__file__).parents[3] / "programs" / "slow_count.py"
GRIDML = [sys.executable, "-m", "gridml"]
ASKED = ["--request-memory", "256MB", "--request-disk", "100MB", "--chunk", "500", "--epochs", "500", "--foreground"]
LIMIT_S = 180.0


def test_jobs_are_added_and_withdrawn_as_a_run_goes_on(condor_pool: Pool, tmp_path: Path) -> None:
    root, environment = tmp_path / "run", condor_pool.environment()

    def said(*arguments: str) -> dict[str, Any]:
        done = subprocess.run([*GRIDML, *arguments, "--json"], env=environment, capture_output=True, timeout=LIMIT_S)
        answer: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return answer

    def until(true: Callable[[dict[str, Any]], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not true(said("status", str(root))):
            assert time.monotonic() < deadline, f"not within {LIMIT_S:g} s: {what}"
            time.sleep(0.1)  # polling interval

    command = [*GRIDML, "submit", str(PROGRAM), *ASKED, "--workers", "2", "--run-dir", str(root)]
    with (tmp_path / "terminal").open("w") as terminal:
        running = subprocess.Popen(command, env=environment, stdout=terminal, stderr=terminal)
        try:
            until(lambda status: status.get("alive") == 2 and status["all_credited"] > 0, "two workers at work")
            assert said("scale", str(root), "--workers", "4")["before"] == 2
            until(lambda status: status["alive"] == status["wanted"] == 4, "four workers")
            assert said("scale", str(root), "--workers", "1")["before"] == 4
            until(lambda status: status["alive"] == status["wanted"] == 1, "one worker")
            jobs = condor_pool.tool("condor_q", "-constraint", f'GridmlRun == "{root}"', "-format", "%s\n", "JobStatus")
            assert jobs.stdout.split().count("2") == 1
        finally:
            running.terminate()
            running.wait(LIMIT_S)
    assert verify_credits(root).credited > 0
    assert said("report", str(root))["kills"] == 0 and said("status", str(root))["lost"] == 0
