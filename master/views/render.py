"""Rendering of a report as tables for a terminal or as plain text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from master.store.rundir import RunStatus, command
from master.views.console import PlainConsole
from master.views.money import LifeCost, Money, in_hours
from master.views.report_parts import Choices, CreditSums, Figures, RunSpeed, Troubles

ALTERED = {how: how for how in ("shortened", "clipped", "left_out", "unreadable", "refused")} | {
    "left_out": "partly left out"
}
MACHINES = 20  # maximum rows shown of a table; the other rows are summed up in one
WIDE = 132  # width, in columns, of a report that is not printed to a terminal
T = TypeVar("T")


def as_text(report: Figures) -> str:
    """Return a report as plain text, `WIDE` columns wide."""
    console = PlainConsole(width=WIDE)
    with console.capture() as shown:
        console.print(render_report(report))
    return "\n".join(line.rstrip() for line in shown.get().rstrip().splitlines())  # tables pad their lines


def render_report(report: Figures) -> RenderableType:
    """Return the report as tables for a terminal."""
    parts: list[RenderableType] = [grid(_header(report)), Text(), _epoch_table(report)]
    evaluated = [e for e in report.epochs if e.metrics]
    for name, value in evaluated[-1].metrics.items() if evaluated else ():
        if isinstance(value, list):
            parts += [Text(), _list_table(f"{name} after epoch {evaluated[-1].epoch}", value)]
    if report.machines and report.kills:
        parts += [Text(), _machine_table(report)]
    if report.money is not None:
        parts += [Text(), *render_money(report.money)]
    if report.failures:
        last = report.failures[-1]
        parts += [Text(), Text(f"{len(report.failures)} failures; the last: {last.message}", "red")]
    if report.altered_pushes:
        parts += [Text(), _altered_table(report)]
    for worker in report.avoided:
        parts.append(Text(f"{worker.worker} on {worker.machine} was avoided: {worker.because}", "red"))
    parts += [Text(str(each), "red") for each in (*report.quarantined, *report.avoided_machines)]
    if report.stopped_because:
        parts += [Text(), *(Text(line, "red") for line in report.stopped_because.split("\n"))]
    return Group(*parts)


def _header(report: Figures) -> Iterator[tuple[str, RenderableType]]:
    style = {RunStatus.FINISHED: "green", RunStatus.RUNNING: "cyan"}.get(report.status, "red")
    title = Text.assemble((report.program, "bold"), "  ", (report.status, style))
    if report.status not in (RunStatus.FINISHED, RunStatus.RUNNING):
        title.append(f"  (resume: {command('resume', Path(report.run_dir))})", "dim")
    yield "program", title
    yield "run", report.run_dir
    extra = f", {report.masters} masters one after another" if report.masters > 1 else ""
    yield "workers", f"{report.workers} on the {report.backend} back end, {report.lives} lives{extra}"
    crashed = f", and {report.crashed} crashed" if report.crashed else ""
    yield "kills", f"{report.kills}: {report.sigterm} by SIGTERM, {report.sigkill} by SIGKILL{crashed}"
    yield from _speed(report)
    yield "pushes", _pushes(report)
    if report.altered_pushes:
        totals = {words: sum(getattr(each, how) for each in report.altered_pushes) for how, words in ALTERED.items()}
        yield "altered", ", ".join(f"{count:,} {words}" for words, count in totals.items() if count)
    yield from _choices(report)
    if report.money is not None:
        yield "money", _money_line(report.money)
    if report.repetitions:
        yield "checked", f"{report.repetitions:,} times another worker trained again what was pushed"


def _speed(speed: RunSpeed) -> Iterator[tuple[str, str]]:
    rate = "" if speed.vertices_per_s is None else f", {speed.vertices_per_s:,.0f} vertices/s"
    yield "time", f"{duration(speed.wall_s)} of the run, {duration(speed.worker_s)} of workers{rate}"
    flops = "" if speed.flops is None else f", {in_units(speed.flops, 'FLOPS')} credited"
    share = "unknown" if speed.goodput is None else f"{speed.goodput:.1%} of the workers' time"
    yield "goodput", share + flops
    if speed.worth is not None:
        yield "worth", f"{speed.worth:.2g} workers: {speed.worth_because}"


def _pushes(sums: CreditSums) -> str:
    stale = "" if sums.staleness is None else f", staleness {sums.staleness:.2f}"
    moved = f"{in_units(sums.bytes_up, 'B')} up, {in_units(sums.bytes_down, 'B')} down"
    return f"{sums.pushes:,} in {sums.versions:,} versions{stale}, {moved}"


def _choices(choices: Choices) -> Iterator[tuple[str, RenderableType]]:
    if choices.asked is not None:
        yield "asked for", f"{choices.asked:,} workers, {choices.asked_because}"
    if choices.settings:
        yield "settings", Group(*choices.settings)
    if choices.placement is not None:
        yield "placed", choices.placement
    if (rounds := choices.rounds) is not None:
        late = rounds["late_pushes"]
        yield (
            "rounds",
            f"{rounds['ended']:,}; {late:,} pushes came too late for theirs, and weigh less"
            if late
            else (f"{rounds['ended']:,}, with all pushes in time"),
        )
    if choices.evaluated_on is not None:
        yield "evaluated", f"on {choices.evaluated_on}, drawn at random"
    if (best := choices.best) is not None:
        yield "best", f"{best['goal']} {_number(best['value'])}, after epoch {best['epoch']}"
    if choices.stopped_early is not None:
        yield "stopped early", choices.stopped_early


def grid(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Return a table of facts, one (name, value) per line."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column()
    for row in rows:
        made.add_row(*row)
    return made


def table(*headings: str, left: Collection[str] = (), title: str | None = None, padding: int = 2) -> Table:
    """Return an empty table. Columns named in `left` are left-aligned, all others right-aligned."""
    style = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "padding": (0, padding, 0, 0)}
    made = Table(title=title, title_justify="left", title_style="dim", **style)  # type: ignore[arg-type]
    for heading in headings:
        made.add_column(heading, justify="left" if heading in left else "right")
    return made


def _shown(values: Sequence[T], by: Callable[[T], float]) -> tuple[Sequence[T], Sequence[T]]:
    """Return (rows to show, rows to sum up). At most `MACHINES` rows are shown, the largest by `by`."""
    if len(values) <= MACHINES:
        return values, ()
    ordered = sorted(values, key=by, reverse=True)
    return ordered[:MACHINES], ordered[MACHINES:]


def _epoch_table(report: Figures) -> Table:
    metrics: dict[str, Any] = next((e.metrics for e in reversed(report.epochs) if e.metrics), {})
    names = [name for name, value in metrics.items() if not isinstance(value, list)]
    left = ["left"] if any(e.left for e in report.epochs) else []
    logged = list(dict.fromkeys(name for epoch in report.epochs for name in epoch.logged))
    # A name that both f logs and evaluate returns gets two columns; that of f is marked "(f)".
    headings = (*(f"{name} (f)" if name in names else name for name in logged), *names)
    made = table("epoch", "credited", "duplicated", "lost", *left, "wasted", "staleness", "at", *headings)
    for epoch in report.epochs:
        made.add_row(
            str(epoch.epoch),
            f"{epoch.credited:,}",
            _alarm(epoch.duplicated),
            _alarm(epoch.lost),
            *([f"{epoch.left:,}"] if left else []),
            f"{epoch.wasted:,}",
            "" if epoch.staleness is None else f"{epoch.staleness:.2f}",
            "open" if epoch.closed_s is None else duration(epoch.closed_s),
            *(_number(epoch.logged.get(name)) for name in logged),
            *(Text(_number(epoch.metrics.get(name)), "bold") for name in names),
        )
    return made


def _list_table(title: str, values: Sequence[Any]) -> Table:
    """Return a list-valued metric as a row. For MNIST this is the paper's Figure 3, the accuracy of each digit."""
    made = table(*map(str, range(len(values[:20]))), title=title, padding=1)
    made.add_row(*map(_number, values[:20]))
    return made


