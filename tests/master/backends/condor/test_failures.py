"""Failures on a real pool: a run ends with every vertex credited once and counted once.

The master is a job of the schedd, the workers are jobs of real starters, and kills are real.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gridml.errors import UNFIT, RunError
from pools import pool
from pools.pool import Pool
from pools.release import NoCondor
from pools.submitted import WORKERS, Submitted

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]


def process_of(found: Pool, name: str) -> psutil.Process:
    """Return a daemon of the pool by name; of starters a worker's, because the master's job has one, too."""
    master = pool.pid(found.submit)
    assert master is not None
    named = [p for p in psutil.Process(master).children(recursive=True) if p.name() == name]
    return next(p for p in named if name != "condor_starter" or p.parent().name() == "condor_startd")


def kill_daemon(name: str) -> Callable[[Submitted], None]:
    def inflict(run: Submitted) -> None:
        process_of(run.pool, name).send_signal(signal.SIGKILL)

    return inflict


def kill_master(run: Submitted) -> None:
    """Kill the master with SIGKILL; the schedd then restarts it."""
    os.kill(run.master_pid, signal.SIGKILL)


def hold(run: Submitted) -> None:
    """Put the master's job on hold, and wait until the master has ended."""
    assert run.pool.tool("condor_hold", "-reason", "back at noon", run.master_job).returncode == 0
    run.wait(lambda status: status["status"] != "running" or status["master"] is None, "the master to stop")


def hold_and_release(run: Submitted) -> None:
    """Workers continue while the master's job is on hold; after its release it receives their messages."""
    hold(run)
    assert run.jobs(), "the workers left with their master"
    assert run.pool.tool("condor_release", run.master_job).returncode == 0


def remove_a_job(run: Submitted) -> None:
    assert run.pool.tool("condor_rm", run.jobs()[0].split()[0]).returncode == 0


def vacate_all(run: Submitted) -> None:
    run.act("condor_vacate_job")


def vacate_all_fast(run: Submitted) -> None:
    run.act("condor_vacate_job", "-fast")


FAILURES: dict[str, Callable[[Submitted], None]] = {
    "schedd killed": kill_daemon("condor_schedd"),
    "startd killed": kill_daemon("condor_startd"),
    "starter killed": kill_daemon("condor_starter"),
    "shadow killed": kill_daemon("condor_shadow"),
    "master killed": kill_master,
    "master held and released": hold_and_release,
    "a job removed by hand": remove_a_job,
    "evictions with grace": vacate_all,
    "evictions without grace": vacate_all_fast,
}


def room_taken(folder: Path) -> Callable[[Submitted], None]:
    """Fill the disk of the jobs, evict them all, and free the space when no job runs."""

    def inflict(run: Submitted) -> None:
        filler = folder / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
        try:
            vacate_all_fast(run)
            run.wait(lambda _: not run.jobs(), "the workers to be gone")
        finally:
            filler.unlink()
        for line in run.jobs(state=5):
            assert run.pool.tool("condor_release", line.split()[0]).returncode == 0

    return inflict


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool for this module only, because its daemons are killed."""
    with raised(lambda: pool.personal(tmp_path_factory.mktemp("failures"), cpus=WORKERS)) as found:
        yield found


@contextlib.contextmanager
def raised(make: Callable[[], contextlib.AbstractContextManager[Pool]]) -> Iterator[Pool]:
    """A pool; skip the test with the reason if there is none."""
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(make())
        except NoCondor as why:
            pytest.skip(str(why))
        yield found


@pytest.mark.parametrize("failure", FAILURES)
def test_a_run_ends_exactly_in_spite_of(failure: str, up: Pool, tmp_path: Path) -> None:
    run = Submitted(up, tmp_path / "run")
    run.under_way()
    FAILURES[failure](run)
    run.exact()


def test_lives_that_the_schedd_never_counted_are_found_all_the_same(tmp_path: Path) -> None:
    """Shadows of real pools report a job's starts every 15 minutes, so the count of a killed shadow is lost."""
    slow = "SHADOW_QUEUE_UPDATE_INTERVAL = 900\n"
    with raised(lambda: pool.personal(tmp_path / "pool", cpus=WORKERS, more=slow)) as found:
        run = Submitted(found, tmp_path / "run")
        run.under_way()
        for again in (1, 2):
            master = pool.pid(found.submit)
            assert master is not None
            for process in psutil.Process(master).children(recursive=True):
                if process.name() == "condor_shadow":
                    process.send_signal(signal.SIGKILL)
            wanted = (1 + again) * WORKERS
            run.wait(lambda _, n=wanted: len(run.events("running")) >= n, "every job to run again")  # type: ignore[misc]
        run.exact()


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own takes root")
def test_a_run_ends_exactly_in_spite_of_a_full_execute_disk(tmp_path: Path) -> None:
    execute = tmp_path / "pool" / "execute"
    execute.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m,mode=777", "tmpfs", str(execute)], check=True)
    try:
        with raised(lambda: pool.personal(tmp_path / "pool", cpus=WORKERS)) as found:
            run = Submitted(found, tmp_path / "run")
            run.under_way()
            room_taken(execute)(run)
            run.exact()
    finally:
        subprocess.run(["umount", str(execute)], check=True)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces take root")
