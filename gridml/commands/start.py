"""The commands that begin a run, `gridml run` and `gridml submit` among them: one for every back end that has a verb.

Its options are those that every run has, and the fields of the back end's options that are annotated as such.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from gridml.commands.arguments import INTERRUPTED, Json, RunDir, say
from gridml.errors import UsageError
from gridml.model.device_names import AUTO
from gridml.protocol.compression import NONE
from gridml.run_names import claimed_root, usual_root

if TYPE_CHECKING:
    from master.backends.base import BackendOptions
    from master.backends.plugin import BackendPlugin, BatchSystem
    from master.store.event_facts import EventFacts
    from master.store.rundir import RunDirectory
    from master.store.settings import Settings

_Program = Annotated[
    Path, typer.Argument(metavar="PROGRAM", help="The Python file with the gridml.Program.", show_default=False)
]
_Epochs = Annotated[
    int | None, typer.Option(help="Passes over the vertices; otherwise what the program says.", show_default=False)
]
_Chunk = Annotated[
    str | None,
    typer.Option(
        metavar="N|RULE",
        help="Vertices a lease; otherwise chosen for goodput, or as the paper has it: paper, gaussian.",
        show_default=False,
    ),
]
_ChunkBytes = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Bytes of a chosen chunk at most; otherwise 32MB.", show_default=False),
]
_Placement = Annotated[
    str | None,
    typer.Option(
        metavar="auto|none|METHOD",
        help="Vertices that touch the same rows go to one worker: where it pays, never, or by a method of gridml place "
        "such as parsa; otherwise what the program says.",
        show_default=False,
    ),
]
_PushEvery = Annotated[
    int | None, typer.Option(help="Vertices between two pushes of a worker; otherwise chosen.", show_default=False)
]
_NoPush = Annotated[bool, typer.Option("--no-push", help="Push where a chunk ends, and not before: all or nothing.")]
_Lifetime = Annotated[
    str | None,
    typer.Option(
        help="How long workers are expected to live, before the run has seen it: normal(45m,10m), exponential(1h).",
        show_default=False,
    ),
]
_Trace = Annotated[
    Path | None,
    typer.Option(help="The same, from a file of when machines came and went.", show_default=False),
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
_InitFrom = Annotated[
    str | None,
    typer.Option(
        metavar="RUN[:which]|FILE",
        help="Begin with the replica of another run (final, or RUN:best, RUN:v57, RUN:e3) or with tensors of a file "
        "(.safetensors, .pt), instead of what the program makes.",
        show_default=False,
    ),
]
_InitPartial = Annotated[
    bool, typer.Option("--init-partial", help="Of these take what fits by name and shape, and leave the others.")
]
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
_Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda[:N]",
        help="What workers train on: a GPU where there is one, the CPU, or a GPU and nothing else.",
    ),
]
_Logger = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Where figures go beside metrics.csv and metrics.jsonl: tensorboard, mlflow, wandb. May be repeated.",
        show_default=False,
    ),
]
_Foreground = Annotated[
    bool, typer.Option("--foreground", help="Run the master in this terminal, not as a job of its own.")
]
_Prepare = Annotated[
    bool, typer.Option("--prepare", help="Make the run and write what its master is submitted by; submit nothing.")
]


def start_command(plugin: BackendPlugin) -> Callable[..., None]:
    """Return the command of a back end that has one, with the signature that its options give it."""

    def command(**values: Any) -> None:
        _start(plugin, values)

    assert plugin.command is not None
    return as_typer_reads(command, plugin.command.help, start_parameters(plugin))


def as_typer_reads(
    command: Callable[..., None], text: str, parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """Return a command that takes anything as one with these parameters and this help."""
    signature = inspect.Signature(list(parameters))
    command.__doc__ = text
    command.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


def start_parameters(plugin: BackendPlugin) -> Iterator[inspect.Parameter]:
    """Yield the options of the command that begins a run on a back end, with their defaults."""
    from gridml.carriers.registry import CARRIERS

    command = plugin.command
    assert command is not None
    facts, has_default = plugin.options().facts, command.workers is not None
    workers = Annotated[
        int | None, typer.Option(facts.workers_option, help=command.workers_help, show_default=has_default)
    ]
    yield parameter("program", _Program, inspect.Parameter.empty)
    yield parameter("workers", workers, command.workers)
    yield parameter("epochs", _Epochs, None)
    yield parameter("seed", Annotated[int, typer.Option(help=command.seed_help)], 0)
    yield parameter("chunk", _Chunk, None)
    yield parameter("chunk_bytes", _ChunkBytes, None)
    yield parameter("placement", _Placement, None)
    yield parameter("push_every", _PushEvery, None)
    yield parameter("no_push", _NoPush, False)
    yield parameter("steps_each", _StepsEach, None)
    hints = get_type_hints(plugin.options, include_extras=True)
    for field in own_fields(plugin.options):
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        yield parameter(field.name, for_typer(hints[field.name]), default)
    if not any(field.name == "lifetime" for field in own_fields(plugin.options)):
        yield parameter("lifetime", _Lifetime, None)
        yield parameter("trace", _Trace, None)
    yield parameter("init_from", _InitFrom, None)
    yield parameter("init_partial", _InitPartial, False)
    yield parameter("silence", _Silence, 120.0)
    yield parameter("spot_checks", _SpotChecks, 0.0)
    yield parameter("compress", _Compress, NONE)
    yield parameter("compress_down", _CompressDown, NONE)
    if facts.carries_files or len(facts.carriers) > 1:
        yield parameter("carrier", _Carrier, facts.carriers[0])
    if facts.carries_files or any(CARRIERS.find(name).has_address for name in facts.carriers):
        yield parameter("address", _Address, None)
    yield parameter("device", _Device, AUTO)
    yield parameter("logger", _Logger, None)
    yield parameter("run_dir", RunDir, None)
    if plugin.dry_run:
        yield parameter("dry_run", Annotated[bool, typer.Option("--dry-run", help=plugin.dry_run)], False)
    if plugin.batch is not None:
        yield parameter("foreground", _Foreground, False)
        yield parameter("prepare", _Prepare, False)
    yield parameter("as_json", Json, False)


def parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return what typer makes an option of, or an argument."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def own_fields(options: type[BackendOptions]) -> list[dataclasses.Field[Any]]:
    """Return the fields of a back end's options that are options of its command."""
    hints = get_type_hints(options, include_extras=True)
    return [field for field in dataclasses.fields(options) if get_origin(hints[field.name]) is Annotated]


