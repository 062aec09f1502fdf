"""The contract of a back end, as checks that run on any implementation of `master.state.jobs`.

    def test_my_backend(tmp_path):
        check_backend(lambda: MyHarness(tmp_path))

A `Harness` creates the back end, and workers with given behaviours. Each function in `CHECKS` checks one law of the
contract on a fresh harness. It raises ContractBroken if the back end breaks the law. A test that is parametrised with
`CHECKS` names the broken law.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import ClassVar

from gridml.errors import RunError, UsageError
from gridml.testing.contracts import expect, expect_error, require
from master.state.jobs import Backend, JobEvent, State

MACHINES = 2  # machines of a harness
LIMIT_S = 60.0  # maximum duration of each wait
SEQUENCES, STEPS = 10, 12  # number of random sequences that `check_backend` plays; maximum number of steps in each


class Behaviour(StrEnum):
    """Behaviours of workers. The first two end by themselves, the others run until they are ended."""

    FINISHES = "finishes"
    CRASHES = "crashes"  # with status 3
    HANGS = "hangs"  # SIGTERM ends it
    LEAVES = "leaves"  # exits with status 0 on SIGTERM
    STAYS = "stays"  # ignores SIGTERM


SHELL: dict[Behaviour, str] = {
    Behaviour.FINISHES: "exit 0",
    Behaviour.CRASHES: "exit 3",
    Behaviour.HANGS: "echo settled; exec sleep 600",
    Behaviour.LEAVES: "trap 'exit 0' TERM; echo settled; sleep 600 & wait",
    Behaviour.STAYS: "trap '' TERM; echo settled; exec sleep 600",
}
"""A /bin/sh program for each behaviour. A program that does not end by itself prints "settled" once it handles SIGTERM
as its behaviour requires."""

Step = Behaviour | tuple[str, int, float] | str
"""A Behaviour submits a worker that has it; ("cancel", number of the worker, grace in seconds) cancels a worker; "poll"
polls; "take" evicts every running worker."""


class Harness(ABC):
    """One back end under test, with `MACHINES` machines."""

    patience_s: ClassVar[float] = 0.0  # maximum time that a "poll" step waits for an event
    graceful: ClassVar[bool | None] = True  # expected `JobEvent.graceful` of a cancel with grace; None: unknown
    avoids: ClassVar[bool] = True  # the back end supports `Backend.avoid`
    backend: Backend

    @abstractmethod
    def submit(self, worker: str, behaviour: Behaviour) -> None:
        """Submit a worker with this behaviour to `backend`."""

    @abstractmethod
    def settled(self, worker: str) -> bool:
        """Return whether a running worker is ready to handle signals as its behaviour requires."""

    @abstractmethod
    def rest(self) -> None:
        """Sleep briefly between two polls, or advance a virtual clock."""

    @abstractmethod
    def take_machines(self) -> None:
        """Evict every running worker from its machine, without the master's request."""

    @abstractmethod
    def alive(self, event: JobEvent) -> bool:
        """Return whether the worker of this RUNNING event still has a process, or its equivalent."""


class Watch:
    """A poller that records a back end's events and checks the invariants of every sequence of events."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.events: list[JobEvent] = []

    def poll(self) -> None:
        """Poll once. Raises ContractBroken for an event that must not follow the earlier ones."""
        for event in self.harness.backend.poll():
            before = self.states(event.worker)
            if event.state is State.QUEUED:
                require(not before, f"QUEUED is the first event of a worker: got {event} after {before}")
            elif event.state is State.RUNNING:
                fits = before == [State.QUEUED] or before[-1:] in ([State.OUT_OF_REACH], [State.SUSPENDED])
                require(fits, f"RUNNING follows QUEUED, OUT_OF_REACH or SUSPENDED: got {event} after {before}")
                taken = {last.machine for last in self.last.values() if last.state is State.RUNNING}
                require(bool(event.machine), f"RUNNING names a machine: got {event}")
                require(event.machine not in taken, f"a machine runs one worker: got {event}, which runs another one")
            else:
                alive = bool(before) and not before[-1].ended
                require(alive, f"a worker has one end, and nothing comes after it: got {event} after {before}")
            in_order = not self.events or event.time_s >= self.events[-1].time_s
            require(in_order, f"events come in order: got {event} after {self.events[-1:]}")
            self.events.append(event)

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until `condition` holds. Raises ContractBroken after `LIMIT_S`."""
        deadline_s = time.monotonic() + LIMIT_S
        while not condition():
            require(time.monotonic() < deadline_s, f"did not happen within {LIMIT_S} s; events: {self.events}")
            self.harness.rest()
            self.poll()

    def until_news(self, limit_s: float) -> None:
        """Poll at least once, until there is a new event or `limit_s` seconds have passed."""
        count, end_s = len(self.events), time.monotonic() + limit_s
        self.poll()
        while len(self.events) == count and time.monotonic() < end_s:
            self.harness.rest()
            self.poll()

    def until_ended(self, worker: str) -> JobEvent:
        """Poll until a worker has ended; return the last event."""
        self.until(lambda: worker in self.last and self.last[worker].state.ended)
        return self.last[worker]

    def until_settled(self, *workers: str) -> None:
        """Poll until all these workers run and are settled."""
        self.until(lambda: all(State.RUNNING in self.states(w) and self.harness.settled(w) for w in workers))

    def states(self, worker: str) -> list[State]:
        """Return the states of a worker so far, in order."""
        return [event.state for event in self.events if event.worker == worker]

    @property
    def last(self) -> dict[str, JobEvent]:
        """The last event of each worker."""
        return {event.worker: event for event in self.events}