def test_a_worker_whose_network_is_cut_for_a_minute_is_given_up_and_its_late_push_refused(tmp_path: Path) -> None:
    with raised(lambda: pool.firewalled(tmp_path / "pool", workers=2, subnet=76)) as found:
        run = Submitted(found, tmp_path / "run", "--silence", "15", "--epochs", "12", workers=2)
        run.under_way()
        began = time.monotonic()
        pool.cut(found, 1, off=True)
        run.wait(lambda _: bool(run.events("silent")), "the silence to be noticed")
        noticed = time.monotonic() - began
        run.wait(lambda _: time.monotonic() - began > 60, "a minute to pass")
        pool.cut(found, 1, off=False)
        run.exact(epochs=12)
        assert noticed < 40


def test_a_host_that_had_no_room_for_a_while_is_tried_again(up: Pool, tmp_path: Path) -> None:
    """Regression: the only machine was avoided forever, and three jobs waited forever."""
    tries, python = tmp_path / "tries", tmp_path / "python"
    tries.mkdir()
    full = f'[ $(ls "{tries}" | wc -l) -lt {WORKERS} ] && mktemp -p "{tries}" && echo "no room" && exit {UNFIT}'
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 0\n{full}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    run = Submitted(up, tmp_path / "run", "--python", str(python))
    run.exact()
    assert any("no room" in line for line in run.events("lost"))
    assert any("its machine lacks something; no worker there for" in line for line in run.events("avoided"))


def test_a_sent_file_deleted_during_the_run_is_still_sent(up: Pool, tmp_path: Path) -> None:
    """Regression: restarted jobs were held for it."""
    extra = tmp_path / "extra.txt"
    extra.write_text("as it was")
    run = Submitted(up, tmp_path / "run", "--send", str(extra))
    run.under_way()
    extra.unlink()
    vacate_all_fast(run)
    kill_master(run)
    run.exact()
    assert run.events("held") == []
    assert any("extra.txt of --send changed since the run began" in line for line in run.events("warning"))


def test_a_run_goes_on_with_jobs_that_ask_for_more(up: Pool, tmp_path: Path) -> None:
    run = Submitted(up, tmp_path / "run")
    run.under_way()
    run.gridml("cancel", str(run.root))
    run.wait(lambda status: status["status"] == "cancelled" and status["master"] is None, "the run to stop")
    run.gridml("resume", str(run.root), "--request-memory", "300MB", "--workers", "2")
    run.exact()
    ours = ("-constraint", f'GridmlRun =?= "{run.root}"', "-af", "RequestMemory")
    asked = up.tool("condor_history", *ours).stdout.split()
    assert asked.count("256") == WORKERS and asked.count("300") == 2
    assert any("request_memory 300MB instead of 256MB" in line for line in run.events("settings"))


def test_a_suspended_worker_is_relieved_and_neither_lost_nor_blamed(up: Pool, tmp_path: Path) -> None:
    epochs = 12
    run = Submitted(up, tmp_path / "run", "--silence", "5", "--epochs", str(epochs))
    run.under_way()
    job, name = run.jobs()[0].split()
    assert up.tool("condor_suspend", job).returncode == 0
    run.wait(lambda _: bool(run.events("relieved")), "its leases to go to others")
    assert up.tool("condor_continue", job).returncode == 0
    run.wait(lambda _: any("goes on" in line for line in run.events("running")), "it to go on")
    run.exact(epochs=epochs)
    assert run.events("silent") == run.events("avoided") == [], "nothing is wrong with it, or with its machine"
    assert all(name in line for line in run.events("suspended"))
    status = run.status()
    assert (status["lost"], status["avoided_machines"]) == (0, [])


