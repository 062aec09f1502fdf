"""Generator of the reference as Markdown: public names with their docstrings, and commands with their options."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click
import typer

import gridml
from gridml.api.run_calls import options_with, resume_options
from gridml.cli.main import command_line
from master.backends.simulated_plugin import simulate_options
from master.state.options import Described, in_panels

SUBJECTS: dict[str, tuple[str, ...]] = {
    "Vertices and their fields": ("Vertex", "VertexId", "array", "ragged", "string", "module", "edge"),
    "The graph": ("Graph", "VertexSet", "csr", "edge_list", "signs"),
    "f and its arguments": ("update", "Batch", "Neighbours", "Lists", "Ragged", "Progress", "log"),
    "Stages": (
        "MiniBatch",
        "exchange",
        "apply",
        "global_sync",
        "uniform",
        "Link",
        "Links",
        "accumulator",
        "derived",
        "scratch",
        "counter",
        "counters",
    ),
    "The program": ("Program", "sample", "early_stopping", "EarlyStopping"),
    "Learning rates": ("linear_decay", "constant", "by_step", "warmup", "torch_schedule"),
    "Merge rules": (
        "stale_mean",
        "rounds",
        "mean",
        "clipped",
        "fedbuff",
        "nesterov",
        "easgd",
        "add",
        "maximum",
        "owned",
        "by_name",
        "Aggregate",
        "Merge",
        "TensorMerge",
    ),
    "Data": ("datasets", "graph_from", "from_torch", "from_huggingface"),
    "Running from Python": (
        "run",
        "submit",
        "launch",
        "simulate",
        "resume",
        "load",
        "infer",
        "compute",
        "Computed",
        "table",
        "export",
        "Run",
        "Event",
    ),
}
_RULES = "Merge rules"
CALLS: dict[str, Callable[[], list[Described]]] = {
    **{verb: partial(options_with, verb) for verb in ("run", "submit", "launch")},
    "simulate": simulate_options,
    "resume": resume_options,
}
"""Calls that take options as keyword arguments, with functions that list them."""


def public_names() -> set[str]:
    """Return the public names of `gridml`: `__all__`, and the calls that are imported lazily."""
    return {*gridml.__all__, *gridml._CALLS}


def names_without_subject() -> set[str]:
    """Return the public names that SUBJECTS lacks, and names in SUBJECTS that are not public."""
    return public_names() ^ {name for names in SUBJECTS.values() for name in names}


def names_page() -> str:
    """Return the page of all public names, to be filled in by mkdocstrings. Raises ValueError if one has no subject."""
    if wrong := names_without_subject():
        raise ValueError(f"{', '.join(sorted(wrong))}: without a subject, or not public; see SUBJECTS in {__name__}.")
    lines = ["# Names", "", "All that a program or a script may use of `gridml`, by subject.", ""]
    for subject, names in SUBJECTS.items():
        lines += [f"## {subject}", ""]
        for name in names:
            lines += [f"### gridml.{name}", "", *_entry(name, subject), ""]
    return "\n".join(lines)


def _entry(name: str, subject: str) -> Iterator[str]:
    thing = getattr(gridml, name)
    if isinstance(thing, types.ModuleType):
        yield from _module(thing)
        return
    if subject == _RULES and inspect.isclass(thing) and thing.__module__ != "gridml.aggregates.base":
        yield (
            inspect.getdoc(inspect.getmodule(thing)) or ""
        )  # formula and paper of a rule are in its module's docstring
        yield ""
    yield f"::: {_path(thing) or f'gridml.{name}'}"
    if name in CALLS:
        yield ""
        yield "| option | of | |"
        yield "|---|---|---|"
        for each in in_panels(each for each in CALLS[name]() if each.in_calls):
            yield f"| `{each.name}` | {_cell(inspect.formatannotation(each.kind))} | {_cell(each.option.help)} |"


def _module(module: types.ModuleType) -> Iterator[str]:
    yield inspect.getdoc(module) or ""
    yield ""
    for name in module.__all__:
        thing = getattr(module, name)
        yield f"#### {module.__name__}.{name}"
        yield ""
        yield f"::: {_path(thing) or f'{module.__name__}.{name}'}"
        yield ""


def _path(thing: Any) -> str | None:
    """Return the full path of a class or function; None for a value."""
    # mkdocstrings reads sources, so it needs the place of definition: `gridml` only imports its names, some lazily.
    written = isinstance(thing, type) or inspect.isroutine(thing)
    return f"{thing.__module__}.{thing.__qualname__}" if written else None


def commands_page() -> str:
    """Return the page of all commands, generated from the command-line parser, so that it agrees with `--help`."""
    lines = ["# Commands", ""]
    for path, command in commands():
        lines += [f"## {path}", "", *_command(path, command), ""]
    return "\n".join(lines)


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its full name, such as "gridml ami build"."""
    yield from _below("gridml", typer.main.get_command(command_line()))


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, each in command.commands.items():
        yield from _below(f"{path} {name}", each)


def _command(path: str, command: Any) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    usage = " ".join(command.collect_usage_pieces(context))
    yield inspect.cleandoc(command.help or "")
    yield ""
    yield f"    {path} {usage}"
    yield ""
    if command.epilog:
        example = command.epilog.removeprefix("Example: ")
        yield f"Example: `{example}`"
        yield ""
    # A hidden option has no help record.
    options = [record for p in command.params if (record := p.get_help_record(context)) is not None]
    if options:
        yield "| option | |"
        yield "|---|---|"
        for names, text in options:
            yield f"| `{_cell(names)}` | {_cell(text)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
