"""Feeds a run's loggers from its ledger in background threads; the master's loop never waits for a logger.

Each logger has its own last step, and everything after it becomes its next point. So a slow logger gets fewer points,
and after a master was killed, the next one continues where the logger stopped.
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

EVERY_S = 10.0  # interval between two points of what f logs
MAX_FLUSH_S, MAX_CLOSE_S = 30.0, 5.0  # time for loggers to write their last points, and to close
MAX_POINTS = 1_000  # evaluation points in one call, which bounds memory; a logger that starts late gets the rest next
Warn = Callable[[str], None]


@dataclass
class _LoggerState:
    """One logger, and what it was given."""

    plugin: LoggerPlugin
    executor: Executor
    pending: Future[Logger] | None  #: its current call; None: idle
    logger: Logger | None = None  #: None until it is open
    last: dict[str, int] = field(default_factory=dict)  #: last step given, by kind of point


class RunLoggers:
    """The loggers of one run. The built-in file loggers share a thread; each other logger has its own, so that a slow
    one delays no other. `warn` is called once for a logger that fails."""

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
        self._has_more = False  # a logger was just given MAX_POINTS, so the ledger may have more for it
        files = thread()
        threads = [(each, files if each.name in ALWAYS else thread()) for each in plugins]
        self._executors = list(dict.fromkeys([files, *(executor for _, executor in threads)]))
        self._loggers = [
            _LoggerState(each, executor, executor.submit(_opened, each, root)) for each, executor in threads
        ]

    def step(self, now: float) -> None:
        """Dispatch new points to loggers every `EVERY_S` seconds, and at once after a new evaluation."""
        evaluated = self._ledger.newest_evaluation()
        if now < self._due_s <= now + EVERY_S and evaluated == self._evaluated:
            return
        self._due_s, self._evaluated = now + EVERY_S, evaluated
        self._dispatch()

    def finish(self) -> None:
        """Dispatch all remaining points and wait for the loggers, each round at most `MAX_FLUSH_S` seconds."""
        least = 2  # rounds: the pending calls, then the points that came since
        while least > 0 or self._has_more:
            pending = [each.pending for each in self._loggers if each.pending is not None]
            wait_for(pending, MAX_FLUSH_S)
            self._dispatch()
            least -= 1

    def close(self) -> None:
        """Close all loggers. One that does not finish in time is abandoned."""
        closing = [each.executor.submit(each.logger.close) for each in self._loggers if each.logger is not None]
        wait_for(closing, MAX_CLOSE_S)
        for executor in self._executors:
            executor.shutdown(wait=False, cancel_futures=True)

    def _dispatch(self) -> None:
        self._has_more = False
        made: dict[tuple[int, int], list[Point]] = {}  # loggers at the same steps share one query
        for each in [*self._loggers]:
            if not self._is_ready(each):
                continue
            last = each.last.get(LOGGED, 0), each.last.get(METRICS, 0)
            if last not in made:
                made[last] = self._points(*last)
            if points := made[last]:
                assert each.logger is not None
                each.pending = each.executor.submit(_write, each.logger, points)
                each.last |= {point.kind: point.step for point in points}
                self._has_more |= len(points) >= MAX_POINTS

    def _is_ready(self, each: _LoggerState) -> bool:
        """Return whether a logger has finished its last call; one that failed is dropped with a warning."""
        if each.pending is not None:
            if not each.pending.done():
                return False
            try:
                logger = each.pending.result()
            except Exception as error:  # third-party code may raise anything; a logger must not end the run
                self._loggers.remove(each)
                self._warn(f"the logger {each.plugin.name} failed and is dropped: {described(error)}")
                return False
            if each.logger is None:
                each.logger, each.last = logger, dict(logger.last())
            each.pending = None
        return True

    def _points(self, logged: int, metrics: int) -> list[Point]:
        """Return the ledger's points after these steps: evaluations, oldest first, at most `MAX_POINTS`; and the mean
        of everything that f logged since, as one point."""
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
    """Return the names of a run's loggers: the built-in ones, the program's, and those of the settings."""
    return list(dict.fromkeys([*ALWAYS, *spec.program.loggers, *spec.settings.loggers]))


def check_loggers(spec: RunSpec) -> None:
    """Raise UsageError for an unknown logger, RunError for one whose package is not installed."""
    check_named(names_of(spec))


def check_named(names: Sequence[str]) -> None:
    """Check loggers by name, like `check_loggers`."""
    for name in names:
        LOGGERS.find(name).check()


def loggers_of(spec: RunSpec, warn: Warn) -> list[LoggerPlugin]:
    """Return the loggers of a run. One that this machine lacks is skipped with a warning, so that a run can be resumed
    anywhere."""
    plugins = []
    for name in names_of(spec):
        try:
            plugins.append(LOGGERS.find(name))
        except GridmlError as error:
            warn(f"the logger {name} is skipped: {error}")
    return plugins


def _opened(plugin: LoggerPlugin, root: Path) -> Logger:
    plugin.check()
    return plugin.open(root)


def _write(logger: Logger, points: Sequence[Point]) -> Logger:
    logger.write(points)
    return logger


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    """Return the metrics that are numbers; lists are shown in the report only."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
