"""What every back end must do, whatever it starts workers with.

A back end joins by a `Harness` in `HARNESSES`: it makes the back end and workers that behave as told. `Watch` plays the
master's loop, and checks on the way what holds for every sequence of events.
"""

from __future__ import annotations

import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridml.errors import RunError, UsageError
from gridml.testing.virtual_clock import VirtualClock
from master.backends.base import Backend, JobEvent, State
from master.backends.condor import submit_description as condor_submit
from master.backends.condor.backend import Condor
from master.backends.condor.options import CondorOptions
from master.backends.local import Local
from master.backends.script import PlannedLife, Script
from master.backends.simulated import Pool, Simulated
from master.store.rundir import RunDirectory
from master.store.settings import Settings

pytestmark = pytest.mark.real
MACHINES = 2
LIMIT_S = 60


class Behaviour(StrEnum):
    """What a worker does; the first two by themselves, the others wait for their end."""

    FINISHES = "finishes"
    CRASHES = "crashes"
    HANGS = "hangs"  # SIGTERM ends it
    LEAVES = "leaves"  # answers SIGTERM by leaving with status 0
    STAYS = "stays"  # ignores SIGTERM


SHELL: dict[Behaviour, str] = {
    Behaviour.FINISHES: "exit 0",
    Behaviour.CRASHES: "exit 3",
    Behaviour.HANGS: "echo settled; exec sleep 600",
    Behaviour.LEAVES: "trap 'exit 0' TERM; echo settled; sleep 600 & wait",
    Behaviour.STAYS: "trap '' TERM; echo settled; exec sleep 600",
}


class Harness(ABC):
    """One back end under test, with `MACHINES` machines; `fixtures` must be there before it is made."""

    fixtures: ClassVar[tuple[str, ...]] = ()
    examples: ClassVar[int] = 25  # of the property test
    patience_s: ClassVar[float] = 0.0  # how long it waits there for news at every look
    graceful: ClassVar[bool | None] = True  # what an eviction with grace says of it; None: cannot be known
    backend: Backend

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @abstractmethod
    def submit(self, worker: str, behaviour: Behaviour) -> None:
        """Tell `backend` to start a worker that behaves so."""

    @abstractmethod
    def settled(self, worker: str) -> bool:
        """Whether a running worker has come so far that it would take a signal as its behaviour says."""

    @abstractmethod
    def rest(self) -> None:
        """Let a little time pass between two looks."""

    @abstractmethod
    def take_machines(self) -> None:
        """Take every machine away from who runs there now, without a word from the master."""

    @abstractmethod
    def alive(self, event: JobEvent) -> bool:
        """Whether the worker of this RUNNING event still has a process (or what stands for one)."""


class OneLongLife(Script):
    """Machines whose lives all last the same, ending with and without grace by turns."""

    slots = MACHINES
    duration_s = 1e6

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(free_s, self.duration_s, graceful=slot % 2 == 0, grace_s=1e5)


class LocalHarness(Harness):
    """Shells as workers; a machine is taken away by a clock that jumps past the end of its life."""

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


class CondorHarness(Harness):
    """Shells as jobs of a real pool, each on half of its one host; the host's owner comes back by `Vacate`."""

    fixtures = ("condor_pool",)
    examples = 15  # a job takes a second to start and another to leave
    patience_s = 1.5
    graceful = None

    def __init__(self, folder: Path) -> None:
        self._behaviours: dict[str, Behaviour] = {}
        self._directory = RunDirectory(folder / "run")
        self._directory.create()
        program = folder / "program.py"
        program.touch()
        asked = CondorOptions(request_cpus=4, request_memory="64MB", request_disk="1MB", grace_s=1)
        self.backend = Condor(Settings(program, backend="condor", options=asked), self._directory)

    def submit(self, worker: str, behaviour: Behaviour) -> None:
        self._behaviours.setdefault(worker, behaviour)
        cases = "\n".join(f"{name}) {SHELL[found]} ;;" for name, found in self._behaviours.items())
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
        """With grace from every other job, and without from the rest."""
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


