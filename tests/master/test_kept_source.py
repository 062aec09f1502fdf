"""The saved copy of a program is the source that was loaded, even if the file changes at the same time."""

from __future__ import annotations

from pathlib import Path

from master.backends.registry import make
from master.launch import create
from master.ports.environment import Environment
from master.store.rundir import RunDirectory
from master.store.settings import Settings

COUNTS = Path(__file__).parents[1] / "programs" / "counts.py"
EDIT = """
from pathlib import Path
Path(__file__).write_text("raise RuntimeError('edited since')")
"""


def test_an_edit_while_the_program_is_loaded_is_not_what_is_kept(tmp_path: Path) -> None:
    program = tmp_path / "counts.py"
    program.write_text(COUNTS.read_text() + EDIT)
    create(Settings(program, workers=1), tmp_path / "run", Environment(make))
    kept = RunDirectory(tmp_path / "run").saved_program(program).program
    assert kept.read_text() == COUNTS.read_text() + EDIT
    assert "edited since" in program.read_text() and program.read_text() != kept.read_text()
