"""The commands that begin a run, `gridml run` and `gridml submit` among them: one for every back end that has a verb.

Its options are those that every run has, and the fields of the back end's options that are annotated as such.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from gridml.commands.arguments import Json, RunDir, usual_root
from gridml.errors import UsageError
from gridml.protocol.compression import NONE

if TYPE_CHECKING:
    from master.backends.base import BackendOptions
    from master.backends.plugin import BackendPlugin, BatchSystem
    from master.store.settings import Settings

_Program = Annotated[
    Path, typer.Argument(metavar="PROGRAM", help="The Python file with the gridml.Program.", show_default=False)
]
_Epochs = Annotated[
    int | None, typer.Option(help="Passes over the vertices; otherwise what the program says.", show_default=False)
]
_Chunk = Annotated[int | None, typer.Option(help="Vertices a lease; otherwise chosen.", show_default=False)]
_PushEvery = Annotated[
    int | None, typer.Option(help="Vertices between two pushes of a worker; otherwise chosen.", show_default=False)
]
_StepsEach = Annotated[
    int | None,
    typer.Option(
        help="Batches a worker should train in the run, or fewer workers are asked for; otherwise 150; 0: all are.",
        show_default=False,
    ),
]
_Silence = Annotated[
    float, typer.Option(help="Seconds without a sign of life after which a worker's leases go to others.")
]
LEAST_SILENCE_S = 5.0
_SpotChecks = Annotated[
    float, typer.Option(help="Share of the pushes that another machine trains again, to compare; 0.02 is one in fifty.")
]
_Compress = Annotated[
    str, typer.Option(help="What pushes carry: none, the values of tensors; int8 or int4, compressed steps.")
]
_CompressDown = Annotated[str, typer.Option(help="What answers bring weights in: none, as they are; bf16.")]
_Carrier = Annotated[
    str, typer.Option(help="How messages travel: chirp, or sftp where machines may connect to this one.")
]
_Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        "--sftp",
        metavar="HOST[:PORT]",
        help="Where workers reach this machine; otherwise its full name and any free port.",
        show_default=False,
    ),
]
_Foreground = Annotated[
    bool, typer.Option("--foreground", help="Run the master in this terminal, not as a job of its own.")
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the submit descriptions and what would be sent; submit nothing.")
]


def start_command(plugin: BackendPlugin) -> Callable[..., None]:
    """Return the command of a back end that has one, with the signature that its options give it."""

    def command(**values: Any) -> None:
        _start(plugin, values)

    parameters = list(_parameters(plugin))
    assert plugin.command is not None
    command.__doc__ = plugin.command.help
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    return command


def _parameters(plugin: BackendPlugin) -> Iterator[inspect.Parameter]:
    command = plugin.command
    assert command is not None
    workers = Annotated[int | None, typer.Option(help=command.workers_help, show_default=command.workers is not None)]
    yield _parameter("program", _Program, inspect.Parameter.empty)
    yield _parameter("workers", workers, command.workers)
    yield _parameter("epochs", _Epochs, None)
    yield _parameter("seed", Annotated[int, typer.Option(help=command.seed_help)], 0)
    yield _parameter("chunk", _Chunk, None)
    yield _parameter("push_every", _PushEvery, None)
    yield _parameter("steps_each", _StepsEach, None)
    hints = get_type_hints(plugin.options, include_extras=True)
    for field in _own_fields(plugin.options):
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        yield _parameter(field.name, _for_typer(hints[field.name]), default)
    facts = plugin.options().facts
    yield _parameter("silence", _Silence, 120.0)
    yield _parameter("spot_checks", _SpotChecks, 0.0)
    yield _parameter("compress", _Compress, NONE)
    yield _parameter("compress_down", _CompressDown, NONE)
    if facts.carries_files or len(facts.carriers) > 1:
        yield _parameter("carrier", _Carrier, facts.carriers[0])
        yield _parameter("address", _Address, None)
    yield _parameter("run_dir", RunDir, None)
    if plugin.batch is not None:
        yield _parameter("foreground", _Foreground, False)
        yield _parameter("dry_run", _DryRun, False)
    yield _parameter("as_json", Json, False)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _own_fields(options: type[BackendOptions]) -> list[dataclasses.Field[Any]]:
    """Return the fields of a back end's options that are options of its command."""
    hints = get_type_hints(options, include_extras=True)
    return [field for field in dataclasses.fields(options) if get_origin(hints[field.name]) is Annotated]


def _for_typer(hint: Any) -> Any:
    """Return an annotation as typer reads it: what is given several times is a list there."""
    inner, *extras = get_args(hint)
    if get_origin(inner) is tuple:
        inner = list[get_args(inner)[0]]  # type: ignore[misc]
    return Annotated[(inner, *extras)]


def _start(plugin: BackendPlugin, values: dict[str, Any]) -> None:
    from master.launch import start
    from master.mailboxes import check_carrier
    from master.store.rundir import RunDirectory
    from master.views.terminal import drive

    settings = _settings(plugin, values)
    plugin.check(settings)
    check_carrier(settings)
    name = settings.program.stem
    root = values["run_dir"] or usual_root(name)
    if plugin.batch is not None:
        if values["dry_run"]:
            typer.echo(plugin.batch.describe(settings, RunDirectory(root), foreground=values["foreground"]))
            return
        plugin.batch.check_reachable()
        if not values["foreground"]:
            _submit(plugin.batch, settings, root, as_json=values["as_json"])
            return
    drive(root, lambda environment: start(settings, root, environment), name, as_json=values["as_json"])


def _settings(plugin: BackendPlugin, values: dict[str, Any]) -> Settings:
    """Return the settings of a command line. Raises UsageError for what makes no sense."""
    from master.store.settings import Settings

    own = {field.name: values[field.name] for field in _own_fields(plugin.options)}
    options = plugin.options(**{n: tuple(value) if isinstance(value, list) else value for n, value in own.items()})
    workers = values["workers"]
    if not values["silence"] >= LEAST_SILENCE_S:
        raise UsageError(
            f"--silence is {values['silence']:g}; expected at least {LEAST_SILENCE_S:g} seconds: a worker says nothing "
            "while it starts."
        )
    common = {
        "steps_each": values["steps_each"],
        "silent_s": values["silence"],
        "carrier": values.get("carrier"),
        "address": values.get("address"),
    }
    return Settings(
        program=values["program"].absolute(),
        backend=plugin.name,
        workers=plugin.workers(options) if workers is None else workers,
        epochs=values["epochs"],
        seed=values["seed"],
        chunk=values["chunk"],
        push_every=values["push_every"],
        spot_checks=values["spot_checks"],
        compress=values["compress"],
        compress_down=values["compress_down"],
        options=options,
        **{name: value for name, value in common.items() if value is not None},
    )


def _submit(batch: BatchSystem, settings: Settings, root: Path, *, as_json: bool) -> None:
    """Make the run, and hand its master to the batch system."""
    from master.backends.registry import make
    from master.environment import Environment
    from master.launch import create
    from master.store.rundir import RunDirectory, command

    create(settings, root, Environment(make))
    job = batch.submit_master(settings, RunDirectory(root))
    if as_json:
        typer.echo(json.dumps({"run_dir": str(root), "master_job": job}))
        return
    typer.echo(f"The master of {root} is job {job}. Follow it: {command('watch', root)}")
    typer.echo(f"End it, keeping what is credited: {command('cancel', root)} (or {batch.removal(job)})")
