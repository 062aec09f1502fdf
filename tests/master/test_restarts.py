"""Masters that are really killed in a row, under a virtual clock."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gridml.errors import RunError
from master.launch import create, resume
from master.ports.environment import Environment
from master.simulation.faulty_network import VirtualClock
from master.state.jobs import Backend
from master.store.reader import opened, read_facts
from master.store.rundir import MasterLock, RunDirectory
from master.store.settings import Settings
from master.takeover import guard_crash_loop

pytestmark = pytest.mark.real
LIMIT_S = 60
# Arguments: the run, and the time. Prints how long it waited, and is killed as soon as it has begun.
MASTER = """
import os, signal, sys
from pathlib import Path
from master.simulation.faulty_network import VirtualClock
from master.backends.registry import make
from master.ports.environment import Environment
from master.takeover import guard_crash_loop
clock = VirtualClock(float(sys.argv[2]))
environment = Environment(make, clock=clock, rest=lambda s: clock.advance(clock.now_s + s))
with guard_crash_loop(Path(sys.argv[1]), environment):
    print(clock.now_s - float(sys.argv[2]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Homes(Backend):
    """A back end that records whether masters cancel its workers."""

    name = "homes"

    def __init__(self) -> None:
        self.kept: list[bool] = []
        self.left = False

    def submit(self, worker: str) -> None: ...

    def poll(self) -> list[object]:  # type: ignore[override]
        return []

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None: ...

    def inherit(self, *, keep: bool) -> list[str]:
        self.kept.append(keep)
        return []

    def leave(self) -> None:
        self.left = True

    def close(self) -> None: ...


@pytest.fixture
def root(tmp_path: Path, programs: Path, pool: Callable[[], Environment]) -> Path:
    create(Settings(programs / "counts.py"), tmp_path / "run", pool())
    return tmp_path / "run"


def begin_and_be_killed(root: Path, at_s: float) -> float:
    """Start a master that is killed. Return the seconds that it waited first."""
    command = [sys.executable, "-c", MASTER, str(root), str(at_s)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=LIMIT_S, check=False)
    assert done.returncode == -signal.SIGKILL
    return float(done.stdout)


def world(backend: Backend, at_s: float) -> Environment:
    clock = VirtualClock(at_s)
    return Environment(lambda *_: backend, clock=clock, rest=lambda s: clock.advance(clock.now_s + s))


def facts(root: Path) -> dict[str, str]:
    with opened(root) as db:
        return read_facts(db)


def test_they_wait_longer_and_longer_and_then_stop_with_the_reason(root: Path, pool: Callable[[], Environment]) -> None:
    at_s = 2e9  # later than what the ledger has of real time
    assert [begin_and_be_killed(root, at_s + 100 * n) for n in range(5)] == [0.0, 0.0, 5.0, 10.0, 20.0]
    homes = Homes()
    with pytest.raises(RunError, match="5 masters in a row killed"), guard_crash_loop(root, world(homes, at_s + 500)):
        raise AssertionError("it must not begin")
    assert (homes.kept, homes.left) == ([False], True)
    assert facts(root)["status"] == "failed"
    assert "killed before anything was credited or evaluated, so no other one starts" in facts(root)["stopped_because"]
    with guard_crash_loop(root, world(homes, at_s + 600)):  # a resume by a person does not wait
        assert json.dumps(facts(root)["killed"]).count("[") == 2
    with resume(root, pool()) as run:
        run.finish()
    assert facts(root)["status"] == "finished"


def test_one_that_ends_in_good_order_is_not_counted(root: Path) -> None:
    for n in range(8):
        with pytest.raises(KeyError), guard_crash_loop(root, world(Homes(), 2e9 + n)):
            raise KeyError
    assert facts(root)["killed"] == []


def test_one_that_waits_can_be_cancelled(root: Path) -> None:
    for n in range(2):
        begin_and_be_killed(root, 2e9 + n)
    homes = Homes()
    environment = world(homes, 2e9 + 2)

    def rest(seconds: float) -> None:
        with pytest.raises(RunError, match="another master holds"):
            MasterLock(RunDirectory(root))
        (root / "cancel").touch()

    environment = Environment(environment.backend, clock=environment.clock, rest=rest)
    with pytest.raises(RunError, match="was cancelled"), guard_crash_loop(root, environment):
        raise AssertionError("it must not begin")
    assert facts(root)["status"] == "cancelled"
    assert homes.kept == [False]


def test_one_that_is_stopped_as_it_waits_was_not_killed(root: Path) -> None:
    for n in range(2):
        begin_and_be_killed(root, 2e9 + n)
    before = facts(root)["killed"]

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    for n in range(5):
        environment = Environment(lambda *_: Homes(), clock=VirtualClock(2e9 + 2 + n), rest=interrupted)
        with pytest.raises(KeyboardInterrupt), guard_crash_loop(root, environment):
            raise AssertionError("it must not begin")
    assert facts(root)["killed"] == before and facts(root)["status"] == "submitted"


def test_who_begins_in_a_run_that_is_there_already_leaves_it_as_it_is(root: Path) -> None:
    """`gridml run --run-dir` with an existing run was counted as one of its masters."""
    for n in range(3):
        begin_and_be_killed(root, 2e9 + n)
    before = facts(root)
    command = [sys.executable, "-P", "-m", "gridml", "run", "nothing.py"]
    done = subprocess.run([*command, "--run-dir", str(root)], capture_output=True, timeout=LIMIT_S)
    assert done.returncode != 0 and facts(root) == before
