"""Render a report for a person: tables on a terminal, as wide as they are elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from master.store.rundir import RunStatus, command
from master.views.money import LifeCost, Money, in_hours
from master.views.report import Report

ALTERED = {"shortened": "shortened", "clipped": "clipped", "left_out": "in part left out", "refused": "refused"}
MACHINES = 20  # lines of a table of machines


def render_report(report: Report) -> RenderableType:
    """Return the report as tables for a terminal."""
    parts: list[RenderableType] = [_header(report), Text(), _epoch_table(report)]
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
        parts += [Text(), Text(report.stopped_because, "red")]
    return Group(*parts)


def _header(report: Report) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    style = {RunStatus.FINISHED: "green", RunStatus.RUNNING: "cyan"}.get(report.status, "red")
    title = Text.assemble((report.program, "bold"), "  ", (report.status, style))
    if report.status not in (RunStatus.FINISHED, RunStatus.RUNNING):
        title.append(f"  (go on: {command('resume', Path(report.run_dir))})", "dim")
    grid.add_row("program", title)
    grid.add_row("run", report.run_dir)
    extra = f", {report.masters} masters one after another" if report.masters > 1 else ""
    grid.add_row("workers", f"{report.workers} on the {report.backend} back end, {report.lives} lives{extra}")
    crashed = f", and {report.crashed} crashed" if report.crashed else ""
    grid.add_row("kills", f"{report.kills}: {report.sigterm} by SIGTERM, {report.sigkill} by SIGKILL{crashed}")
    speed = "" if report.vertices_per_s is None else f", {report.vertices_per_s:,.0f} vertices/s"
    grid.add_row("time", f"{duration(report.wall_s)} of the run, {duration(report.worker_s)} of workers{speed}")
    flops = "" if report.flops is None else f", {in_units(report.flops, 'FLOPS')} credited"
    share = "unknown" if report.goodput is None else f"{report.goodput:.1%} of the workers' time"
    grid.add_row("goodput", share + flops)
    stale = "" if report.staleness is None else f", staleness {report.staleness:.2f}"
    moved = f"{in_units(report.bytes_up, 'B')} up, {in_units(report.bytes_down, 'B')} down"
    grid.add_row("pushes", f"{report.pushes:,} in {report.versions:,} versions{stale}, {moved}")
    if report.altered_pushes:
        totals = {words: sum(getattr(each, how) for each in report.altered_pushes) for how, words in ALTERED.items()}
        grid.add_row("altered", ", ".join(f"{count:,} {words}" for words, count in totals.items() if count))
    if report.asked is not None:
        grid.add_row("asked for", f"{report.asked:,} workers, {report.asked_because}")
    if report.helpful is not None:
        grid.add_row("helpful", f"about {report.helpful:,} workers: {report.helpful_because}")
    if report.settings:
        grid.add_row("settings", "\n".join(report.settings))
    if report.placement is not None:
        grid.add_row("placed", report.placement)
    if report.best is not None:
        best = report.best
        grid.add_row("best", f"{best['goal']} {_number(best['value'])}, after epoch {best['epoch']}")
    if report.stopped_early is not None:
        grid.add_row("stopped early", report.stopped_early)
    if report.money is not None:
        grid.add_row("money", _money_line(report.money))
    if report.repetitions:
        grid.add_row("checked", f"{report.repetitions:,} times another worker trained again what was pushed")
    return grid


def _table(title: str | None = None, padding: int = 2) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="dim",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, padding, 0, 0),
    )


def _epoch_table(report: Report) -> Table:
    table = _table()
    names = [n for n, v in _last_metrics(report).items() if not isinstance(v, list)]
    left = any(e.left for e in report.epochs)
    counts = ["credited", "duplicated", "lost", *(["left"] if left else []), "wasted"]
    logged = list(dict.fromkeys(name for epoch in report.epochs for name in epoch.logged))
    for title in ("epoch", *counts, "staleness", "at", *(_heading(name, names) for name in logged), *names):
        table.add_column(title, justify="right")
    for epoch in report.epochs:
        cells: list[str | Text] = [
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
        ]
        table.add_row(*cells)
    return table


def _heading(name: str, metrics: Sequence[str]) -> str:
    """Return the heading of what f logged, told from a metric of the same name."""
    return f"{name} (f)" if name in metrics else name


def _list_table(title: str, values: Sequence[Any]) -> Table:
    """Return a list-valued metric as a row: with MNIST what the paper's Figure 3 shows, the accuracy of each digit."""
    table = _table(title, padding=1)
    shown = values[:20]
    for index in range(len(shown)):
        table.add_column(str(index), justify="right")
    table.add_row(*(_number(value) for value in shown))
    return table


