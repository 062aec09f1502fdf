"""Drawing of a run's ledger: workers over time, kills, pushes, and credited vertices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from master.store.reader import opened, read_clock

KILLS = {
    True: ("#d08770", "evicted with a warning: it pushes, and leaves"),
    False: ("#bf616a", "killed"),
}
WORK, PUSH, CREDIT = "#8fbcbb", "#2e3440", "#5e81ac"


@dataclass(frozen=True)
class DrawnLife:
    """The life of a worker."""

    machine: str
    from_s: float  #: seconds of the run
    to_s: float  #: seconds of the run
    warned: bool | None  #: killed with a warning (SIGTERM) or without; None: not killed


def draw_run(root: Path, file: Path, until_s: float = math.inf) -> None:
    """Draw the first `until_s` seconds of the run in `root` to `file`, an SVG."""
    with opened(root) as connection:
        clock = read_clock(connection, root)
        credits = [
            (clock.at(at_s), number, machine)
            for at_s, number, machine in connection.execute(
                "SELECT at_s, stop - start, machine FROM credits JOIN workers USING (worker) ORDER BY at_s"
            )
            if clock.at(at_s) <= until_s
        ]
        lives = [
            DrawnLife(machine, clock.at(started_s), clock.at(ended_s), bool(graceful) if killed else None)
            for machine, started_s, ended_s, killed, graceful in connection.execute(
                "SELECT machine, started_s, ended_s, state = 'evicted' AND NOT coalesce(cancelled, 0), graceful"
                " FROM workers"
                " WHERE started_s IS NOT NULL AND ended_s IS NOT NULL ORDER BY started_s"
            )
            if clock.at(started_s) <= until_s
        ]
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _machines(above, lives, [(at_s, machine) for at_s, _, machine in credits])
    total, times, sums = 0, [0.0], [0]
    for at_s, number, _ in credits:
        total += number
        times.append(at_s)
        sums.append(total)
    below.fill_between(times, sums, step="post", color=CREDIT, alpha=0.8)
    below.set_ylabel("examples credited\nin the ledger")
    below.set_xlabel("seconds")
    below.set_xlim(0, min(until_s, max(times)))
    below.set_ylim(0, total)
    below.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None})


def _machines(axes: Axes, lives: list[DrawnLife], pushes: list[tuple[float, str]]) -> None:
    """Draw one row per machine: its workers as bars, their kills as crosses, their pushes as ticks."""
    rows = {machine: number for number, machine in enumerate(sorted({life.machine for life in lives}))}
    for life in lives:
        axes.barh(rows[life.machine], life.to_s - life.from_s, 0.6, life.from_s, color=WORK)
    for warned, (colour, label) in KILLS.items():
        ends = [(life.to_s, rows[life.machine]) for life in lives if life.warned is warned]
        axes.plot([at_s for at_s, _ in ends], [row for _, row in ends], "X", color=colour, markersize=9, label=label)
    axes.plot(
        [at_s for at_s, _ in pushes],
        [rows[machine] for _, machine in pushes],
        "|",
        color=PUSH,
        markersize=12,
        alpha=0.6,
        label="a push is merged, and its examples are credited",
    )
    axes.set_yticks(list(rows.values()), [f"machine {number + 1}" for number in rows.values()])
    axes.invert_yaxis()
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize="small")
