"""The plot of `benchmarks.spot.replay`: hours and dollars of each way, with a column for each trace and two rows for
each job."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from master.views.plot import new_figure, save

QUANTITIES = ("hours", "dollars")


@dataclass(frozen=True)
class Panel:
    """The results of all ways in one trace."""

    job: str
    trace: str
    taken: Mapping[str, Sequence[tuple[float, float]]]  #: (hours, dollars) of each start that finished, by way
    starts: Mapping[str, int]  #: the number of starts, by way


def draw(panels: Sequence[Panel], ways: Sequence[str], ours: Sequence[str], file: Path) -> None:
    """Draw a line for each way: a circle for each start, and a diamond at their median, filled for `ours`."""
    jobs = list(dict.fromkeys(panel.job for panel in panels))
    across = max(sum(panel.job == job for panel in panels) for job in jobs)
    figure = new_figure((3.3 * across + 2.2, 2.6 * len(QUANTITIES) * len(jobs) + 0.4))
    grid = figure.subplots(len(QUANTITIES) * len(jobs), across, squeeze=False, sharex="row", sharey=True)
    for down, job in enumerate(jobs):
        for number, quantity in enumerate(QUANTITIES):
            line = grid[len(QUANTITIES) * down + number]
            row = [panel for panel in panels if panel.job == job]
            for axes, panel in zip(line, row, strict=False):
                _panel(axes, panel, number, ways, ours)
                axes.set_xlabel(f"{quantity} of {job} (log scale)")
                if number == 0:
                    axes.set_title(f"{job}, {panel.trace}", fontsize=9, fontweight="bold")
            for axes in line[len(row) :]:
                axes.set_visible(False)
    figure.suptitle("A circle for each start, a diamond at their median, filled for gridml: left is better")
    save(figure, file)


def _panel(axes: Any, panel: Panel, number: int, ways: Sequence[str], ours: Sequence[str]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    for at, way in enumerate(ways):
        values = [each[number] for each in panel.taken.get(way, ())]
        if way not in panel.starts:
            continue
        missing = panel.starts[way] - len(values)
        if missing:
            axes.annotate(
                f"{missing} of {panel.starts[way]} never finished",
                (0.98, at),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="center",
                fontsize=7,
            )
        if not values:
            continue
        colour, fill = ("C0", "C0") if way in ours else ("0.25", "white")
        axes.plot([min(values), max(values)], [at, at], color=colour, linewidth=1)
        axes.plot(values, [at] * len(values), "o", color=colour, markersize=3.5, fillstyle="none", markeredgewidth=0.7)
        median = statistics.median(values)
        axes.plot(median, at, "D", color=colour, markerfacecolor=fill, markersize=6, zorder=3)
        axes.annotate(
            f"{median:#.3g}".rstrip("."), (median, at - 0.36), ha="center", va="center", fontsize=7, color=colour
        )
    axes.set_yticks(range(len(ways)), ways)
    axes.set_ylim(len(ways) - 0.4, -0.8)  # the first on top
    axes.margins(x=0.1)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
