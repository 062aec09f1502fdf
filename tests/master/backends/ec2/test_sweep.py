"""Sweeps on EC2: leftovers of runs are found by tags and removed; runs with a master are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridml.cli.main import main
from gridml.errors import RunError
from master.backends.ec2.cleanup import find, withdraw
from master.backends.ec2.cloud import Cloud
from master.store.ledger import Ledger
from master.store.reader import opened, read_facts
from master.store.rundir import MasterLock, RunStatus


def left(fleet: Any) -> int:
    states = fleet.aws.states(fleet.backend.run).values()
    return sum(state != "terminated" for state in states)


@pytest.fixture
def dead(fleet: Any) -> Any:
    """A run whose master has died, while its instances continue."""
    fleet.submit("w1", "w2")
    fleet.backend.leave()
    return fleet


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"slept {seconds} s"))


def sweep(*options: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ec2", "sweep", "--region", "us-east-1", *options])
    assert ended.value.code == 0


def test_a_sweep_lists_and_removes_only_with_yes(dead: Any, capsys: pytest.CaptureFixture[str]) -> None:
    sweep()
    said = capsys.readouterr().out
    assert f"{dead.backend.run}: 2 instances, 1 launch template, 1 security group; would be removed with --yes" in said
    assert left(dead) == 2
    sweep("--yes")
    assert f"{dead.backend.run}: removed 2 instances" in capsys.readouterr().out
    assert left(dead) == 0
    assert all(dead.roster.end(dead.id(worker)) is not None for worker in ("w1", "w2"))  # their costs have ended
    sweep("--yes")
    assert "Nothing of gridml's is left in us-east-1" in capsys.readouterr().out


def test_a_run_that_a_master_drives_stays(dead: Any, capsys: pytest.CaptureFixture[str]) -> None:
    lock = MasterLock(dead.directory)
    try:
        sweep("--yes", "--run", dead.backend.run)
    finally:
        lock.release()
    assert "stays: its master drives it" in capsys.readouterr().out
    assert left(dead) == 2


def test_young_instances_and_those_of_other_machines_stay(dead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud("us-east-1")
    launched_s = cloud.instances(dead.backend.run)[0].launched_s
    (found,) = find(cloud, None, 3600.0, launched_s + 60.0)
    assert not found.swept and "60 s old" in found.reason
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    (found,) = find(cloud, None, 0.0, launched_s + 60.0)
    assert not found.swept and "--run" in found.reason
    (found,) = find(cloud, dead.backend.run, 0.0, launched_s + 60.0)
    assert found.swept


def test_a_duration_that_is_none(aws: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ec2", "sweep", "--older-than", "long"])
    assert ended.value.code == 2 and "--older-than" in capsys.readouterr().err


def test_cancel_of_a_run_without_a_master_removes_what_it_has(dead: Any, make_ledger: Callable[[Path], None]) -> None:
    make_ledger(dead.directory.root)
    assert withdraw(Cloud("us-east-1"), dead.directory, dead.rest) == "2 instances, 1 launch template, 1 security group"
    assert left(dead) == 0
    with opened(dead.directory.root) as ledger:
        assert read_facts(ledger)["status"] == RunStatus.CANCELLED
    assert withdraw(Cloud("us-east-1"), dead.directory, dead.rest) is None
    assert all(dead.roster.end(dead.id(worker)) is not None for worker in ("w1", "w2"))  # their costs have ended


def test_a_run_that_a_master_holds_is_not_withdrawn(dead: Any) -> None:
    lock = MasterLock(dead.directory)
    try:
        with pytest.raises(RunError, match="another master holds"):
            withdraw(Cloud("us-east-1"), dead.directory, dead.rest)
    finally:
        lock.release()
    assert left(dead) == 2


@pytest.fixture
def make_ledger() -> Callable[[Path], None]:
    """A maker of the ledger of a started run."""

    def make(root: Path) -> None:
        ledger = Ledger(root / "ledger.db", shared_disk=False, create=True)
        with ledger.transaction():
            ledger.set("status", RunStatus.RUNNING)
        ledger.close()

    return make
