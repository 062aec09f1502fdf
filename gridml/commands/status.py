"""`gridml status`: how far a run is."""

from __future__ import annotations

from pathlib import Path

import typer

from gridml.commands.arguments import Json, RunArgument, say

EXAMPLE = "Example: gridml status runs/mnist-20260401-120000"


def status(run: RunArgument, as_json: Json = False) -> None:
    """Say in a few lines how far a run is."""
    say_status(run, as_json=as_json)


def say_status(run: Path, *, as_json: bool, in_one_line: bool = False) -> None:
    """Say how far a run is, in words or as a JSON object. Raises LedgerError."""
    import dataclasses

    from master.backends.registry import batch_of
    from master.store.reader import connect, explained, holder
    from master.store.run_facts import read_clock, read_facts, read_now
    from master.store.rundir import RunDirectory, command
    from master.store.status import RunStatus
    from master.views.json_text import json_text
    from master.views.live import NAMED, line
    from master.views.progress import at_rest, read_progress
    from master.views.render import duration

    connection, master = connect(run), holder(run)
    try:
        with explained(RunDirectory(run).ledger):
            if master is None:
                progress = at_rest(read_progress(connection, read_clock(connection, run).end_s))
            else:
                progress = read_progress(connection, read_now(connection))
            because = read_facts(connection).get("stopped_because")
    finally:
        connection.close()
    reason = because if progress.status in (RunStatus.FAILED, RunStatus.CANCELLED) else None
    batch = batch_of(run) if master is None and progress.status is not RunStatus.FINISHED else None
    job = None if batch is None else batch.master_job(RunDirectory(run))
    if as_json:
        answer = {"run_dir": str(run), **progress.to_json(), "stopped_because": reason, "master": master}
        answer["master_job"] = None if job is None else dataclasses.asdict(job)
        typer.echo(json_text(answer, indent=None if in_one_line else 2))
        return
    say(f"{run}: {progress.status}")
    say(line(progress))
    if progress.asked is not None:
        say(f"{progress.asked:,} workers are asked for, {progress.asked_because}")
    if progress.helpful is not None:
        say(f"About {progress.helpful:,} workers help: {progress.helpful_because}")
    for settings in progress.settings:
        say(f"Settings: {settings}")
    if progress.placement is not None:
        say(f"Placement: {progress.placement}")
    for held in progress.held_because:
        say(f"Held: {', '.join(held.workers[:NAMED])}{', …' if len(held.workers) > NAMED else ''}: {held.because}")
    for warned in progress.warnings:
        say(f"Warning, {duration(warned.seconds_ago)} ago: {warned.text}")
    for avoided in progress.avoided:
        say(f"{avoided.worker} on {avoided.machine or 'its machine'} is avoided: {avoided.because}")
    for distrusted in (*progress.quarantined, *progress.avoided_machines):
        say(str(distrusted))
    if reason:
        say(reason)
    if job is not None:
        say(f"Its master is {job}")
    elif progress.status in (RunStatus.STOPPED, RunStatus.SUBMITTED):
        say(f"No master drives it. Go on from its last credit with: {command('resume', run)}")
