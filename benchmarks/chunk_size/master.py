"""The real master in the simulator with given lives, correlated kills or a trace, for `benchmarks.chunk_size`.

The goodput is the vertices credited in the ledger times t_x, divided by machine seconds: from the start of every
worker to its end (or to the end of the play), plus `wait_s` for each.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from benchmarks.chunk_size.traces import Mode
from chunk_model.goodput import Costs
from chunk_model.lifetime import Floats
from chunk_model.observations import Observations
from gridml.protocol.messages import NO_PUSH
from master.backends.script import PlannedLife, Script
from master.launch import start
from master.planning.lifetime_sources import run_lives
from master.simulation import cost_only_worker
from master.simulation.scenario import Scenario
from master.simulation.world import World
from master.store.settings import Settings

WORKERS = 32
TURN = 1e-6  # of a mean life: the master's polling interval for messages


class Over(BaseException):
    """The end of the play. A BaseException, so that no handler of the master takes it for an error."""


@final
class Played(Script):
    """Machines with given lives. Each life is used once, in order; afterwards there are no more machines.

    Unlike other scripts this one is stateful: the next free machine takes the next life, so that all lives are used.
    """

    def __init__(self, lives: Floats, slots: int) -> None:
        self._lives = lives.tolist()
        self._slots = min(slots, len(lives))
        self._given = 0  # lives handed out so far
        self.closed = 0  #: slots that found no further life

    @property
    def slots(self) -> int:
        return self._slots

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife | None:
        if self._given == len(self._lives):
            self.closed += 1
            return None
        self._given += 1
        return PlannedLife(free_s, duration_s=self._lives[self._given - 1])


@dataclass(frozen=True)
class Machines:
    """The machines of a play."""

    script: Script
    workers: int  #: that are wanted
    mean_s: float  #: mean life
    most_s: float  #: of all lives together, at most
    over: Callable[[float], bool]  #: True once the play has ended, by the seconds since it began

    @staticmethod
    def until(until_s: float, script: Script, workers: int, mean_s: float) -> Machines:
        """Return the machines of a play of `until_s` seconds."""
        return Machines(script, workers, mean_s, workers * until_s, lambda now_s: now_s >= until_s)


@dataclass(frozen=True)
class Measured:
    """The result of a play."""

    goodput: float  #: see the top of the module
    workers: int
    credits: int
    lives: Observations  #: in the ledger, observed until the end of the play


def play_lives(lives: Floats, costs: Costs, mode: Mode, chunk: int, every: int | None) -> Measured:
    """Play each of `lives`, float64 [lives] in seconds, as the life of a worker."""
    script = Played(lives, WORKERS)
    slots, all_s = script.slots, float(lives.sum())
    machines = Machines(script, slots, all_s / len(lives), all_s, lambda _: script.closed >= slots)
    return play(machines, costs, mode, chunk, every)


def play(machines: Machines, costs: Costs, mode: Mode, chunk: int, every: int | None) -> Measured:
    """Train chunks of `chunk` vertices on the `machines`, with a push every `every` vertices (None: at their end)."""
    costs = mode.costs(costs if mode.many else replace(costs, boot_s=0.0))
    # More than all machines can train, with a margin, because chunks shrink at the end of an epoch.
    vertices = int(machines.most_s / costs.vertex_s) + 3 * machines.workers * chunk
    scenario = Scenario(machines.script, costs, turn_s=TURN * machines.mean_s, chunks_per_job=0 if mode.many else 1)
    with tempfile.TemporaryDirectory(prefix="chunk-size-") as folder:
        program = Path(folder, "cost.py")
        program.write_text(cost_only_worker.source(vertices, 1))
        settings = Settings(
            program,
            backend="simulated",
            workers=machines.workers,
            chunk=chunk,
            push_every=every or NO_PUSH,
            silent_s=1e3 * (machines.mean_s + chunk * costs.vertex_s),
        )
        world = World(settings, scenario)
        began_s = world.clock.now_s
        turns_over = 0

        def tick() -> None:
            nonlocal turns_over
            turns_over += machines.over(world.clock.now_s - began_s)
            if turns_over > 2:  # the last messages have arrived by then
                raise Over

        root = Path(folder, "run")
        run = start(settings, root, replace(world.environment(lambda topic, text, facts: None), tick=tick))
        world.drive(run)
        try:
            with run:
                run.leave()
                run.finish()
        except Over:
            pass
        return _measured(root, costs, world.clock.now_s)


def _measured(root: Path, costs: Costs, now_s: float) -> Measured:
    connection = sqlite3.connect(root / "ledger.db")
    try:
        credits, vertices = connection.execute(
            "SELECT count(*), coalesce(sum(stop - start), 0) FROM credits"
        ).fetchone()
        times = connection.execute(
            "SELECT started_s, coalesce(ended_s, ?) FROM workers WHERE started_s IS NOT NULL", (now_s,)
        ).fetchall()
    finally:
        connection.close()
    spans = np.array(times, np.float64)
    paid_s = float((spans[:, 1] - spans[:, 0]).sum()) + costs.wait_s * len(spans)
    return Measured(vertices * costs.exec_s / paid_s, len(spans), credits, run_lives(root, now_s).observations)
