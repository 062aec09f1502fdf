"""Render a plan for a person."""

from __future__ import annotations

import re
import sys

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from chunk_model.lifetime import Lifetime
from master.decisions.sizing import merging_s
from master.planning.master_load import MasterLoad
from master.planning.plan import Plan
from master.planning.planned_placement import PlannedPlacement
from master.views.console import PlainConsole
from master.views.render import duration, in_units

WIDTH = 100  # of what goes into a file or a pipe


def print_plan(plan: Plan) -> None:
    """Print a plan on standard output."""
    PlainConsole(width=None if sys.stdout.isatty() else WIDTH).print(render_plan(plan))


def render_plan(plan: Plan) -> RenderableType:
    """Return the choice, why, what to beware of, and what other sizes would be worth."""
    parts: list[RenderableType] = [_header(plan)]
    parts += [Text(f"warning: {text}", "yellow") for text in plan.choice.warnings]
    parts += [Text(), _candidates(plan)]
    if plan.estimate.selected is not None and len(plan.estimate.selected.scores) > 1:
        parts += [Text(), Text("log-likelihood of a life left out of the fit", "dim"), _families(plan)]
    return Group(*parts)


def _header(plan: Plan) -> Table:
    choice = plan.choice
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("chunk", Text(f"{choice.chunk:,} vertices", "bold"))
    if choice.push_every is None or choice.push_interval_s is None:
        grid.add_row("pushes", "none: a chunk counts when it ends, or not at all")
    else:
        grid.add_row("pushes", f"every {choice.push_every:,} vertices, {_time(choice.push_interval_s)}")
    grid.add_row("goodput", f"{_percent(choice.goodput)} of the machines' time")
    if plan.useful is not None:
        grid.add_row("workers", f"{plan.useful[0]:,} at most are of use: {plan.useful[1]}")
    if plan.load is not None:
        grid.add_row("master", _load(plan, plan.load))
    if plan.placement is not None:
        grid.add_row("placement", _placement(plan.placement))
    grid.add_row("lives", f"{rounded(choice.lifetime)}: {plan.estimate.origin}")
    if plan.estimate.selected is not None:
        grid.add_row("", plan.estimate.selected.reason)
    grid.add_row("reason", choice.reason)
    return grid


def _placement(planned: PlannedPlacement) -> str:
    asked = f"with {planned.workers:,} worker{'s' if planned.workers > 1 else ''}"
    if not planned.methods:
        return f"none {asked}: {planned.reason}"
    took = "" if planned.place_s is None else f", expected to take {_time(planned.place_s)} of computing"
    most = "" if planned.most_saved is None else f", {planned.most_saved:.0%} fewer"
    rows, chance, least = (
        in_units(nbytes, "B") for nbytes in (planned.row_bytes, planned.chance_bytes, planned.least_bytes)
    )
    return (
        f"{asked} by {' or '.join(planned.methods)}{took}: {planned.reason}. Of {rows} in rows a part by chance "
        f"touches {chance}, and however they are placed {least} at least{most}"
    )


def _load(plan: Plan, load: MasterLoad) -> str:
    workers = 1 if plan.work.workers is None else plan.work.workers
    sizes = f"{in_units(load.bytes_up, 'B')} up and {in_units(load.bytes_down, 'B')} down"
    most = f"{plan.most_workers:,} workers at most" if plan.most_workers else "not one worker"
    return (
        f"carries {most} at this push interval: a push takes {_time(load.push_s)} of its time, measured here, with "
        f"{sizes}. {workers:,} may push every {_time(merging_s(workers, load.push_s))}"
    )


def rounded(lifetime: Lifetime) -> str:
    """Return a distribution with no more digits than a person reads."""
    return re.sub(r"\d+\.\d+(e[+-]?\d+)?", _short, str(lifetime))


def _short(number: re.Match[str]) -> str:
    value = float(number[0])
    return f"{value:.0f}" if 1000 <= value < 1e15 else f"{value:.4g}"


def _candidates(plan: Plan) -> Table:
    table = _table()
    for title in ("", "vertices", "pushes", "time", "goodput"):
        table.add_column(title, justify="right" if title else "left")
    for size in plan.candidates:
        pushes = "none" if size.push_every is None else f"{-(-size.chunk // size.push_every):,}"
        row = (size.name, f"{size.chunk:,}", pushes, _time(size.job_s), _percent(size.goodput))
        table.add_row(*row, style="bold" if size.name == "chosen" else "")
    return table


def _families(plan: Plan) -> Table:
    selected = plan.estimate.selected
    assert selected is not None
    table = _table()
    table.add_column("family")
    table.add_column("score", justify="right")
    for family, score in sorted(selected.scores.items(), key=lambda pair: -pair[1]):
        table.add_row(family, f"{score:.4f}", style="bold" if family == selected.family else "")
    return table


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else f"{100 * share:.2g}%"


def _time(seconds: float) -> str:
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms"
    return duration(seconds) if seconds < 86400 else f"{seconds / 86400:.1f} days"
