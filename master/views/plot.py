"""Plots of a run, of a plan and of a placement, with matplotlib.

- A run: metrics over time, credited vertices and kills, list-valued metrics (such as the accuracy per digit).
- A plan: goodput against chunk size, as computed by the model and by a replay of lives, with the choice marked.
- A placement: memory and traffic of each part, compared with a random placement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from chunk_model.goodput import chunk_goodput
from gridml.errors import UsageError
from gridml.placement.base import COLUMN_WEIGHTS
from gridml.placement.quality import Quality
from master.planning.plan import Plan, all_or_nothing, replay_sizes
from master.store.reader import opened, read_clock
from master.views.render_plan import rounded
from master.views.report import KILLED
from master.views.report_parts import Figures


def plot_report(report: Figures, root: Path, file: Path) -> None:
    """Plot a run's report to `file`; the suffix gives the format (.png, .pdf, .svg).

    Raises UsageError when matplotlib is not installed, or the file cannot be written.
    """
    figure = new_figure((11, 7))
    evaluated = [e for e in report.epochs if e.metrics]
    names = [n for n, v in (evaluated[-1].metrics if evaluated else {}).items() if not isinstance(v, list)]
    lists = {n: v for n, v in (evaluated[-1].metrics if evaluated else {}).items() if isinstance(v, list)}
    axes = figure.subplots(2, 2)
    figure.suptitle(f"{report.program}: {report.workers} workers, {report.kills} kills, {report.status}")
    x = [e.epoch for e in evaluated]
    for name in names:
        values = [e.metrics.get(name, np.nan) for e in evaluated]
        axes[0, 0].plot(x, values, marker="o", label=name)
        axes[0, 1].plot([e.closed_s for e in evaluated], values, marker="o", label=name)
    axes[0, 0].set_xlabel("epoch")
    axes[0, 0].xaxis.get_major_locator().set_params(integer=True)
    axes[0, 1].set_xlabel("seconds of the run")
    if names:
        axes[0, 0].legend()
    _credit(axes[1, 0], root)
    _digits(axes[1, 1], lists)
    save(figure, file)


def new_figure(inches: tuple[float, float]) -> Any:
    """Return an empty matplotlib figure of the given size. Raises UsageError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise UsageError(
            "--plot needs matplotlib, which is not installed. Install it: pip install matplotlib"
        ) from error
    return Figure(figsize=inches, layout="constrained")


def save(figure: Any, file: Path) -> None:
    """Write a figure in the format of the file's suffix. Raises UsageError if that fails."""
    if file.suffix.lower() not in (".png", ".pdf", ".svg"):  # matplotlib would append a suffix
        raise UsageError(f"{file} cannot be written: its name says no format. Name a .png, .pdf or .svg.")
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{file} cannot be written: {error}. Name a .png, .pdf or .svg in a folder that exists."
        ) from error


def _credit(axes: Any, root: Path) -> None:
    """Draw credited vertices over time, and a tick for each kill: red for SIGKILL, orange for SIGTERM."""
    with opened(root) as connection:
        clock = read_clock(connection, root)
        rows = connection.execute("SELECT at_s, stop - start FROM credits ORDER BY at_s").fetchall()
        kills = connection.execute(
            f"SELECT ended_s, graceful FROM workers WHERE started_s NOTNULL AND {KILLED}"
        ).fetchall()
    credits = np.array(rows, np.float64).reshape(-1, 2)
    at_s = np.array([clock.at(t) for t in credits[:, 0]])
    axes.plot(at_s, np.cumsum(credits[:, 1]))
    for graceful, colour, label in ((0, "tab:red", "SIGKILL"), (1, "tab:orange", "SIGTERM")):
        times = [clock.at(ended_s) for ended_s, warned in kills if bool(warned) == bool(graceful)]
        axes.plot(times, np.zeros(len(times)), "|", color=colour, markersize=18, label=label)
    axes.set_xlabel("seconds of the run")
    axes.set_ylabel("credited vertices")
    axes.legend()


