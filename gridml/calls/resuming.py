"""`gridml.resume`: a run goes on from its last credit, with other numbers where they may be others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridml.calls.displays import Display, OnEvent, check_shown
from gridml.calls.driving import drive
from gridml.calls.handle import Run
from gridml.calls.options import resume_options
from gridml.errors import UsageError
from gridml.model.loading import check_guarded
from gridml.options import RESUME, described, fields_of, takes, values_of

if TYPE_CHECKING:
    from master.environment import Environment
    from master.run import Run as MasterRun
    from master.store.settings import Settings

_OF_THE_CALL = ("program", "with_changes", "as_json")


@takes(resume_options)
def resume(
    run: Run | str | os.PathLike[str], *, on_event: OnEvent | None = None, display: Display = "auto", **options: Any
) -> Run:
    """Go on with a run from its last credit, whatever ended it, as `gridml resume` does; return when it has ended. One
    that has finished goes on where `epochs` says that it has more of them.

    Options that are given hold from now on; they are those of the command, called as there with `_` for `-`. `on_event`
    and `display` as with `gridml.run`. Raises as that does, and RunError where another master drives the run.
    """
    check_guarded("gridml.resume")
    check_shown("gridml.resume", display, on_event)
    root = Run(run).run_dir
    values = values_of("gridml.resume", resume_options(), options)
    return drive(root, taking_up(root, values), on_event, display, resumed=True)


def taking_up(root: Path, values: Mapping[str, Any]) -> Callable[[Environment], MasterRun]:
    """Return what takes a run up, by the values of all options. Raises UsageError for what makes no sense."""
    from master.launch import resume
    from master.store.identity import FIXED
    from master.store.settings import check_silence, settings_said

    file, with_changes = values["program"], values["with_changes"]
    asked = {name: value for name, value in values.items() if name not in _OF_THE_CALL and value not in (None, [])}
    for name in FIXED.keys() & asked.keys():
        raise UsageError(f"--{name} cannot change while a run goes on: {FIXED[name]}. Leave it out, or begin another.")
    if "silence" in asked:
        check_silence(settings_said(asked)["silent_s"])
    if asked.get("send") and not with_changes:
        raise UsageError(
            "got --send without --with-changes: the run has copies of its files. Give both to replace them."
        )
    file = None if file is None else file.absolute()
    change = partial(changed, asked=asked)
    return lambda environment: resume(root, environment, file, with_changes=with_changes, change=change)


def changed(settings: Settings, asked: Mapping[str, Any]) -> Settings:
    """Return the settings of a run with what is `asked` for, by the names of options. Raises UsageError for what its
    back end does not have, and for values that make no sense."""
    from master.backends.registry import BACKENDS
    from master.mailboxes import check_carrier
    from master.store.settings import Settings, settings_said
    from master.telemetry.run_loggers import check_named

    plugin = BACKENDS.find(settings.backend)
    own = {each.name for each in [*described(plugin.options), *described(Settings, RESUME)]}
    flags = {each.name: each.flags[0] for each in resume_options()}
    for name in [name for name in asked if name not in own]:
        verb = "" if plugin.command is None else f" (gridml {plugin.command.verb})"
        raise UsageError(
            f"got {flags[name]}, which is no option of this run's back end, {plugin.name}{verb}. Leave it out."
        )
    options = replace(plugin.options.among(settings.options), **fields_of(plugin.options, asked))
    after = replace(settings, options=options, **settings_said(asked))
    if "logger" in asked:
        check_named(after.loggers)
    if asked:
        plugin.check(after)
    if "address" in asked:
        check_carrier(after, nearby=plugin.nearby())
    return after
