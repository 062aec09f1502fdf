"""Workers without a master on a real pool: they continue, keep unsent pushes, and reach the next master."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import pools.pool
from pools.pool import Pool
from pools.submitted import WORKERS, Submitted

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]


def wasted(report: dict[str, object]) -> int:
    epochs = report["epochs"]
    assert isinstance(epochs, list)
    return sum(epoch["wasted"] for epoch in epochs)


def kill(run: Submitted) -> None:
    os.kill(run.master_pid, signal.SIGKILL)


def hold_and_release(run: Submitted) -> None:
    assert run.pool.tool("condor_hold", run.master_job).returncode == 0
    run.wait(lambda status: status["master"] is None, "the master to stop")
    assert run.pool.tool("condor_release", run.master_job).returncode == 0


def kill_the_schedd(run: Submitted) -> None:
    """The killed schedd ends its master and all shadows; starters wait for the next schedd."""
    daemons = psutil.Process(pools.pool.pid(run.pool.submit)).children()
    next(p for p in daemons if p.name() == "condor_schedd").kill()


@pytest.mark.parametrize("gone", [kill, hold_and_release, kill_the_schedd])
def test_the_same_workers_go_on_under_the_next_master(
    up: Pool, tmp_path: Path, gone: Callable[[Submitted], None]
) -> None:
    run = Submitted(up, tmp_path / "run")
    run.under_way()
    gone(run)
    report = run.exact()
    assert f"{WORKERS} workers live on" in run.events("resumed")[0]
    assert {path.name for path in (run.root / "logs").glob("w*.log")} == {"w1.log", "w2.log", "w3.log"}
    assert not run.events("evicted")
    assert wasted(report) == 0


def test_an_unanswered_push_survives_an_eviction_without_grace(up: Pool, tmp_path: Path) -> None:
    """Without a master workers train to the end of their leases, save the last push, and wait.

    There is one push per chunk, because a second one cannot be saved while the first has no answer.
    """
    run = Submitted(up, tmp_path / "run", "--silence", "10", "--push-every", "500")
    run.under_way()
    master = run.master_pid
    os.kill(master, signal.SIGSTOP)
    try:
        spool = up.submit.folder / "spool"

        def saved(_: object) -> bool:
            return sum(kept.stat().st_size > 0 for kept in spool.rglob("outbox.push")) == WORKERS

        run.wait(saved, "every worker to save its push")
        run.act("condor_vacate_job", "-fast")
    finally:
        os.kill(master, signal.SIGCONT)
    report = run.exact()
    assert len(run.events("evicted")) >= WORKERS
    assert wasted(report) == 0


def test_workers_whose_foreground_master_was_killed_can_be_cancelled(up: Pool, tmp_path: Path) -> None:
    run = Submitted(up, tmp_path / "run", foreground=True)
    run.wait(lambda _: bool(run.jobs()), "a worker to run")
    run.master.kill()
    run.master.wait()
    run.wait(lambda status: status["master"] is None, "the master to be gone")
    assert f"Removed: {WORKERS} jobs of workers" in run.gridml("cancel", str(run.root))
    run.wait(lambda _: not run.jobs(), "the jobs to go")
    assert run.status()["status"] == "cancelled"
