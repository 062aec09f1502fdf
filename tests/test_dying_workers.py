"""Workers that really die, one after the other, stop a run whatever else becomes of the machines around them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gridml.errors import RunError
from master.backends.script import PlannedLife, Script
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings
from master.telemetry.staffing import MAX_DEATHS

pytestmark = pytest.mark.real
DEADLY = f"""
import os, signal
if os.getpid() != {os.getpid()}:  # a worker's
    os.kill(os.getpid(), signal.SIGSEGV)
"""


@dataclass(frozen=True)
class Busy(Script):
    """Two machines: one that stays, and one that is taken away as soon as a worker has it."""

    slots = 2  # type: ignore[assignment]

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(free_s, 0.05 if slot else None)


def test_evictions_elsewhere_do_not_keep_a_run_going_whose_workers_all_crash(
    programs: Path, tmp_path: Path, pool: Callable[[Script], Environment]
) -> None:
    """Each eviction let the count of failed starts begin anew: a run on a busy pool started workers for ever."""
    path, root = tmp_path / "program.py", tmp_path / "run"
    path.write_text(DEADLY + (programs / "counts.py").read_text())
    with start(Settings(path, workers=2), root, pool(Busy())) as run, pytest.raises(RunError, match="workers"):
        run.finish()
    assert len([*(root / "logs").glob("w*.log")]) < 50 * MAX_DEATHS
