"""The contract of back ends, for each of them. A new back end joins by a harness in `HARNESSES`."""

from __future__ import annotations

import re
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from master.backends.condor import submit_description as condor_submit
from master.backends.condor.backend import Condor
from master.backends.condor.options import CondorOptions
from master.backends.contract import CHECKS, MACHINES, SHELL, STEPS, Behaviour, Harness, Step, check_steps, closing
from master.backends.local import Local
from master.backends.script import PlannedLife, Script
from master.simulation.faulty_network import VirtualClock
from master.simulation.simulated import Simulated, SimulatedPool
from master.state.jobs import JobEvent
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from pools.pool import wait_until
from tests.support.effort import examples

pytestmark = pytest.mark.real


class FolderHarness(Harness):
    """A back end in a temporary folder; `fixtures` must be set up before it is created."""

    fixtures: ClassVar[tuple[str, ...]] = ()
    examples: ClassVar[int] = 25  # of the property test

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...


class OneLongLife(Script):
    """Machines with equal lives, which end with and without grace in turn."""

    slots = MACHINES
    duration_s = 1e6

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(free_s, self.duration_s, graceful=slot % 2 == 0, grace_s=1e5)


class LocalHarness(FolderHarness):
    """Shells as workers; a jump of the clock past the end of a life takes the machine away."""

    def __init__(self, folder: Path) -> None:
        self._behaviours: dict[str, Behaviour] = {}
        self._logs = folder / "logs"
        self._jumped_s = 0.0
        self.backend = Local(
            lambda worker: ["/bin/sh", "-c", SHELL[self._behaviours[worker]]],
            OneLongLife(),
            self._logs,
            clock=lambda: time.monotonic() + self._jumped_s,
            close_grace_s=0.2,
        )

    def submit(self, worker: str, behaviour: Behaviour) -> None:
        self._behaviours.setdefault(worker, behaviour)
        self.backend.submit(worker)

    def settled(self, worker: str) -> bool:
        return "settled" in (self._logs / f"{worker}.log").read_text()

    def rest(self) -> None:
        time.sleep(0.002)

    def take_machines(self) -> None:
        self._jumped_s += OneLongLife.duration_s

    def alive(self, event: JobEvent) -> bool:
        return event.pid is not None and psutil.pid_exists(event.pid)


class CondorHarness(FolderHarness):
    """Shells as jobs of a real pool, each on half of its one host; `Vacate` evicts them."""

    fixtures = ("condor_pool",)
    examples = 15  # a job takes a second to start and another to leave
    patience_s = 1.5
    graceful = None

    def __init__(self, folder: Path) -> None:
        _empty_the_queue()
        self._behaviours: dict[str, Behaviour] = {}
        self._directory = RunDirectory(folder / "run")
        self._directory.create()
        program = folder / "program.py"
        program.touch()
        asked = CondorOptions(request_cpus=4, request_memory="64MB", request_disk="1MB", grace_s=1)
        self.backend = Condor(Settings(program, backend="condor", options=asked), self._directory)

    def submit(self, worker: str, behaviour: Behaviour) -> None:
        self._behaviours.setdefault(worker, behaviour)
        cases = "\n".join(f"{name}) {SHELL[behaviour]} ;;" for name, behaviour in self._behaviours.items())
        launcher = self._directory.root / condor_submit.LAUNCHER  # sent when a job starts
        shell = launcher.with_suffix(".new")
        shell.write_text(
            f'#!/bin/sh\n# $2 is the value of --name\n: >outbox.push\necho "pid $$"\ncase $2 in\n{cases}\nesac\n'
        )
        shell.chmod(0o755)
        shell.replace(launcher)
        self.backend.submit(worker)

    def settled(self, worker: str) -> bool:
        return "settled" in self._said(worker)

    def rest(self) -> None:
        time.sleep(0.02)

    def take_machines(self) -> None:
        """Evict every other job with grace, and the rest without."""
        import htcondor2

        ours, schedd = f'GridmlRun == "{self._directory.root}"', htcondor2.Schedd()
        schedd.act(htcondor2.JobAction.Vacate, f"{ours} && ClusterId % 2 == 0")
        schedd.act(htcondor2.JobAction.VacateFast, f"{ours} && ClusterId % 2 == 1")

    def alive(self, event: JobEvent) -> bool:
        pids = re.findall(r"^pid (\d+)$", self._said(event.worker), re.MULTILINE)
        return any(psutil.pid_exists(int(pid)) for pid in pids)

    def _said(self, worker: str) -> str:
        log = self._directory.log(worker)
        return log.read_text() if log.exists() else ""


