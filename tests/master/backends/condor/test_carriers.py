"""Carriers of messages on a real pool: the master's SFTP server, and Chirp with large files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gridml.errors import LedgerError, RunError, UsageError
from gridml.protocol import bundle
from master.store import rundir
from master.store.reader import opened
from master.views.progress import read_progress
from pools.pool import Pool

pytestmark = pytest.mark.real
PROGRAM = Path(__file__).parents[3] / "programs" / "slow_count.py"
VERTICES, EPOCHS = 4_000, 2
LIMIT_S = 180.0
ASKED = ["--workers", "3", "--request-memory", "256MB", "--request-disk", "100MB", "--chunk", "500"]


def gridml(pool: Pool, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gridml", *arguments]
    return subprocess.run(command, env=pool.environment(), capture_output=True, text=True, timeout=LIMIT_S)


@contextmanager
def submitted(pool: Pool, root: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A run of three workers whose master is another process of this machine."""
    command = [sys.executable, "-m", "gridml", "submit", str(PROGRAM), "--foreground"]
    command += ASKED
    with (root.parent / "terminal").open("w") as terminal:
        running = subprocess.Popen(
            [*command, "--run-dir", str(root), *options],
            env=pool.environment(),
            stdout=terminal,
            stderr=terminal,
            text=True,
        )
        try:
            yield running
        finally:
            running.terminate()
            running.wait(LIMIT_S)


def exact(pool: Pool, root: Path) -> dict[str, object]:
    """Return the report of a run; check that every vertex was credited once and counted once in the replica."""
    report: dict[str, object] = json.loads(gridml(pool, "report", str(root), "--json").stdout)
    epochs = report["epochs"]
    assert isinstance(epochs, list)
    assert [(e["credited"], e["duplicated"], e["lost"]) for e in epochs] == [(VERTICES, 0, 0)] * EPOCHS
    _, tensors = bundle.decode((root / "final.safetensors").read_bytes())
    assert [int(values.sum()) for values in tensors.values()] == [VERTICES * EPOCHS]
    return report


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(0.1)  # polling interval


def credited(root: Path) -> int:
    try:
        with opened(root) as ledger:
            return read_progress(ledger, time.time()).all_credited
    except LedgerError:  # it does not exist yet
        return 0


def evictions(root: Path) -> int:
    return sum(line.split()[2:3] == ["evicted"] for line in (root / "events.log").read_text().splitlines())


def test_a_run_by_sftp_ends_exactly_and_leaves_no_key_behind(condor_pool: Pool, tmp_path: Path) -> None:
    root = tmp_path / "run"
    with submitted(condor_pool, root, "--carrier", "sftp", "--address", "127.0.0.1") as running:
        wait_until(lambda: credited(root) > 0 or running.poll() is not None, "a first credit")
        jobs = condor_pool.tool("condor_q", "-constraint", f'GridmlRun == "{root}"', "-long").stdout
        keys = [path for path in (root / "sftp").iterdir() if "." not in path.name]
        assert len(keys) == 3 and "WantIOProxy" not in jobs
        for key in keys:
            assert key.stat().st_mode & 0o777 == 0o600
            assert json.loads(key.read_text())["private_key"].splitlines()[1] not in jobs
        assert running.wait(LIMIT_S) == 0, (tmp_path / "terminal").read_text()
    exact(condor_pool, root)
    assert os.listdir(root / "sftp") == ["server.json"]
    assert "PRIVATE" not in (tmp_path / "terminal").read_text()
    assert "PRIVATE" not in "".join(path.read_text() for path in (root / "logs").iterdir())


@pytest.mark.parametrize("how", [[], ["-fast"]], ids=["with grace", "without grace"])
def test_a_run_by_sftp_ends_exactly_in_spite_of_evictions(condor_pool: Pool, tmp_path: Path, how: list[str]) -> None:
    root = tmp_path / "run"
    with submitted(condor_pool, root, "--carrier", "sftp", "--address", "127.0.0.1") as running:
        wait_until(lambda: credited(root) > 0, "a first credit")
        vacated = condor_pool.tool("condor_vacate_job", *how, "-constraint", f'GridmlRun == "{root}"')
        assert vacated.returncode == 0, vacated.stderr
        assert running.wait(LIMIT_S) == 0, (tmp_path / "terminal").read_text()
    exact(condor_pool, root)
    assert evictions(root) >= 2


