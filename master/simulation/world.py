"""A simulated run from its beginning to its end: the real master, killed and started again as the scenario says.

Simulations that can never finish are recognised: some before they begin, others only as they go on.
"""

from __future__ import annotations

import contextlib
import gc
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from chunk_model.goodput import Costs
from chunk_model.lifetime import Lifetime
from gridml.errors import RunError, UsageError
from master.evaluation.evaluator import InlineEvaluator
from master.launch import resume, start
from master.ports.environment import Environment
from master.run import MasterRun
from master.simulation.faulty_network import VirtualClock
from master.simulation.scenario import CrashPoints, Machine, Scenario
from master.simulation.simulated import Simulated, SimulatedPool, SimulatedWorker
from master.simulation.wire import MergingTime, Wire
from master.simulation.workers import CostOnlyWorkers, RealTrainer, TrainingWorkers, Workers
from master.store.journal import Report
from master.store.settings import Settings
from master.telemetry.staffing import STUCK

SELDOM = 1e-6  # when fewer lives than this can bring home a vertex, none ever will
LIVES, LIVES_OF_EACH = 5_000, 50  # that began without a credit, in all or on each machine, whichever is more
MASTERS = 1_000  # that took over without a credit
TURNS = 400_000  # of the master without a credit: about a minute of real time
SOME_TURNS = 1_000  # below, simulated time says nothing: the next machine may only come in a month
LONGEST_S = 1e12  # of simulated time, in which a clock of 64 bits still resolves a millisecond
CHANGE = (
    "Give machines that live longer (--lifetime, --trace), a shorter boot, start or push (--cost), pushes or smaller "
    "chunks (--chunk, --push-every), or a longer --silence."
)


@dataclass(frozen=True)
class Since:
    """What has happened since a vertex was credited last, or since the beginning."""

    seconds: float = 0.0
    turns: int = 0
    lives: int = 0
    masters: int = 0


def check_lives(lifetime: Lifetime, costs: Costs, vertices: int, fastest: float, grace_s: float) -> None:
    """Raise UsageError when practically no life lasts until it can have brought home its first `vertices` on a machine
    `fastest` times as fast as the costs say; a machine that is taken may work on for `grace_s`."""
    work_s = vertices * (costs.copy_s + costs.exec_s / fastest)
    needed_s = costs.boot_s + costs.start_s + work_s + (costs.push_s or 0.0)
    share = lifetime.survival(max(0.0, needed_s - grace_s))
    if share >= SELDOM:
        return
    raise UsageError(
        f"no chunk could ever finish: boot {costs.boot_s:,.6g} s, start {costs.start_s:,.6g} s, {work_s:,.6g} s of "
        f"work and push {costs.push_s or 0.0:,.6g} s come before the first credit, but by {lifetime} (mean "
        f"{lifetime.mean():,.6g} s) a share of {share:.2g} of the machines lives that long. {CHANGE}"
    )


def check_silence(
    costs: Costs, slowest: float, silent_s: float, travel_s: float = 0.0, *, batch: int = 1, chunk: int = 1
) -> None:
    """Raise UsageError when what a worker does at once takes so long that it would be given up, and whoever got its
    leases in turn: its first message may take a silence, and whatever it trains nothing in `STUCK` of them, for its
    heartbeat goes on. `slowest` is the speed of the slowest machines. Messages take `travel_s`, which counts once: one
    that waits for an answer sends its message again and again."""
    first_s = costs.boot_s + travel_s
    if first_s >= silent_s:
        raise UsageError(
            f"--silence is {silent_s:,.6g} s, but it takes {first_s:,.6g} s for the first message to come (boot, "
            f"--travel), before which nothing is heard of a worker; expected --silence to be longer than that, such as "
            f"--silence {2 * first_s:.6g}."
        )
    start_s = costs.start_s + chunk * costs.copy_s
    for what, takes_s in (
        ("to start a chunk" + (f" of {chunk:,} vertices (t_s, t_c)" if chunk > 1 else " (t_s)"), start_s),
        (f"to train a batch of {batch:,} vertices (t_x)" if batch > 1 else "to train a vertex (t_x)",
         batch * costs.exec_s / slowest),
        ("to end a chunk (t_e)", costs.end_s),
        ("for a push", costs.push_s or 0.0),
    ):  # fmt: skip
        if takes_s >= STUCK * silent_s:
            raise UsageError(
                f"--silence is {silent_s:,.6g} s, but it takes {takes_s:,.6g} s {what}, and a worker that trains "
                f"nothing for {STUCK * silent_s:,.6g} s, {STUCK} times --silence, is taken to be stuck; expected "
                f"--silence to be longer, such as --silence {2 * takes_s / STUCK:.6g}."
            )


