"""Options of `gridml plan`. Imports little, because every command imports this module."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

from master.state.options import FIRST, FROM_1, check_bounds, option, parse_bytes, parse_seconds

Seconds = TypeVar("Seconds", float, float | None)
_TIMES, _LIVES = "Cost of the work", "Lifetimes of machines (give one)"


def _time(default: Seconds, name: str, help: str) -> Seconds:
    """Return an option for a time in seconds, given as text that may have a unit."""
    return option(default, help, _TIMES, metavar="S", kind=str, read=partial(parse_seconds, f"--{name}"))


@dataclass(frozen=True)
class WorkTimes:
    """Cost of the work, in seconds. None: not given."""

    t_exec: float | None = _time(
        None, "t-exec", "t_x: time to train a vertex, such as 0.05. Default: with --run, as measured there."
    )
    t_copy: float = _time(0.0, "t-copy", "t_c: time to copy a vertex. Default: 0.")
    t_start: float = _time(0.0, "t-start", "t_s: time to start a chunk; the machine may die during it. Default: 0.")
    t_end: float = _time(0.0, "t-end", "t_e: time to end a chunk; the machine may die during it. Default: 0.")
    push_cost: float | None = _time(
        None,
        "push-cost",
        "Time of a push, which saves a worker's progress. Default: 0.1; with --run, as measured there.",
    )
    no_push: bool = option(False, "Workers do not push within a chunk: it counts as a whole or not at all.", _TIMES)
    wait: float = _time(0.0, "wait", "Time from requesting a machine until it starts. Default: 0.")
    boot: float = _time(0.0, "boot", "Time before a machine's first chunk; needs --many-chunks. Default: 0.")
    many_chunks: bool | None = option(
        None,
        "Whether a machine takes many chunks or only one. Default: one; with --run, as in that run.",
        _TIMES,
        flags=("--many-chunks/--one-chunk",),
    )


@dataclass(frozen=True)
class LifetimeSource:
    """Source of lifetimes; exactly one is given."""

    lifetime: str | None = option(
        None,
        "A distribution: normal(45m,10m), exponential(1h), weibull(0.7,2h), lognormal(45m,0.8), or a provider's "
        "monthly rate of interruption: interruptions(5%).",
        _LIVES,
    )
    lifetimes: Path | None = option(
        None, "Observed lives: columns duration_s,ended (0: still alive).", _LIVES, metavar="FILE.csv"
    )
    trace: Path | None = option(None, "A trace of machines: Bamboo, SkyPilot, or spot prices.", _LIVES)
    run: Path | None = option(None, "The workers of a run, finished or not.", _LIVES, metavar="RUN")


@dataclass(frozen=True)
class PlanOptions(LifetimeSource, WorkTimes):
    """All options of `gridml plan`."""

    PANEL: ClassVar[str] = FIRST

    workers: int | None = option(
        None, "Concurrent machines; with --vertices, chunks stay small enough to end an epoch quickly.", bounds=FROM_1
    )
    vertices: int | None = option(None, "Vertices of an epoch.", bounds=FROM_1)
    epochs: int | None = option(
        None, "Number of epochs; with --batch, gives the number of useful workers.", bounds=FROM_1
    )
    batch: int | None = option(None, "Vertices of a batch of the program.", bounds=FROM_1)
    replica: int | None = option(
        None,
        "Size of all replicated data, such as 100MB; measures pushes of that size on this machine.",
        metavar="SIZE",
        kind=str,
        read=partial(parse_bytes, "--replica"),
    )
    compress: str | None = option(None, "Compression of pushes, with --replica: none, int8 or int4.")
    program: Path | None = option(
        None,
        "A program: tells whether a run would place its vertices, by which method, and the largest possible saving.",
        metavar="FILE.py",
    )
    largest: int | None = option(None, "Largest chunk that fits into a machine's memory, in vertices.", bounds=FROM_1)

    def __post_init__(self) -> None:
        check_bounds(self)
