"""The user's files that instances receive, and those that prevent a run from starting."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridml.carriers.enrolment import MAX_BUNDLE_FILES
from gridml.errors import UsageError
from master.backends.ec2.provisioning import _modules
from master.store.rundir import RunDirectory


def modules(tmp_path: Path, program: str, **files: str) -> list[str]:
    """Return the names of the files that instances get of a program and its package `own` with these files."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").touch()
    for name, text in files.items():
        path = tmp_path / "own" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)
    path = tmp_path / program
    path.write_text("import own\n")
    return list(_modules(path, RunDirectory(tmp_path / "run")))


def test_a_program_comes_first_and_then_its_modules(tmp_path: Path) -> None:
    assert modules(tmp_path, "mine.py", deep__er="") == ["mine.py", "own/__init__.py", "own/deep/er.py"]


def test_what_no_import_can_name_stays_at_home(tmp_path: Path) -> None:
    hidden = tmp_path / "own" / ".ipynb_checkpoints"
    hidden.mkdir(parents=True)
    (hidden / "net-checkpoint.py").touch()
    (tmp_path / "own" / "__init__.py").touch()
    (tmp_path / "mine.py").write_text("import own\n")
    assert list(_modules(tmp_path / "mine.py", RunDirectory(tmp_path / "run"))) == ["mine.py", "own/__init__.py"]


def test_more_files_than_instances_take_are_refused_before_any_is_paid_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"fewer than {MAX_BUNDLE_FILES}.*gridml ami build with --package"):
        modules(tmp_path, "mine.py", **{f"part{n}": "" for n in range(MAX_BUNDLE_FILES)})


def test_a_name_that_instances_reject_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'my program\.py'"):
        modules(tmp_path, "my program.py")
