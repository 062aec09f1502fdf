"""Progress is for terminals."""

from __future__ import annotations

import io

import pytest

from master.views import render_plan


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("file", [io.StringIO, Terminal])
def test_work_is_shown_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, file: type[io.StringIO], quiet: bool
) -> None:
    stderr = file()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    with render_plan.progress_bars(quiet=quiet) as report:
        report("reading", 5, 10)
        report("reading", 10, 10)
        report("placing", 0, 0)
    shown = stderr.getvalue()
    assert ("placing" in shown and "reading" not in shown.rpartition("placing")[2]) == (file is Terminal and not quiet)
    assert bool(shown) == (file is Terminal and not quiet)
