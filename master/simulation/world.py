"""The world of a simulation: runs the real master in a scenario, with kills and restarts, until the run finishes.

It also detects simulations that can never finish: from their options, or because the run makes no progress.
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
from master.simulation.cost_only_worker import MergingTime, Wire
from master.simulation.faulty_network import VirtualClock
from master.simulation.scenario import CrashPoints, Machine, Scenario
from master.simulation.simulated import Simulated, SimulatedPool, SimulatedWorker
from master.simulation.workers import CostOnlyWorkers, RealTrainer, TrainingWorkers, Workers
from master.store.journal import Report
from master.store.settings import Settings
from master.telemetry.staffing import STUCK

#: Minimum share of the lives that must last until their first credit. A smaller share is practically none.
MIN_SURVIVAL = 1e-6
# A run that reaches one of these bounds without a credit is stopped.
MAX_LIVES, MAX_LIVES_PER_MACHINE = 5_000, 50  # lives that began, in all and per machine; the larger bound counts
MAX_MASTERS = 1_000  # masters that took over
MAX_TURNS = 400_000  # turns of the master, which take about a minute of real time
#: Minimum turns without a credit before simulated time counts as a bound. It must not count alone, because it jumps:
#: the next machine may come only after a month.
MIN_TURNS = 1_000
#: Maximum simulated seconds; up to this time, a 64-bit float resolves a millisecond.
MAX_SIMULATED_S = 1e12
ADVICE = (
    "Give machines that live longer (--lifetime, --trace), a shorter boot, start or push (--cost), pushes or smaller "
    "chunks (--chunk, --push-every), or a longer --silence."
)


@dataclass(frozen=True)
class SinceCredit:
    """Counts since the last credit, or since the beginning."""

    seconds: float = 0.0  # simulated
    turns: int = 0  # turns of masters
    lives: int = 0  # workers' lives that began
    masters: int = 0  # masters that took over


def check_lives(lifetime: Lifetime, costs: Costs, vertices: int, fastest: float, grace_s: float) -> None:
    """Raise UsageError if practically no life lasts until its first credit.

    A credit takes at least `vertices` vertices, on a machine that is `fastest` times as fast as `costs` say. After a
    warning, a machine goes on for `grace_s`.
    """
    work_s = vertices * (costs.copy_s + costs.exec_s / fastest)
    needed_s = costs.boot_s + costs.start_s + work_s + (costs.push_s or 0.0)
    share = lifetime.survival(max(0.0, needed_s - grace_s))
    if share >= MIN_SURVIVAL:
        return
    raise UsageError(
        f"no chunk could ever finish: boot {costs.boot_s:,.6g} s, start {costs.start_s:,.6g} s, {work_s:,.6g} s of "
        f"work and push {costs.push_s or 0.0:,.6g} s come before the first credit, but by {lifetime} (mean "
        f"{lifetime.mean():,.6g} s) a share of {share:.2g} of the machines lives that long. {ADVICE}"
    )


def check_silence(
    costs: Costs, slowest: float, silent_s: float, travel_s: float = 0.0, *, batch: int = 1, chunk: int = 1
) -> None:
    """Raise UsageError if one operation of a worker takes so long that the worker would be given up. All workers that
    get its leases afterwards would be given up, too.

    The first message must come within `silent_s`. Any other operation, such as a batch, must take less than `STUCK`
    times `silent_s`, because heartbeats continue during the operation, but without progress. `slowest` is the speed of
    the slowest machines. A message takes `travel_s`. This time counts only for the first message, because a worker that
    waits for a reply repeats its message.
    """
    first_s = costs.boot_s + travel_s
    if first_s >= silent_s:
        raise UsageError(
            f"--silence is {silent_s:,.6g} s, but a worker's first message takes {first_s:,.6g} s (boot, --travel); "
            f"expected --silence to be longer than that, such as --silence {2 * first_s:.6g}."
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


def check_stall(since: SinceCredit, machines: int, alone_s: float) -> None:
    """Raise RunError if a run makes no more progress.

    `machines` is the number of machines at one time. `alone_s` is an upper bound of the time that one machine takes for
    the whole run. The permitted time without a credit is `alone_s` plus `alone_s / machines` for each life that began.
    """
    most = max(MAX_LIVES, MAX_LIVES_PER_MACHINE * machines)
    if since.lives >= most:
        why = f"{since.lives:,} lives began"
    elif since.masters >= MAX_MASTERS:
        why = f"{since.masters:,} masters took over: kill them less often (--crash-every)"
    elif since.turns >= (MIN_TURNS if since.seconds > alone_s * (1 + since.lives / machines) else MAX_TURNS):
        why = f"the master polled for messages {since.turns:,} times, and {since.lives:,} lives began"
    else:
        return
    raise RunError(
        f"the simulated run makes no progress: no vertex was credited for {since.seconds:,.0f} s, {why}. {ADVICE}"
    )


START_S = 1_000_000.0  # start of the virtual clock; far from 0, because the terms of masters are its whole seconds
#: A master is killed at the point that the scenario names. If the master does not reach this point within these seconds
#: after the time of its kill, it is killed at the next point that it reaches.
KILL_ANYWHERE_AFTER_S = 60.0
#: Simulated seconds without any planned action after which the simulation ends, because nothing more can happen.
MAX_IDLE_S = 86_400.0


class MasterKilled(BaseException):
    """Raised where the scenario kills the master. It is a BaseException so that no error handler of the master catches
    it."""


@final
class Inline(Executor):
    """An executor that runs each task on submission, so that a simulation has no threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@final
