"""The plot of `benchmarks.spot_replay`: hours and dollars of each way, a panel a job and trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from master.views.plot import new_figure, save

ACROSS = 4  # panels


@dataclass(frozen=True)
class Point:
    """(least, median, most) hours and dollars; NaN where nothing finished."""

    panel: str
    way: str
    hours: tuple[float, float, float]
    dollars: tuple[float, float, float]


def draw(points: Sequence[Point], file: Path) -> None:
    """Log-log: down and to the left is better."""
    from matplotlib.ticker import LogLocator, NullFormatter

    panels = list(dict.fromkeys(point.panel for point in points))
    ways = list(dict.fromkeys(point.way for point in points))
    down = math.ceil(len(panels) / ACROSS)
    figure = new_figure((4.2 * ACROSS, 3.6 * down + 0.6))
    grid = figure.subplots(down, ACROSS, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.set_visible(False)
            continue
        for point in points:
            if point.panel != panels[number] or math.isnan(point.hours[1]):
                continue
            (low_x, x, high_x), (low_y, y, high_y) = point.hours, point.dollars
            axes.errorbar(
                x,
                y,
                xerr=[[x - low_x], [high_x - x]],
                yerr=[[y - low_y], [high_y - y]],
                fmt="os^vDPX"[ways.index(point.way) % 7],
                color=f"C{ways.index(point.way)}",
                markersize=7,
                label=point.way,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
        axes.set_title(panels[number], fontsize=9)
        axes.set_xlabel("hours")
        axes.set_ylabel("dollars")
    handles = {
        label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=ACROSS)
    save(figure, file)
