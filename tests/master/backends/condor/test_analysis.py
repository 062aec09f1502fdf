"""The analysis of waiting jobs: `condor_q` runs once, and its result is reported when it has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from master.backends.condor.holds import FILE, Analysis

NO_MATCH = "0 slots match and are willing to run your job\n[0]           0  Memory > 100\n"


def condor_q(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the command."""
    path = folder / "condor_q"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def test_an_answer_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    condor_q(tmp_path, f"echo \"$@\" >&2; printf '%s' '{NO_MATCH}'", monkeypatch)
    analysis = Analysis(tmp_path)
    assert analysis.take() is None
    analysis.begin(7, 2)
    assert analysis._process is not None
    analysis._process.wait(20)
    assert "no machine has: Memory > 100" in (analysis.take() or "")
    assert analysis.take() is None
    assert (tmp_path / FILE).read_text() == NO_MATCH


def test_without_the_command_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    analysis = Analysis(tmp_path)
    analysis.begin(7, 2)
    assert analysis.take() is None
    analysis.close()


def test_a_question_that_takes_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    condor_q(tmp_path, "exec sleep 600", monkeypatch)
    analysis = Analysis(tmp_path)
    analysis.begin(7, 2)
    assert analysis.take() is None  # no answer yet
    analysis.close()
    analysis.close()
    assert analysis.take() is None
