"""EM on real workers that are killed equals a plain loop: each epoch reads complete sums of the one before."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from gridml.errors import LedgerError
from gridml.model.loading import load
from gridml.protocol import bundle
from master.backends.script import PlannedLife, Script
from master.launch import resume, start
from master.ports.environment import Environment
from master.store.settings import Settings
from master.views.report import report

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Killed(Script):
    """Machines whose first two workers are killed shortly after their start; the third stays."""

    machines: int

    @property
    def slots(self) -> int:
        return self.machines

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(free_s, 1.5 + 0.3 * slot if k < 2 else None)


def assert_equals_the_loop(program: Path, root: Path) -> None:
    load(program)
    expected = sys.modules[f"gridml_program_{program.stem}"].plain()
    _, sums = bundle.decode((root / "final.safetensors").read_bytes())
    for name, values in expected.items():
        np.testing.assert_allclose(sums[f"Mixture/{name}"][0], values, rtol=1e-9, atol=0, err_msg=name)


@pytest.mark.parametrize("workers", [1, 4])
def test_em_on_workers_that_die_equals_a_plain_loop(
    programs: Path, tmp_path: Path, pool: Callable[[Script], Environment], workers: int
) -> None:
    program, root = programs / "mixture_by_em.py", tmp_path / "run"
    with start(Settings(program, workers=workers), root, pool(Killed(workers))) as run:
        run.finish()
    assert_equals_the_loop(program, root)
    assert report(root).kills > 0


def test_em_equals_a_plain_loop_when_masters_are_killed(programs: Path, tmp_path: Path) -> None:
    program, root = programs / "mixture_by_em.py", tmp_path / "run"

    def master(point: str, nth: int) -> int:
        command = [sys.executable, str(HERE / "dying_master.py"), str(program), str(root), point, str(nth)]
        return subprocess.run(command, timeout=120, check=False).returncode

    assert master("after-version", 20) == -signal.SIGKILL
    assert master("after-commit", 30) == -signal.SIGKILL
    assert master("", 0) == 0
    assert_equals_the_loop(program, root)


def test_a_run_does_not_go_on_with_epochs_that_overlap(
    programs: Path, tmp_path: Path, pool: Callable[[Script | None], Environment]
) -> None:
    """Epochs that overlap read partial sums of each other, so earlier and later epochs would read different things."""
    program, root = tmp_path / "em.py", tmp_path / "run"
    text = (programs / "mixture_by_em.py").read_text().replace("    time.sleep(0.02)\n", "")
    program.write_text(text)
    with start(Settings(program, workers=1, epochs=1), root, pool(None)) as run:
        run.finish()
    program.write_text(text.replace(", overlap=False", ""))
    with pytest.raises(LedgerError, match="overlap was False, and is True"):
        resume(root, pool(None), with_changes=True, change=lambda chosen: replace(chosen, epochs=2))
