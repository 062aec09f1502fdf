"""The options of `gridml plan`. This module is light, for every command line imports it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from master.state.options import FIRST, FROM_1, check_bounds, option

Seconds = TypeVar("Seconds", float, float | None)
_TIMES, _LIVES = "What the work costs", "How long machines live (one of)"


def _read(unit: str, flag: str, text: str) -> Any:
    """Return what an option's text says, in seconds or in bytes. Raises UsageError."""
    from master.store import settings  # which takes a third of a second to import

    return settings.parse_seconds(flag, text) if unit == "seconds" else settings.parse_bytes(flag, text)


def _time(default: Seconds, name: str, help: str) -> Seconds:
    """A time in seconds, given as a text that may have a unit."""
    return option(default, help, _TIMES, metavar="S", kind=str, read=partial(_read, "seconds", f"--{name}"))


@dataclass(frozen=True)
class WorkTimes:
    """What the work costs, in seconds. None: not given."""

    t_exec: float | None = _time(
        None, "t-exec", "t_x, to train a vertex: such as 0.05; otherwise, with --run, what it took."
    )
    t_copy: float = _time(0.0, "t-copy", "t_c, to copy a vertex; otherwise 0.")
    t_start: float = _time(0.0, "t-start", "t_s, to start a chunk; the machine may die in it; otherwise 0.")
    t_end: float = _time(0.0, "t-end", "t_e, to end a chunk; the machine may die in it; otherwise 0.")
    push_cost: float | None = _time(
        None,
        "push-cost",
        "One push, which keeps what a worker has learnt so far; otherwise 0.1, with --run what it took.",
    )
    no_push: bool = option(False, "A chunk counts when it ends, or not at all.", _TIMES)
    wait: float = _time(0.0, "wait", "From asking for a machine until it is there; otherwise 0.")
    boot: float = _time(0.0, "boot", "Once a life, before its first chunk; with --many-chunks; otherwise 0.")
    many_chunks: bool | None = option(
        None,
        "A machine takes chunk after chunk, or only one; otherwise one, with --run as that run did.",
        _TIMES,
        flags=("--many-chunks/--one-chunk",),
    )


@dataclass(frozen=True)
class LifetimeSource:
    """Where lives are to be had from; exactly one is given."""

    lifetime: str | None = option(
        None,
        "A distribution: normal(45m,10m), exponential(1h), weibull(0.7,2h), lognormal(45m,0.8), or what a "
        "provider says is taken a month: interruptions(5%).",
        _LIVES,
    )
    lifetimes: Path | None = option(
        None, "Lives seen: columns duration_s,ended (0: still living).", _LIVES, metavar="FILE.csv"
    )
    trace: Path | None = option(None, "Machines that came and went: Bamboo, SkyPilot, spot prices.", _LIVES)
    run: Path | None = option(None, "The workers of a run, finished or not.", _LIVES, metavar="RUN")


@dataclass(frozen=True)
class PlanOptions(LifetimeSource, WorkTimes):
    """All that `gridml plan` goes by."""

    PANEL: ClassVar[str] = FIRST

    workers: int | None = option(
        None, "Machines at once; with --vertices it keeps the end of an epoch short.", bounds=FROM_1
    )
    vertices: int | None = option(None, "Vertices of an epoch.", bounds=FROM_1)
    epochs: int | None = option(
        None, "Passes over the vertices; with --batch it says how many workers are of use.", bounds=FROM_1
    )
    batch: int | None = option(None, "Vertices of a batch of the program.", bounds=FROM_1)
    replica: int | None = option(
        None,
        "Of all that is replicated, such as 100MB: pushes of it are tried out here.",
        metavar="SIZE",
        kind=str,
        read=partial(_read, "bytes", "--replica"),
    )
    compress: str | None = option(None, "What pushes carry, with --replica: none, int8 or int4.")
    program: Path | None = option(
        None,
        "A program: says whether a run of it would place its vertices, how, and what that can save at most.",
        metavar="FILE.py",
    )
    largest: int | None = option(None, "Vertices that fit into a machine's memory.", bounds=FROM_1)

    def __post_init__(self) -> None:
        check_bounds(self)
