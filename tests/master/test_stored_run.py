"""A run of an older version of gridml can be resumed, and every vertex is credited once.

`stored_run.tar.xz` is the directory of a run of `tests/programs/slow_count.py` for four epochs, whose master and worker
were killed in the fourth. The commit that made it, cf6b4c1, had the modules of those days.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import gridml

STORED = Path(__file__).parent / "stored_run.tar.xz"


@pytest.mark.real
def test_a_run_that_was_begun_before_resumes_after(tmp_path: Path) -> None:
    with tarfile.open(STORED) as archive:
        archive.extractall(tmp_path, filter="data")
    run = tmp_path / "run"
    resumed = subprocess.run(
        [sys.executable, "-m", "gridml", "resume", str(run), "--json"], capture_output=True, text=True, check=False
    )
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    report = json.loads(resumed.stdout.splitlines()[-1])["report"]
    assert report["status"] == "finished"
    assert [epoch["credited"] for epoch in report["epochs"]] == [4_000] * 4
    assert gridml.load(run)["Total.count"].tolist() == [16_000]
