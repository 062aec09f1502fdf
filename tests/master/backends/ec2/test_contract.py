"""The contract of back ends, on EC2: moto has the instances, and the test acts for their workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gridml.testing.contracts import require
from master.backends import contract
from master.backends.contract import CHECKS, MACHINES, Behaviour, Harness
from master.state.jobs import JobEvent

OTHERWISE = {contract.a_worker_waits_until_a_machine_is_free: "an instance has one worker, and the next gets another"}
HERE = [check for check in CHECKS if check not in OTHERWISE]


class OnMoto(Harness):
    """Instances of moto; `rest` acts for their workers."""

    graceful = None  # unknown from EC2's description of an end
    avoids = False

    def __init__(self, fleet: Any) -> None:
        self.fleet, self.backend = fleet, fleet.backend
        fleet.aws.capacity = MACHINES
        self.behaviours: dict[str, Behaviour] = {}

    def submit(self, worker: str, behaviour: Behaviour) -> None:
        self.backend.submit(worker)
        self.behaviours.setdefault(worker, behaviour)

    def settled(self, worker: str) -> bool:
        return True

    def rest(self) -> None:
        self.fleet.now += 2.0
        for life in [*self.fleet.backend._live.values()]:
            self._work(life)

    def _work(self, life: Any) -> None:
        """Take the next step of the worker on an instance."""
        behaviour, roster = self.behaviours[life.worker], self.fleet.roster
        if not life.enrolled:
            if roster.enrolment(life.instance.id) is None:
                self.fleet.enrol_quietly(life.worker)
        elif behaviour is Behaviour.FINISHES:
            self.fleet.goodbye(life.worker, 0)
        elif behaviour is Behaviour.CRASHES:
            self.fleet.goodbye(life.worker, 3)
        elif life.cancelled and behaviour is not Behaviour.STAYS and life.ends_s > self.fleet.now:
            self.fleet.goodbye(life.worker, 0)

    def take_machines(self) -> None:
        for id, state in self.fleet.aws.states(self.fleet.backend.run).items():
            if state == "running":
                self.fleet.aws.take(id)

    def alive(self, event: JobEvent) -> bool:
        return bool(self.fleet.aws.states(self.fleet.backend.run).get(event.machine) == "running")


@pytest.mark.parametrize("check", HERE, ids=lambda check: str(check.__name__))
def test_the_contract(check: Callable[[Harness], None], fleet: Any) -> None:
    with contract.closing(OnMoto(fleet)) as harness:
        check(harness)


@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_steps_ends_with_an_end_for_each_worker(seed: int, fleet: Any) -> None:
    contract.check_steps(OnMoto(fleet), contract._random_steps(seed))


def test_every_law_is_looked_at_or_named() -> None:
    require(len(HERE) + len(OTHERWISE) == len(CHECKS), "each check is here or has a reason not to be")
