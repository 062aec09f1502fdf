"""`gridml resume`: a run goes on from its last credit, with other numbers where they may be others.

Its options are those that may change between two masters: some of every run, and the back ends' own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_type_hints

import typer

from gridml.commands.arguments import Json, RunArgument
from gridml.commands.start import as_typer_reads, for_typer, own_fields, parameter
from gridml.errors import UsageError

if TYPE_CHECKING:
    from master.environment import Environment
    from master.run import Run
    from master.store.settings import Settings

EXAMPLE = "Example: gridml resume runs/mnist-20260401-120000"
_FIXED = ("run", "program", "with_changes", "as_json", "seed")


class _Changeable(NamedTuple):
    """An option for a setting that every run has; without it the `setting` stays as it is."""

    setting: str
    kind: Any
    help: str
    metavar: str | None = None

    @property
    def annotation(self) -> Any:
        """As typer reads it."""
        option = typer.Option(help=self.help, metavar=self.metavar, show_default=False)
        return Annotated[self.kind | None, option]


_COMMON = {
    "workers": _Changeable("workers", int, "Workers at once."),
    "epochs": _Changeable("epochs", int, "Passes over the vertices in all; more of them for a run that has finished."),
    "chunk": _Changeable(
        "chunk", str, "Vertices a lease, or what they follow: goodput, paper, gaussian.", metavar="N|RULE"
    ),
    "chunk_bytes": _Changeable("chunk_bytes", str, "Bytes of a chunk that gridml chooses, at most.", metavar="SIZE"),
    "push_every": _Changeable("push_every", int, "Vertices between two pushes of a worker."),
    "steps_each": _Changeable("steps_each", int, "Batches a worker should train in the run."),
    "address": _Changeable("address", str, "Where workers of now on reach this machine.", metavar="HOST[:PORT]"),
    "silence": _Changeable("silent_s", float, "Seconds without a sign of life, then leases go to others."),
    "spot_checks": _Changeable("spot_checks", float, "Share of the pushes that is checked."),
    "logger": _Changeable(
        "loggers",
        list[str],
        "Where figures go from now on instead of the loggers so far, with all evaluations: tensorboard, mlflow, wandb. "
        "May be repeated.",
        metavar="NAME",
    ),
}
_Program = Annotated[
    Path | None, typer.Option(help="Another file of the same graph, such as a mended one.", show_default=False)
]
_WithChanges = Annotated[
    bool,
    typer.Option(
        "--with-changes",
        help="Take the program, its own modules and sent files as they are now, and not the run's copies.",
    ),
]
_Seed = Annotated[int | None, typer.Option(hidden=True)]


def resume_command() -> Callable[..., None]:
    """Return the command, with the signature that the back ends' options give it."""

    def resume(**values: Any) -> None:
        _resume(values)

    text = (
        "Go on with a run from its last credit, whatever ended it.\n\nOptions that are given hold from now on; jobs "
        "that are queued or run already stay as they are."
    )
    return as_typer_reads(resume, text, resume_parameters())


def resume_parameters() -> Iterator[inspect.Parameter]:
    """Yield the options of the command, with their defaults."""
    from master.backends.registry import BACKENDS

    yield parameter("run", RunArgument, inspect.Parameter.empty)
    yield parameter("program", _Program, None)
    yield parameter("with_changes", _WithChanges, False)
    taken = {*_FIXED, *_COMMON}
    for name, option in _COMMON.items():
        yield parameter(name, option.annotation, None)
    for plugin in BACKENDS.all().values():
        hints = get_type_hints(plugin.options, include_extras=True)
        for field in own_fields(plugin.options) if plugin.command is not None else ():
            if field.name not in taken:
                taken.add(field.name)
                inner, *extras = get_args(for_typer(hints[field.name]))
                yield parameter(field.name, Annotated[(inner | None, *extras)], None)
    yield parameter("seed", _Seed, None)
    yield parameter("as_json", Json, False)


def _resume(values: Mapping[str, Any]) -> None:
    from master.views.terminal import drive

    run = values["run"]
    drive(run, taking_up(values), run.name, as_json=values["as_json"], resumed=True)


def taking_up(values: Mapping[str, Any]) -> Callable[[Environment], Run]:
    """Return what takes a run up, by the values of all options. Raises UsageError for what makes no sense."""
    from master.launch import resume

    run, file, with_changes = values["run"], values["program"], values["with_changes"]
    asked = {name: value for name, value in values.items() if name not in _FIXED and value not in (None, [])}
    _check(values, asked)

    def change(settings: Settings) -> Settings:
        return changed(settings, asked)

    file = None if file is None else file.absolute()
    return lambda environment: resume(run, environment, file, with_changes=with_changes, change=change)


def _check(values: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    from gridml.commands.start import check_silence
    from master.store.identity import FIXED

    if values["seed"] is not None:
        raise UsageError(f"--seed cannot change while a run goes on: {FIXED['seed']}. Leave it out, or begin another.")
    if "silence" in asked:
        check_silence(asked["silence"])
    if asked.get("send") and not values["with_changes"]:
        raise UsageError(
            "got --send without --with-changes: the run has copies of its files. Give both to replace them."
        )


def changed(settings: Settings, asked: Mapping[str, Any]) -> Settings:
    """Return the settings of a run with what is `asked` for, by the names of options. Raises UsageError for what its
    back end does not have, and for values that make no sense."""
    from master.backends.registry import BACKENDS
    from master.mailboxes import check_carrier
    from master.store.settings import parse_bytes, parse_chunk
    from master.telemetry.run_loggers import check_named

    plugin = BACKENDS.find(settings.backend)
    own = {field.name for field in own_fields(plugin.options)}
    foreign = [name for name in asked if name not in own and name not in _COMMON]
    if foreign:
        verb = "" if plugin.command is None else f" (gridml {plugin.command.verb})"
        raise UsageError(
            f"got --{foreign[0].replace('_', '-')}, which is no option of this run's back end, {plugin.name}{verb}. "
            "Leave it out."
        )
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in asked.items() if name in own}
    common = {_COMMON[name].setting: value for name, value in asked.items() if name in _COMMON}
    if "chunk_bytes" in common:
        common["chunk_bytes"] = parse_bytes("--chunk-bytes", common["chunk_bytes"])
    if "chunk" in common:
        common |= parse_chunk(common["chunk"])
    if "loggers" in common:
        common["loggers"] = tuple(common["loggers"])
        check_named(common["loggers"])
    after = replace(settings, options=replace(plugin.options.among(settings.options), **options), **common)
    if asked:
        plugin.check(after)
    if "address" in asked:
        check_carrier(after, nearby=plugin.nearby())
    return after
