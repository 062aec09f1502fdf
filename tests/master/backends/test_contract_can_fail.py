"""Mutation tests of the contract's checks: each kind of broken back end is caught by its law."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

import pytest

from gridml.errors import RunError, UsageError
from gridml.testing.contracts import ContractBroken
from master.backends import contract
from master.backends.contract import CHECKS, MACHINES, Behaviour, Harness, check_backend, check_steps
from master.simulation.faulty_network import VirtualClock
from master.state.jobs import Backend, JobEvent, State


@dataclass
class Job:
    """A worker of the back end in memory."""

    state: State = State.QUEUED
    machine: str = ""
    ends_s: float = float("inf")
    graceful: bool = False


class Memory(Backend):
    """A correct back end without processes; broken ones override the part that they break."""

    name = "memory"

    def __init__(self, clock: VirtualClock, behaviours: dict[str, Behaviour]) -> None:
        self.clock, self.behaviours = clock, behaviours
        self.jobs: dict[str, Job] = {}
        self.events: list[JobEvent] = []
        self.avoided: Collection[str] = ()
        self.closed = False

    def submit(self, worker: str) -> None:
        if self.closed:
            raise RunError("the back end is closed")
        self.refuse_used(worker)
        self.jobs[worker] = Job()
        self.report(worker, State.QUEUED)

    def refuse_used(self, worker: str) -> None:
        if worker in self.jobs:
            raise UsageError(f"the name {worker} was used before")

    def poll(self) -> list[JobEvent]:
        for worker, job in self.jobs.items():
            if job.state is State.RUNNING and self.clock() >= job.ends_s:
                self.report(worker, State.EVICTED)
            elif job.state is State.RUNNING and self.behaviours[worker] is Behaviour.FINISHES:
                self.report(worker, State.FINISHED, exit_code=0)
            elif job.state is State.RUNNING and self.behaviours[worker] is Behaviour.CRASHES:
                self.report(worker, State.LOST, exit_code=3)
            elif job.state is State.QUEUED and (free := self.free_machines()) and not self.news_of(worker):
                job.machine = free[0]
                self.report(worker, State.RUNNING)
        events, self.events = self.events, []
        return events

    def news_of(self, worker: str) -> bool:
        """Return True if an event of the worker is still to be polled: it starts one poll after it was queued."""
        return any(event.worker == worker for event in self.events)

    def free_machines(self) -> list[str]:
        taken = {job.machine for job in self.jobs.values() if job.state is State.RUNNING}
        return [machine for machine in map(str, range(MACHINES)) if machine not in taken.union(self.avoided)]

    def avoid(self, machines: Collection[str]) -> None:
        self.avoided = machines

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        job = self.jobs.get(worker)
        if job is not None and job.state is State.QUEUED:
            self.report(worker, State.EVICTED)
        elif job is not None and job.state is State.RUNNING:
            job.graceful = job.graceful or grace_s > 0
            leaves = grace_s == 0 or self.behaviours[worker] is not Behaviour.STAYS
            job.ends_s = self.clock() + (0.0 if leaves else grace_s)

    def take_machines(self) -> None:
        for worker, job in self.jobs.items():
            if job.state is State.RUNNING:
                self.report(worker, State.EVICTED)

    def close(self) -> None:
        self.closed = True
        for worker, job in self.jobs.items():
            if not job.state.ended:
                self.report(worker, State.EVICTED)

    def report(self, worker: str, state: State, exit_code: int | None = None) -> None:
        job = self.jobs[worker]
        job.state = state
        detail = f"{state} with status {exit_code}"
        graceful = state is State.EVICTED and job.graceful
        self.events.append(JobEvent(self.clock(), worker, state, job.machine, detail, graceful, exit_code))


class MemoryHarness(Harness):
    """The harness for a type of back end in memory."""

    backend: Memory

    def __init__(self, backend_type: type[Memory]) -> None:
        self.clock, self.behaviours = VirtualClock(), dict[str, Behaviour]()
        self.backend = backend_type(self.clock, self.behaviours)

    def submit(self, worker: str, behaviour: Behaviour) -> None:
        self.behaviours.setdefault(worker, behaviour)
        self.backend.submit(worker)

    def settled(self, worker: str) -> bool:
        return True

    def rest(self) -> None:
        self.clock.sleep(0.02)

    def take_machines(self) -> None:
        self.backend.take_machines()

    def alive(self, event: JobEvent) -> bool:
        return self.backend.jobs[event.worker].state is State.RUNNING


class ReportsTwoEnds(Memory):
    def poll(self) -> list[JobEvent]:
        events = super().poll()
        return [event for event in events for _ in range(2 if event.state is State.FINISHED else 1)]


class ReportsCrashesAsFinished(Memory):
    def poll(self) -> list[JobEvent]:
        return [replace(e, state=State.FINISHED) if e.state is State.LOST else e for e in super().poll()]


class ReportsEvictionsAsFinished(Memory):
    def take_machines(self) -> None:
        before = len(self.events)
        super().take_machines()
        self.events[before:] = [replace(event, state=State.FINISHED) for event in self.events[before:]]


class ReportsNoQueue(Memory):
    def poll(self) -> list[JobEvent]:
        return [event for event in super().poll() if event.state is not State.QUEUED]


class StartsAllOnOneMachine(Memory):
    def free_machines(self) -> list[str]:
        return ["0"]


class StartsWithoutAMachine(Memory):
    def free_machines(self) -> list[str]:
        return [f"machine {len(self.jobs)} of as many as you like"]


class GoesBackInTime(Memory):
    def poll(self) -> list[JobEvent]:
        return [replace(event, time_s=-event.time_s) for event in super().poll()]


class CancelsWithoutGrace(Memory):
    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        super().cancel(worker)


class WaitsForever(Memory):
    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        if grace_s == 0 or self.behaviours[worker] is not Behaviour.STAYS:
            super().cancel(worker, grace_s=grace_s)


class CancelsAlwaysWithGrace(Memory):
    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        super().cancel(worker, grace_s=grace_s or 1.0)


class CancelsOnlyWhatRuns(Memory):
    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        if worker in self.jobs and self.jobs[worker].state is State.RUNNING:
            super().cancel(worker, grace_s=grace_s)


class CancelsWhatHasEnded(Memory):
    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        super().cancel(worker, grace_s=grace_s)
        if worker in self.jobs and self.jobs[worker].state.ended:
            self.report(worker, State.EVICTED)


class ForgetsTheFirstCancel(Memory):
    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        if worker in self.jobs:
            self.jobs[worker].graceful = False
        super().cancel(worker, grace_s=grace_s)


class TakesANameTwice(Memory):
    def refuse_used(self, worker: str) -> None:
        pass


class NeverLetsAMachineRest(Memory):
    def avoid(self, machines: Collection[str]) -> None:
        pass


class LeavesProcesses(Memory):
    def close(self) -> None:
        self.closed = True


class InventsWorkers(Memory):
    def close(self) -> None:
        super().close()
        self.events.append(JobEvent(self.clock(), "unknown", State.QUEUED))


BROKEN: list[tuple[type[Memory], str]] = [
    (ReportsTwoEnds, "a_worker_that_leaves_with_status_0_has_finished"),
    (ReportsCrashesAsFinished, "a_worker_that_crashes_is_lost"),
    (ReportsEvictionsAsFinished, "a_machine_taken_away_is_an_eviction"),
    (ReportsNoQueue, "submit_returns_before_anything_starts"),
    (StartsAllOnOneMachine, "a_worker_waits_until_a_machine_is_free"),
    (StartsWithoutAMachine, "a_worker_waits_until_a_machine_is_free"),
    (GoesBackInTime, "a_worker_that_leaves_with_status_0_has_finished"),
    (CancelsWithoutGrace, "cancel_with_grace_lets_a_worker_leave"),
    (WaitsForever, "cancel_with_grace_ends_a_worker_that_stays"),
    (CancelsAlwaysWithGrace, "cancel_without_grace_ends_a_worker_at_once"),
    (CancelsOnlyWhatRuns, "cancel_ends_a_worker_that_waits"),
    (CancelsWhatHasEnded, "cancel_of_an_unknown_or_ended_worker_is_ignored"),
    (ForgetsTheFirstCancel, "a_second_cancel_changes_nothing_but_the_grace"),
    (TakesANameTwice, "a_name_can_be_used_once"),
    (NeverLetsAMachineRest, "a_machine_that_is_avoided_takes_no_worker"),
    (LeavesProcesses, "close_ends_all_and_leaves_no_process"),
    (InventsWorkers, "close_without_workers_is_harmless"),
]


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip waiting: in memory nothing takes time, so an event that does not happen at once never happens."""
    monkeypatch.setattr(contract, "LIMIT_S", 0.05)