def test_a_run_is_followed_from_before_its_master_begins_to_its_end(up: Pool, tmp_path: Path) -> None:
    run = Submitted(up, tmp_path / "run")
    said = run.gridml("watch", str(run.root))
    assert " running   w1 on " in said and f"{run.root}: finished" in said


def test_removing_the_masters_job_removes_its_workers(up: Pool, tmp_path: Path) -> None:
    run = Submitted(up, tmp_path / "run")
    run.under_way()
    assert up.tool("condor_rm", run.master_job).returncode == 0
    ours = ("-constraint", f'GridmlRun =?= "{run.root}" || ClusterId == {run.master_job}', "-af", "ClusterId")
    run.wait(lambda _: not up.tool("condor_q", *ours).stdout.split(), "all jobs of the run to go")
    assert not up.tool("condor_q", *ours).stdout.split()


def test_a_run_whose_master_is_held_says_so_is_cancelled_and_can_go_on(up: Pool, tmp_path: Path) -> None:
    run = Submitted(up, tmp_path / "a run")
    run.under_way()
    hold(run)
    job = int(run.master_job)
    held = run.wait(lambda status: status["master_job"] is not None, "the master's job to be seen")["master_job"]
    assert isinstance(held, dict) and (held["job"], held["state"]) == (job, "held") and "noon" in held["reason"]
    assert f"Its master is job {job}, held: back at noon" in run.gridml("status", str(run.root))
    assert f"Removed: its job {job}" in run.gridml("cancel", str(run.root))
    ours = ("-constraint", f'GridmlRun =?= "{run.root}" || ClusterId == {job}', "-af", "ClusterId")
    run.wait(lambda _: not up.tool("condor_q", *ours).stdout.split(), "all jobs of the run to go")
    found = run.status()
    assert (found["status"], found["master_job"]) == ("cancelled", None)
    again = run.tried("cancel", str(run.root))
    assert again.returncode == RunError.exit_status and "no longer in the queue" in again.stderr
    run.gridml("resume", str(run.root))
    run.exact()


@pytest.fixture
def waits(tmp_path: Path) -> Iterator[Pool]:
    """A pool that does not start masters."""
    with raised(lambda: pool.personal(tmp_path / "pool", cpus=1, more="START_LOCAL_UNIVERSE = False\n")) as found:
        yield found


def test_a_run_whose_master_has_not_begun_is_cancelled(waits: Pool, tmp_path: Path) -> None:
    run = Submitted(waits, tmp_path / "run")
    assert f"Its master is job {run.master_job}, queued" in run.gridml("status", str(run.root))
    assert waits.tool("condor_rm", run.master_job).returncode == 0
    run.wait(lambda status: status["master_job"] is None, "the job to go")
    assert "No master drives it" in run.gridml("status", str(run.root))
    watched = run.tried("watch", str(run.root))
    assert watched.returncode == RunError.exit_status
    assert f"has not begun: job {run.master_job} was removed from the queue. It said: nothing." in watched.stderr
    again = waits.tool("condor_submit", "-terse", str(run.root / "master.sub")).stdout.split(".")[0]
    assert f"Its master is job {again}, queued" in run.gridml("status", str(run.root))
    assert f"Removed: its job {again}." in run.gridml("cancel", str(run.root))
    found = run.status()
    assert (found["status"], found["master_job"]) == ("cancelled", None)
    assert "no master drove it" in str(found["stopped_because"])


def test_a_job_is_not_said_to_be_cancelled_where_the_queue_cannot_be_reached(waits: Pool, tmp_path: Path) -> None:
    run = Submitted(waits, tmp_path / "run")
    pool.take_down(waits)
    said = run.tried("cancel", str(run.root))
    assert said.returncode == RunError.exit_status and "no HTCondor queue can be reached" in said.stderr
    found = run.status()
    assert (found["status"], found["master_job"]) == ("submitted", None)