def _empty_the_queue() -> None:
    """Remove all jobs: those of earlier tests would occupy cores that a check needs."""
    import htcondor2

    schedd = htcondor2.Schedd()

    def empty() -> bool:
        schedd.act(htcondor2.JobAction.Remove, "JobStatus != 3")
        return not schedd.query("true", ["ClusterId"])

    wait_until(empty, 60, "jobs stay in the queue though they are removed")


class Actor:
    """A stand-in for a worker process in a simulation, with a given behaviour."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.is_interruptible = False
        self.woken: Callable[[], None] = lambda: None
        self.steps = 0
        self._behaviour = behaviour
        self._asked = False

    def life(self) -> Iterator[float]:
        self.steps += 1
        if self._behaviour is Behaviour.CRASHES:
            sys.exit(3)
        while self._behaviour is not Behaviour.FINISHES and not self._asked:
            self.is_interruptible = True
            yield 1e9

    def evict(self) -> None:
        if self._behaviour is not Behaviour.STAYS:
            self._asked = True
            self.woken()


class SimulatedHarness(FolderHarness):
    """Actors under a virtual clock, which advances only in `rest`."""

    def __init__(self, folder: Path) -> None:
        self._behaviours: dict[str, Behaviour] = {}
        self._actors: dict[str, Actor] = {}
        self._clock = VirtualClock(1e6)
        self._pool = SimulatedPool(self._clock, OneLongLife(), self._hire)
        self.backend = Simulated(self._pool)

    def _hire(self, worker: str, slot: int) -> Actor:
        self._actors[worker] = Actor(self._behaviours[worker])
        return self._actors[worker]

    def submit(self, worker: str, behaviour: Behaviour) -> None:
        self._behaviours.setdefault(worker, behaviour)
        self.backend.submit(worker)

    def settled(self, worker: str) -> bool:
        return worker in self._actors and self._actors[worker].steps > 0

    def rest(self) -> None:
        self._clock.advance(self._clock.now_s + 0.02)

    def take_machines(self) -> None:
        self._clock.advance(self._clock.now_s + OneLongLife.duration_s)

    def alive(self, event: JobEvent) -> bool:
        return event.worker in self._pool.living()


# Back ends with a test module of their own join here.
HARNESSES: dict[str, type[FolderHarness]] = {
    "local": LocalHarness,
    "condor": CondorHarness,
    "simulated": SimulatedHarness,
}


@pytest.fixture(params=HARNESSES)
def make_harness(request: pytest.FixtureRequest) -> Callable[[Path], Harness]:
    harness_type = HARNESSES[request.param]
    for fixture in harness_type.fixtures:
        request.getfixturevalue(fixture)
    return harness_type


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_is_kept(
    make_harness: Callable[[Path], Harness], check: Callable[[Harness], None], tmp_path: Path
) -> None:
    with closing(make_harness(tmp_path)) as harness:
        check(harness)


steps = st.lists(
    st.one_of(
        st.sampled_from(Behaviour),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.sampled_from([0.0, 1e-3, 1e4])),
        st.sampled_from(["poll", "take"]),
    ),
    max_size=STEPS,
)


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", HARNESSES)
def test_any_sequence_gives_each_worker_one_end(
    name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    harness_type = HARNESSES[name]
    for fixture in harness_type.fixtures:
        request.getfixturevalue(fixture)

    @settings(max_examples=examples(harness_type.examples), deadline=None)
    @given(steps=steps)
    def check(steps: list[Step]) -> None:
        check_steps(harness_type(tmp_path_factory.mktemp("any")), steps)

    check()