def test_all_checks_are_run_and_a_sound_backend_passes() -> None:
    check_backend(partial(MemoryHarness, Memory))


@pytest.mark.parametrize(("backend_type", "law"), BROKEN)
def test_a_broken_backend_is_caught_by_the_law_it_breaks(
    backend_type: type[Memory], law: str, no_patience: None
) -> None:
    (check,) = (check for check in CHECKS if check.__name__ == law)
    with pytest.raises(ContractBroken):
        check(MemoryHarness(backend_type))
    with pytest.raises(ContractBroken):
        check_backend(partial(MemoryHarness, backend_type))


@pytest.mark.parametrize("backend_type", [ReportsTwoEnds, LeavesProcesses, InventsWorkers])
def test_sequences_of_steps_catch_a_broken_backend(backend_type: type[Memory]) -> None:
    with pytest.raises(ContractBroken):
        check_steps(MemoryHarness(backend_type), [Behaviour.FINISHES, Behaviour.STAYS, "poll", "poll", "poll"])


def test_every_law_is_run_and_can_fail() -> None:
    functions: list[tuple[str, Callable[..., object]]] = inspect.getmembers(contract, inspect.isfunction)
    laws = {name for name, function in functions if [*inspect.signature(function).parameters] == ["harness"]}
    assert laws - {"closing"} == {check.__name__ for check in CHECKS} == {law for _, law in BROKEN}
