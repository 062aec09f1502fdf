"""A worker dies with its parent: real processes and SIGKILL; the closing of a pipe shows the end of a worker."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gridml.engine.parent

ROOT = Path(gridml.engine.parent.__file__).parents[1]
LIMIT_S = 60

# Arguments: the descriptor to report to, and the pid to name as the parent. Waits for ever once it has reported its
# pid.
WORKER = """
import os, signal, sys
from gridml.engine.parent import die_with_parent
die_with_parent(int(sys.argv[2]))
os.write(int(sys.argv[1]), b"%d\\n" % os.getpid())
signal.pause()
"""
# Starts a worker in a session of its own, so that nothing but the pdeathsig ties the two together.
PARENT = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1], str(os.getpid())],
                 pass_fds=[int(sys.argv[1])], start_new_session=True).wait()
"""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)


def receive(read: int) -> bytes:
    """Return the next bytes of the pipe; b"" once every process with its other end has ended."""
    ready, _, _ = select.select([read], [], [], LIMIT_S)
    assert ready, f"nothing came within {LIMIT_S} s"
    return os.read(read, 100)


@pytest.mark.real
def test_a_worker_dies_when_its_parent_is_killed(pipe: tuple[int, int]) -> None:
    read, write = pipe
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(write), WORKER], pass_fds=[write], cwd=ROOT)
    os.close(write)
    try:
        worker = int(receive(read))
        assert worker != parent.pid
        os.kill(worker, 0)  # it exists
    finally:
        parent.kill()
        assert parent.wait(LIMIT_S) == -signal.SIGKILL
    assert receive(read) == b""


@pytest.mark.real
def test_a_worker_whose_parent_had_already_gone_dies_at_once(pipe: tuple[int, int]) -> None:
    read, write = pipe
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait(LIMIT_S)
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(write), str(gone.pid)], pass_fds=[write], cwd=ROOT)
    os.close(write)
    assert worker.wait(LIMIT_S) == -signal.SIGKILL
    assert receive(read) == b""


@pytest.mark.real
def test_a_worker_whose_parent_lives_goes_on(pipe: tuple[int, int]) -> None:
    read, write = pipe
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(write), str(os.getpid())], pass_fds=[write], cwd=ROOT)
    os.close(write)
    assert int(receive(read)) == worker.pid and worker.poll() is None
    worker.kill()
    assert worker.wait(LIMIT_S) == -signal.SIGKILL