def check_backend(make_harness: Callable[[], Harness]) -> None:
    """Run every check, each on a harness of its own, then random sequences of steps. Raises ContractBroken."""
    for check in CHECKS:
        with closing(make_harness()) as harness:
            check(harness)
    for seed in range(SEQUENCES):
        check_steps(make_harness(), _random_steps(seed))


@contextmanager
def closing(harness: Harness) -> Iterator[Harness]:
    """Close the back end of a harness on exit."""
    try:
        yield harness
    finally:
        harness.backend.close()


def check_steps(harness: Harness, steps: Sequence[Step]) -> None:
    """Play the steps, then close the back end. Raises ContractBroken unless every worker ends once and leaves
    no process."""
    watch, submitted = Watch(harness), 0
    with closing(harness):
        for step in steps:
            if isinstance(step, Behaviour):
                harness.submit(f"w{submitted}", step)
                submitted += 1
            elif isinstance(step, tuple):
                harness.backend.cancel(f"w{step[1]}", grace_s=step[2])
            elif step == "take":
                harness.take_machines()
            else:
                watch.until_news(harness.patience_s)
    watch.poll()
    # A later attempt that the back end started by itself is named `name.n`.
    jobs = {worker.partition(".")[0] for worker in watch.last}
    expect(jobs, {f"w{number}" for number in range(submitted)}, "there are events of the workers that were submitted")
    unended = [event for event in watch.last.values() if not event.state.ended]
    expect(unended, [], "after the close every worker has an end")
    expect([event for event in watch.events if harness.alive(event)], [], "after the close no process is left")


def _random_steps(seed: int) -> list[Step]:
    """Return random steps, determined by the seed."""
    numbers = random.Random(seed)
    choices: tuple[Callable[[], Step], ...] = (
        lambda: numbers.choice(list(Behaviour)),
        lambda: ("cancel", numbers.randrange(10), numbers.choice([0.0, 1e-3, 1e4])),
        lambda: numbers.choice(["poll", "take"]),
    )
    return [numbers.choice(choices)() for _ in range(numbers.randint(0, STEPS))]


def a_worker_that_leaves_with_status_0_has_finished(harness: Harness) -> None:
    """The event FINISHED has exit status 0 and the machine, and is not graceful."""
    watch = Watch(harness)
    harness.submit("w1", Behaviour.FINISHES)
    end = watch.until_ended("w1")
    expect(watch.states("w1"), [State.QUEUED, State.RUNNING, State.FINISHED], "the states of a worker that finishes")
    require(end.exit_code == 0 and bool(end.machine) and not end.graceful, f"FINISHED with status 0: got {end}")


def a_worker_that_crashes_is_lost(harness: Harness) -> None:
    """The event LOST has the exit status twice: as a number, and in its detail."""
    watch = Watch(harness)
    harness.submit("w1", Behaviour.CRASHES)
    end = watch.until_ended("w1")
    expect(watch.states("w1"), [State.QUEUED, State.RUNNING, State.LOST], "the states of a worker that crashes")
    require(end.exit_code == 3 and "3" in end.detail and not end.graceful, f"LOST with status 3, said so: got {end}")


