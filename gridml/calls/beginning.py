"""Runs that a call begins: `gridml.run`, `gridml.submit`, `gridml.launch`, each with the options of its command."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gridml.calls.displays import Display, OnEvent, check_shown
from gridml.calls.driving import drive
from gridml.calls.first_values import FirstValues, apart, written
from gridml.calls.handle import Run
from gridml.calls.options import values_of
from gridml.calls.sources import source_of
from gridml.errors import UsageError
from gridml.model.loading import check_guarded
from gridml.model.program import Program
from gridml.run_names import claimed_root

if TYPE_CHECKING:
    from master.backends.plugin import BackendPlugin

AnyProgram = Program | str | os.PathLike[str]
AnyPath = str | os.PathLike[str]
_AT_A_TERMINAL = ("program", "as_json", "dry_run", "prepare")


def run(
    program: AnyProgram,
    *,
    workers: int | None = None,
    epochs: int | None = None,
    run_dir: AnyPath | None = None,
    init_from: FirstValues | None = None,
    on_event: OnEvent | None = None,
    display: Display = "auto",
    **options: Any,
) -> Run:
    """Train a program on worker processes of this machine, as `gridml run` does; return when it has ended.

    `program` is a Program that a script, a module or a cell of a notebook has made, or the path of a file. Further
    options are those of the command with their defaults, called as there with `_` for `-`: `seed=1`, `chunk=256`,
    `lifetime="exponential(1h)"`. `on_event` is called with each `Event`; what it raises ends the run at its last
    credit. `init_from` is what the run begins with: another run (also "RUN:best", "RUN:v57", "RUN:e3"), a file of
    tensors, or a state dict, of the program's only module or as `gridml.load` returns them; with `init_partial=True` as
    much of it as fits. `display` is where progress goes: "terminal", "plain" lines, a "notebook", "none", or as fits.

    Raises what ends a run: UsageError and ProgramError before there is one, UserCodeError where the program failed,
    RunError, StorageError. Interrupted (KeyboardInterrupt), or ended by an error, a run stands at its last credit:
    `gridml.resume` goes on with it.
    """
    given = {**options, "workers": workers, "epochs": epochs, "run_dir": run_dir, "init_from": init_from}
    return _begin("run", program, given, on_event, display)


def submit(
    program: AnyProgram,
    *,
    workers: int | None = None,
    epochs: int | None = None,
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
    given = {**options, "workers": workers, "epochs": epochs, "run_dir": run_dir, "init_from": init_from}
    return _begin("submit", program, given, on_event, display)


def launch(
    program: AnyProgram,
    *,
    instances: int | None = None,
    epochs: int | None = None,
    run_dir: AnyPath | None = None,
    init_from: FirstValues | None = None,
    on_event: OnEvent | None = None,
    display: Display = "auto",
    **options: Any,
) -> Run:
    """Train a program on spot instances, as `gridml launch` does; return when it has ended. Options as those of the
    command; otherwise as `gridml.run`."""
    given = {**options, "instances": instances, "epochs": epochs, "run_dir": run_dir, "init_from": init_from}
    return _begin("launch", program, given, on_event, display)


def _begin(verb: str, program: AnyProgram, given: Mapping[str, Any], on_event: OnEvent | None, display: Display) -> Run:
    from gridml.commands.start import made, start_parameters, wanted
    from master.launch import start

    call = f"gridml.{verb}"
    check_guarded(call)
    check_shown(call, display, on_event)
    source, plugin = source_of(program, call), _plugin(verb)
    named, states = apart(given["init_from"])
    plain = {**given, "init_from": named}
    workers = plugin.options().facts.workers_option.removeprefix("--")
    parameters = [p.replace(name=workers) if p.name == "workers" else p for p in start_parameters(plugin)]
    values = values_of(call, parameters, plain, _AT_A_TERMINAL)
    values["workers"] = values.pop(workers)
    handed_over = plugin.batch is not None and not values["foreground"]
    if handed_over and on_event is not None:
        raise UsageError(
            f"{call} got on_event, and the master of a run that is handed over to a pool is no part of this process. "
            "Give foreground=True, or ask the run that it returns for run.events()."
        )
    values["program"] = source.file
    wanted(plugin, values if states is None else {**values, "init_partial": False})  # before anything is written
    with claimed_root(values["run_dir"], source.file.stem) as root:
        values["program"] = source.placed(root)
        if states is not None:
            values["init_from"] = str(written(states, root, call))
        settings = wanted(plugin, values)
        if plugin.batch is not None:
            plugin.batch.check_reachable()
            if handed_over:
                plugin.batch.submit_master(settings, made(settings, root, quiet=display == "none"))
                return Run(root)
        return drive(root, lambda environment: start(settings, root, environment), on_event, display, resumed=False)


def _plugin(verb: str) -> BackendPlugin:
    from master.backends.registry import BACKENDS

    for plugin in BACKENDS.all().values():
        if plugin.command is not None and plugin.command.verb == verb:
            return plugin
    raise UsageError(f"no back end of this installation has gridml {verb}. Install its extra, or use gridml.run.")
