"""Runs that a call begins: `gridml.run`, `gridml.submit`, `gridml.launch`. Their commands stand on the same options."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridml.calls.displays import Display, OnEvent, check_shown
from gridml.calls.driving import drive
from gridml.calls.first_values import FirstValues, apart, written
from gridml.calls.handle import Run
from gridml.calls.options import options_of, options_with, plugin_of, workers_name
from gridml.calls.sources import source_of
from gridml.errors import UsageError
from gridml.model.loading import check_guarded
from gridml.model.program import Program
from gridml.options import fields_of, takes, values_of
from gridml.protocol.text import printable
from gridml.run_names import claimed_root

if TYPE_CHECKING:
    from master.backends.plugin import BackendPlugin
    from master.store.event_facts import EventFacts
    from master.store.rundir import RunDirectory
    from master.store.settings import Settings

AnyProgram = Program | str | os.PathLike[str]
AnyPath = str | os.PathLike[str]


def wanted(plugin: BackendPlugin, program: Path, values: Mapping[str, Any]) -> Settings:
    """Return the settings of a run that is to begin, by the values of all its options. Raises UsageError or RunError
    for what can be seen to be wrong before there is one."""
    from master.mailboxes import check_carrier
    from master.store.settings import Settings, check_silence, settings_said

    options = plugin.options(**fields_of(plugin.options, values))
    workers = values[workers_name(plugin)]
    said = settings_said({**values, "workers": plugin.workers(options) if workers is None else workers})
    if "silent_s" in said:
        check_silence(said["silent_s"])
    said["expected_lifetime"] = _expected_lifetime(values, said)
    settings = Settings(program=program.absolute(), backend=plugin.name, options=options, **said)
    plugin.check(settings)
    check_carrier(settings, nearby=plugin.nearby())
    return settings


def _expected_lifetime(values: Mapping[str, Any], said: Mapping[str, Any]) -> str | None:
    """What --lifetime and --trace say, whether the back end makes workers live so or a user expects it."""
    lifetime, trace = values["lifetime"], values["trace"]
    if lifetime is None and trace is None:
        return None  # what reads them takes half a second to import
    from master.decisions.chunk_rules import GOODPUT
    from master.planning.lifetime_sources import expected_lifetime

    speedup, rule = values.get("speedup", 1.0), said.get("chunk_rule", GOODPUT)
    return expected_lifetime(lifetime, trace, speedup=speedup, rule=rule)


def made(settings: Settings, root: Path, *, quiet: bool) -> RunDirectory:
    """Make a run that another process drives; unless `quiet`, say meanwhile how its vertices are placed."""
    from master.backends.registry import make
    from master.environment import Environment
    from master.launch import create
    from master.store.rundir import RunDirectory

    def report(topic: str, text: str, facts: EventFacts) -> None:
        if not quiet:
            print(printable(f"{topic}: {text}", sys.maxsize), file=sys.stderr)

    create(settings, root, Environment(make, report=report))
    return RunDirectory(root)


@takes(lambda: options_with("run"))
def run(
    program: AnyProgram,
    *,
    run_dir: AnyPath | None = None,
    init_from: FirstValues | None = None,
    on_event: OnEvent | None = None,
    display: Display = "auto",
    **options: Any,
) -> Run:
    """Train a program on worker processes of this machine, as `gridml run` does; return when it has ended.

    `program` is a Program that a script, a module or a cell of a notebook has made, or the path of a file. Options are
    those of the command with their defaults, called as there with `_` for `-`: `workers=4`, `seed=1`, `chunk=256`,
    `lifetime="exponential(1h)"`. `on_event` is called with each `Event`; what it raises ends the run at its last
    credit. `init_from` is what the run begins with: another run (also "RUN:best", "RUN:v57", "RUN:e3"), a file of
    tensors, or a state dict, of the program's only module or as `gridml.load` returns them; with `init_partial=True` as
    much of it as fits. `display` is where progress goes: "terminal", "plain" lines, a "notebook", "none", or as fits.

    Raises what ends a run: UsageError and ProgramError before there is one, UserCodeError where the program failed,
    RunError, StorageError. Interrupted (KeyboardInterrupt), or ended by an error, a run stands at its last credit:
    `gridml.resume` goes on with it.
    """
    return _begin("run", program, {**options, "run_dir": run_dir, "init_from": init_from}, on_event, display)


@takes(lambda: options_with("submit"))
def submit(
    program: AnyProgram,
    *,
    run_dir: AnyPath | None = None,
    init_from: FirstValues | None = None,
    on_event: OnEvent | None = None,
    display: Display = "auto",
    **options: Any,
) -> Run:
    """Hand a program over to the jobs of a pool, as `gridml submit` does; return at once: `Run.wait` waits for its end.

    With `foreground=True` the master runs in this process, and it returns when the run has ended. Only then is
    `on_event` called, and refused otherwise: `Run.events` tells what happened. Options as those of the command;
    otherwise as `gridml.run`.
    """
    return _begin("submit", program, {**options, "run_dir": run_dir, "init_from": init_from}, on_event, display)


@takes(lambda: options_with("launch"))
def launch(
    program: AnyProgram,
    *,
    run_dir: AnyPath | None = None,
    init_from: FirstValues | None = None,
    on_event: OnEvent | None = None,
    display: Display = "auto",
    **options: Any,
) -> Run:
    """Train a program on spot instances, as `gridml launch` does; return when it has ended. Options as those of the
    command; otherwise as `gridml.run`."""
    return _begin("launch", program, {**options, "run_dir": run_dir, "init_from": init_from}, on_event, display)


def _begin(verb: str, program: AnyProgram, given: Mapping[str, Any], on_event: OnEvent | None, display: Display) -> Run:
    from master.launch import start

    call = f"gridml.{verb}"
    check_guarded(call)
    check_shown(call, display, on_event)
    source, plugin = source_of(program, call), plugin_of(verb)
    named, states = apart(given["init_from"])
    values = values_of(call, options_of(plugin), {**given, "init_from": named})
    handed_over = plugin.batch is not None and not values["foreground"]
    if handed_over and on_event is not None:
        raise UsageError(
            f"{call} got on_event, and the master of a run that is handed over to a pool is no part of this process. "
            "Give foreground=True, or ask the run that it returns for run.events()."
        )
    # Before anything is written.
    wanted(plugin, source.file, values if states is None else {**values, "init_partial": False})
    with claimed_root(values["run_dir"], source.file.stem) as root:
        file = source.placed(root)
        if states is not None:
            values["init_from"] = str(written(states, root, call))
        settings = wanted(plugin, file, values)
        if plugin.batch is not None:
            plugin.batch.check_reachable()
            if handed_over:
                plugin.batch.submit_master(settings, made(settings, root, quiet=display == "none"))
                return Run(root)
        return drive(root, lambda environment: start(settings, root, environment), on_event, display, resumed=False)
