"""Ten programs beside their loops: each file has both, and the table says which is behind."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.ten_programs.__main__ import FIXED, HERE, TASKS, behind, noise, written
from gridml.model.loading import load
from gridml.model.program import Program


@pytest.mark.parametrize("name", TASKS)
def test_each_file_has_a_loop_and_a_program_to_which_a_setting_can_be_added(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("TRAINED", str(tmp_path))
    program = load(HERE / f"{name}.py")
    assert isinstance(program, Program) and not program.update.keeps_rate
    assert callable(import_module(f"benchmarks.ten_programs.{name}").loop)
    fixed = load(written(TASKS[name], FIXED, tmp_path))
    assert fixed.update.keeps_rate and fixed.epochs == program.epochs


def test_behind_is_worse_by_either_sign() -> None:
    assert behind(TASKS["amp"], [0.5, 0.7], [0.5, 0.5]) == pytest.approx(0.1)
    assert behind(TASKS["vae"], [100.0, 120.0], [100.0, 100.0]) == pytest.approx(-10)
    assert noise([1.0, 3.0], [5.0, 5.0]) == pytest.approx(2) and noise([1.0], [2.0]) == 0.0
