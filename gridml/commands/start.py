"""The commands that begin a run, `gridml run` and `gridml submit` among them: one for every back end that has a verb.

Their options are those that every run has, and the back end's own (`gridml.calls.options`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridml.commands.arguments import INTERRUPTED, argument, as_typer_reads, say
from gridml.errors import UsageError
from gridml.run_names import claimed_root, usual_root

if TYPE_CHECKING:
    from master.backends.plugin import BackendPlugin, BatchSystem
    from master.store.settings import Settings

_Program = Annotated[
    Path, typer.Argument(metavar="PROGRAM", help="The Python file with the gridml.Program.", show_default=False)
]


def start_command(plugin: BackendPlugin) -> Callable[..., None]:
    """Return the command of a back end that has one, with the signature that its options give it."""
    from gridml.calls.options import options_of

    assert plugin.command is not None
    program = argument("program", _Program)
    return as_typer_reads(partial(_start, plugin), plugin.command.help, options_of(plugin), program)


def _start(plugin: BackendPlugin, **values: Any) -> None:
    try:
        _start_heard(plugin, values)
    except KeyboardInterrupt:  # which a run that is driven from here catches itself
        say("Stopped before the run began.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _start_heard(plugin: BackendPlugin, values: dict[str, Any]) -> None:
    from gridml.calls.beginning import wanted
    from master.launch import start
    from master.store.rundir import RunDirectory
    from master.views.terminal import drive

    settings = wanted(plugin, values["program"], values)
    name, as_json = settings.program.stem, values["as_json"]
    foreground, prepare = values.get("foreground", True), values.get("prepare", False)
    if foreground and prepare:
        raise UsageError("got --foreground and --prepare; expected one of them: what is prepared is submitted later.")
    if values.get("dry_run", False):
        root = values["run_dir"] or usual_root(name)
        typer.echo(plugin.describe(settings, RunDirectory(root), foreground=foreground))
        return
    with claimed_root(values["run_dir"], name) as root:
        if plugin.batch is not None and not prepare:
            plugin.batch.check_reachable()
        if plugin.batch is not None and not foreground:
            _hand_over(plugin.batch, settings, root, prepare=prepare, as_json=as_json)
            return
        drive(root, lambda environment: start(settings, root, environment), name, as_json=as_json)


def _hand_over(batch: BatchSystem, settings: Settings, root: Path, *, prepare: bool, as_json: bool) -> None:
    """Make the run, and hand its master to the batch system; or only `prepare` what it is submitted by."""
    from gridml.calls.beginning import made
    from master.store.rundir import command

    directory = made(settings, root, quiet=as_json)
    if prepare:
        prepared = batch.prepare_master(settings, directory)
        answer: dict[str, Any] = {"prepared": str(prepared)}
        text = f"{root} is made, and nothing submitted. Submit its master: {batch.submission(prepared)}"
    else:
        job = batch.submit_master(settings, directory)
        answer = {"master_job": job}
        text = (
            f"The master of {root} is job {job}. Follow it: {command('watch', root)}\n"
            f"End it, keeping what is credited: {command('cancel', root)} (or {batch.removal(job)})"
        )
    typer.echo(json.dumps({"run_dir": str(root), **answer}) if as_json else text)
