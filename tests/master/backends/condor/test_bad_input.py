"""Mistakes of users on a real pool: a clear message, quickly, without a traceback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridml.errors import RunError, UsageError
from master.backends.condor.backend import RETRY_S
from pools.pool import Pool, personal

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]
COMMAND = [sys.executable, "-P", "-m", "gridml", "submit"]
SMALL = ["--workers", "2", "--request-memory", "256MB", "--request-disk", "50MB", "--foreground"]


def submit(pool: Pool, program: Path, root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, str(program), "--run-dir", str(root), *SMALL, *options]
    return subprocess.run(command, env=pool.environment(), capture_output=True, text=True, timeout=120)


def test_a_requirement_that_nothing_meets_is_said_within_a_minute(
    condor_pool: Pool, programs: Path, tmp_path: Path
) -> None:
    command = [*COMMAND, str(programs / "slow_count.py"), "--run-dir", str(tmp_path / "run"), *SMALL]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, "--requirements", "HasFluxCapacitor", "--json"],
        env=condor_pool.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        events = (json.loads(line) for line in process.stdout)
        warning = next(event for event in events if event["kind"] == "warning")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert "HasFluxCapacitor" in warning["text"] and "--requirements" in warning["text"]
    assert time.monotonic() - began < 60


def test_more_than_the_pool_allows_to_send_ends_the_run_and_says_what_to_do(
    condor_pool: Pool, programs: Path, tmp_path: Path
) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(3 << 20))
    done = submit(
        condor_pool, programs / "slow_count.py", tmp_path / "run", "--send", str(large),
        "--attribute", "MaxTransferInputMB=1",
    )  # fmt: skip
    assert done.returncode == RunError.exit_status
    assert "(code 32)" in done.stderr and "larger than the pool allows" in done.stderr
    assert "Traceback" not in done.stderr


def test_modules_beside_a_program_need_no_option(condor_pool: Pool, programs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    (folder / "kit").mkdir(parents=True)
    (folder / "beside_a_user.py").write_text("from kit.pace import PAUSE_S\n")
    (folder / "kit" / "pace.py").write_text("PAUSE_S = 0.02\n")
    source = (programs / "slow_count.py").read_text()
    assert source.count("time.sleep(0.02)") == 1
    text = source.replace("time.sleep(0.02)", "time.sleep(beside_a_user.PAUSE_S)")
    (folder / "program.py").write_text(text.replace("import time\n", "import time\n\nimport beside_a_user\n"))
    done = submit(condor_pool, folder / "program.py", tmp_path / "run", "--epochs", "1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("option", ["--send", "--packed", "--container-image"])
def test_a_file_that_is_not_there_is_said_before_anything_is_made(
    option: str, condor_pool: Pool, programs: Path, tmp_path: Path
) -> None:
    done = submit(condor_pool, programs / "slow_count.py", tmp_path / "run", option, str(tmp_path / "nowhere.sif"))
    assert done.returncode == UsageError.exit_status
    assert "nowhere.sif" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_requirement_that_is_no_expression_is_refused(condor_pool: Pool, programs: Path, tmp_path: Path) -> None:
    done = submit(condor_pool, programs / "slow_count.py", tmp_path / "run", "--requirements", "Memory >")
    assert done.returncode == UsageError.exit_status
    assert "Traceback" not in done.stderr and "equirements" in done.stderr


@pytest.fixture
def limited(condor_pool: Pool, tmp_path: Path) -> Iterator[Pool]:
    """A pool that allows each user one job in the queue. `condor_pool` only shows that pools can run here."""
    with personal(tmp_path / "pool", cpus=1, more="MAX_JOBS_PER_OWNER = 1\n") as found:
        yield found


def test_a_schedd_that_takes_no_more_jobs_was_reached_all_the_same(
    limited: Pool, programs: Path, tmp_path: Path
) -> None:
    (tmp_path / "job.sub").write_text("executable = /bin/sleep\narguments = 600\nqueue\n")
    assert limited.tool("condor_submit", str(tmp_path / "job.sub")).returncode == 0
    command = [*COMMAND, str(programs / "slow_count.py"), "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, env=limited.environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == RunError.exit_status
    assert "MAX_JOBS_PER_OWNER" in done.stderr and "no HTCondor queue" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_repeated_refusal_of_the_schedd_is_reported_once_and_the_rest_runs(
    limited: Pool, programs: Path, tmp_path: Path
) -> None:
    command = [*COMMAND, str(programs / "slow_count.py"), "--run-dir", str(tmp_path / "a run"), *SMALL, "--json"]
    process = subprocess.Popen(command, env=limited.environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        events = (json.loads(line) for line in process.stdout)
        began = next(time.monotonic() for event in events if event["kind"] == "warning")
        kinds = set()
        while time.monotonic() < began + 2 * RETRY_S + 1:  # it is refused twice more
            kinds.add(next(events)["kind"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    warnings = [line for line in (tmp_path / "a run" / "events.log").read_text().splitlines() if " warning " in line]
    assert len(warnings) == 1 and "running" in kinds
    assert "refuses 2 jobs" in warnings[0] and "MAX_JOBS_PER_OWNER" in warnings[0] and "--workers" in warnings[0]
