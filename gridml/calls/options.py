"""The options of each command, and of the call of that name: those of every run, and what its back end has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gridml.errors import UsageError
from gridml.options import BEGIN, RESUME, Described, described

if TYPE_CHECKING:
    from master.backends.plugin import BackendPlugin


def options_of(plugin: BackendPlugin) -> list[Described]:
    """Return the options with which a run begins on a back end: those of every run, and the back end's own."""
    from gridml.carriers.registry import CARRIERS
    from master.store.settings import CommandOptions, Settings

    command, own = plugin.command, described(plugin.options)
    assert command is not None
    facts = plugin.options().facts
    there = {
        "carrier": facts.carries_files or len(facts.carriers) > 1,
        "address": facts.carries_files or any(CARRIERS.find(name).has_address for name in facts.carriers),
        "dry_run": bool(plugin.dry_run),
        "foreground": plugin.batch is not None,
        "prepare": plugin.batch is not None,
    } | {each.name: False for each in own}  # a back end whose workers live as it is told says so itself
    if "lifetime" in there:
        there["trace"] = False
    its: dict[str, dict[str, Any]] = {
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
    return [*(each.changed(**its.get(each.name, {})) for each in common if there.get(each.name, True)), *own]


def workers_name(plugin: BackendPlugin) -> str:
    """Return what a back end calls the number of its workers."""
    return plugin.options().facts.workers_option.removeprefix("--").replace("-", "_")


def resume_options() -> list[Described]:
    """Return the options with which a run goes on; without one that setting stays. Those of settings that must not
    change are hidden: they are refused with the reason."""
    from master.backends.registry import BACKENDS
    from master.store.settings import CommandOptions, Settings

    fixed = [each.changed(hidden=True) for each in described(Settings, BEGIN) if each.option.fixed]
    plugins = [plugin for plugin in BACKENDS.all().values() if plugin.command is not None]
    own = [each for plugin in plugins for each in described(plugin.options)]
    of_the_call = described(CommandOptions, RESUME)
    changeable = [each.optional for each in [*own, *described(Settings, RESUME), *fixed]]
    return [*of_the_call, *reversed({each.name: each for each in reversed(changeable)}.values())]


def plugin_of(verb: str) -> BackendPlugin:
    """Return the back end on which `gridml VERB` begins a run. Raises UsageError where there is none."""
    from master.backends.registry import BACKENDS

    for plugin in BACKENDS.all().values():
        if plugin.command is not None and plugin.command.verb == verb:
            return plugin
    raise UsageError(f"no back end of this installation has gridml {verb}. Install its extra, or use gridml.run.")


def options_with(verb: str) -> list[Described]:
    """Return the options of `gridml VERB`, none where no back end has that here."""
    try:
        return options_of(plugin_of(verb))
    except UsageError:
        return []
