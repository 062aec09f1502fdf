"""Draw a run: how the metrics rose, when vertices were credited and workers killed, each digit's accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gridml.errors import UsageError
from master.store.reader import opened
from master.store.run_facts import read_clock
from master.views.report import Report


def plot_report(report: Report, root: Path, file: Path) -> None:
    """Draw a run's report into `file`, whose ending says the format (.png, .pdf, .svg).

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
    """Return an empty matplotlib figure of a width and height. Raises UsageError when matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise UsageError(
            "--plot needs matplotlib, which is not installed. Get it with: pip install 'gridml[plot]'"
        ) from error
    return Figure(figsize=inches, layout="constrained")


def save(figure: Any, file: Path) -> None:
    """Write a figure in the format that the file's ending says. Raises UsageError when that cannot be done."""
    if file.suffix.lower() not in (".png", ".pdf", ".svg"):  # one of its own would be added, elsewhere than was said
        raise UsageError(f"{file} cannot be written: its name says no format. Name a .png, .pdf or .svg.")
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{file} cannot be written: {error}. Name a .png, .pdf or .svg in a folder that is there."
        ) from error


def _credit(axes: Any, root: Path) -> None:
    """Draw credited vertices over time, and a tick for each kill: red by SIGKILL, orange by SIGTERM."""
    with opened(root) as connection:
        clock = read_clock(connection, root)
        rows = connection.execute("SELECT at_s, stop - start FROM credits ORDER BY at_s").fetchall()
        kills = connection.execute(
            "SELECT ended_s, graceful FROM workers WHERE state = 'evicted' AND started_s IS NOT NULL "
            "AND NOT coalesce(cancelled, 0)"
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
    """Draw the last list-valued metrics as bars: with MNIST the paper's Figure 3, the accuracy of each digit."""
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
