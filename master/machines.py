"""What counts against the machines of a run, whose workers fail or were given up, and which of them are to rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from master.decisions.failures import MAX_FAILURES, long_rest_s, pause, rests, strikes


@dataclass(slots=True)
class MachineRecord:
    """What counts against a machine: failures in a row of the workers there, one after the other, and how many were
    given up for what they sent, which no credit makes up for. What comes there gets no lease before `avoided_until_s`,
    seconds of the run's clock, because of `reason`."""

    name: str
    failures: int = 0
    distrusted: int = 0
    avoided_until_s: float = 0.0
    reason: str = ""

    @property
    def strikes(self) -> int:
        """What its pause follows."""
        return strikes(self.failures, self.distrusted)

    @property
    def long_rest_s(self) -> float:
        """How long it rests after its pause while others work elsewhere."""
        return long_rest_s(self.failures, self.distrusted)


class MachineTable:
    """The machines that something counts against, by name. Machines without a name are not in it."""

    def __init__(self) -> None:
        self._machines: dict[str, MachineRecord] = {}

    def __iter__(self) -> Iterator[MachineRecord]:
        return iter(self._machines.values())

    def get(self, name: str) -> MachineRecord | None:
        """Return what counts against a machine, None where nothing does."""
        return self._machines.get(name)

    def put(self, machine: MachineRecord) -> None:
        """Have something count against a machine."""
        self._machines[machine.name] = machine

    def forgive(self, name: str) -> MachineRecord | None:
        """Forget the failures of a machine; return what still counts against it, None where nothing does."""
        machine = self._machines.get(name)
        if machine is not None:
            machine.failures = 0
            if not machine.distrusted:
                del self._machines[name]
                return None
        return machine

    def clear(self) -> None:
        """Let every machine begin anew."""
        self._machines.clear()

    def recall(self, row: Mapping[str, Any], now: float) -> None:
        """Take up what counts against a machine, as its ledger row has it. The pause of one that rests for long
        begins anew: whether others work is not seen at once."""
        machine = MachineRecord(**row)
        if machine.strikes >= MAX_FAILURES:
            machine.avoided_until_s = now + pause(machine.failures, machine.distrusted)[0]
        self.put(machine)

    def resting(self, now: float, others_work: Callable[[str], bool]) -> frozenset[str]:
        """The machines on which no worker is to start now. `others_work` says whether any works elsewhere than on a
        machine."""
        return frozenset(
            machine.name
            for machine in self
            if rests(machine.avoided_until_s, now, machine.long_rest_s, partial(others_work, machine.name))[0]
        )
