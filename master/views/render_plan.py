"""Rendering of a plan, of a placement's quality, and of the progress of placing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from chunk_model.lifetime import Lifetime
from gridml.placement.base import COLUMN_WEIGHTS, STAR
from gridml.placement.quality import Ghosts, Quality, improvement
from master.leases.sizing import merging_s
from master.placing.placing import PlannedPlacement
from master.planning.plan import MasterLoad, Plan
from master.views.console import PlainConsole
from master.views.render import duration, grid, in_units, table

WIDTH = 100  # columns of output to a file or a pipe


def print_plan(plan: Plan) -> None:
    """Print a plan on standard output."""
    PlainConsole(width=None if sys.stdout.isatty() else WIDTH).print(render_plan(plan))


def render_plan(plan: Plan) -> RenderableType:
    """Return the chosen chunk size and its reason, warnings, and a comparison with other chunk sizes."""
    parts: list[RenderableType] = [grid(_header(plan))]
    parts += [Text(f"warning: {text}", "yellow") for text in plan.choice.warnings]
    parts += [Text(), _candidates(plan)]
    if plan.estimate.selected is not None and len(plan.estimate.selected.scores) > 1:
        parts += [Text(), Text("log-likelihood of a life left out of the fit", "dim"), _families(plan)]
    return Group(*parts)


def _header(plan: Plan) -> Iterator[tuple[str, RenderableType]]:
    choice = plan.choice
    yield "chunk", Text(f"{choice.chunk:,} vertices", "bold")
    if choice.push_every is None or choice.push_interval_s is None:
        yield "pushes", "none: a chunk counts when it ends, or not at all"
    else:
        yield "pushes", f"every {choice.push_every:,} vertices, {_time(choice.push_interval_s)}"
    yield "goodput", f"{_percent(choice.goodput)} of the machines' time"
    if plan.useful is not None:
        yield "workers", f"at most {plan.useful[0]:,} are useful: {plan.useful[1]}"
    if plan.sharing is not None:
        few = f"{plan.sharing:,} can share each batch" if plan.sharing else "pushes cost too much to share a batch"
        yield "", f"{few}, if the program's steps can be added"
    if plan.load is not None:
        yield "master", _load(plan, plan.load)
    if plan.placement is not None:
        yield "placement", _placement(plan.placement)
    yield "lives", f"{rounded(choice.lifetime)}: {plan.estimate.origin}"
    if plan.estimate.selected is not None:
        yield "", plan.estimate.selected.reason
    yield "reason", choice.reason


def _placement(planned: PlannedPlacement) -> str:
    asked = f"with {planned.workers:,} worker{'s' if planned.workers > 1 else ''}"
    if not planned.methods:
        return f"none {asked}: {planned.reason}"
    took = "" if planned.place_s is None else f", expected to take {_time(planned.place_s)} of computing"
    most = "" if planned.most_saved is None else f", {planned.most_saved:.0%} fewer"
    rows, otherwise, least = (
        in_units(nbytes, "B") for nbytes in (planned.row_bytes, planned.else_bytes, planned.least_bytes)
    )
    return (
        f"{asked} by {' or '.join(planned.methods)}{took}: {planned.reason}. Of {rows} in rows a part "
        f"{planned.than} touches {otherwise}, and however they are placed {least} at least{most}"
    )


def _load(plan: Plan, load: MasterLoad) -> str:
    workers = 1 if plan.work.workers is None else plan.work.workers
    sizes = f"{in_units(load.bytes_up, 'B')} up and {in_units(load.bytes_down, 'B')} down"
    most = f"{plan.max_workers:,} workers at most" if plan.max_workers else "not one worker"
    return (
        f"carries {most} at this push interval: a push takes {_time(load.push_s)} of its time, measured here, with "
        f"{sizes}. {workers:,} may push every {_time(merging_s(workers, load.push_s))}"
    )


def rounded(lifetime: Lifetime) -> str:
    """Return a distribution as text with its parameters rounded to four digits."""
    return re.sub(r"\d+\.\d+(e[+-]?\d+)?", _short, str(lifetime))


def _short(number: re.Match[str]) -> str:
    value = float(number[0])
    return f"{value:.0f}" if 1000 <= value < 1e15 else f"{value:.4g}"


def _candidates(plan: Plan) -> Table:
    made = table("", "vertices", "pushes", "time", "goodput", left=("",))
    for size in plan.candidates:
        pushes = "none" if size.push_every is None else f"{-(-size.chunk // size.push_every):,}"
        row = (size.name, f"{size.chunk:,}", pushes, _time(size.job_s), _percent(size.goodput))
        made.add_row(*row, style="bold" if size.name == "chosen" else "")
    return made


def _families(plan: Plan) -> Table:
    selected = plan.estimate.selected
    assert selected is not None
    made = table("family", "score", left=("family",))
    for family, score in sorted(selected.scores.items(), key=lambda pair: -pair[1]):
        made.add_row(family, f"{score:.4f}", style="bold" if family == selected.family else "")
    return made


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else f"{100 * share:.2g}%"


def _time(seconds: float) -> str:
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms"
    return duration(seconds) if seconds < 86400 else f"{seconds / 86400:.1f} days"


ReportProgress = Callable[[str, int, int], None]  # (name of the task, amount done, total amount or 0 if unknown)
_TITLES = {
    "M_max": "largest memory",
    "G_max": "most ghosts",
    "G_sum": "all ghosts",
    "T_max": "largest traffic",
    "T_sum": "total traffic",
    "duan": "work × traffic",
    "round_s": "seconds a round",
}


def print_quality(quality: Quality) -> None:
    """Print the quality of a placement on standard output."""
    PlainConsole(width=None if sys.stdout.isatty() else WIDTH).print(render_quality(quality))


def render_quality(quality: Quality) -> RenderableType:
    """Return the facts of a placement, and a table that compares its figures with those of a random placement."""
    facts: dict[str, RenderableType] = {
        "graph": f"{quality.rows:,} rows, {quality.columns:,} columns, {quality.edges:,} edges",
        "parts": f"{quality.parts:,}",
        "method": Text(quality.method, "bold"),
        "why": quality.why,
        "took": f"{quality.seconds:.2f} s, {quality.peak_mb:,.0f} MB of memory with the graph's reading",
    }
    note = f"Memory: {_columns(quality)} that a part touches. Traffic: what of it travels to and from it in a round"
    note += ", all of it: a star." if quality.options.topology == STAR else "."
    if quality.ghosts is not None:
        note = "Memory: the vertices that a part reads, its own and ghosts, which are neighbours that other parts have."
    return Group(grid(facts.items()), Text(), _figures(quality), Text(), Text(note, "dim"))


def _figures(quality: Quality) -> Table:
    of_one_type = quality.ghosts is not None
    made = table("", quality.method, "random", *["in order"] * of_one_type, "improvement", left=("",))
    for name, (placed, chance) in quality.figures.items():
        if of_one_type and name in ("T_max", "T_sum"):  # of columns that are placed apart from rows
            continue
        shown = ",.3g" if isinstance(placed, float) else ","
        better = f"{improvement(chance, placed):.1f}%" if placed or not chance else "all of it"
        ordered = [_in_order(quality.ghosts, name)] if quality.ghosts is not None else []
        made.add_row(_TITLES[name], f"{placed:{shown}}", f"{chance:{shown}}", *ordered, better)
    made.add_row("balance", f"{quality.placed.balance:.3f}", f"{quality.at_random.balance:.3f}")
    return made


def _in_order(ghosts: Ghosts, name: str) -> str:
    """Return the figure of ghosts of parts in the file's order; nothing for another figure."""
    figures = {"G_max": ghosts.in_order.max(), "G_sum": ghosts.in_order.sum()}
    return f"{figures[name]:,}" if name in figures else ""


def _columns(quality: Quality) -> str:
    return "weights of columns" if COLUMN_WEIGHTS in quality.weighted else "columns"


@contextmanager
def progress_bars(*, quiet: bool) -> Iterator[ReportProgress]:
    """Show progress bars on stderr, unless `quiet` or stderr is not a terminal. Yields the function
    that reports progress."""
    console = PlainConsole(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, size: int) -> None:
            if what not in tasks:
                for last in tasks.values():
                    progress.update(last, visible=False)
                tasks[what] = progress.add_task(what, total=size or None)
            progress.update(tasks[what], completed=done)

        yield report
