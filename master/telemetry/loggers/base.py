"""Contract and registry of loggers: a logger writes a run's figures as points, and reports the last step of each kind.

Points are made from the ledger, and no point is written twice. If a master is killed before a logger has written its
points, the next master sends them again, starting after the last step that the logger reports. The step of a point is
the number of vertices credited in the run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gridml.errors import RunError
from gridml.registry import Registry

LOGGED, METRICS = "train", "evaluate"  # kinds of points: LOGGED for what f logged, METRICS for what evaluate returned


@dataclass(frozen=True)
class Point:
    """Numbers by name at one step of a run."""

    #: "train": `values` are means over the vertices credited since the last point; "evaluate": what evaluate returned
    #: for the version with `step` credited vertices
    kind: str
    step: int  #: credited vertices
    epoch: int  #: from 1
    at_s: float  #: seconds since 1970
    values: Mapping[str, float]


class Logger(ABC):
    """Writes the points of one run. All methods are called from one thread.

    After an exception of any kind the run continues without the logger. If only some names make the logger raise, the
    logger stays, and only these names are left out of it.
    """

    @abstractmethod
    def last(self) -> Mapping[str, int]:
        """Return the last written step by kind of point; a kind without points is missing."""

    @abstractmethod
    def write(self, points: Sequence[Point]) -> None:
        """Write points. Within each kind the steps increase, and the first is after the step in `last`.

        If this method raises, it is called again with one name at a time. If a kill of the process undoes a point, the
        next `last` must not count that point, so that it is sent again.
        """

    def close(self) -> None:  # noqa: B027  # most loggers have nothing to close
        """Flush: there are no more points."""


class CountingLogger(Logger):
    """Base class that keeps the last step of each kind. Subclasses call `count` for the points they find at start."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def last(self) -> Mapping[str, int]:
        return self._last

    def count(self, kind: str, step: int) -> None:
        """Record that a point exists."""
        self._last[kind] = max(step, self._last.get(kind, 0))


def named(point: Point) -> dict[str, float]:
    """Return the numbers of a point under the names `train/NAME` or `evaluate/NAME`."""
    return {f"{point.kind}/{name}": value for name, value in point.values.items()}


@dataclass(frozen=True)
class LoggerPlugin:
    """A kind of logger."""

    name: str
    open: Callable[[Path], Logger]  #: opens the logger of the run in a directory, new or resumed
    modules: tuple[str, ...] = ()  #: modules that the logger imports
    install: str = ""  #: command that installs these modules

    def check(self) -> None:
        """Raise RunError, with the command that installs it, if a module is missing."""
        if missing := [module for module in self.modules if find_spec(module) is None]:
            raise RunError(
                f"the logger {self.name} needs {' and '.join(missing)}, which is not installed. Install it with: "
                f"{self.install}"
            )


ALWAYS = ("csv", "json")  # loggers of every run
LOGGERS: Registry[LoggerPlugin] = Registry(
    "logger",
    "gridml.loggers",
    {
        "csv": "master.telemetry.loggers.files:csv_plugin",
        "json": "master.telemetry.loggers.files:json_plugin",
        "tensorboard": "master.telemetry.loggers.services:tensorboard_plugin",
        "mlflow": "master.telemetry.loggers.services:mlflow_plugin",
        "wandb": "master.telemetry.loggers.services:wandb_plugin",
    },
)
