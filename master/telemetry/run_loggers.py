"""Keeps a run's loggers up to what its ledger says, beside the run: no turn of the master waits for one of them.

Each has the points up to a step of its own; what came since is one more point for it. So a logger that is slow gets
fewer points, and one whose master was killed goes on at the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from pathlib import Path

from gridml.errors import GridmlError
from gridml.protocol.foreign import described
from master.store.ledger import Ledger
from master.store.spec import RunSpec
from master.telemetry.loggers.base import ALWAYS, LOGGED, LOGGERS, METRICS, Logger, LoggerPlugin, Point

EVERY_S = 10.0  # between two points of what f logs
MAX_FLUSH_S, MAX_CLOSE_S = 30.0, 5.0  # that loggers may take for the last points, and to close
MAX_POINTS = 1_000  # of evaluate that a logger is given at once; one that begins late gets the others next
Warn = Callable[[str], None]


@dataclass
class _LoggerState:
    """One logger: what it is at, and the last step of each kind that it was given."""

    plugin: LoggerPlugin
    executor: Executor
    under_way: Future[Logger] | None
    logger: Logger | None = None
    last: dict[str, int] = field(default_factory=dict)


class RunLoggers:
    """The loggers of one run: the files that every run has share a thread, each other has its own, so that one that is
    slow holds up no other. `warn` is told once of a logger that fails."""

    def __init__(
        self,
        plugins: Sequence[LoggerPlugin],
        root: Path,
        ledger: Ledger,
        thread: Callable[[], Executor],
        warn: Warn,
    ) -> None:
        self._ledger = ledger
        self._warn = warn
        self._due_s = 0.0
        self._evaluated = (0, 0)
        self._behind = False  # whether a logger was just given all that it may be at once, and lacks more perhaps
        files = thread()
        threads = [(each, files if each.name in ALWAYS else thread()) for each in plugins]
        self._executors = list(dict.fromkeys([files, *(executor for _, executor in threads)]))
        self._loggers = [
            _LoggerState(each, executor, executor.submit(_opened, each, root)) for each, executor in threads
        ]

    def step(self, now: float) -> None:
        """Give loggers what they lack, where that is due: every ten seconds, and when there are other metrics."""
        evaluated = self._ledger.newest_evaluation()
        if now < self._due_s <= now + EVERY_S and evaluated == self._evaluated:
            return
        self._due_s, self._evaluated = now + EVERY_S, evaluated
        self._give()

    def finish(self) -> None:
        """Give loggers all that they lack, and wait for them, but not for ever."""
        least = 2  # what is under way, and what came since
        while least > 0 or self._behind:
            pending = [each.under_way for each in self._loggers if each.under_way is not None]
            wait_for(pending, MAX_FLUSH_S)
            self._give()
            least -= 1

    def close(self) -> None:
        """Take leave of all loggers. Those that do not get on are left."""
        closing = [each.executor.submit(each.logger.close) for each in self._loggers if each.logger is not None]
        wait_for(closing, MAX_CLOSE_S)
        for executor in self._executors:
            executor.shutdown(wait=False, cancel_futures=True)

    def _give(self) -> None:
        self._behind = False
        made: dict[tuple[int, int], list[Point]] = {}
        for each in [*self._loggers]:
            if not self._is_ready(each):
                continue
            last = each.last.get(LOGGED, 0), each.last.get(METRICS, 0)
            if last not in made:
                made[last] = self._points(*last)
            if points := made[last]:
                assert each.logger is not None
                each.under_way = each.executor.submit(_write, each.logger, points)
                each.last |= {point.kind: point.step for point in points}
                self._behind |= len(points) >= MAX_POINTS

    def _is_ready(self, each: _LoggerState) -> bool:
        """Whether a logger has done what it was given; one that failed is left out from now on, with a warning."""
        if each.under_way is not None:
            if not each.under_way.done():
                return False
            try:
                logger = each.under_way.result()
            except Exception as error:  # whatever it is, the training is worth more
                self._loggers.remove(each)
                self._warn(f"the logger {each.plugin.name} is left out from now on: {described(error)}")
                return False
            if each.logger is None:
                each.logger, each.last = logger, dict(logger.last())
            each.under_way = None
        return True

    def _points(self, logged: int, metrics: int) -> list[Point]:
        """Return what the ledger has beyond these steps: the oldest evaluations, where there are more than a logger is
        given at once, and the newest mean of what f logged."""
        points = [
            Point(METRICS, step, epoch + 1, at_s, numbers)
            for step, epoch, at_s, values in self._ledger.evaluated_since(metrics)
            if (numbers := _numbers(values))
        ][:MAX_POINTS]
        if means := self._ledger.logged_since(logged):
            newest = max(means, key=lambda mean: mean.credited)
            values = {mean.name: mean.mean for mean in means}
            points.append(Point(LOGGED, newest.credited, newest.epoch + 1, self._ledger.last_activity_s(), values))
        return points


def names_of(spec: RunSpec) -> list[str]:
    """The loggers of a run by name: those that every run has, and those that its program or who began it asks for."""
    return list(dict.fromkeys([*ALWAYS, *spec.program.loggers, *spec.settings.loggers]))


def check_loggers(spec: RunSpec) -> None:
    """Raise UsageError for a logger that there is not, RunError for one whose package is not installed."""
    check_named(names_of(spec))


def check_named(names: Sequence[str]) -> None:
    """Raise as `check_loggers` does, of loggers by name."""
    for name in names:
        LOGGERS.find(name).check()


def loggers_of(spec: RunSpec, warn: Warn) -> list[LoggerPlugin]:
    """Return the loggers of a run that begins or goes on; on a machine that lacks one it goes on without."""
    plugins = []
    for name in names_of(spec):
        try:
            plugins.append(LOGGERS.find(name))
        except GridmlError as error:
            warn(f"the logger {name} is left out: {error}")
    return plugins


def _opened(plugin: LoggerPlugin, root: Path) -> Logger:
    plugin.check()
    return plugin.open(root)


def _write(logger: Logger, points: Sequence[Point]) -> Logger:
    logger.write(points)
    return logger


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    """Return the metrics that are one number; lists are for the report."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