def _altered_table(troubles: Troubles) -> Table:
    left = ("worker", "machine", "the last one")
    title = "altered and refused pushes, by worker"
    made = table("worker", "machine", *ALTERED.values(), "vertices", "the last one", left=left, title=title)
    shown, rest = _shown(troubles.altered_pushes, lambda each: each.vertices)
    for each in shown:
        counts = (f"{getattr(each, name):,}" for name in (*ALTERED, "vertices"))
        made.add_row(each.worker, each.machine, *counts, each.because)
    if rest:
        made.add_row(f"and {len(rest):,} more: --json has all")
    return made


def _machine_table(troubles: Troubles) -> Table:
    made = table("machine", "lives", "SIGTERM", "SIGKILL", left=("machine",), title="kills by machine")
    shown, rest = _shown(troubles.machines, lambda machine: machine.sigterm + machine.sigkill)
    for machine in shown:
        made.add_row(machine.machine, str(machine.workers), str(machine.sigterm), str(machine.sigkill))
    if rest:
        sums = (sum(getattr(machine, what) for machine in rest) for what in ("workers", "sigterm", "sigkill"))
        made.add_row(f"{len(rest):,} others", *(f"{count:,}" for count in sums))
    return made


def _money_line(money: Money) -> str:
    total = f"{dollars(money.dollars)} for {len(money.lives):,} instances"
    if money.on_demand is not None:
        total += f", {dollars(money.on_demand)} on demand"
    if money.flop_per_dollar is not None:
        total += f", {in_units(money.flop_per_dollar, 'FLOP')} credited per dollar"
    return total