class Actor:
    """What stands for a worker process in a simulation: it behaves so."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.interruptible = False
        self.woken: Callable[[], None] = lambda: None
        self.steps = 0
        self._behaviour = behaviour
        self._asked = False

    def life(self) -> Iterator[float]:
        self.steps += 1
        if self._behaviour is Behaviour.CRASHES:
            sys.exit(3)
        while self._behaviour is not Behaviour.FINISHES and not self._asked:
            self.interruptible = True
            yield 1e9

    def evict(self) -> None:
        if self._behaviour is not Behaviour.STAYS:
            self._asked = True
            self.woken()


class SimulatedHarness(Harness):
    """Actors under a virtual clock, which goes on only while somebody rests."""

    def __init__(self, folder: Path) -> None:
        self._behaviours: dict[str, Behaviour] = {}
        self._actors: dict[str, Actor] = {}
        self._clock = VirtualClock(1e6)
        self._pool = Pool(self._clock, OneLongLife(), self._hire)
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


# A back end with a module of its own joins here.
HARNESSES: dict[str, type[Harness]] = {"local": LocalHarness, "condor": CondorHarness, "simulated": SimulatedHarness}


class Watch:
    """Polls a back end, keeps what it said, and checks what holds for every back end at every poll."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.events: list[JobEvent] = []

    def poll(self) -> None:
        for event in self.harness.backend.poll():
            before = self.states(event.worker)
            if event.state is State.QUEUED:
                assert before == []
            elif event.state is State.RUNNING:
                assert event.machine and (before == [State.QUEUED] or before[-1:] == [State.OUT_OF_REACH])
                assert event.machine not in {last.machine for last in self.last.values() if last.state is State.RUNNING}
            else:
                assert before and not before[-1].ended
            assert not self.events or event.time_s >= self.events[-1].time_s
            self.events.append(event)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"did not happen within {LIMIT_S} s; events: {self.events}"
            self.harness.rest()
            self.poll()

    def until_news(self, limit_s: float) -> None:
        """Poll until there is an event, or until the limit has passed; once at least."""
        known, deadline = len(self.events), time.monotonic() + limit_s
        self.poll()
        while len(self.events) == known and time.monotonic() < deadline:
            self.harness.rest()
            self.poll()

    def until_ended(self, worker: str) -> JobEvent:
        self.until(lambda: worker in self.last and self.last[worker].state.ended)
        return self.last[worker]

    def until_settled(self, *workers: str) -> None:
        for worker in workers:
            self.until(partial(self.settled, worker))

    def settled(self, worker: str) -> bool:
        return State.RUNNING in self.states(worker) and self.harness.settled(worker)

    def states(self, worker: str) -> list[State]:
        return [event.state for event in self.events if event.worker == worker]

    @property
    def last(self) -> dict[str, JobEvent]:
        return {event.worker: event for event in self.events}


@pytest.fixture(params=HARNESSES)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    kind = HARNESSES[request.param]
    for fixture in kind.fixtures:
        request.getfixturevalue(fixture)
    harness = kind(tmp_path)
    yield harness
    harness.backend.close()


@pytest.fixture
def watch(harness: Harness) -> Watch:
    return Watch(harness)


def test_a_worker_that_leaves_with_status_0_has_finished(harness: Harness, watch: Watch) -> None:
    harness.submit("w1", Behaviour.FINISHES)
    end = watch.until_ended("w1")
    assert watch.states("w1") == [State.QUEUED, State.RUNNING, State.FINISHED]
    assert end.exit_code == 0 and end.machine and not end.graceful


def test_a_worker_that_crashes_is_lost_and_says_how(harness: Harness, watch: Watch) -> None:
    harness.submit("w1", Behaviour.CRASHES)
    end = watch.until_ended("w1")
    assert watch.states("w1") == [State.QUEUED, State.RUNNING, State.LOST]
    assert end.exit_code == 3 and "3" in end.detail and not end.graceful


def test_submit_returns_before_anything_starts(harness: Harness, watch: Watch) -> None:
    harness.submit("w1", Behaviour.HANGS)
    watch.poll()
    assert watch.states("w1")[0] is State.QUEUED


def test_a_worker_waits_until_a_machine_is_free(harness: Harness, watch: Watch) -> None:
    workers = [f"w{number}" for number in range(MACHINES + 1)]
    for worker in workers:
        harness.submit(worker, Behaviour.HANGS)
    watch.until_settled(*workers[:MACHINES])
    assert watch.states(workers[-1]) == [State.QUEUED]
    harness.backend.cancel(workers[0])
    watch.until_settled(workers[-1])
    assert watch.last[workers[-1]].machine == watch.last[workers[0]].machine


def test_a_machine_taken_away_is_an_eviction_even_if_the_worker_leaves_with_status_0(
    harness: Harness, watch: Watch
) -> None:
    workers = [f"w{number}" for number in range(MACHINES)]
    for worker in workers:
        harness.submit(worker, Behaviour.LEAVES)
    watch.until_settled(*workers)
    harness.take_machines()
    assert [watch.until_ended(worker).state for worker in workers] == [State.EVICTED] * MACHINES
    for worker, event in watch.last.items():  # those that the back end starts again by itself
        if not event.state.ended:
            harness.backend.cancel(worker)
    harness.submit("next", Behaviour.FINISHES)
    assert watch.until_ended("next").state is State.FINISHED


@pytest.mark.parametrize("behaviour", [Behaviour.LEAVES, Behaviour.HANGS])
def test_cancel_with_grace_lets_a_worker_leave(harness: Harness, watch: Watch, behaviour: Behaviour) -> None:
    harness.submit("w1", behaviour)
    watch.until_settled("w1")
    harness.backend.cancel("w1", grace_s=1e4)
    end = watch.until_ended("w1")
    assert end.state is State.EVICTED and end.graceful is harness.graceful and end.detail


