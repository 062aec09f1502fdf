"""The published figures can be repeated on small graphs: each has its points and its plots."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from benchmarks.placement.figures import DUAN, PARSA, QUICK, quick_graphs, run
from benchmarks.placement.figures_duan import PANELS as DUAN_PANELS
from benchmarks.placement.figures_parsa import PANELS as PARSA_PANELS


def test_every_figure_has_its_points_and_plots(tmp_path: Path) -> None:
    points = run(quick_graphs(), QUICK, tmp_path, tmp_path)
    found = Counter(point.figure for point in points)
    assert found.keys() == {panel.figure for panel in (*PARSA_PANELS, *DUAN_PANELS)}
    assert found["Parsa 7"] == 4 and found["Parsa 1"] == 8 and found["Duan 8"] == 4 and found["Duan 11"] == 6
    better = {(point.method, point.x): point.values for point in points if point.figure == "Parsa 7"}
    assert all(values["T"] > 0 and values["s"] > 0 for values in better.values())
    kept = json.loads((tmp_path / "placement_figures.json").read_text())["rows"]
    assert kept == [point.cells() for point in points]
    for plot in (PARSA, DUAN):
        assert 10_000 < (tmp_path / plot).stat().st_size < 200_000