def render_money(money: Money) -> list[RenderableType]:
    """Return the tables of costs by market and by instance, and the assumptions behind them."""
    headings = ("type", "zone", "instances", "taken", "free", "time", "paid", "on demand")
    markets = table(*headings, left=("type", "zone"), title="dollars by type and zone")
    for each in money.markets:
        counts = (f"{count:,}" for count in (each.instances, each.taken, each.free))
        full = "" if each.on_demand is None else dollars(each.on_demand)
        markets.add_row(each.type, each.zone, *counts, in_hours(each.seconds), dollars(each.dollars), full)
    words = ("worker", "instance", "type", "zone")
    lives = table(*words, "time", "paid", "", left=(*words, ""), title="dollars by instance")
    shown, rest = _shown(money.lives, lambda life: life.dollars)
    for life in shown:
        cost = in_hours(life.seconds), dollars(life.dollars)
        lives.add_row(life.worker, life.id, life.type, life.zone, *cost, _end_of(life))
    if rest:
        costs = in_hours(sum(life.seconds for life in rest)), dollars(sum(life.dollars for life in rest))
        lives.add_row(f"{len(rest):,} others", "", "", "", *costs, "")
    return [markets, Text(), lives, *(Text(sentence, "dim") for sentence in money.assumed)]


def _end_of(life: LifeCost) -> str:
    if not life.ended:
        return "lives"
    return ("taken, free" if life.free else "taken") if life.taken else ""


def dollars(amount: float) -> str:
    """Return an amount of dollars as text: $12.34, or $0.0123 below one dollar."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.3g}"


def _alarm(count: int) -> Text:
    """Return a count in green if it is zero, as it should be, else in red."""
    return Text(f"{count:,}", "bold red" if count else "green")


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def in_units(value: float, unit: str) -> str:
    """Return a number with the SI prefix that brings it below a thousand."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(value) < 1000 or prefix == "P":
            return f"{value:.0f} {unit}" if not prefix else f"{value:.3g} {prefix}{unit}"
        value /= 1000
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """Return seconds as 7.3 s, 2:05 min or 1:02:03 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02} h"
