"""The environment of a run: its source of workers, the time, the disk, and the receivers of its reports."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from gridml.carriers.base import MasterMailboxes
from gridml.protocol.codec import BundleCodec, Codec
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
    """Seconds since 1970 as the wall's clock has them when this one is made, carried on by one that nobody sets.

    What lasts is measured by it, so a wall clock that is set back or forward makes nobody silent, and hides no silence.
    A machine that sleeps does not age by it.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began_s = wall() - monotonic()

    def __call__(self) -> float:
        return self._began_s + self._monotonic()


@dataclass(frozen=True)
class Environment:
    """The world around a master. Tests and simulations put their own here.

    `hook` is told the name of each commit point; who drives the run may end the process there. `tick` is called once a
    turn, and may raise to end the run between two turns. `clock` never goes back; `wall` is what people set and other
    processes read, None where that is `clock` itself.
    """

    backend: Callable[[Settings, RunDirectory], Backend]
    clock: Callable[[], float] = field(default_factory=SteadyClock)
    wall: Callable[[], float] | None = None
    rest: Callable[[float], None] = time.sleep
    report: Report = lambda topic, text, facts: None
    hook: Hook = lambda point: None
    tick: Callable[[], None] = lambda: None
    mailboxes: Callable[[Settings, RunDirectory], MasterMailboxes] = run_mailboxes
    durable: bool = True  # without, a simulation need not wait for the disk
    codec: Codec = field(default_factory=BundleCodec)
    cpu: Callable[[], float] = time.thread_time  # seconds that the master's thread has computed
    chance: Callable[[], float] = random.SystemRandom().random  # from [0, 1); no worker can foretell it
    executor: Callable[[], Executor] = lambda: ThreadPoolExecutor(1, "evaluate")  # beside the master's loop
    logging: Callable[[], Executor] = DaemonExecutor  # one for files, and one for each other logger
    evaluator: Callable[[RunSpec, RunDirectory], Evaluator] = SubprocessEvaluator

    def not_before(self, at_s: float) -> Environment:
        """Return the same world under a clock that has reached `at_s`, the last sign of the master before: the wall's
        may have been set back since."""
        clock, missing_s = self.clock, at_s - self.clock()
        return self if missing_s <= 0 else replace(self, clock=lambda: clock() + missing_s)
