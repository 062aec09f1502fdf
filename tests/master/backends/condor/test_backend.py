"""The HTCondor back end on a real pool: behaviour that no other back end has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gridml.errors import RunError
from gridml.protocol import outbox
from master.backends.condor import submit_description as condor_submit
from master.backends.condor.backend import RETRY_S, Condor
from master.backends.condor.options import CondorOptions
from master.state.jobs import JobEvent, State
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from pools import configuration
from pools.configuration import Host
from pools.pool import Pool, pid, user

pytestmark = pytest.mark.real
LIMIT_S = 60
STAYS = "exec sleep 600"


class Master:
    """A stand-in for a run's master: it collects the events of its back end, on a clock that can jump."""

    def __init__(self, directory: RunDirectory, behaviour: str) -> None:
        self.directory = directory
        self.events: list[JobEvent] = []
        self._jumped_s = 0.0
        program = directory.root.parent / "program.py"
        program.touch()
        asked = CondorOptions(request_memory="64MB", request_disk="1MB", grace_s=1)
        settings = Settings(program, backend="condor", options=asked)
        self.backend = Condor(settings, directory, clock=lambda: time.monotonic() + self._jumped_s)
        (directory.root / condor_submit.LAUNCHER).write_text(f"#!/bin/sh\n: >>{outbox.FILE}\n{behaviour}\n")

    def until(self, worker: str, state: State) -> JobEvent:
        """Return the first matching event."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            self.events += self.backend.poll()
            for event in self.events:
                if (event.worker, event.state) == (worker, state):
                    return event
            assert time.monotonic() < deadline, f"{worker} was not {state} within {LIMIT_S} s; events: {self.events}"
            time.sleep(0.02)

    def states(self, worker: str) -> list[State]:
        return [event.state for event in self.events if event.worker == worker]

    def try_again(self) -> None:
        """Let the time pass after which an unanswered query of the schedd is repeated."""
        self._jumped_s += 2 * RETRY_S

    def queue(self, *attributes: str) -> list[Any]:
        """Return the jobs of this run in the schedd's queue."""
        import htcondor2

        ours = f'GridmlRun == "{self.directory.root}"'
        return list(htcondor2.Schedd().query(ours, ["ClusterId", "ProcId", "GridmlWorker", *attributes]))

    def number(self, job: str) -> str:
        """Return the condor_q id of a job of this run."""
        return next(f"{found['ClusterId']}.{found['ProcId']}" for found in self.queue() if found["GridmlWorker"] == job)


@pytest.fixture
def start(condor_pool: Pool, tmp_path: Path) -> Iterator[Callable[[str], Master]]:
    """A maker of masters of one run, whose workers run a line of shell."""
    directory, masters = RunDirectory(tmp_path / "run"), list[Master]()
    directory.create()

    def make(behaviour: str) -> Master:
        masters.append(Master(directory, behaviour))
        return masters[-1]

    yield make
    for master in masters:
        master.backend.close()
    if masters:
        wait_until(lambda: masters[-1].queue() == [])


