"""A placement's figures; progress bars are only shown at terminals."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

from gridml.placement.base import Options, Placement
from gridml.placement.bipartite import Bipartite
from gridml.placement.parsa import Parsa
from gridml.placement.quality import measure, traffic
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


def test_no_traffic_at_all_is_no_infinite_improvement(capsys: pytest.CaptureFixture[str]) -> None:
    graph = Bipartite.from_edges(np.arange(40), np.arange(40) // 20)
    _, quality = measure(Parsa(), graph, 2, Options())
    without = traffic(graph, Placement(2, np.arange(40, dtype=np.int32) // 20, np.arange(2, dtype=np.int32), ""))
    render_plan.print_quality(replace(quality, placed=without))
    out = capsys.readouterr().out
    assert out.count("all of it") == 2 and "inf" not in out and "nan" not in out
