"""Crash loops on a real pool: a master or evaluation that is killed again and again is given up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import pools.submitted
from master.takeover import MAX_KILLS
from pools.pool import Pool
from pools.submitted import PROGRAM, Submitted

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
LAST = "program = gridml.Program(graph, train, "
Write = Callable[..., None]
EXECUTED = "\n001 ("  # of a job's event log


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """A function that writes the run's program: the usual one with some lines before its last."""

    def program(text: str, more: str = "") -> None:
        usual = PROGRAM.read_text()
        assert usual.count(LAST) == 1
        path = tmp_path / "program.py"
        path.write_text(usual.replace(LAST, f"{text}\n{LAST}{more}"))
        monkeypatch.setattr(pools.submitted, "PROGRAM", path)

    yield program


def masters(run: Submitted) -> int:
    """Return the number of starts of the master."""
    return ("\n" + (run.root / "master.log").read_text()).count(EXECUTED)


def out_of_the_queue(run: Submitted) -> None:
    def empty(_: object) -> bool:
        return not run.jobs() and not run.pool.tool("condor_q", "-af", "ClusterId").stdout.strip()

    run.wait(empty, "all jobs to leave the queue")


def test_an_evaluate_that_kills_itself_stops_the_run_once(up: Pool, tmp_path: Path, write: Write) -> None:
    body = "import os, signal\n\ndef evaluate(total: Total) -> dict[str, float]:\n"
    write(body + "    os.kill(os.getpid(), signal.SIGSEGV)\n", "evaluate, ")
    run = Submitted(up, tmp_path / "run")
    status = run.wait(lambda now: now["status"] == "failed", "the run to stop")
    assert "evaluate after epoch 1 ended its process with signal SIGSEGV" in str(status["stopped_because"])
    out_of_the_queue(run)
    assert masters(run) == 1


def test_a_master_that_is_killed_as_it_begins_is_started_a_few_times(up: Pool, tmp_path: Path, write: Write) -> None:
    """The workers continue, and leave at the end."""
    mark = tmp_path / "mark"
    killing = f"os.path.exists({str(mark)!r}) and 'master.run' in sys.modules"
    write(f"import os, signal, sys\n\nif {killing}:\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    run = Submitted(up, tmp_path / "run")
    run.under_way()
    assert psutil.Process(run.master_pid).num_threads() <= 3, "its loop, what fits beside it, what writes metrics"
    before = masters(run)
    mark.touch()
    os.kill(run.master_pid, signal.SIGKILL)
    status = run.wait(lambda now: now["status"] == "failed", "the run to stop")
    assert f"{MAX_KILLS} masters in a row killed before anything was credited" in str(status["stopped_because"])
    out_of_the_queue(run)
    assert masters(run) - before <= MAX_KILLS + 1
    mark.unlink()
    run.gridml("resume", str(run.root), "--json")
    run.exact()