def check_stall(since: Since, machines: int, alone_s: float) -> None:
    """Raise RunError when a run will not go on: `machines` are there at once, and `alone_s` is more than one of them
    would take for everything. Each life that ends in vain may be followed by another one, which has that time anew."""
    most = max(LIVES, LIVES_OF_EACH * machines)
    if since.lives >= most:
        why = f"{since.lives:,} lives began in vain"
    elif since.masters >= MASTERS:
        why = f"{since.masters:,} masters took over in vain; let them be killed less often (--crash-every)"
    elif since.turns >= TURNS or (since.turns >= SOME_TURNS and since.seconds > alone_s * (1 + since.lives / machines)):
        why = f"the master looked for messages {since.turns:,} times, and {since.lives:,} lives began"
    else:
        return
    raise RunError(
        f"the simulated run does not go on: no vertex was credited for {since.seconds:,.0f} s, {why}. {CHANGE}"
    )


START_S = 1_000_000.0  # of the virtual clock: terms of masters are whole seconds
SOON_S = 60.0  # a master that does not come to the point where it should be killed is killed at the next one after this
STILL_S = 86_400.0  # when nothing is planned for so long, nothing will ever happen again


class MasterKilled(BaseException):
    """The scenario killed the master here."""


@final
class Inline(Executor):
    """Does at once what is submitted, so that a simulation does not depend on threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@final
class World:
    """Everything around the master: clock, machines, workers and what carries their messages. They outlive it.

    With a `trainer` workers really train; without one they only take time. `master_s` and `world_s` are CPU seconds of
    the master's code and of everything around it, workers included. `tick` is called once a turn of the master, and
    may raise to end the run between two turns.
    """

    def __init__(self, settings: Settings, scenario: Scenario, trainer: RealTrainer | None = None) -> None:
        self.settings = settings
        self.scenario = scenario
        self.tick: Callable[[], None] = lambda: None
        self.clock = VirtualClock(START_S)
        self.workers: Workers = (
            CostOnlyWorkers(self.clock, scenario) if trainer is None else TrainingWorkers(self.clock, scenario, trainer)
        )
        self.pool = SimulatedPool(
            self.clock,
            scenario.script,
            self._hire,
            wait_s=scenario.costs.wait_s,
            negotiation=scenario.negotiation,
        )
        self._merging = MergingTime(self.workers.codec, scenario.merge_s)
        self._rested_s = 0.0  # of `_merging.spent_s`, how much has passed
        self.masters = 0
        self.crashed = False
        self.master_s = self.world_s = 0.0
        self._mark_s = time.process_time()
        self._machines: dict[int, Machine] = {}
        self._dies: tuple[float, str] | None = None  # when the master is killed, and where
        self._still_s = 0.0  # for how long nothing has been planned
        self._run: MasterRun | None = None
        self._lives = self._turns = 0
        self._credited = 0  # vertices, and when the last of them was, which master and which life it then was:
        self._credited_at = START_S, 0, 0, 0

    @property
    def messages(self) -> int:
        """Messages and answers that were sent."""
        return self.workers.sent

    @property
    def lost(self) -> int:
        """Those of them of which no copy arrived whole."""
        return self.workers.lost

    @property
    def wire(self) -> Wire:
        """What carries the messages of workers that only take time."""
        assert isinstance(self.workers, CostOnlyWorkers), "there is none where workers train"
        return self.workers.wire

    @property
    def hostile(self) -> int:
        """Hostile values that were sent."""
        return self.workers.hostility.values if isinstance(self.workers, CostOnlyWorkers) else 0

    def _hire(self, worker: str, slot: int) -> SimulatedWorker:
        self._lives += 1
        machine = self._machines.get(slot)
        if machine is None:
            machine = self._machines[slot] = self.scenario.machine(slot)
        return self.workers.hire(worker, machine)

    def environment(self, report: Report) -> Environment:
        """Return what the next master sees."""
        crash = self.scenario.crash(self.masters)
        self._dies = None if crash is None else (self.clock.now_s + crash[0], crash[1])
        self.masters += 1
        self.crashed = False
        end = self.workers.mailboxes()
        mailboxes = end if crash is None else CrashPoints(end, self._reached)
        return Environment(
            lambda settings, directory: Simulated(self.pool, lambda: self.crashed, self._reached),
            clock=self.clock,
            rest=self.rest,
            report=report,
            hook=self._reached,
            tick=self.tick,
            mailboxes=lambda settings, directory: mailboxes,
            durable=False,
            codec=self._merging,
            cpu=lambda: self._merging.spent_s,
            chance=random.Random(f"{self.scenario.seed} {self.masters}").random,
            executor=Inline,
            logging=Inline,
            evaluator=InlineEvaluator.of,
        )

    def drive(self, run: MasterRun) -> None:
        """A master has taken the run over. Raises RunError when too many have in vain."""
        self._run = run
        self.look()

    def look(self) -> None:
        """Raise RunError when the run does not go on."""
        assert self._run is not None, "a run is driven before it rests"
        standing = self.clock.now_s, self._turns, self._lives, self.masters
        if (credited := self._run.ledger.credited) != self._credited:
            self._credited, self._credited_at = credited, standing
        then_s, turns, lives, masters = self._credited_at
        since = Since(standing[0] - then_s, standing[1] - turns, standing[2] - lives, standing[3] - masters)
        check_stall(since, self.scenario.script.slots, self._alone_s(self._run.total))

    def _alone_s(self, vertices: int) -> float:
        """Return more than the slowest machine would take for everything, and for messages that come late besides."""
        costs, faults = self.scenario.costs, self.scenario.faults
        around_s = costs.wait_s + costs.boot_s + costs.start_s + costs.end_s + (costs.push_s or 0.0)
        delay_s = self.scenario.travel_s + (0.0 if faults is None else faults.delay_s)
        vertex_s = costs.copy_s + costs.exec_s / self.scenario.speeds.slowest + self.scenario.merge_s
        return 2 * (around_s + vertices * vertex_s) + 100 * delay_s + 10 * STILL_S

    def rest(self, seconds: float) -> None:
        """While the master rests, time goes on to the next thing that happens, and a turn beyond it; after merges by as
        much as they take, at least.

        Raises RunError when nothing will ever happen again, nothing is credited any more, or the run takes too long.
        """
        self.master_s += self.lap()
        self._turns += 1
        self.look()
        next_s = self.clock.next_s
        now = self.clock.now_s
        if next_s is None:
            idle = max(seconds, self._still_s)
            self._still_s += idle
            if self._still_s > STILL_S:
                raise RunError("no machine comes any more, and nobody works: give the simulation more or longer lives.")
        else:
            idle, self._still_s = max(0.0, next_s - now), 0.0
        merging_s, self._rested_s = self._merging.spent_s - self._rested_s, self._merging.spent_s
        idle = max(idle, merging_s)
        if now - START_S > self.scenario.limit_s:
            raise RunError(
                f"the simulated run has not finished after {now - START_S:,.0f} s: lives may be too short for a chunk "
                f"to be begun, or for a push to be made."
            )
        if now + idle - START_S > LONGEST_S:
            raise RunError(
                f"the simulated run would go on for longer than {LONGEST_S:.0e} s, which no clock here can tell: give "
                f"fewer vertices, or shorter times."
            )
        self.clock.advance(now + max(seconds, idle) + self.scenario.turn_s)
        self.world_s += self.lap()

    def lap(self) -> float:
        """Return the CPU seconds of this process since the last call."""
        before, self._mark_s = self._mark_s, time.process_time()
        return self._mark_s - before

    def _reached(self, point: str) -> None:
        """The master is killed at its point, the first time that it comes there after its time."""
        if self._dies is None:
            return
        late_s = self.clock.now_s - self._dies[0]
        if late_s >= 0 and (point == self._dies[1] or late_s >= SOON_S):
            self._dies = None
            self.crashed = True
            raise MasterKilled


def play_scenario(
    settings: Settings,
    scenario: Scenario,
    root: Path,
    report: Report = lambda topic, text, facts: None,
    trainer: RealTrainer | None = None,
    killed: Callable[[], object] = lambda: None,
) -> World:
    """Play a scenario to the end of its run, whose directory is `root`.

    `report` is called with the topic, the text and the facts of each event, `killed` whenever the master was.
    Raises as a run does.
    """
    world = World(settings, scenario, trainer)
    play(world, root, report, killed)
    return world


def play(
    world: World,
    root: Path,
    report: Report = lambda topic, text, facts: None,
    killed: Callable[[], object] = lambda: None,
) -> None:
    """As `play_scenario`, in a world that the caller has made."""
    with _seeded(world.scenario.seed), _few_collections():
        _play(world, root, report, killed)


def _play(world: World, root: Path, report: Report, killed: Callable[[], object]) -> None:
    run = start(world.settings, root, world.environment(report))
    while True:
        world.drive(run)
        try:
            with run:
                run.finish()
            world.master_s += world.lap()
            return
        except MasterKilled:
            killed()
        while True:
            world.clock.advance(world.clock.now_s + world.scenario.restart_s)
            world.look()
            try:
                run = resume(root, world.environment(report))
                break
            except MasterKilled:  # while it was waking
                killed()


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """What the user's code draws on the submit host comes from the scenario's seed, too."""
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """Millions of small objects come and go, hardly any in a cycle; looking for cycles among them all, as often as
    Python does by itself, takes half of a large simulation's time."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
