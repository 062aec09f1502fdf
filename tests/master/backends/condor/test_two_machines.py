"""A pool of two machines, on one of which every f fails: no more jobs start there, and the run ends on the other.

Both are startds of this host with different names: negotiator, schedd and starters treat an avoided machine as in a
real pool, but networks and disks are shared.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from master.state.failures import MAX_FAILURES
from master.store.reader import opened
from pools import configuration, pool
from pools.configuration import Host
from pools.pool import Pool
from pools.release import NoCondor

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(500)]
PROGRAMS = Path(__file__).parents[3] / "programs"
GOOD, BAD = "good.gridml.pool", "bad.gridml.pool"
CPUS = 2  # of each machine, one for each job
FAILS = f"""    import os
    if "{BAD}" in open(os.environ["_CONDOR_MACHINE_AD"]).read():
        os._exit(1)
    time.sleep(0.4)
"""


@contextlib.contextmanager
def beside(there: Pool, name: str) -> Iterator[None]:
    """Run another machine of a personal pool for the context: a startd of this host with a different name."""
    first = there.submit
    shared = f"SHARED_PORT_PORT = {pool._free_port()}\nNETWORK_HOSTNAME = {name}\nNUM_CPUS = {CPUS}\n"
    host = Host(
        first.folder.with_name(name), first.user, port=first.port, daemons="MASTER SHARED_PORT STARTD", more=shared
    )
    configuration.write(host, there.release, (first.folder / "passwords.d" / "POOL").read_text())
    pool.start(host, there.release)
    try:
        there.wait(2)
        yield
    finally:
        pool.stop(host)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Pool]:
    with contextlib.ExitStack() as stack:
        try:
            more = f"NETWORK_HOSTNAME = {GOOD}\n"
            personal = stack.enter_context(pool.personal(tmp_path / "pool", cpus=CPUS, more=more))
            stack.enter_context(beside(personal, BAD))
        except NoCondor as why:
            pytest.skip(str(why))
        yield personal


def test_no_job_starts_on_a_machine_that_fails_and_the_run_ends_on_the_other(two: Pool, tmp_path: Path) -> None:
    program, root = tmp_path / "program.py", tmp_path / "run"
    text = (PROGRAMS / "slow_count.py").read_text()
    program.write_text(text.replace("    time.sleep(0.02)\n", FAILS))
    command = [
        sys.executable,
        "-P",
        "-m",
        "gridml",
        "submit",
        str(program),
        "--foreground",
    ]
    asked = ["--workers", str(2 * CPUS), "--request-memory", "256MB", "--request-disk", "100MB", "--chunk", "200"]
    done = subprocess.run(
        [*command, *asked, "--run-dir", str(root), "--json"],
        env=two.environment(), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    with opened(root) as ledger:
        lives = ledger.execute(
            "SELECT substr(machine, instr(machine, '@') + 1), submitted_s, started_s FROM workers "
            "WHERE started_s IS NOT NULL"
        ).fetchall()
        ((name, failures, until_s, reason),) = ledger.execute(
            "SELECT name, failures, avoided_until_s, reason FROM machines"
        ).fetchall()
        (ended_s,) = ledger.execute("SELECT max(closed_s) FROM epochs").fetchone()
    starts = [started_s for host, _, started_s in lives if host == BAD]
    assert name == BAD and failures >= MAX_FAILURES and "no worker there while others work" in reason
    assert len(starts) <= CPUS * MAX_FAILURES, "it had a job a second for as long as the run lasted"
    assert max(starts) < until_s < ended_s, "its last pause was over, too"
    assert max(started_s - submitted_s for _, submitted_s, started_s in lives) > 30.0, "jobs waited while it was free"