def submit_returns_before_anything_starts(harness: Harness) -> None:
    """The first event is QUEUED, and the first poll after the submission returns it."""
    watch = Watch(harness)
    harness.submit("w1", Behaviour.HANGS)
    watch.poll()
    expect(watch.states("w1")[:1], [State.QUEUED], "the first event of a worker")


def a_worker_waits_until_a_machine_is_free(harness: Harness) -> None:
    """A worker waits while all machines are taken, and gets the machine of the first worker that ends."""
    watch = Watch(harness)
    workers = [f"w{number}" for number in range(MACHINES + 1)]
    for worker in workers:
        harness.submit(worker, Behaviour.HANGS)
    watch.until_settled(*workers[:MACHINES])
    expect(watch.states(workers[-1]), [State.QUEUED], "the states of a worker for which no machine is free")
    harness.backend.cancel(workers[0])
    watch.until_settled(workers[-1])
    freed = watch.last[workers[0]].machine
    expect(watch.last[workers[-1]].machine, freed, "the machine of a worker that waited for one")


def a_machine_taken_away_is_an_eviction(harness: Harness) -> None:
    """The worker is EVICTED even if it then leaves with status 0. Afterwards the machines take other workers."""
    watch = Watch(harness)
    workers = [f"w{number}" for number in range(MACHINES)]
    for worker in workers:
        harness.submit(worker, Behaviour.LEAVES)
    watch.until_settled(*workers)
    harness.take_machines()
    ends = [watch.until_ended(worker).state for worker in workers]
    expect(ends, [State.EVICTED] * MACHINES, "the ends of workers whose machines were taken away")
    for worker, event in watch.last.items():  # later attempts, which the back end started by itself
        if not event.state.ended:
            harness.backend.cancel(worker)
    harness.submit("next", Behaviour.FINISHES)
    expect(watch.until_ended("next").state, State.FINISHED, "the end of the next worker on a machine")


def cancel_with_grace_lets_a_worker_leave(harness: Harness) -> None:
    """SIGTERM comes first, and ends a worker that does not ignore it."""
    watch = Watch(harness)
    for behaviour in (Behaviour.LEAVES, Behaviour.HANGS):
        harness.submit(behaviour.value, behaviour)
        watch.until_settled(behaviour.value)
        harness.backend.cancel(behaviour.value, grace_s=1e4)
        _expect_graceful(harness, watch.until_ended(behaviour.value))


def cancel_with_grace_ends_a_worker_that_stays(harness: Harness) -> None:
    """SIGKILL comes after the grace, and ends a worker that ignores SIGTERM."""
    watch = Watch(harness)
    harness.submit("w1", Behaviour.STAYS)
    watch.until_settled("w1")
    harness.backend.cancel("w1", grace_s=0.05)
    _expect_graceful(harness, watch.until_ended("w1"))


def cancel_without_grace_ends_a_worker_at_once(harness: Harness) -> None:
    """A worker ends at once whether it handles SIGTERM or ignores it."""
    watch = Watch(harness)
    for behaviour in (Behaviour.LEAVES, Behaviour.STAYS):
        harness.submit(behaviour.value, behaviour)
        watch.until_settled(behaviour.value)
        harness.backend.cancel(behaviour.value)
        end = watch.until_ended(behaviour.value)
        require(end.state is State.EVICTED and not end.graceful, f"EVICTED without grace: got {end}")


def cancel_ends_a_worker_that_waits(harness: Harness) -> None:
    """A worker that waits for a machine ends, and never runs."""
    watch = Watch(harness)
    for number in range(MACHINES + 1):
        harness.submit(f"w{number}", Behaviour.HANGS)
    watch.until_settled(*(f"w{number}" for number in range(MACHINES)))
    harness.backend.cancel(f"w{MACHINES}")
    watch.until_ended(f"w{MACHINES}")
    expect(watch.states(f"w{MACHINES}"), [State.QUEUED, State.EVICTED], "the states of a worker that never ran")


def cancel_of_an_unknown_or_ended_worker_is_ignored(harness: Harness) -> None:
    """Such a cancel is no error and makes no event."""
    watch = Watch(harness)
    harness.submit("w1", Behaviour.FINISHES)
    watch.until_ended("w1")
    count = len(watch.events)
    harness.backend.cancel("w1", grace_s=1.0)
    harness.backend.cancel("unknown")
    watch.poll()
    expect(watch.events[count:], [], "the events after a cancel of an unknown or ended worker")


