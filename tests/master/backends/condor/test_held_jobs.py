"""Held jobs on a real pool: a run continues without a person wherever that is possible."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pools import pool, submitted
from pools.pool import Pool
from pools.release import NoCondor
from pools.submitted import WORKERS, Submitted

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
STARTS, MEDIUM_S = 2, 15.0
COMMAND = [sys.executable, "-P", "-m", "gridml", "submit"]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool with the OSPool's policies, with shorter times."""
    policies = submitted.policies(starts=STARTS, medium_s=MEDIUM_S)
    removes = "SYSTEM_PERIODIC_REMOVE = JobUniverse == 5 && Unwanted =?= true"
    try:
        with pool.personal(tmp_path_factory.mktemp("strict"), cpus=WORKERS, more=f"{policies}\n{removes}\n") as found:
            yield found
    except NoCondor as why:
        pytest.skip(str(why))


def test_jobs_that_began_too_often_are_replaced(strict: Pool, tmp_path: Path) -> None:
    run = Submitted(strict, tmp_path / "run", "--epochs", "16", "--attribute", 'JobDurationCategory="Long"')
    run.under_way()
    while len(run.events("held")) < WORKERS:  # one of them may be matched again before the schedd evaluates its policy
        run.wait(lambda _: len(run.jobs()) == WORKERS, "all workers to run")
        gone = len(run.events("evicted"))
        run.act("condor_vacate_job")
        run.wait(lambda _, n=gone: len(run.events("evicted")) > n, "one of them to leave")  # type: ignore[misc]
    run.exact(epochs=16)
    assert all("was started 2 times" in line and "takes its place" in line for line in run.events("held"))
    assert not run.jobs(state=5)


def test_workers_leave_before_the_pool_holds_their_jobs(strict: Pool, tmp_path: Path) -> None:
    run = Submitted(strict, tmp_path / "run", "--epochs", "8", "--attribute", 'JobDurationCategory="Medium"')
    report = run.exact(epochs=8)
    assert len(run.events("dismissed")) >= WORKERS and not run.events("held")
    assert "may run for 15 s" in run.events("dismissed")[0]
    assert report["kills"] == 0


def test_a_job_with_too_little_memory_asks_for_more(strict: Pool, tmp_path: Path) -> None:
    options = "--request-memory", "16MB..1GB", "--attribute", 'JobDurationCategory="Long"', "--epochs", "6"
    run = Submitted(strict, tmp_path / "run", *options)
    run.exact(epochs=6)
    held = run.events("held")
    asks, replaced = "asks for more memory", "takes its place"  # for jobs started too often in the meantime
    assert asks in held[0] and all(asks in line or replaced in line for line in held)
    assert len(held) <= 8 * WORKERS, "who asked for more was held for less again"
    (first, *_) = run.events("warning")
    assert "16 MB were too little" in first and "1,024 at most" in first
    warnings = run.status()["warnings"]
    assert isinstance(warnings, list) and any("were too little" in warning["text"] for warning in warnings)


def test_a_job_that_a_person_holds_waits_for_a_person(strict: Pool, tmp_path: Path) -> None:
    run = Submitted(strict, tmp_path / "run", "--attribute", 'JobDurationCategory="Long"', workers=1)
    run.under_way()
    run.act("condor_hold", "-reason", "lunch")
    status = run.wait(lambda status: status["held"] == 1, "a job on hold")
    assert (status["alive"], status["status"], status["seconds_left"]) == (0, "running", None)
    said = run.gridml("status", str(run.root))
    assert "1 held" in said and "lunch" in said and "resume" not in said
    (release,) = re.findall(r"condor_release .*", said)
    assert run.pool.tool("condor_release", *shlex.split(release)[1:]).returncode == 0
    run.exact()


def test_what_may_pass_is_tried_again(strict: Pool, tmp_path: Path) -> None:
    """A file that is sent with each job is missing when the jobs are evicted, and is restored soon after."""
    run = Submitted(strict, tmp_path / "run", "--attribute", 'JobDurationCategory="Long"', workers=1)
    run.under_way()
    code = run.root / "gridml.pyz"
    code.rename(tmp_path / "away")
    run.act("condor_vacate_job", "-fast")
    run.wait(lambda status: status["held"] == 1, "a job on hold")
    (tmp_path / "away").rename(code)
    run.exact()
    assert "its cause may pass" in run.events("held")[0]


def test_a_run_whose_jobs_are_all_removed_stops(strict: Pool, tmp_path: Path) -> None:
    run = Submitted(strict, tmp_path / "run", "--attribute", "Unwanted=true", "--epochs", "100")
    status = run.wait(lambda status: status["status"] == "failed", "the run to stop")
    assert re.search(r"\d+ with their jobs removed.*SYSTEM_PERIODIC_REMOVE", str(status["stopped_because"]))


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--request-memory", "lots", "1GB..4GB"),
        ("--request-memory", "4GB..1GB", "smaller"),
        ("--requirements", "HasAVX2 &&", "brackets"),
        ("--rank", "(Memory", "brackets"),
        ("--attribute", "WantGlideIn=1+", "brackets"),
        ("--job-hours", "-1", "hours"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_made(
    option: str, value: str, expected: str, condor_pool: Pool, programs: Path, tmp_path: Path
) -> None:
    command = [*COMMAND, str(programs / "slow_count.py"), "--run-dir", str(tmp_path / "run"), option, value]
    done = subprocess.run(command, env=condor_pool.environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and expected in done.stderr and value.rpartition("=")[2] in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()