def for_typer(hint: Any) -> Any:
    """Return an annotation as typer reads it: what is given several times is a list there."""
    inner, *extras = get_args(hint)
    if get_origin(inner) is tuple:
        inner = list[get_args(inner)[0]]  # type: ignore[misc]
    return Annotated[(inner, *extras)]


def wanted(plugin: BackendPlugin, values: Mapping[str, Any]) -> Settings:
    """Return the settings of a run that is to begin, by the values of all options. Raises UsageError or RunError for
    what can be seen to be wrong before there is one."""
    from master.mailboxes import check_carrier

    settings = _settings(plugin, values)
    plugin.check(settings)
    check_carrier(settings, nearby=plugin.nearby())
    return settings


def _start(plugin: BackendPlugin, values: dict[str, Any]) -> None:
    try:
        _start_heard(plugin, values)
    except KeyboardInterrupt:  # which a run that is driven from here catches itself
        say("Stopped before the run began.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _start_heard(plugin: BackendPlugin, values: dict[str, Any]) -> None:
    from master.launch import start
    from master.store.rundir import RunDirectory
    from master.views.terminal import drive

    settings = wanted(plugin, values)
    name, as_json = settings.program.stem, values["as_json"]
    foreground = values.get("foreground", True)
    if foreground and values.get("prepare", False):
        raise UsageError("got --foreground and --prepare; expected one of them: what is prepared is submitted later.")
    if values.get("dry_run", False):
        root = values["run_dir"] or usual_root(name)
        typer.echo(plugin.describe(settings, RunDirectory(root), foreground=foreground))
        return
    with claimed_root(values["run_dir"], name) as root:
        if plugin.batch is not None:
            if values["prepare"]:
                _prepare(plugin.batch, settings, root, as_json=as_json)
                return
            plugin.batch.check_reachable()
            if not foreground:
                _submit(plugin.batch, settings, root, as_json=as_json)
                return
        drive(root, lambda environment: start(settings, root, environment), name, as_json=as_json)


def _settings(plugin: BackendPlugin, values: Mapping[str, Any]) -> Settings:
    """Return the settings of a command line. Raises UsageError for what makes no sense."""
    from gridml.protocol.messages import NO_PUSH
    from master.store.first_values import located
    from master.store.settings import Settings, parse_bytes, parse_chunk

    own = {field.name: values[field.name] for field in own_fields(plugin.options)}
    options = plugin.options(**{n: tuple(value) if isinstance(value, list) else value for n, value in own.items()})
    workers = values["workers"]
    check_silence(values["silence"])
    if values["no_push"] and values["push_every"] is not None:
        raise UsageError("got both --no-push and --push-every; expected one of them, or neither.")
    chunk = {} if values["chunk"] is None else parse_chunk(values["chunk"])
    common = {
        "steps_each": values["steps_each"],
        "chunk_bytes": None if (size := values["chunk_bytes"]) is None else parse_bytes("--chunk-bytes", size),
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
        placement=values["placement"],
        push_every=NO_PUSH if values["no_push"] else values["push_every"],
        expected_lifetime=_expected_lifetime(values, chunk),
        spot_checks=values["spot_checks"],
        compress=values["compress"],
        compress_down=values["compress_down"],
        init_from=None if values["init_from"] is None else located(values["init_from"]),
        init_partial=values["init_partial"],
        device=values["device"],
        loggers=tuple(values["logger"] or ()),
        options=options,
        **{name: value for name, value in common.items() if value is not None},
        **chunk,
    )


def _expected_lifetime(values: Mapping[str, Any], chunk: Mapping[str, Any]) -> str | None:
    """What --lifetime and --trace say, whether the back end makes workers live so or a user expects it."""
    if values["lifetime"] is None and values["trace"] is None:
        return None  # what reads them takes half a second to import
    from master.decisions.chunk_rules import GOODPUT
    from master.planning.lifetime_sources import expected_lifetime

    speedup, rule = values.get("speedup", 1.0), chunk.get("chunk_rule", GOODPUT)
    return expected_lifetime(values["lifetime"], values["trace"], speedup=speedup, rule=rule)


def check_silence(seconds: float) -> None:
    """Raise UsageError for a silence in which a worker may well only start."""
    if not seconds >= LEAST_SILENCE_S:
        raise UsageError(
            f"--silence is {seconds:g}; expected at least {LEAST_SILENCE_S:g} seconds: a worker says nothing while it "
            "starts."
        )


def made(settings: Settings, root: Path, *, quiet: bool) -> RunDirectory:
    """Make a run that another process drives; unless `quiet`, say meanwhile how its vertices are placed."""
    from master.backends.registry import make
    from master.environment import Environment
    from master.launch import create
    from master.store.rundir import RunDirectory

    def report(topic: str, text: str, facts: EventFacts) -> None:
        if not quiet:
            say(f"{topic}: {text}", err=True)

    create(settings, root, Environment(make, report=report))
    return RunDirectory(root)


def _prepare(batch: BatchSystem, settings: Settings, root: Path, *, as_json: bool) -> None:
    """Make the run, and what its master is submitted by."""
    prepared = batch.prepare_master(settings, made(settings, root, quiet=as_json))
    if as_json:
        typer.echo(json.dumps({"run_dir": str(root), "prepared": str(prepared)}))
        return
    typer.echo(f"{root} is made, and nothing submitted. Submit its master: {batch.submission(prepared)}")


def _submit(batch: BatchSystem, settings: Settings, root: Path, *, as_json: bool) -> None:
    """Make the run, and hand its master to the batch system."""
    from master.store.rundir import command

    job = batch.submit_master(settings, made(settings, root, quiet=as_json))
    if as_json:
        typer.echo(json.dumps({"run_dir": str(root), "master_job": job}))
        return
    typer.echo(f"The master of {root} is job {job}. Follow it: {command('watch', root)}")
    typer.echo(f"End it, keeping what is credited: {command('cancel', root)} (or {batch.removal(job)})")