def a_second_cancel_changes_nothing_but_the_grace(harness: Harness) -> None:
    """The last grace counts, and the end stays graceful."""
    watch = Watch(harness)
    harness.submit("w1", Behaviour.STAYS)
    watch.until_settled("w1")
    harness.backend.cancel("w1", grace_s=1e4)
    harness.backend.cancel("w1", grace_s=1e5)
    harness.backend.cancel("w1")
    _expect_graceful(harness, watch.until_ended("w1"))


def a_name_can_be_used_once(harness: Harness) -> None:
    """A name is refused while its worker lives, and after the worker has ended."""
    watch = Watch(harness)
    harness.submit("w1", Behaviour.FINISHES)
    with expect_error(UsageError, "the name of a living worker is refused", "w1"):
        harness.submit("w1", Behaviour.FINISHES)
    watch.until_ended("w1")
    with expect_error(UsageError, "the name of a worker that has ended is refused", "w1"):
        harness.submit("w1", Behaviour.FINISHES)


def a_machine_that_is_avoided_takes_no_worker(harness: Harness) -> None:
    """Workers that run on an avoided machine continue. The machine takes new workers once it is no longer avoided."""
    if not harness.avoids:
        return
    watch = Watch(harness)
    workers = [f"w{number}" for number in range(MACHINES)]
    for worker in workers:
        harness.submit(worker, Behaviour.HANGS)
    watch.until_settled(*workers)
    harness.submit("next", Behaviour.HANGS)
    watch.poll()  # "next" waits for a machine
    harness.backend.avoid({watch.last[worker].host for worker in workers})
    harness.backend.cancel(workers[0])
    watch.until_ended(workers[0])
    watch.until_news(harness.patience_s)
    expect(watch.states("next"), [State.QUEUED], "the states of a worker whose machines are all avoided")
    expect(watch.last[workers[1]].state, State.RUNNING, "the state of a worker that runs on a machine avoided since")
    harness.backend.avoid([])
    watch.until_settled("next")


def close_ends_all_and_leaves_no_process(harness: Harness) -> None:
    """Running and waiting workers end; a second close is harmless, and later submissions are refused."""
    watch = Watch(harness)
    behaviours = [Behaviour.STAYS, Behaviour.LEAVES, Behaviour.HANGS]
    for number, behaviour in enumerate(behaviours):
        harness.submit(f"w{number}", behaviour)
    watch.until_settled(*(f"w{number}" for number in range(MACHINES)))
    running = [event for event in watch.events if event.state is State.RUNNING]
    expect([harness.alive(event) for event in running], [True] * MACHINES, "running workers have processes")
    harness.backend.close()
    expect([harness.alive(event) for event in running], [False] * MACHINES, "after the close no process is left")
    watch.poll()
    ends = [watch.last[f"w{number}"].state for number in range(len(behaviours))]
    expect(ends, [State.EVICTED] * len(behaviours), "the ends of workers at the close")
    harness.backend.close()
    watch.poll()
    with expect_error(RunError, "a closed back end takes no workers", "closed"):
        harness.submit("late", Behaviour.FINISHES)


def close_without_workers_is_harmless(harness: Harness) -> None:
    """A back end that never had a worker closes, and has no events."""
    harness.backend.close()
    expect(harness.backend.poll(), [], "the events of a back end without workers")


CHECKS: tuple[Callable[[Harness], None], ...] = (
    a_worker_that_leaves_with_status_0_has_finished,
    a_worker_that_crashes_is_lost,
    submit_returns_before_anything_starts,
    a_worker_waits_until_a_machine_is_free,
    a_machine_taken_away_is_an_eviction,
    cancel_with_grace_lets_a_worker_leave,
    cancel_with_grace_ends_a_worker_that_stays,
    cancel_without_grace_ends_a_worker_at_once,
    cancel_ends_a_worker_that_waits,
    cancel_of_an_unknown_or_ended_worker_is_ignored,
    a_second_cancel_changes_nothing_but_the_grace,
    a_name_can_be_used_once,
    a_machine_that_is_avoided_takes_no_worker,
    close_ends_all_and_leaves_no_process,
    close_without_workers_is_harmless,
)
"""One function for each law of the contract."""


def _expect_graceful(harness: Harness, end: JobEvent) -> None:
    graceful = end.state is State.EVICTED and end.graceful is harness.graceful and bool(end.detail)
    require(graceful, f"EVICTED with graceful {harness.graceful} and a detail: got {end}")
