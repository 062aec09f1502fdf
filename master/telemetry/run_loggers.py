"""Feeds a run's loggers from its ledger in background threads; the master's loop never waits for a logger.

Each logger has its own last step, and everything after that step becomes its next point. So a slow logger gets fewer
points, and after a master was killed, the next master continues where the logger stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field, replace
from pathlib import Path

from gridml.errors import GridmlError, RunError
from gridml.model.program import Program
from gridml.protocol.foreign import FOREIGN_ERRNOS, described, integer
from master.store.ledger import Ledger
from master.store.settings import Settings
from master.telemetry.loggers.base import ALWAYS, LOGGED, LOGGERS, METRICS, Logger, LoggerPlugin, Point, named

EVERY_S = 10.0  # seconds between two points of what f logs
MAX_FLUSH_S, MAX_CLOSE_S = 30.0, 5.0  # for loggers to write their last points, and to close
MAX_POINTS = 1_000  # evaluation points in one call of `write`, to bound memory; the next call gets the rest
Warn = Callable[[str], None]


@dataclass
class _LoggerState:
    """One logger, and the points that it was given."""

    plugin: LoggerPlugin
    executor: Executor
    pending: Future[Logger] | None  #: its current call; None: idle
    logger: Logger | None = None  #: None until it is open
    last: dict[str, int] = field(default_factory=dict)  #: last step given, by kind of point
    accepted: set[str] = field(default_factory=set)  #: names that the logger has written; changed by its thread only
    refused: dict[str, str] = field(default_factory=dict)  #: reasons by refused name; changed by its thread only
    reported: int = 0  #: number of refused names at the last warning


class RunLoggers:
    """The loggers of one run. The built-in file loggers share a thread; each other logger has its own, so that a slow
    one delays no other. `warn` is called once when a logger fails, and at most twice about names that it refuses."""

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
        """Dispatch all remaining points in rounds. Each round first waits for the loggers, at most `MAX_FLUSH_S`."""
        least = 2  # minimum number of rounds: one for the pending calls, one for the points added since
        while least > 0 or self._has_more:
            pending = [each.pending for each in self._loggers if each.pending is not None]
            wait_for(pending, MAX_FLUSH_S)
            self._dispatch()
            least -= 1
        for each in self._loggers:
            if len(each.refused) > each.reported:
                self._warn_of_refused(each)

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
                each.pending = each.executor.submit(_write, each, each.logger, points)
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
            if each.refused and not each.reported:
                self._warn_of_refused(each)
        return True

    def _warn_of_refused(self, each: _LoggerState) -> None:
        """Warn of the names that a logger refuses: at the first refusal, and at the end of the run if more followed."""
        each.reported = len(each.refused)
        name, why = [*each.refused.items()][-1]
        some = f"{each.reported:,} names, such as {name}" if each.reported > 1 else name
        self._warn(f"the logger {each.plugin.name} refuses {some}; only this logger leaves out what it refuses: {why}")

    def _points(self, logged: int, metrics: int) -> list[Point]:
        """Return the ledger's points after these steps: at most `MAX_POINTS` evaluations, oldest first, and one
        point with the means of everything that f logged since."""
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


def names_of(program: Program, settings: Settings) -> list[str]:
    """Return the names of a run's loggers: the built-in ones, the program's, and those of the settings."""
    return list(dict.fromkeys([*ALWAYS, *program.loggers, *settings.loggers]))


def check_loggers(names: Sequence[str]) -> None:
    """Raise UsageError for an unknown logger, RunError for one whose package is not installed."""
    for name in names:
        LOGGERS.find(name).check()


def loggers_of(names: Sequence[str], warn: Warn) -> list[LoggerPlugin]:
    """Return the loggers of these names. A name that this machine does not know is skipped with a warning, so that a
    run can be resumed anywhere."""
    plugins = []
    for name in names:
        try:
            plugins.append(LOGGERS.find(name))
        except GridmlError as error:
            warn(f"the logger {name} is skipped: {error}")
    return plugins


def _opened(plugin: LoggerPlugin, root: Path) -> Logger:
    plugin.check()
    try:
        logger = plugin.open(root)
        integer()(max(logger.last().values(), default=0))  # checked here, because the ledger is then queried with it
    except Exception as error:  # parsers of damaged files and third-party code may raise anything
        advice = "Move its files out of the run directory, and resume the run: what the ledger has is written again"
        raise RunError(f"it cannot go on from what it wrote: {described(error)}. {advice}") from error
    return logger


def _write(each: _LoggerState, logger: Logger, points: Sequence[Point]) -> Logger:
    """Write points, without the names that the logger refuses. Raises what the logger raises if it fails altogether."""
    names = {name: None for point in points for name in named(point) if name not in each.refused}
    try:
        logger.write([*_only(points, names)])
        each.accepted.update(names)
    except Exception as failure:
        if _is_broken(failure):
            raise
        for name in sorted(names, key=lambda name: name not in each.accepted):
            try:
                logger.write([*_only(points, (name,))])
                each.accepted.add(name)
            except Exception as error:
                if _is_broken(error) or name in each.accepted:
                    raise
                each.refused[name] = described(error)
        # Workers choose the names that f logs under, so to refuse all of these is no failure of the logger. The user
        # chooses the names that evaluate returns: a logger that refuses even these has failed.
        if not each.accepted and any(name.startswith(METRICS) for name in names):
            raise
    return logger


def _is_broken(error: Exception) -> bool:
    """Return whether an error comes from the disk or the network, rather than from a name."""
    return isinstance(error, OSError) and error.errno not in FOREIGN_ERRNOS


def _only(points: Sequence[Point], names: Container[str]) -> Iterator[Point]:
    """Yield the points with the values under these names, `train/NAME` or `evaluate/NAME`."""
    for point in points:
        if values := {name: value for name, value in point.values.items() if f"{point.kind}/{name}" in names}:
            yield replace(point, values=values)


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    """Return the metrics that are numbers; lists are shown in the report only."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
