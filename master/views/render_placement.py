"""Render how good a placement is for a person, and how far the work on it has come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gridml.placement.base import COLUMN_WEIGHTS, STAR
from gridml.placement.quality import Quality
from gridml.placement.traffic import improvement
from master.views.console import PlainConsole
from master.views.render_plan import WIDTH

Told = Callable[[str, int, int], None]  # what is being done, how much of it is done, and how much there is; 0: unknown
_TITLES = {
    "M_max": "largest memory",
    "T_max": "largest traffic",
    "T_sum": "total traffic",
    "duan": "work × traffic",
    "round_s": "seconds a round",
}


def print_quality(quality: Quality) -> None:
    """Print it on standard output."""
    PlainConsole(width=None if sys.stdout.isatty() else WIDTH).print(render_quality(quality))


def render_quality(quality: Quality) -> RenderableType:
    """Return what was placed and how, and the table of the method's figures and random's."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("graph", f"{quality.rows:,} rows, {quality.columns:,} columns, {quality.edges:,} edges")
    grid.add_row("parts", f"{quality.parts:,}")
    grid.add_row("method", Text(quality.method, "bold"))
    grid.add_row("why", quality.why)
    grid.add_row("took", f"{quality.seconds:.2f} s, {quality.peak_mb:,.0f} MB of memory with the graph's reading")
    note = f"Memory: {_columns(quality)} that a part touches. Traffic: what of it travels to and from it in a round"
    note += ", all of it: a star." if quality.options.topology == STAR else "."
    return Group(grid, Text(), _figures(quality), Text(), Text(note, "dim"))


def _figures(quality: Quality) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("", quality.method, "random", "improvement"):
        table.add_column(title, justify="right" if title else "left")
    for name, (placed, chance) in quality.figures.items():
        shown = ",.3g" if isinstance(placed, float) else ","
        better = f"{improvement(chance, placed):.1f}%"
        table.add_row(_TITLES[name], f"{placed:{shown}}", f"{chance:{shown}}", better)
    table.add_row("balance", f"{quality.placed.balance:.3f}", f"{quality.at_random.balance:.3f}", "")
    return table


def _columns(quality: Quality) -> str:
    return "weights of columns" if COLUMN_WEIGHTS in quality.weighted else "columns"


@contextmanager
def work_shown(*, quiet: bool) -> Iterator[Told]:
    """Show on stderr what is being done, unless `quiet` or where that is no terminal; gives what is to be told."""
    console = PlainConsole(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def told(what: str, done: int, size: int) -> None:
            if what not in tasks:
                for last in tasks.values():
                    progress.update(last, visible=False)
                tasks[what] = progress.add_task(what, total=size or None)
            progress.update(tasks[what], completed=done)

        yield told