def test_workers_find_a_master_again_that_was_killed(condor_pool: Pool, tmp_path: Path) -> None:
    root = tmp_path / "run"
    asked = ["--carrier", "sftp", "--address", "127.0.0.1", "--run-dir", str(root), *ASKED]
    said = gridml(condor_pool, "submit", str(PROGRAM), *asked)
    assert said.returncode == 0, said.stderr
    wait_until(lambda: credited(root) > 0, "a first credit")
    before = {path.name: path.read_text() for path in (root / "sftp").iterdir()}
    os.kill(int((root / "master.lock").read_text().split()[1]), signal.SIGKILL)
    at = credited(root)
    wait_until(lambda: credited(root) > at, "credits by the next master")
    after = {path.name: path.read_text() for path in (root / "sftp").iterdir()}
    assert after["server.json"] == before["server.json"]
    assert {name: after[name] for name in before if name in after} == {n: before[n] for n in before if n in after}
    wait_until(lambda: (root / "final.safetensors").exists(), "the end of the run")
    wait_until(lambda: " finished " in (root / "events.log").read_text(), "the last word of its master")
    exact(condor_pool, root)
    assert evictions(root) == 0  # they are the same workers


def test_a_worker_that_cannot_reach_the_master_says_so(condor_pool: Pool, tmp_path: Path) -> None:
    """192.0.2.1 is never assigned (RFC 5737)."""
    credential = {"host": "192.0.2.1", "port": 9, "host_key": "", "user": "w1", "private_key": ""}
    (tmp_path / "w1").write_text(json.dumps(credential))
    code = (
        "import remote.worker as job; job.PATIENCE_S = 0.0\n"
        "import gridml.carriers.sftp as sftp; sftp.SftpConnection.__init__.__defaults__ = (0.2,)\n"
        "import sys, remote.worker; sys.exit(remote.worker.main())"
    )
    command = [sys.executable, "-c", code, "--name", "w1", "--program", str(PROGRAM), "--carrier", "sftp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == RunError.exit_status, done
    assert "cannot be reached" in done.stderr and "192.0.2.1:9" in done.stderr and "--address HOST:PORT" in done.stderr


def test_a_file_too_large_for_one_chirp_command_travels_both_ways(condor_pool: Pool, tmp_path: Path) -> None:
    import htcondor2

    rundir.write_code(tmp_path / rundir.CODE)
    (tmp_path / "mail").mkdir()
    (tmp_path / "there_and_back.py").write_text(
        "import os, sys, time\n"
        "sys.path.insert(0, 'gridml.pyz')\n"
        "from gridml.carriers.chirp import proxy_of_job\n"
        "payload = os.urandom(1 << 20) * 256 + b'more'\n"
        "link = proxy_of_job()\n"
        "link.put('mail/message', payload)\n"
        "print(len(payload), link.get('mail/message') == payload, link.list('mail'))\n"
    )
    config = 'export GRIDML_CHIRP_CONFIG="$_CONDOR_CHIRP_CONFIG"'  # as the launcher of workers does
    (tmp_path / "run.sh").write_text(f'#!/bin/sh\n{config}\nexec "{sys.executable}" there_and_back.py\n')
    (tmp_path / "run.sh").chmod(0o755)
    job = {
        "executable": str(tmp_path / "run.sh"),
        "initialdir": str(tmp_path),
        "transfer_input_files": f"{rundir.CODE}, there_and_back.py",
        "should_transfer_files": "YES",
        "want_io_proxy": "True",
        "request_memory": "1GB",
        "request_disk": "10MB",
        "log": "log",
        "output": "out",
        "error": "err",
    }
    htcondor2.Schedd().submit(htcondor2.Submit(job))
    wait_until(lambda: (tmp_path / "log").exists() and "Job terminated" in (tmp_path / "log").read_text(), "its end")
    size = (1 << 28) + 4
    assert (tmp_path / "mail" / "message").stat().st_size == size
    (tmp_path / "mail" / "message").unlink()
    said = (tmp_path / "out").read_text().split(" ", 2)
    assert said[:2] == [str(size), "True"] and "message" in said[2], (tmp_path / "err").read_text()


def test_a_pool_of_other_machines_does_not_get_a_loopback_address(condor_pool: Pool, tmp_path: Path) -> None:
    """Regression: every job of such a run waited for a master that it could not reach."""
    for own, refused in (("127.0.0.1", False), ("*", True)):
        config = tmp_path / f"config-{refused}"
        config.write_text(condor_pool.config.read_text() + f"NETWORK_INTERFACE = {own}\n")
        command = [sys.executable, "-m", "gridml", "submit", str(PROGRAM), "--dry-run"]
        done = subprocess.run(
            [*command, "--carrier", "sftp", "--address", "127.0.0.1"],
            env={**condor_pool.environment(), "CONDOR_CONFIG": str(config), "COLUMNS": "300"},
            capture_output=True,
            text=True,
        )
        assert (done.returncode == UsageError.exit_status) is refused, done.stderr
        assert ("--address HOST[:PORT]" in done.stderr) is refused