class World:
    """Everything around the master: clock, machines, workers and their carrier. All of these outlive each master.

    With a `trainer`, workers really train; without one, they only take time.
    """

    def __init__(self, settings: Settings, scenario: Scenario, trainer: RealTrainer | None = None) -> None:
        self.settings = settings
        self.scenario = scenario
        self.tick: Callable[[], None] = lambda: None  # called once per turn; it can end the run by an exception
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
        self._rested_s = 0.0  # part of `_merging.spent_s` that has passed on the clock
        self.masters = 0  # masters that were started
        self.crashed = False  # True: the present master was killed
        self.master_s = self.world_s = 0.0  # CPU seconds of the master's code, and of everything else
        self._mark_s = time.process_time()  # CPU time at the last call of `lap`
        self._machines: dict[int, Machine] = {}  # by slot: a cache, because a machine is the same for each of its lives
        self._kill_at: tuple[float, str] | None = None  # (time, point) of the present master's kill; None: not killed
        self._still_s = 0.0  # simulated seconds without any planned action
        self._run: MasterRun | None = None
        self._lives = self._turns = 0
        # The number of credited vertices, and (time, turns, lives, masters) at the check that first found this number.
        self._credited = 0
        self._credited_at = START_S, 0, 0, 0

    @property
    def wire(self) -> Wire:
        """The carrier of cost-only workers."""
        assert isinstance(self.workers, CostOnlyWorkers), "workers that train have another carrier"
        return self.workers.wire

    @property
    def hostile(self) -> int:
        """Hostile values so far."""
        return self.workers.hostility.values if isinstance(self.workers, CostOnlyWorkers) else 0

    def _hire(self, worker: str, slot: int) -> SimulatedWorker:
        self._lives += 1
        machine = self._machines.get(slot)
        if machine is None:
            machine = self._machines[slot] = self.scenario.machine(slot)
        return self.workers.hire(worker, machine)

    def environment(self, report: Report) -> Environment:
        """Return the environment of the next master."""
        crash = self.scenario.crash(self.masters)
        self._kill_at = None if crash is None else (self.clock.now_s + crash[0], crash[1])
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
        """Set the run of the present master, then call `check_progress`, which raises RunError."""
        self._run = run
        self.check_progress()

    def check_progress(self) -> None:
        """Raise RunError if the run makes no progress."""
        assert self._run is not None, "a run is driven before it rests"
        standing = self.clock.now_s, self._turns, self._lives, self.masters
        if (credited := self._run.ledger.credited) != self._credited:
            self._credited, self._credited_at = credited, standing
        then_s, turns, lives, masters = self._credited_at
        since = SinceCredit(standing[0] - then_s, standing[1] - turns, standing[2] - lives, standing[3] - masters)
        check_stall(since, self.scenario.script.slots, self._alone_s(self._run.total))

    def _alone_s(self, vertices: int) -> float:
        """Return an upper bound of the time that the slowest machine takes for the whole run if messages are late."""
        costs, faults = self.scenario.costs, self.scenario.faults
        around_s = costs.wait_s + costs.boot_s + costs.start_s + costs.end_s + (costs.push_s or 0.0)
        delay_s = self.scenario.travel_s + (0.0 if faults is None else faults.delay_s)
        vertex_s = costs.copy_s + costs.exec_s / self.scenario.speeds.slowest + self.scenario.merge_s
        return 2 * (around_s + vertices * vertex_s) + 100 * delay_s + 10 * MAX_IDLE_S

    def rest(self, seconds: float) -> None:
        """Advance the clock by the time of one turn plus the longest of three times: `seconds`, the time until the next
        planned action, and the time of the last merges.

        Replaces time.sleep in the master. Raises RunError if no action is planned for too long, or if the run makes no
        progress or takes too long.
        """
        self.master_s += self.lap()
        self._turns += 1
        self.check_progress()
        next_s = self.clock.next_s
        now = self.clock.now_s
        if next_s is None:
            idle = max(seconds, self._still_s)
            self._still_s += idle
            if self._still_s > MAX_IDLE_S:
                raise RunError("no machine is left, and none will come: give the simulation more or longer lives.")
        else:
            idle, self._still_s = max(0.0, next_s - now), 0.0
        merging_s, self._rested_s = self._merging.spent_s - self._rested_s, self._merging.spent_s
        idle = max(idle, merging_s)
        if now - START_S > self.scenario.limit_s:
            raise RunError(
                f"the simulated run has not finished after {now - START_S:,.0f} s: lives may be too short to begin a "
                f"chunk, or to push."
            )
        if now + idle - START_S > MAX_SIMULATED_S:
            raise RunError(
                f"the simulated run would last longer than {MAX_SIMULATED_S:.0e} s, the limit of its clock: give fewer "
                f"vertices, or shorter times."
            )
        self.clock.advance(now + max(seconds, idle) + self.scenario.turn_s)
        self.world_s += self.lap()

    def lap(self) -> float:
        """Return the CPU seconds of this process since the last call."""
        before, self._mark_s = self._mark_s, time.process_time()
        return self._mark_s - before

    def _reached(self, point: str) -> None:
        """Kill the master if the time of its kill has come and `point` is the point of the scenario, or if the kill is
        late by `KILL_ANYWHERE_AFTER_S`."""
        if self._kill_at is None:
            return
        late_s = self.clock.now_s - self._kill_at[0]
        if late_s >= 0 and (point == self._kill_at[1] or late_s >= KILL_ANYWHERE_AFTER_S):
            self._kill_at = None
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
    """Play a scenario until its run in `root` has finished.

    `report` is called with the topic, the text and the facts of each event, `killed` after each kill of the master.
    Raises the errors of `MasterRun.finish`, and RunError for a run that can never finish.
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
    """Play the scenario of a given world, as `play_scenario` does."""
    with _seeded(world.scenario.seed), _rare_garbage_collection():
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
            world.check_progress()
            try:
                run = resume(root, world.environment(report))
                break
            except MasterKilled:  # killed while it took over
                killed()


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global random generators, from which the user's code draws on the submit host. Restore them
    afterwards."""
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


@contextlib.contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Collect garbage more rarely than by default. At the default rate, collections take half the time of a large
    simulation, because it makes millions of small objects. Hardly any of them are in a reference cycle."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
