"""Front end of runs at a terminal: drives a run, follows one that another process drives, or prints status or report.

The code that drives a run is imported only when needed, because following a run only reads its ledger.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from gridml.errors import Interruption, RunError
from gridml.protocol.foreign import one_line, printable
from master.store.reader import connect, holder, read_ahead, read_clock, read_facts, read_now, translate_read_errors
from master.store.rundir import RunDirectory, RunStatus, command, facts_from
from master.views.console import PlainConsole, json_text
from master.views.live import (
    MAX_NAMED,
    EventLines,
    Follower,
    Lines,
    LiveView,
    Screen,
    json_line,
    progress_line,
)
from master.views.progress import read_progress, without_master
from master.views.render import as_text, duration, render_report
from master.views.report import Report, report

if TYPE_CHECKING:
    from master.ports.environment import Environment
    from master.ports.plugin import BatchSystem
    from master.run import MasterRun


POLL_S = 0.25  # interval at which `follow` reads new events
RESTART_S = (
    60.0,
    600.0,
)  # maximum wait of `follow`: for a batch system to restart a master, and to start the first one


def drive(
    root: Path, begin: Callable[[Environment], MasterRun], title: str, *, as_json: bool, resumed: bool = False
) -> None:
    """Start or resume a run by `begin`, drive it to its end, and print its report. Exits with 128 + N on signal N."""
    from master.backends.registry import is_batch_job

    is_job = is_batch_job()

    def will_restart(stopped: Stopped) -> bool:
        """Return whether the batch system will start another master: to hold or move a job, it sends SIGTERM."""
        return is_job and stopped.number == signal.SIGTERM

    signals = Signals()
    try:
        with signals.caught(), view_of(title, as_json=as_json) as view:
            drive_with_view(root, begin, view, signals.turn, resumed=resumed, leaves=will_restart)
    except Stopped as stopped:
        began = RunDirectory(root).ledger.exists()
        then = f"Stopped at the last credit. Resume with: {command('resume', root)}"
        typer.echo(printable(then) if began else "Stopped before it began.", err=True)
        if will_restart(stopped):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)  # a job that dies by a signal stays in the queue
        raise typer.Exit(128 + stopped.number) from None
    if as_json:
        typer.echo(json_text(json_line(time.time(), "report", {"report": report(root).to_json()})))
    else:
        print_report(report(root))


def follow(run: Path, *, as_json: bool) -> None:
    """Show a run that another process drives, until it ends. Ctrl-C only stops watching. Raises LedgerError, and
    RunError if the job of its master ended before the run began."""
    connection = connect(run)
    try:
        batch, end = _batch_of_master(run), None
        with translate_read_errors(RunDirectory(run).ledger), view_of(run.name, as_json=as_json) as view:
            newest = connection.execute("SELECT coalesce(max(rowid), 0) FROM events").fetchone()[0]
            seen = max(0, newest - 10)
            driven, held, seen_s = True, False, time.monotonic()
            with Follower(run, view) as follower:
                while driven and _has_reader():
                    # The lock is checked before events are read, so that the last events are shown, too.
                    before, held = held, holder(run) is not None
                    if not (held and before):
                        # Without a master the ledger is opened as immutable, and shows changes only if reopened.
                        connection.close()
                        connection = connect(run)
                    seen_s = time.monotonic() if held else seen_s
                    end = None if held or batch is None else batch.master_end(RunDirectory(run))
                    status = read_facts(connection)["status"]
                    patience_s = _patience_s(batch is not None and end is None, status)
                    driven = held or time.monotonic() - seen_s < patience_s
                    query = "SELECT rowid, at_s, topic, text, facts FROM events WHERE rowid > ? ORDER BY rowid"
                    ahead_s = read_ahead(connection)
                    for row, at_s, topic, text, facts in connection.execute(query, (seen,)).fetchall():
                        view.event(at_s - ahead_s, topic, text, facts_from(facts))
                        seen = row
                    if held:
                        follower.tick()
                    if driven:
                        time.sleep(POLL_S)
            if end is not None and status == RunStatus.SUBMITTED:
                raise RunError(
                    f"{run} has not begun: {end}. It said: {_last_words(run)}. When that is mended, begin it with: "
                    f"{command('resume', run)}"
                )
    except KeyboardInterrupt:
        typer.echo(printable(f"The run continues. Watch it again with: {command('watch', run)}"), err=True)
        raise typer.Exit(130) from None
    finally:
        connection.close()


def _has_reader() -> bool:
    """Return whether standard output can still be read; False for a pipe whose reader has gone."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # not backed by a file
        return True
    poll = select.poll()
    poll.register(output, 0)
    return not any(event & select.POLLERR for _, event in poll.poll(0))


def _batch_of_master(run: Path) -> BatchSystem | None:
    """Return the batch system that the run's master was submitted to, which will start it again."""
    from master.backends.registry import batch_of

    batch = batch_of(run)
    return batch if batch is not None and batch.master_submitted(RunDirectory(run)) else None


def _patience_s(will_restart: bool, status: RunStatus) -> float:
    """Return the seconds that `follow` waits for a master while the run has none."""
    if not will_restart or status not in (RunStatus.SUBMITTED, RunStatus.RUNNING):
        return 0.0
    return RESTART_S[status == RunStatus.SUBMITTED]


def _last_words(run: Path) -> str:
    """Return the last line that a master as a job wrote to its standard error."""
    with contextlib.suppress(OSError):
        lines = (RunDirectory(run).logs / "master.err").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return "nothing"


