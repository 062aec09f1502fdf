"""Workers that die one after the other stop a run, or, if their machines end them, it says why it makes no headway."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gridml.errors import CancelledError, RunError
from master.backends.script import PlannedLife, Script
from master.launch import start
from master.ports.environment import Environment
from master.store.reader import connect, read_now
from master.store.rundir import EventFacts
from master.store.settings import Settings
from master.telemetry.staffing import MAX_DEATHS
from master.views.live import progress_line
from master.views.page.document import read_page_facts
from master.views.progress import read_progress
from master.views.terminal import print_status

pytestmark = pytest.mark.real
DEADLY = f"""
import os, signal
if os.getpid() != {os.getpid()}:  # a worker's
    os.kill(os.getpid(), signal.SIGSEGV)
"""
SLOW = f"""
import os, time
if os.getpid() != {os.getpid()}:  # a worker's
    time.sleep(60)
"""


@dataclass(frozen=True)
class Short(Script):
    """Machines that are taken away 0.3 s after they got a worker."""

    slots = 4  # type: ignore[assignment]

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(free_s, 0.3)


def test_a_run_whose_workers_take_longer_to_begin_than_they_live_says_so(
    programs: Path, tmp_path: Path, pool: Callable[[Script], Environment], capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: such a run went on for hours without a word."""
    path, root, printed = tmp_path / "program.py", tmp_path / "run", []
    path.write_text(SLOW + (programs / "counts.py").read_text())

    def report(topic: str, text: str, facts: EventFacts) -> None:
        if topic == "headway":
            printed.append((facts["cause"], text))
            print_status(root, as_json=False)
            connection = connect(root)
            printed.append((progress_line(read_progress(connection, read_now(connection))), ""))
            connection.close()
            printed.append((read_page_facts(root).to_json()["progress"]["no_headway"]["reason"], ""))
            (root / "cancel").touch()

    environment = replace(pool(Short()), report=report)
    with start(Settings(path, workers=4), root, environment) as run, pytest.raises(CancelledError):
        run.finish()
    (cause, text), (line, _), (page, _) = printed
    assert cause == "start" and "before their first message: they lived" in text and "fewer --workers" in text
    assert page in text
    assert "no headway for" in line and "cause start" in line and "left" not in line
    assert "Nothing was credited in" in capsys.readouterr().out


@dataclass(frozen=True)
class Busy(Script):
    """Two machines: one that stays, and one that is taken away as soon as a worker has it."""

    slots = 2  # type: ignore[assignment]

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(free_s, 0.05 if slot else None)


def test_evictions_elsewhere_do_not_keep_a_run_going_whose_workers_all_crash(
    programs: Path, tmp_path: Path, pool: Callable[[Script], Environment]
) -> None:
    """Regression: each eviction reset the count of failed starts, so a run on a busy pool started workers forever."""
    path, root = tmp_path / "program.py", tmp_path / "run"
    path.write_text(DEADLY + (programs / "counts.py").read_text())
    with start(Settings(path, workers=2), root, pool(Busy())) as run, pytest.raises(RunError, match="workers"):
        run.finish()
    assert len([*(root / "logs").glob("w*.log")]) < 50 * MAX_DEATHS