def by_hand(pool: Pool, tool: str, *arguments: str) -> None:
    """Run a command with a terminal."""
    done = pool.tool(tool, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, f"did not happen within {LIMIT_S} s"
        time.sleep(0.05)


def schedd(pool: Pool) -> psutil.Process:
    """Return the pool's schedd as soon as it runs."""
    master = psutil.Process(pid(pool.submit))
    found: list[psutil.Process] = []

    def there() -> bool:
        found[:] = [child for child in master.children() if child.name() == "condor_schedd"]
        return bool(found)

    wait_until(there)
    return found[0]


def test_a_new_master_removes_the_jobs_of_an_earlier_one(start: Callable[[str], Master]) -> None:
    earlier = start(STAYS)
    earlier.backend.submit("w1")
    earlier.until("w1", State.RUNNING)
    later = start("exit 0")
    assert later.backend.inherit(keep=False) == []
    later.backend.submit("w2")
    later.until("w2", State.FINISHED)
    wait_until(lambda: later.queue() == [])
    later.events += later.backend.poll()
    assert {event.worker for event in later.events} == {"w2"}
    end = earlier.until("w1", State.EVICTED)
    assert not end.cancelled and end.detail


def test_other_runs_are_left_alone(start: Callable[[str], Master], tmp_path: Path) -> None:
    first = start(STAYS)
    first.backend.submit("w1")
    first.until("w1", State.RUNNING)
    directory = RunDirectory(tmp_path / "other")
    directory.create()
    other = Master(directory, "exit 0")
    other.backend.submit("w1")
    other.until("w1", State.FINISHED)
    other.backend.close()
    assert [job["GridmlWorker"] for job in first.queue()] == ["w1"]
    assert first.backend.poll() == []


def test_a_schedd_that_is_killed_loses_and_repeats_nothing(start: Callable[[str], Master], condor_pool: Pool) -> None:
    master = start(STAYS)
    master.backend.submit("w1")
    master.until("w1", State.RUNNING)
    killed = schedd(condor_pool)
    killed.kill()
    for worker in ("w2", "w3"):
        master.backend.submit(worker)
    psutil.wait_procs([killed], timeout=LIMIT_S)
    master.events += master.backend.poll()
    wait_until(lambda: schedd(condor_pool).pid != killed.pid and condor_pool.tool("condor_q").returncode == 0)
    master.try_again()
    for worker in ("w2", "w3"):
        master.until(worker, State.RUNNING)
    assert sorted(job["GridmlWorker"] for job in master.queue()) == ["w1", "w2", "w3"]
    for worker in ("w2", "w3"):
        assert master.states(worker) == [State.QUEUED, State.RUNNING]


def test_a_schedd_that_is_away_at_the_first_submission_is_waited_for(
    start: Callable[[str], Master], condor_pool: Pool
) -> None:
    master = start("exit 0")
    killed = schedd(condor_pool)
    killed.kill()
    psutil.wait_procs([killed], timeout=LIMIT_S)
    master.backend.submit("w1")
    master.events += master.backend.poll()
    assert master.states("w1") == [State.QUEUED]
    wait_until(lambda: schedd(condor_pool).pid != killed.pid and condor_pool.tool("condor_q").returncode == 0)
    master.try_again()
    master.until("w1", State.FINISHED)
    assert master.states("w1") == [State.QUEUED, State.RUNNING, State.FINISHED]


def test_jobs_with_a_lost_acceptance_are_not_submitted_twice(
    start: Callable[[str], Master], monkeypatch: pytest.MonkeyPatch
) -> None:
    import htcondor2

    master, really = start(STAYS), htcondor2.Schedd.submit

    def unheard(*arguments: object, **more: object) -> None:
        really(*arguments, **more)
        raise htcondor2.HTCondorException("the connection was lost")

    monkeypatch.setattr(htcondor2.Schedd, "submit", unheard)
    master.backend.submit("w1")
    master.backend.poll()
    monkeypatch.undo()
    master.backend.submit("w2")
    master.try_again()
    for worker in ("w1", "w2"):
        master.until(worker, State.RUNNING)
    assert sorted(job["GridmlWorker"] for job in master.queue()) == ["w1", "w2"]


def test_a_job_removed_by_hand_was_not_cancelled(start: Callable[[str], Master], condor_pool: Pool) -> None:
    master = start(STAYS)
    master.backend.submit("w1")
    master.until("w1", State.RUNNING)
    by_hand(condor_pool, "condor_rm", master.number("w1"))
    end = master.until("w1", State.EVICTED)
    assert not end.cancelled and end.machine and end.detail
    wait_until(lambda: master.queue() == [])
    master.events += master.backend.poll()
    assert State.RUNNING not in master.states("w1.1")
    assert all(event.state.ended for event in {event.worker: event for event in master.events}.values())


def test_a_held_job_says_why_and_goes_on_when_released(start: Callable[[str], Master], condor_pool: Pool) -> None:
    master = start(STAYS)
    master.backend.submit("w1")
    master.until("w1", State.RUNNING)
    by_hand(condor_pool, "condor_hold", "-reason", "the scratch disk is being mended", master.number("w1"))
    held = master.until("w1.1", State.HELD)
    assert "the scratch disk is being mended" in held.detail
    assert master.states("w1") == [State.QUEUED, State.RUNNING, State.EVICTED]
    assert not any(event.cancelled for event in master.events)
    by_hand(condor_pool, "condor_release", master.number("w1"))
    master.until("w1.1", State.RUNNING)
    assert master.states("w1.1") == [State.QUEUED, State.HELD, State.QUEUED, State.RUNNING]


def test_a_job_that_cannot_start_is_held_and_says_why(start: Callable[[str], Master]) -> None:
    master = start(STAYS)
    (master.directory.root.parent / "program.py").unlink()
    master.backend.submit("w1")
    held = master.until("w1", State.HELD)
    assert "program.py" in held.detail
    master.backend.cancel("w1")
    assert master.until("w1", State.EVICTED).cancelled


def test_a_job_that_waits_for_a_machine_that_rested_starts_there_again(start: Callable[[str], Master]) -> None:
    master = start("exit 0")
    master.backend.submit("w1")
    host = master.until("w1", State.FINISHED).host
    master.backend.avoid([host])
    master.backend.submit("w2")
    master.backend.poll()
    (job,) = master.queue(condor_submit.AVOIDED)
    assert (job["GridmlWorker"], job[condor_submit.AVOIDED]) == ("w2", host)
    master.backend.avoid([])
    master.until("w2", State.FINISHED)


@pytest.fixture
def reset_schedd(condor_pool: Pool) -> Iterator[Callable[[int], None]]:
    """Restart the pool's schedd with an empty queue whose job ids start at a number."""
    text = condor_pool.config.read_text()

    def make(first: int) -> None:
        condor_pool.config.write_text(f"{text}SCHEDD_CLUSTER_INITIAL_VALUE = {first}\n")
        killed = schedd(condor_pool)
        killed.kill()
        psutil.wait_procs([killed], timeout=LIMIT_S)
        for queue in (condor_pool.submit.folder / "spool").glob("job_queue.log*"):
            queue.unlink()
        wait_until(lambda: schedd(condor_pool).pid != killed.pid and condor_pool.tool("condor_q").returncode == 0)

    yield make
    condor_pool.config.write_text(text)


@pytest.mark.parametrize("ended", [True, False])
def test_a_number_that_comes_again_is_another_job(
    start: Callable[[str], Master], reset_schedd: Callable[[int], None], ended: bool
) -> None:
    master = start("exit 0" if ended else STAYS)
    master.backend.submit("w1")
    master.until("w1", State.RUNNING)
    cluster = int(master.number("w1").partition(".")[0]) if not ended else 0
    if ended:
        master.until("w1", State.FINISHED)
        cluster = max(key[0] for key in master.backend._jobs)
    reset_schedd(cluster)
    (master.directory.root / condor_submit.LAUNCHER).write_text(f"#!/bin/sh\n: >>{outbox.FILE}\n{STAYS}\n")
    master.backend.submit("w2")
    master.try_again()
    master.until("w2", State.RUNNING)
    assert master.number("w2") == f"{cluster}.0"
    assert master.states("w1")[-1] is (State.FINISHED if ended else State.EVICTED)
    later = start(STAYS)
    assert later.backend.inherit(keep=True) == ["w2"]
    assert [event.state for event in later.backend.poll()][-1] is State.RUNNING


def gridml_submit(programs: Path, root: Path, config: Path) -> subprocess.CompletedProcess[str]:
    """Run `gridml submit` in a process with another configuration; a process keeps the first one that it read."""
    gridml = shutil.which("gridml", path=str(Path(sys.executable).parent)) or "gridml"
    return subprocess.run(
        [gridml, "submit", str(programs / "counts.py"), "--run-dir", str(root)],
        env={**os.environ, "CONDOR_CONFIG": str(config), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


@pytest.fixture
def silent(condor_pool: Pool, tmp_path: Path) -> Path:
    """The configuration of a pool that is not running."""
    host = Host(tmp_path / "silent", user(), port=9)
    configuration.write(host, condor_pool.release, "any key")
    return host.config


@pytest.mark.parametrize("there", [True, False])
def test_a_queue_that_cannot_be_reached_is_said(programs: Path, tmp_path: Path, silent: Path, there: bool) -> None:
    config = silent if there else tmp_path / "no_such_config"
    done = gridml_submit(programs, tmp_path / "run", config)
    said = " ".join(done.stderr.split())
    assert done.returncode == RunError.exit_status, done.stdout + done.stderr
    assert f"CONDOR_CONFIG is {config}" in said and "make pool" in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()
