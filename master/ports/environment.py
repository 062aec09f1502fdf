"""The environment of a run: its source of workers, the time, the disk, and the receivers of its reports."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from gridml.carriers.base import MasterMailboxes
from gridml.protocol.push import BundleCodec, Codec
from master.evaluation.evaluator import Evaluator
from master.evaluation.subprocess_evaluator import SubprocessEvaluator
from master.ports.mailboxes import DaemonExecutor, run_mailboxes
from master.state.jobs import Backend
from master.store.journal import Report
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.store.spec import RunSpec

Hook = Callable[[str], None]


class SteadyClock:
    """A monotonic clock in seconds since 1970, set to the wall clock once, on construction.

    Durations are measured by it, so setting the wall clock neither makes a worker look silent nor hides a silent one.
    It stands still while the machine is suspended.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began_s = wall() - monotonic()

    def __call__(self) -> float:
        return self._began_s + self._monotonic()


@dataclass(frozen=True)
class Environment:
    """The dependencies of a master on its surroundings, which tests and simulations replace."""

    backend: Callable[[Settings, RunDirectory], Backend]
    clock: Callable[[], float] = field(default_factory=SteadyClock)  # never goes back
    wall: Callable[[], float] | None = None  # the clock of people and other processes; None: `clock`
    rest: Callable[[float], None] = time.sleep
    report: Report = lambda topic, text, facts: None
    hook: Hook = lambda point: None  # called at each commit point with its name; may end the process
    tick: Callable[[], None] = lambda: None  # called once per turn; may raise to end the run between two turns
    mailboxes: Callable[[Settings, RunDirectory], MasterMailboxes] = run_mailboxes
    durable: bool = True  # False in simulations, which need no fsync
    codec: Codec = field(default_factory=BundleCodec)
    cpu: Callable[[], float] = time.thread_time  # CPU seconds of the master's thread
    chance: Callable[[], float] = random.SystemRandom().random  # uniform in [0, 1), unpredictable for workers
    executor: Callable[[], Executor] = lambda: ThreadPoolExecutor(1, "evaluate")  # in parallel with the master's loop
    logging: Callable[[], Executor] = DaemonExecutor  # called once for files, and once for each other logger
    evaluator: Callable[[RunSpec, RunDirectory], Evaluator] = SubprocessEvaluator

    def not_before(self, at_s: float) -> Environment:
        """Return this environment with a clock of at least `at_s`, the last time of an earlier master, because the wall
        clock may have been set back since."""
        clock, missing_s = self.clock, at_s - self.clock()
        return self if missing_s <= 0 else replace(self, clock=lambda: clock() + missing_s)

    def woken_by(self, mailboxes: MasterMailboxes) -> Environment:
        """Return this environment with rests that a message ends, if it rests in real time."""
        return replace(self, rest=mailboxes.wait) if self.rest is time.sleep else self
