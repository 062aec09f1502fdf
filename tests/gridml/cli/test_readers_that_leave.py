"""A reader that closes the pipe, such as `head`: the command continues to its usual end and exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gridml.api.handle import Run
from master.views import terminal

COUNTS = Path(__file__).parents[2] / "programs" / "counts.py"


def read_a_line(*arguments: str) -> tuple[str, str, int]:
    """Return the first line of a command's output, its stderr, and its exit status after the reader has gone."""
    command = [sys.executable, "-m", "gridml", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    return line, said, process.returncode


@pytest.mark.real
def test_a_run_goes_on_to_its_end(tmp_path: Path) -> None:
    line, said, status = read_a_line("run", str(COUNTS), "--workers", "1", "--run-dir", str(tmp_path / "run"), "--json")
    assert json.loads(line)["topic"] and (said, status) == ("", 0)
    assert Run(tmp_path / "run").status == "finished"


@pytest.mark.real
@pytest.mark.parametrize(
    "arguments", [("--help",), ("plan", "--lifetime", "exponential(1h)", "--t-exec", "1", "--json")]
)
def test_what_is_left_to_say_is_dropped(arguments: tuple[str, ...]) -> None:
    line, said, status = read_a_line(*arguments)
    assert line and (said, status) == ("", 0)


def test_a_command_that_only_prints_ends_with_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert terminal._has_reader()
        os.close(reader)
        assert not terminal._has_reader()
        monkeypatch.undo()