def test_cancel_with_grace_ends_a_worker_that_stays(harness: Harness, watch: Watch) -> None:
    harness.submit("w1", Behaviour.STAYS)
    watch.until_settled("w1")
    harness.backend.cancel("w1", grace_s=0.05)
    end = watch.until_ended("w1")
    assert end.state is State.EVICTED and end.graceful is harness.graceful


@pytest.mark.parametrize("behaviour", [Behaviour.LEAVES, Behaviour.STAYS])
def test_cancel_without_grace(harness: Harness, watch: Watch, behaviour: Behaviour) -> None:
    harness.submit("w1", behaviour)
    watch.until_settled("w1")
    harness.backend.cancel("w1")
    end = watch.until_ended("w1")
    assert end.state is State.EVICTED and not end.graceful


def test_cancel_of_a_worker_that_waits(harness: Harness, watch: Watch) -> None:
    for number in range(MACHINES + 1):
        harness.submit(f"w{number}", Behaviour.HANGS)
    watch.until_settled(*(f"w{number}" for number in range(MACHINES)))
    harness.backend.cancel(f"w{MACHINES}")
    watch.until_ended(f"w{MACHINES}")
    assert watch.states(f"w{MACHINES}") == [State.QUEUED, State.EVICTED]


def test_cancel_of_an_unknown_or_ended_worker_is_ignored(harness: Harness, watch: Watch) -> None:
    harness.submit("w1", Behaviour.FINISHES)
    watch.until_ended("w1")
    told = len(watch.events)
    harness.backend.cancel("w1", grace_s=1.0)
    harness.backend.cancel("nobody")
    watch.poll()
    assert len(watch.events) == told


def test_a_second_cancel_changes_nothing_but_the_grace(harness: Harness, watch: Watch) -> None:
    harness.submit("w1", Behaviour.STAYS)
    watch.until_settled("w1")
    harness.backend.cancel("w1", grace_s=1e4)
    harness.backend.cancel("w1", grace_s=1e5)
    harness.backend.cancel("w1")
    end = watch.until_ended("w1")
    assert end.state is State.EVICTED and end.graceful is harness.graceful


def test_a_name_can_be_used_once(harness: Harness, watch: Watch) -> None:
    harness.submit("w1", Behaviour.FINISHES)
    with pytest.raises(UsageError, match="w1"):
        harness.submit("w1", Behaviour.FINISHES)
    watch.until_ended("w1")
    with pytest.raises(UsageError, match="w1"):
        harness.submit("w1", Behaviour.FINISHES)


def test_close_ends_all_and_leaves_no_process(harness: Harness, watch: Watch) -> None:
    behaviours = [Behaviour.STAYS, Behaviour.LEAVES, Behaviour.HANGS]
    for number, behaviour in enumerate(behaviours):
        harness.submit(f"w{number}", behaviour)
    watch.until_settled(*(f"w{number}" for number in range(MACHINES)))
    running = [event for event in watch.events if event.state is State.RUNNING]
    assert len(running) == MACHINES and all(harness.alive(event) for event in running)
    harness.backend.close()
    assert not any(harness.alive(event) for event in running)
    watch.poll()
    assert [watch.last[f"w{number}"].state for number in range(3)] == [State.EVICTED] * 3
    harness.backend.close()
    watch.poll()
    with pytest.raises(RunError, match="closed"):
        harness.submit("late", Behaviour.FINISHES)


def test_close_without_workers(harness: Harness) -> None:
    harness.backend.close()
    assert harness.backend.poll() == []


steps = st.lists(
    st.one_of(
        st.sampled_from(Behaviour),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.sampled_from([0.0, 1e-3, 1e4])),
        st.sampled_from(["poll", "take"]),
    ),
    max_size=12,
)


@pytest.mark.parametrize("name", HARNESSES)
def test_any_sequence_gives_each_worker_one_end(
    name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind = HARNESSES[name]
    for fixture in kind.fixtures:
        request.getfixturevalue(fixture)

    @settings(max_examples=kind.examples, deadline=None)
    @given(steps=steps)
    def check(steps: list[Behaviour | tuple[str, int, float] | str]) -> None:
        harness = kind(tmp_path_factory.mktemp("any"))
        watch, submitted = Watch(harness), 0
        try:
            for step in steps:
                if isinstance(step, Behaviour):
                    harness.submit(f"w{submitted}", step)
                    submitted += 1
                elif isinstance(step, tuple):
                    harness.backend.cancel(f"w{step[1]}", grace_s=step[2])
                elif step == "take":
                    harness.take_machines()
                else:
                    watch.until_news(kind.patience_s)
        finally:
            harness.backend.close()
        watch.poll()
        # A life that the back end began by itself is `name.n`.
        assert {worker.partition(".")[0] for worker in watch.last} == {f"w{number}" for number in range(submitted)}
        assert all(event.state.ended for event in watch.last.values())
        assert not any(harness.alive(event) for event in watch.events)

    check()
