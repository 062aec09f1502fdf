"""A simulated run from its beginning to its end: the real master, killed and started again as the scenario says."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, final

from gridml.wording import Handed
from master.backends.simulated import Player, Pool, Simulated
from master.beginning import resume, start
from master.run import Outside
from master.settings import Settings
from master.simulation.clock import VirtualClock
from master.simulation.scenario import Scenario
from master.simulation.walker import Walker
from master.simulation.wire import Wire

START_S = 1_000_000.0  # of the virtual clock: terms of masters are whole seconds


class MasterKilled(BaseException):
    """The scenario killed the master here."""


@final
class Inline(Executor):
    """Does at once what it is asked, so that a simulation does not depend on threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@final
class World:
    """Everything around the master: clock, machines, workers and wire. They outlive it."""

    def __init__(self, settings: Settings, scenario: Scenario) -> None:
        self.settings = settings
        self.scenario = scenario
        self.clock = VirtualClock(START_S)
        fate = None if scenario.faults is None else scenario.faults.fate(scenario.wire_seed)
        self.wire = Wire(self.clock, fate, scenario.travel_s)
        self.pool = Pool(self.clock, scenario.script, self.hire, wait_s=scenario.costs.wait_s)
        self.masters = 0
        self.crashed = False
        self._dies_s: float | None = None

    def hire(self, worker: str, slot: int) -> Player:
        """A worker process on a machine."""
        scenario = self.scenario
        speed = scenario.speeds.of(slot, scenario.seed)
        walker = Walker(worker, scenario.costs, _Line(self, worker), speed, scenario.chunks_per_job or None)
        self.wire.listen(worker, walker.heard)
        return walker

    def outside(self, told: Callable[[str, str], None]) -> Outside:
        """What the next master sees."""
        lives_s = self.scenario.crash_s(self.masters)
        self._dies_s = None if lives_s is None else self.clock.now_s + lives_s
        self.masters += 1
        self.crashed = False
        return Outside(
            lambda settings, directory: Simulated(self.pool, lambda: self.crashed),
            clock=self.clock,
            rest=self.rest,
            told=told,
            hook=self._reached,
            office=lambda folder: self.wire,
            durable=False,
            wording=Handed(),
            cpu=lambda: 0.0,
            judge=Inline,
        )

    def rest(self, seconds: float) -> None:
        """While the master rests, time goes on to the next thing that happens, and a turn beyond it."""
        next_s = self.clock.next_s
        now = self.clock.now_s
        idle = seconds if next_s is None else max(0.0, next_s - now)
        self.clock.advance(now + max(seconds, idle) + self.scenario.turn_s)

    def _reached(self, point: str) -> None:
        """The master is killed at the first commit point after its time."""
        if self._dies_s is not None and self.clock.now_s >= self._dies_s:
            self._dies_s = None
            self.crashed = True
            raise MasterKilled


@final
class _Line:
    """A worker's end of the wire."""

    def __init__(self, world: World, worker: str) -> None:
        self._clock = world.clock
        self._wire = world.wire
        self._worker = worker

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    def send(self, number: int, payload: bytes) -> None:
        self._wire.send(self._worker, number, payload)

    def note(self, lease: int, upto: int) -> None:
        self._wire.note(self._worker, lease, upto)


def simulate(
    settings: Settings,
    scenario: Scenario,
    root: Path,
    told: Callable[[str, str], None] = lambda kind, text: None,
) -> World:
    """Play a scenario to the end of its run, whose directory is `root`. Raises as a run does."""
    world = World(settings, scenario)
    run = start(settings, root, world.outside(told))
    while True:
        try:
            with run:
                run.finish()
            return world
        except MasterKilled:
            pass
        while True:
            world.clock.advance(world.clock.now_s + scenario.restart_s)
            try:
                run = resume(root, world.outside(told))
                break
            except MasterKilled:
                pass  # while it was waking


def dump(root: Path) -> Iterator[str]:
    """The ledger of a run as text, canonical: every row of every table in the order of its key."""
    connection = sqlite3.connect(f"file:{root / 'ledger.db'}?mode=ro", uri=True)
    try:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        ]
        for table in tables:
            yield f"-- {table}"
            for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid"):
                yield repr(row)
    finally:
        connection.close()


def fingerprint(root: Path) -> str:
    """SHA-256 of a ledger's canonical dump: the same for the same seed."""
    digest = hashlib.sha256()
    for line in dump(root):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()
