"""`gridml.submit`: a call submits the same jobs as the command."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import gridml
from pools.pool import Pool

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
SMALL: dict[str, Any] = {"workers": 2, "request_memory": "256MB", "request_disk": "50MB"}


def test_a_program_that_a_module_made_is_handed_over_and_waited_for(
    condor_pool: Pool, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(programs))
    monkeypatch.chdir(tmp_path)
    tally = importlib.import_module("tally")
    run = gridml.submit(tally.program, run_dir="run", seed=3, display="none", **SMALL)
    monkeypatch.chdir(programs)  # the run's path does not depend on the working directory
    assert run.run_dir == tmp_path / "run"
    assert run.wait(timeout_s=90).status == "finished"
    report = run.report()
    assert (report.credited, report.backend) == (tally.COUNT * tally.EPOCHS, "condor")
    assert run.load()["Word.count"].sum() == tally.EPOCHS * sum(at % 4 for at in range(tally.COUNT))
    assert {event.topic for event in run.events()} >= {"running", "finished"}
    with pytest.raises(gridml.errors.RunError, match="has finished"):
        run.scale(1)


def test_with_its_master_in_this_process_events_are_delivered(
    condor_pool: Pool, programs: Path, tmp_path: Path
) -> None:
    heard: list[gridml.Event] = []
    run = gridml.submit(
        programs / "tally.py", run_dir=tmp_path / "run", foreground=True, on_event=heard.append, display="none", **SMALL
    )
    assert run.status == "finished"
    assert [event.text for event in heard if event.topic == "running"]
    assert {event.topic for event in heard} >= {"started", "running", "finished"}
