"""The calls that start or resume a run: `gridml.run`, `submit`, `launch`, `resume`.

Each call and the command of the same name have the same options: options common to every run, and options of the back
end. This module makes the table of options from which both are built.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from gridml.api.displays import Display, OnEvent, check_display, drive
from gridml.api.handle import Run
from gridml.api.program_file import InitialValues, source_of, split_initial_values, write_state_dicts
from gridml.errors import UsageError
from gridml.model.loading import check_guarded
from gridml.model.program import Program
from gridml.protocol.foreign import one_line
from master.state.options import BEGIN, RESUME, Described, described, fields_of, takes, values_of
from master.store.rundir import claim_root

if TYPE_CHECKING:
    from master.ports.environment import Environment
    from master.ports.plugin import BackendPlugin
    from master.run import MasterRun
    from master.store.rundir import EventFacts, RunDirectory
    from master.store.settings import Settings


def options_of(plugin: BackendPlugin) -> list[Described]:
    """Return the options to start a run on a back end: the common options that apply to the back end, and its own."""
    from gridml.carriers.registry import CARRIERS
    from master.store.settings import CommandOptions, Settings

    command, own = plugin.command, described(plugin.options)
    assert command is not None
    facts = plugin.options().facts
    # Common options that only some back ends have; True if this one has it. All others apply to every back end.
    applies = {
        "carrier": facts.carries_files or len(facts.carriers) > 1,
        "address": facts.carries_files or any(CARRIERS.find(name).has_address for name in facts.carriers),
        "dry_run": bool(plugin.dry_run),
        "foreground": plugin.batch is not None,
        "prepare": plugin.batch is not None,
    } | {each.name: False for each in own}  # a back end's own option replaces the common one of that name
    # A back end with a --lifetime of its own ends workers by it, so --trace must not say anything else about lifetimes.
    if "lifetime" in applies:
        applies["trace"] = False
    changes: dict[str, dict[str, Any]] = {
        "workers": {
            "name": workers_name(plugin),
            "kind": int | None,
            "default": command.workers,
            "help": command.workers_help,
        },
        "seed": {"help": command.seed_help},
        "carrier": {"default": facts.carriers[0]},
        "dry_run": {"help": plugin.dry_run},
    }
    common = [*described(Settings, BEGIN), *described(CommandOptions, BEGIN)]
    return [*(each.changed(**changes.get(each.name, {})) for each in common if applies.get(each.name, True)), *own]


def workers_name(plugin: BackendPlugin) -> str:
    """Return the name of the back end's option for the number of workers."""
    return plugin.options().facts.workers_option.removeprefix("--").replace("-", "_")


def resume_options() -> list[Described]:
    """Return the options of resume. Each is None by default, which keeps the setting.

    Options of settings that must not change are included but hidden, so that they are rejected with the reason.
    """
    from master.backends.registry import BACKENDS
    from master.store.settings import CommandOptions, Settings

    fixed = [each.changed(hidden=True) for each in described(Settings, BEGIN) if each.option.fixed]
    plugins = [plugin for plugin in BACKENDS.all().values() if plugin.command is not None]
    own = [each for plugin in plugins for each in described(plugin.options)]
    of_the_call = described(CommandOptions, RESUME)
    changeable = [each.optional for each in [*own, *described(Settings, RESUME), *fixed]]
    # If several back ends have an option of one name, the first option is kept, at the position of the last.
    return [*of_the_call, *reversed({each.name: each for each in reversed(changeable)}.values())]


def plugin_of(verb: str) -> BackendPlugin:
    """Return the back end that `gridml VERB` starts runs on. Raises UsageError if none is installed."""
    from master.backends.registry import BACKENDS

    for plugin in BACKENDS.all().values():
        if plugin.command is not None and plugin.command.verb == verb:
            return plugin
    raise UsageError(f"no installed back end provides gridml {verb}. Install its extra, or use gridml.run.")


def options_with(verb: str) -> list[Described]:
    """Return the options of `gridml VERB`; an empty list if no installed back end provides it."""
    try:
        return options_of(plugin_of(verb))
    except UsageError:
        return []


AnyProgram = Program | str | os.PathLike[str]
AnyPath = str | os.PathLike[str]
Asked = ParamSpec("Asked")
_OWN = ("program", "run_dir", "init_from", "on_event", "display")  # parameters that the calls declare themselves


