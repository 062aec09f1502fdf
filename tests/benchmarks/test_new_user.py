"""The tasks of a new user: the count of their lines is right, and each is a valid program."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.new_user.__main__ import HERE, TASKS, code_lines
from gridml.model.loading import load
from gridml.model.program import Program

SOURCE = '''"""What it is,
in two lines."""

import os  # counted, for what stands before the sign

# not counted
TEXT = """two
lines"""


def f() -> None:
    """Not counted."""
    print(os.name)
'''


def test_lines_of_code_are_neither_blank_nor_comments_nor_docstrings(tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    assert code_lines(path) == 5


@pytest.mark.parametrize("name", [task.name for task in TASKS])
def test_each_task_is_a_program_beside_its_loop(name: str) -> None:
    pytest.importorskip("torch")
    assert isinstance(load(HERE / "tasks" / f"{name}.py"), Program)
    assert (HERE / "loops" / f"{name}.py").exists()