def _digits(axes: Any, lists: dict[str, list[float]]) -> None:
    """Plot the last list-valued metrics as bars. For MNIST this is the paper's Figure 3, the accuracy of each digit."""
    if not lists:
        axes.set_axis_off()
        return
    width = 0.8 / len(lists)
    for i, (name, values) in enumerate(lists.items()):
        axes.bar(np.arange(len(values)) + i * width, values, width, label=name)
    least = min(min(values) for values in lists.values())
    most = max(max(values) for values in lists.values())
    if 0 < least < most < np.inf:
        axes.set_ylim(least - 0.5 * (most - least), most + 0.1 * (most - least))
    axes.set_xticks(range(max(map(len, lists.values()))))
    axes.set_title(f"{next(iter(lists))} after the last epoch" if len(lists) == 1 else "after the last epoch")
    if len(lists) > 1:
        axes.legend()


def plot_plan(plan: Plan, file: Path) -> None:
    """Plot a plan to `file`; the suffix gives the format (.png, .pdf, .svg).

    Raises UsageError when matplotlib is not installed, or the file cannot be written.
    """
    choice, paper = plan.choice, plan.paper
    figure = new_figure((9, 6))
    axes = figure.subplots()
    sizes = np.array([point.chunk for point in choice.curve])
    label = "goodput"
    if choice.push_every is not None:
        label = f"with a push every {choice.push_every:,} vertices"
        wide = np.unique(np.geomspace(sizes[0], max(sizes[-1], 2 * paper.chunk), 100).round())
        bare = chunk_goodput(choice.lifetime, all_or_nothing(plan.costs), wide, many=plan.work.many)
        axes.plot(wide, bare, "--", color="tab:grey", label="without pushes: all or nothing")
    axes.plot(sizes, [point.goodput for point in choice.curve], color="tab:blue", label=label)
    points = replay_sizes(plan)
    values = np.array([(point.goodput, point.low, point.high) for point in points])
    axes.errorbar(
        [point.chunk for point in points],
        values[:, 0],
        np.abs(values[:, 1:].T - values[:, 0]),
        fmt="o",
        color="tab:green",
        markersize=4,
        capsize=3,
        label=f"replayed, with lives {'drawn from the model' if plan.estimate.observations is None else 'as seen'}",
    )
    axes.plot(choice.chunk, choice.goodput, "o", color="tab:red", markersize=10, label=f"chosen: {choice.chunk:,}")
    label = f"the paper's choice, without pushes: {paper.chunk:,}"
    axes.plot(paper.chunk, paper.goodput, "X", color="black", markersize=9, label=label)
    axes.set_xscale("log")
    axes.set_ylim(0, None)
    axes.set_xlabel("vertices a chunk")
    axes.set_ylabel("goodput: share of the machines' time that is kept training")
    axes.set_title(f"lives: {rounded(choice.lifetime)}")
    axes.legend()
    save(figure, file)


def plot_quality(quality: Quality, file: Path) -> None:
    """Plot the memory and the traffic of each part to `file`; the suffix gives the format (.png, .pdf, .svg).

    Raises UsageError when matplotlib is not installed, or the file cannot be written.
    """
    figure = new_figure((11, 5))
    figure.suptitle(f"{quality.rows:,} rows and {quality.columns:,} columns on {quality.parts:,} parts")
    both = ((quality.at_random, "random", "tab:grey", -0.2), (quality.placed, quality.method, "tab:blue", 0.2))
    columns = "weight of columns" if COLUMN_WEIGHTS in quality.weighted else "columns"
    titles = (f"{columns} that a part touches, |N(U)|", f"{columns} that travel to and from a part in a round")
    for axes, title, name in zip(figure.subplots(1, 2), titles, ("touched", "travelling"), strict=True):
        for traffic, label, colour, shift in both:
            values = np.sort(getattr(traffic, name))[::-1]
            axes.bar(np.arange(quality.parts) + shift, values, 0.4, color=colour, label=label)
        axes.set_ylim(0, 1.2 * max(axes.get_ylim()[1], 1))  # room for the legend
        axes.set_title(title)
        axes.set_xlabel("parts, the largest first")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    save(figure, file)