def run_settings(plugin: BackendPlugin, program: Path, values: Mapping[str, Any]) -> Settings:
    """Return the settings of a new run from the values of all its options. Raises UsageError or RunError for every
    error that can be found before the run exists."""
    from master.ports.mailboxes import check_carrier
    from master.store.settings import GOODPUT, Settings, check_silence, settings_said

    options = plugin.options(**fields_of(plugin.options, values))
    workers = values[workers_name(plugin)]
    said = settings_said({**values, "workers": plugin.workers(options) if workers is None else workers})
    if "silent_s" in said:  # checked here and not by Settings, because the check does not apply to simulations
        check_silence(said["silent_s"])
    lifetime, trace = values["lifetime"], values["trace"]
    if lifetime is not None or trace is not None:  # they say how long workers live, or are expected to live
        from master.planning.lifetime_sources import expected_lifetime  # the import takes half a second

        speedup, rule = values.get("speedup", 1.0), said.get("chunk_rule", GOODPUT)
        said["expected_lifetime"] = expected_lifetime(lifetime, trace, speedup=speedup, rule=rule)
    settings = Settings(program=program.absolute(), backend=plugin.name, options=options, **said)
    plugin.check(settings)
    check_carrier(settings, nearby=plugin.nearby())
    return settings


def create_run(settings: Settings, root: Path, *, quiet: bool) -> RunDirectory:
    """Create a run that another process will drive. Unless `quiet`, print the events of its placement to stderr."""
    from master.backends.registry import make
    from master.launch import create
    from master.ports.environment import Environment
    from master.store.rundir import RunDirectory

    def report(topic: str, text: str, facts: EventFacts) -> None:
        if not quiet:
            print(one_line(f"{topic}: {text}"), file=sys.stderr)

    create(settings, root, Environment(make, report=report))
    return RunDirectory(root)


@takes(lambda: options_with("run"))
def run(
    program: AnyProgram,
    *,
    run_dir: AnyPath | None = None,
    init_from: InitialValues | None = None,
    on_event: OnEvent | None = None,
    display: Display = "auto",
    **options: Any,
) -> Run:
    """Train a program on local worker processes, like `gridml run`. Return when the run has ended.

    `program` is a Program defined in a script, a module or a notebook cell, or the path of a file. Options and their
    defaults are those of the command, with `_` for `-`: `workers=4`, `seed=1`, `chunk=256`,
    `lifetime="exponential(1h)"`. `on_event` is called with each `Event`; an exception from it stops the run at its
    last credit. `init_from` gives the initial values: another run (also "RUN:best", "RUN:v57", "RUN:e3"), a file of
    tensors, the state dict of the program's only module, or a result of `gridml.load`. With `init_partial=True`, only
    the tensors that fit are taken. `display` selects the progress display: "terminal", "plain" (lines), "notebook",
    "none", or "auto" (chosen by the environment).

    Raises UsageError and ProgramError before the run exists, UserCodeError if the program fails, RunError and
    StorageError. After KeyboardInterrupt or an error the run stands at its last credit: `gridml.resume` continues it.
    """
    return _begin("run", program, on_event, display, run_dir=run_dir, init_from=init_from, **options)


def _as(call: Callable[Asked, Run]) -> Callable[[Callable[..., Run]], Callable[Asked, Run]]:
    """Return a decorator that gives a function the parameters of `call`, and the options of the function's back end."""

    def alike(other: Callable[..., Run]) -> Callable[Asked, Run]:
        own = inspect.signature(call, follow_wrapped=False)
        other.__signature__ = own.replace(parameters=[own.parameters[name] for name in _OWN])  # type: ignore[attr-defined]
        return takes(lambda: options_with(other.__name__))(other)

    return alike


@_as(run)
def submit(program: AnyProgram, **given: Any) -> Run:
    """Submit a program to a batch system, like `gridml submit`. Return at once; `Run.wait` waits for the end.

    With `foreground=True` the master runs in this process, and the call returns when the run has ended. Only then can
    `on_event` be given; otherwise use `Run.events`. Options are those of the command; all else is as in `gridml.run`.
    """
    return _begin("submit", program, **given)


@_as(run)
def launch(program: AnyProgram, **given: Any) -> Run:
    """Train a program on spot instances, like `gridml launch`. Return when the run has ended. Options are those of the
    command; all else is as in `gridml.run`."""
    return _begin("launch", program, **given)


