"""`python -m gridml` is the command line of that Python."""

from __future__ import annotations

import runpy
import sys

import pytest


def test_it_is_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gridml", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("gridml", run_name="__main__", alter_sys=True)
    assert not ended.value.code and "gridml" in capsys.readouterr().out
