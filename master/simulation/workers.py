"""The two kinds of workers a simulation can have, each with the carrier they speak through: some that only take time,
and some that really train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, final
from weakref import WeakValueDictionary

from gridml.carriers.base import MasterMailboxes, WorkerMailbox
from gridml.carriers.forwarding import Forwarding
from gridml.protocol.codec import BundleCodec, Codec, InProcessCodec
from gridml.testing.faulty_network import Delivery, FaultyNetwork, on_time
from gridml.testing.virtual_clock import VirtualClock
from master.backends.simulated import Player
from master.simulation.cost_only_worker import CostOnlyWorker
from master.simulation.scenario import Machine, Scenario
from master.simulation.wire import Wire


class Workers(ABC):
    """Workers of one kind. They outlive every master."""

    codec: Codec

    @property
    @abstractmethod
    def sent(self) -> int:
        """Messages and answers so far."""

    @property
    @abstractmethod
    def lost(self) -> int:
        """Those of them of which no copy arrived whole, or will."""

    @abstractmethod
    def mailboxes(self) -> MasterMailboxes:
        """The next master's end of the carrier."""

    @abstractmethod
    def hire(self, worker: str, machine: Machine) -> Player:
        """A worker process on a machine."""


class TrainingWorker(Player, Protocol):
    """A player that really trains."""

    def heard(self) -> None:
        """A reply may have come."""


class Trainer(Protocol):
    """Makes workers that really train: from a name, its end of the carrier, the time, how fast its machine is, after
    how many chunks it leaves, and the kind of its machine. `remote.stepped` has one; the master knows nothing of it."""

    def __call__(
        self, worker: str, end: WorkerMailbox, clock: Callable[[], float], speed: float, chunks: int | None, kind: str
    ) -> TrainingWorker: ...


def fate_of(scenario: Scenario) -> Delivery | None:
    """What happens to payloads, None where nothing does."""
    return None if scenario.faults is None else scenario.faults.delivery(scenario.wire_seed)


@final
class Passing(Workers):
    """They only let time pass, and hand their messages over."""

    def __init__(self, clock: VirtualClock, scenario: Scenario) -> None:
        self.codec = InProcessCodec()
        self.wire = Wire(clock, fate_of(scenario), scenario.travel_s)
        self._clock = clock
        self._scenario = scenario

    @property
    def sent(self) -> int:
        return self.wire.sent

    @property
    def lost(self) -> int:
        return self.wire.lost

    def mailboxes(self) -> MasterMailboxes:
        return self.wire

    def hire(self, worker: str, machine: Machine) -> Player:
        line = _Line(self._clock, self.wire, worker)
        chunks = self._scenario.chunks_per_job or None
        walker = CostOnlyWorker(worker, self._scenario.costs, line, machine.speed, chunks, machine.kind)
        self.wire.listen(worker, walker.heard)
        return walker


@final
class _Line:
    """A worker's end of the wire."""

    def __init__(self, clock: VirtualClock, wire: Wire, worker: str) -> None:
        self._clock = clock
        self._wire = wire
        self._worker = worker

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    def send(self, number: int, payload: bytes) -> None:
        self._wire.send(self._worker, number, payload)

    def beat(self, lease: int, upto: int) -> None:
        self._wire.beat(self._worker, lease, upto)


@final
class Training(Workers):
    """They train as `trainer` makes them, and write to the master as real workers do."""

    def __init__(self, clock: VirtualClock, scenario: Scenario, trainer: Trainer) -> None:
        self.codec = BundleCodec()
        self.post = FaultyNetwork(clock, self._fate)
        self._fated = fate_of(scenario) or on_time
        self._travel_s = scenario.travel_s
        self._sent = self._lost = 0
        self._clock = clock
        self._trainer = trainer
        self._chunks = scenario.chunks_per_job or None
        self._pupils: WeakValueDictionary[str, TrainingWorker] = WeakValueDictionary()  # the pool holds those that live

    @property
    def sent(self) -> int:
        return self._sent

    @property
    def lost(self) -> int:
        return self._lost

    def mailboxes(self) -> MasterMailboxes:
        return _Waking(self.post, self._wake)

    def hire(self, worker: str, machine: Machine) -> Player:
        end = self.post.worker(worker)
        pupil = self._trainer(worker, end, self._clock, machine.speed, self._chunks, machine.kind)
        self._pupils[worker] = pupil
        return pupil

    def _fate(self, payload: bytes) -> Sequence[tuple[float, bytes]]:
        """What happens to a message, an answer or a chunk on its way."""
        found = [(delay + self._travel_s, arrived) for delay, arrived in self._fated(payload)]
        self._sent += 1
        self._lost += all(arrived != payload for _, arrived in found)
        return found

    def _wake(self, worker: str, at_s: float) -> None:
        """A reply reaches a worker then, which need not look for it before."""
        pupil = self._pupils.get(worker)
        if pupil is not None:
            self._clock.at(at_s, pupil.heard)


@final
class _Waking(Forwarding):
    """A master's end that says when each reply arrives."""

    def __init__(self, post: FaultyNetwork, wake: Callable[[str, float], None]) -> None:
        super().__init__(post.master())
        self._post = post
        self._wake = wake

    def answer(self, worker: str, number: int, payload: bytes) -> None:
        box = self._post.mailboxes.get(worker)
        before = 0 if box is None else len(box.replies)
        super().answer(worker, number, payload)
        for parcel in [] if box is None else box.replies[before:]:
            self._wake(worker, parcel.at_s)