def _begin(
    verb: str, program: AnyProgram, on_event: OnEvent | None = None, display: Display = "auto", **given: Any
) -> Run:
    from master.launch import start

    call = f"gridml.{verb}"
    check_guarded(call)
    check_display(call, display, on_event)
    source, plugin = source_of(program, call), plugin_of(verb)
    named, states = split_initial_values(given.get("init_from"))
    values = values_of(call, options_of(plugin), {**given, "init_from": named})
    handed_over = plugin.batch is not None and not values["foreground"]
    if handed_over and on_event is not None:
        raise UsageError(
            f"{call} got on_event, but the master of a submitted run is another process, which cannot call it. "
            "Give foreground=True, or read run.events() of the returned run."
        )
    # The settings are checked before anything is written. State dicts have no file yet: `init_from` is still None, and
    # `init_partial` is not allowed without it.
    run_settings(plugin, source.file, values if states is None else {**values, "init_partial": False})
    with claim_root(values["run_dir"], source.file.stem) as root:
        file = source.materialise(root)
        if states is not None:
            values["init_from"] = str(write_state_dicts(states, root, call))
        settings = run_settings(plugin, file, values)
        if plugin.batch is not None:  # checked first, because creating the run can take minutes of placement
            plugin.batch.check_reachable()
            if handed_over:
                plugin.batch.submit_master(settings, create_run(settings, root, quiet=display == "none"))
                return Run(root)
        return drive(root, lambda environment: start(settings, root, environment), on_event, display, resumed=False)


_OF_THE_CALL = ("program", "with_changes", "as_json")  # options of resume that are not settings


@takes(resume_options)
def resume(
    run: Run | str | os.PathLike[str], *, on_event: OnEvent | None = None, display: Display = "auto", **options: Any
) -> Run:
    """Continue a run from its last credit, however it ended, like `gridml resume`. Return when the run has ended. A
    finished run continues if a larger `epochs` is given.

    Options given here apply from now on; they are those of the command, with `_` for `-`. `on_event` and `display` are
    as in `gridml.run`. Raises the errors of `gridml.run`, and RunError if another master drives the run.
    """
    check_guarded("gridml.resume")
    check_display("gridml.resume", display, on_event)
    root = Run(run).run_dir
    values = values_of("gridml.resume", resume_options(), options)
    return drive(root, resume_function(root, values), on_event, display, resumed=True)


def resume_function(root: Path, values: Mapping[str, Any]) -> Callable[[Environment], MasterRun]:
    """Return the function that resumes a run in an environment, with the options in `values`. Raises UsageError for
    options that are wrong or cannot change."""
    from master.launch import resume
    from master.store.settings import check_silence, settings_said
    from master.store.spec import FIXED

    file, with_changes = values["program"], values["with_changes"]
    asked = {name: value for name, value in values.items() if name not in _OF_THE_CALL and value not in (None, [])}
    for name in FIXED.keys() & asked.keys():
        raise UsageError(f"--{name} cannot change when a run is resumed: {FIXED[name]}. Omit it, or start a new run.")
    if "silence" in asked:
        check_silence(settings_said(asked)["silent_s"])
    if asked.get("send") and not with_changes:
        raise UsageError(
            "got --send without --with-changes; expected both: a run keeps its own copies of files unless both replace "
            "them."
        )
    file = None if file is None else file.absolute()
    change = partial(apply_changes, asked=asked)
    return lambda environment: resume(root, environment, file, with_changes=with_changes, change=change)


def apply_changes(settings: Settings, asked: Mapping[str, Any]) -> Settings:
    """Return a run's settings with the changes in `asked`, by option name. Raises UsageError for an option that the
    run's back end does not have, and for a wrong value."""
    from master.backends.registry import BACKENDS
    from master.ports.mailboxes import check_carrier
    from master.store.settings import Settings, settings_said
    from master.telemetry.run_loggers import check_loggers

    plugin = BACKENDS.find(settings.backend)
    own = {each.name for each in [*described(plugin.options), *described(Settings, RESUME)]}
    flags = {each.name: each.flags[0] for each in resume_options()}
    for name in [name for name in asked if name not in own]:
        verb = "" if plugin.command is None else f" (gridml {plugin.command.verb})"
        raise UsageError(
            f"got {flags[name]}, which is not an option of this run's back end, {plugin.name}{verb}. Omit it."
        )
    options = replace(plugin.options.among(settings.options), **fields_of(plugin.options, asked))
    after = replace(settings, options=options, **settings_said(asked))
    if "logger" in asked:
        check_loggers(after.loggers)
    if asked:
        plugin.check(after)
    if "address" in asked:
        check_carrier(after, nearby=plugin.nearby())
    return after
