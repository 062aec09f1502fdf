"""The run directory: one master at a time, and the detection of the kind of disk."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gridml.errors import RunError, UsageError
from master.store.rundir import MasterLock, RunDirectory, command


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "run")
    made.create()
    return made


def test_a_second_master_is_refused_with_the_holder_of_the_run(run: RunDirectory) -> None:
    lock = MasterLock(run)
    with pytest.raises(RunError, match=rf"another master holds .*pid {os.getpid()} on \S+\. .*gridml watch"):
        MasterLock(run)
    lock.release()
    lock.release()
    MasterLock(run).release()


def test_the_refused_one_does_not_take_the_name_away(run: RunDirectory) -> None:
    lock = MasterLock(run)
    for _ in range(2):
        with pytest.raises(RunError, match=f"pid {os.getpid()} on"):
            MasterLock(run)
    lock.release()


@pytest.mark.real
def test_the_lock_ends_with_its_process(run: RunDirectory) -> None:
    code = (
        "import sys, pathlib; from master.store.rundir import MasterLock, RunDirectory\n"
        "lock = MasterLock(RunDirectory(pathlib.Path(sys.argv[1]))); print('held', flush=True); sys.stdin.read()"
    )
    held = subprocess.Popen(
        [sys.executable, "-c", code, str(run.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with held:
        assert held.stdout is not None
        assert held.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"pid {held.pid} on"):
            MasterLock(run)
        held.kill()
    MasterLock(run).release()


def test_a_folder_that_holds_a_run_is_not_taken_for_another(run: RunDirectory) -> None:
    run.create()  # without a ledger no run has begun there
    run.ledger.touch()
    with pytest.raises(UsageError, match="gridml resume"):
        run.create()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be made.*--run-dir"):
        RunDirectory(tmp_path / "file" / "run").create()


@pytest.mark.parametrize("name", ["runs/first", "my runs/it's", "a;b", "$HOME"])
def test_a_hint_can_be_pasted_into_a_shell(name: str) -> None:
    assert shlex.split(command("resume", Path(name))) == ["gridml", "resume", name]
    assert command("resume", Path("runs/first")) == "gridml resume runs/first"


def test_the_readme_says_where_senseless_messages_lie_and_how_to_go_back(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run").create()
    readme = (tmp_path / "run" / "README.txt").read_text()
    assert "set-aside/" in readme and "gridml rollback" in readme