def view_of(title: str, *, as_json: bool) -> LiveView:
    """Return the view for standard output: JSON lines, a live panel on a terminal, or plain lines."""
    if as_json:
        return EventLines(sys.stdout)
    return Screen(PlainConsole(), title) if sys.stdout.isatty() else Lines(sys.stdout)


def print_report(report: Report) -> None:
    """Print a report as tables on standard output."""
    if sys.stdout.isatty():
        PlainConsole().print(render_report(report))
    else:  # not limited to the width of a terminal
        typer.echo(as_text(report))


def print_status(run: Path, *, as_json: bool, in_one_line: bool = False) -> None:
    """Print the status of a run as text or as a JSON object. Raises LedgerError."""
    from master.backends.registry import batch_of

    connection, master = connect(run), holder(run)
    with contextlib.closing(connection), translate_read_errors(RunDirectory(run).ledger):
        if master is None:
            progress = without_master(read_progress(connection, read_clock(connection, run).end_s))
        else:
            progress = read_progress(connection, read_now(connection))
        because = read_facts(connection).get("stopped_because")
    reason = because if progress.status in (RunStatus.FAILED, RunStatus.CANCELLED) else None
    batch = batch_of(run) if master is None and progress.status is not RunStatus.FINISHED else None
    job = None if batch is None else batch.master_job(RunDirectory(run))
    if as_json:
        said = {"run_dir": str(run), **progress.to_json(), "stopped_because": reason, "master": master}
        said["master_job"] = None if job is None else dataclasses.asdict(job)
        typer.echo(json_text(said, indent=None if in_one_line else 2))
        return
    lines = [f"{run}: {progress.status}", progress_line(progress)]
    if progress.no_headway is not None:
        stall = progress.no_headway
        lines.append(f"Nothing was credited in {duration(stall.seconds)}: {stall.reason}")
    if progress.asked is not None:
        lines.append(f"{progress.asked:,} workers are asked for, {progress.asked_because}")
    if progress.worth is not None:
        lines.append(f"The workers are worth {progress.worth:.2g} of one: {progress.worth_because}")
    lines += (f"Settings: {settings}" for settings in progress.settings)
    if progress.placement is not None:
        lines.append(f"Placement: {progress.placement}")
    for held in progress.held_because:
        more = ", …" if len(held.workers) > MAX_NAMED else ""
        lines.append(f"Held: {', '.join(held.workers[:MAX_NAMED])}{more}: {held.because}")
    lines += (f"Warning, {duration(warned.seconds_ago)} ago: {warned.text}" for warned in progress.warnings)
    lines += (
        f"{avoided.worker} on {avoided.machine or 'its machine'} is avoided: {avoided.because}"
        for avoided in progress.avoided
    )
    lines += map(str, (*progress.quarantined, *progress.avoided_machines))
    if progress.unreadable:
        lines.append(
            f"{progress.unreadable:,} messages came damaged or malformed; `gridml report` counts them by worker"
        )
    if reason:
        lines += reason.split("\n")  # the master's own words
    if job is not None:
        lines.append(f"Its master is {job}")
    elif progress.status in (RunStatus.STOPPED, RunStatus.SUBMITTED):
        lines.append(f"No master drives it. Resume from its last credit with: {command('resume', run)}")
    typer.echo("\n".join(map(one_line, lines)))


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, kill, a closed terminal


class Stopped(Interruption):
    """This process received signal `number`, which ends it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Handlers for the signals that end this process.

    While the run's loop turns, the first signal raises Stopped between two turns, so that no transaction is cut short.
    A second signal, or a signal at any other time, raises Stopped at once.
    """

    def __init__(self) -> None:
        self._turning = False
        self._pending = 0

    @contextmanager
    def caught(self, numbers: Collection[signal.Signals] = ENDING) -> Iterator[None]:
        """Handle `numbers` while the context is open. Works in the main thread only, as Python's signal handlers do."""
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def turn(self) -> None:
        """Record that the loop turns; called once per turn. Raises Stopped if a signal came since the last turn."""
        self._turning = True
        if self._pending:
            raise Stopped(self._pending)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._turning and not self._pending:
            self._pending = number
        else:
            raise Stopped(number)


def drive_with_view(
    root: Path,
    begin: Callable[[Environment], MasterRun],
    view: LiveView,
    turn: Callable[[], None],
    *,
    resumed: bool,
    leaves: Callable[[Stopped], bool] = lambda stopped: False,
) -> None:
    """Start or resume a run by `begin` and drive it to its end; show its events and progress in `view`.

    `turn` is called once per turn of the loop and may raise to end the run between two turns. When this master is
    stopped, `leaves` decides whether its workers are left running for the next master. Raises the errors of the run.
    """
    from master.backends.registry import make
    from master.ports.environment import Environment
    from master.takeover import guard_crash_loop

    follower = Follower(root, view)

    def tick() -> None:
        turn()
        follower.tick()

    environment = Environment(make, wall=time.time, report=follower.report, tick=tick)
    life = guard_crash_loop(root, environment) if resumed else contextlib.nullcontext()
    with life, begin(environment) as run, follower:
        workers = run.parts.workers.target
        facts = {"run_dir": str(root), "workers": workers, "vertices": run.total}
        follower.report("started", f"{root}: {workers} workers, {run.total:,} vertices", facts)
        try:
            run.finish()
        except Stopped as stopped:
            if leaves(stopped):
                run.leave()
            raise