def _altered_table(report: Report) -> Table:
    table = _table("pushes that were not taken as they came, by worker")
    for title in ("worker", "machine", *ALTERED.values(), "vertices", "the last one"):
        table.add_column(title, justify="left" if title in ("worker", "machine", "the last one") else "right")
    for each in report.altered_pushes[:MACHINES]:
        counts = (f"{getattr(each, name):,}" for name in (*ALTERED, "vertices"))
        table.add_row(each.worker, each.machine, *counts, each.because)
    if len(report.altered_pushes) > MACHINES:
        table.add_row(f"and {len(report.altered_pushes) - MACHINES:,} more: --json has all")
    return table


def _machine_table(report: Report) -> Table:
    table = _table("kills by machine")
    for title in ("machine", "lives", "SIGTERM", "SIGKILL"):
        table.add_column(title, justify="left" if title == "machine" else "right")
    shown = report.machines
    if len(shown) > MACHINES:  # those that were taken away most
        shown = sorted(shown, key=lambda m: m.sigterm + m.sigkill, reverse=True)[:MACHINES]
    for machine in shown:
        table.add_row(machine.machine, str(machine.workers), str(machine.sigterm), str(machine.sigkill))
    if len(report.machines) > len(shown):
        rest = report.machines[:]
        for machine in shown:
            rest.remove(machine)
        lives, sigterm, sigkill = (sum(getattr(m, what) for m in rest) for what in ("workers", "sigterm", "sigkill"))
        table.add_row(f"{len(rest):,} others", f"{lives:,}", f"{sigterm:,}", f"{sigkill:,}")
    return table


def _money_line(money: Money) -> str:
    total = f"{dollars(money.dollars)} for {len(money.lives):,} instances"
    if money.on_demand is not None:
        total += f", {dollars(money.on_demand)} on demand"
    if money.flop_per_dollar is not None:
        total += f", {in_units(money.flop_per_dollar, 'FLOP')} credited per dollar"
    return total


def render_money(money: Money) -> list[RenderableType]:
    """Return what instances cost, by market and by instance, and what that rests on."""
    markets = _table("dollars by type and zone")
    for title in ("type", "zone", "instances", "taken", "free", "time", "paid", "on demand"):
        markets.add_column(title, justify="left" if title in ("type", "zone") else "right")
    for each in money.markets:
        counts = (f"{count:,}" for count in (each.instances, each.taken, each.free))
        paid, full = dollars(each.dollars), _if_known(each.on_demand)
        markets.add_row(each.type, each.zone, *counts, in_hours(each.seconds), paid, full)
    lives = _table("dollars by instance")
    for title in ("worker", "instance", "type", "zone", "time", "paid", ""):
        lives.add_column(title, justify="right" if title in ("time", "paid") else "left")
    shown = money.lives
    if len(shown) > MACHINES:  # those that cost most
        shown = sorted(shown, key=lambda life: life.dollars, reverse=True)[:MACHINES]
    for life in shown:
        lives.add_row(
            life.worker, life.id, life.type, life.zone, in_hours(life.seconds), dollars(life.dollars), _end_of(life)
        )
    if len(money.lives) > len(shown):
        rest_s = sum(life.seconds for life in money.lives) - sum(life.seconds for life in shown)
        rest = money.dollars - sum(life.dollars for life in shown)
        lives.add_row(f"{len(money.lives) - len(shown):,} others", "", "", "", in_hours(rest_s), dollars(rest), "")
    return [markets, Text(), lives, *(Text(sentence, "dim") for sentence in money.assumed)]


def _end_of(life: LifeCost) -> str:
    if not life.ended:
        return "lives"
    return ("taken, free" if life.free else "taken") if life.taken else ""


def _if_known(amount: float | None) -> str:
    return "" if amount is None else dollars(amount)


def dollars(amount: float) -> str:
    """Return an amount with the digits that say something: $12.34, $0.0123."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.3g}"


def _last_metrics(report: Report) -> dict[str, Any]:
    return next((e.metrics for e in reversed(report.epochs) if e.metrics), {})


def _alarm(count: int) -> Text:
    """Colour a count of which one wants to see zero."""
    return Text(f"{count:,}", "bold red" if count else "green")


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def in_units(value: float, unit: str) -> str:
    """Return a number with the prefix that leaves it below a thousand."""
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
