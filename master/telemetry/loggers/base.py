"""The contract of a logger: it takes points of a run's figures, and says which it has.

No point is written twice. The ledger is the truth, and points are made of it: a logger that lacks some, because its
master was killed, gets them from the next one, at the first step beyond those it has. Steps are credited vertices
of the run. Loggers are registered by name: those that every run has, and those that are asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gridml.errors import RunError
from gridml.registry import Registry

LOGGED, METRICS = "train", "evaluate"  # kinds of points: what f logged, what evaluate returned


@dataclass(frozen=True)
class Point:
    """Numbers by name at one step. Of the kind "train" they are means over the vertices that were credited since the
    point before; of the kind "evaluate", what evaluate returned of the version in which `step` vertices are credited.
    `epoch` counts from 1, `at_s` are seconds since 1970."""

    kind: str
    step: int
    epoch: int
    at_s: float
    values: Mapping[str, float]


class Logger(ABC):
    """Writes points of one run. Its methods are called by one thread of its own, and may raise anything: then it is
    not asked for anything more, and the run goes on."""

    @abstractmethod
    def last(self) -> Mapping[str, int]:
        """Return the last step that it has of each kind of points; a kind of which it has none is missing."""

    @abstractmethod
    def write(self, points: Sequence[Point]) -> None:
        """Write points; those of one kind come with rising steps, each beyond what `last` said. What a kill of the
        process undoes of it must not be in what `last` says afterwards: then it comes again."""

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """Write what is still to be written: there are no more points."""


class CountingLogger(Logger):
    """One that is told the steps that are there already, and remembers the last of each kind."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def last(self) -> Mapping[str, int]:
        return self._last

    def count(self, kind: str, step: int) -> None:
        """Take note of a point that is there."""
        self._last[kind] = max(step, self._last.get(kind, 0))


def named(point: Point) -> dict[str, float]:
    """Return the numbers of a point as `train/NAME` and `evaluate/NAME`."""
    return {f"{point.kind}/{name}": value for name, value in point.values.items()}


@dataclass(frozen=True)
class LoggerPlugin:
    """A kind of logger: `open` makes one for the run in a folder, for the first time or again. It takes `modules`,
    which `install` brings."""

    name: str
    open: Callable[[Path], Logger]
    modules: tuple[str, ...] = ()
    install: str = ""

    def check(self) -> None:
        """Raise RunError where a module is missing, naming what brings it."""
        if missing := [module for module in self.modules if find_spec(module) is None]:
            raise RunError(
                f"the logger {self.name} takes {' and '.join(missing)}, which is not installed. Install it: "
                f"{self.install}"
            )


ALWAYS = ("csv", "json")
LOGGERS: Registry[LoggerPlugin] = Registry(
    "logger",
    "gridml.loggers",
    {
        "csv": "master.telemetry.loggers.csv_file:plugin",
        "json": "master.telemetry.loggers.json_lines:plugin",
        "tensorboard": "master.telemetry.loggers.tensorboard_events:plugin",
        "mlflow": "master.telemetry.loggers.mlflow_run:plugin",
        "wandb": "master.telemetry.loggers.wandb_run:plugin",
    },
)
