"""Output of `gridml cancel`, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gridml.errors import RunError
from master.backends.registry import BACKENDS
from master.launch import create
from master.ports.environment import Environment
from master.store.rundir import MasterLock, RunDirectory
from master.store.settings import Settings

COMMAND = "cancel"
PROGRAM = Path(__file__).parents[2] / "programs" / "tallies.py"
RUN = RunDirectory(Path("run"))
Gridml = Callable[..., tuple[int, str, str]]


def submitted() -> None:
    """Create a run without a master."""
    create(Settings(PROGRAM), RUN.root, Environment(lambda *_: pytest.fail("no worker is wanted"), durable=False))


def test_a_master_is_asked_to_stop(gridml: Gridml) -> None:
    submitted()
    lock = MasterLock(RUN)
    status, out, _ = gridml("run")
    assert status == 0 and "Asked the master (pid " in out and "Resume later with: gridml resume run" in out
    (RUN.root / "cancel").unlink()
    status, out, _ = gridml("run", "--json")
    answer = json.loads(out)
    assert status == 0 and answer.pop("master").startswith("pid ")
    assert answer == {"run_dir": "run", "removed": None} and (RUN.root / "cancel").exists()
    lock.release()


def test_what_a_master_that_is_gone_has_left_is_removed(gridml: Gridml, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted()
    monkeypatch.setattr(type(BACKENDS.find("local")), "withdraw", lambda *_: "2 processes")
    status, out, _ = gridml("run")
    assert status == 0 and "No master drove it. Removed: 2 processes. Resume later with: gridml resume run" in out
    status, out, _ = gridml("run", "--json")
    assert status == 0 and json.loads(out) == {"run_dir": "run", "master": None, "removed": "2 processes"}


def test_where_there_is_nothing_to_cancel(gridml: Gridml) -> None:
    submitted()
    status, out, err = gridml("run", "--json")
    assert status == RunError.exit_status and json.loads(out)["exit_status"] == status
    assert "no master drives run" in err and not (RUN.root / "cancel").exists()
