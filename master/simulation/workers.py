"""The two sorts of workers a simulation can have, each with the carrier they speak through: some that only take time,
and some that really train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, final
from weakref import WeakValueDictionary

from gridml.carriers.base import Heartbeat, MasterMailboxes, WorkerMailbox
from gridml.carriers.forwarding import Forwarding
from gridml.protocol.codec import BundleCodec, Codec
from gridml.protocol.payload import Payload
from gridml.protocol.worker_state import WorkerOptions
from master.simulation.cost_only_worker import CostOnlyWorker
from master.simulation.faulty_network import Delivery, FaultyNetwork, on_time
from master.simulation.hostility import Hostility
from master.simulation.scenario import Machine, Scenario
from master.simulation.simulated import SimulatedWorker
from master.simulation.virtual_clock import VirtualClock
from master.simulation.wire import Wire, WireCodec, going_on


class Workers(ABC):
    """Workers of one sort. They outlive every master."""

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
    def hire(self, worker: str, machine: Machine) -> SimulatedWorker:
        """A worker process on a machine."""


class TrainingWorker(SimulatedWorker, Protocol):
    """A worker that really trains."""

    @property
    def lived_s(self) -> float:
        """Until when its process has lived."""

    def notice_reply(self) -> None:
        """A reply may have come."""


class Trainer(Protocol):
    """Makes workers that really train: from their options, their mailbox, the clock, and how fast their machine is.
    `remote.stepped` has one; the master knows nothing of it."""

    def __call__(
        self, options: WorkerOptions, mailbox: WorkerMailbox, clock: Callable[[], float], speed: float
    ) -> TrainingWorker: ...


def options_of(worker: str, machine: Machine, scenario: Scenario) -> WorkerOptions:
    """Who a worker on a machine is."""
    return WorkerOptions(worker, machine.kind, scenario.chunks_per_job or None)


def delivery_of(scenario: Scenario) -> Delivery | None:
    """What happens to payloads, None where nothing does."""
    return None if scenario.faults is None else scenario.faults.delivery(scenario.wire_seed)


@final
class CostOnlyWorkers(Workers):
    """Workers that only let time pass, and hand their messages over."""

    def __init__(self, clock: VirtualClock, scenario: Scenario) -> None:
        self.codec = WireCodec()
        self.wire = Wire(clock, delivery_of(scenario), scenario.travel_s)
        self.hostility = Hostility(scenario.wire_seed)
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

    def hire(self, worker: str, machine: Machine) -> SimulatedWorker:
        wire = _WireEnd(self._clock, self.wire, worker, self.hostility if machine.hostile else None)
        options, costs = options_of(worker, machine, self._scenario), self._scenario.costs
        hired = CostOnlyWorker(options, costs, wire, machine.speed, fails=machine.fails)
        self.wire.listen(worker, hired.receive, hired.standing)
        return hired


@final
class _WireEnd:
    """A worker's end of the wire; from a hostile machine hostile messages travel under its name, too."""

    def __init__(self, clock: VirtualClock, wire: Wire, worker: str, hostility: Hostility | None) -> None:
        self._clock = clock
        self._wire = wire
        self._worker = worker
        self._hostility = hostility

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    def send(self, number: int, payload: bytes) -> None:
        self._wire.send(self._worker, number, payload)
        if self._hostility is not None:
            for other, hostile in self._hostility.messages(number, payload):
                self._wire.send(self._worker, other, hostile)

    def beat(self, lease: int, upto: int) -> None:
        if self._hostility is not None:
            lease, upto = self._hostility.heartbeat(lease, upto)
        self._wire.beat(self._worker, lease, upto)


@final
class TrainingWorkers(Workers):
    """Workers that train as `trainer` makes them, and write to the master as real workers do."""

    def __init__(self, clock: VirtualClock, scenario: Scenario, trainer: Trainer) -> None:
        self.codec = BundleCodec()
        self.network = FaultyNetwork(clock, self._deliver)
        self._delivery = delivery_of(scenario) or on_time
        self._scenario = scenario
        self._sent = self._lost = 0
        self._clock = clock
        self._trainer = trainer
        self._hired: WeakValueDictionary[str, TrainingWorker] = WeakValueDictionary()  # the pool holds those that live

    @property
    def sent(self) -> int:
        return self._sent

    @property
    def lost(self) -> int:
        return self._lost

    def mailboxes(self) -> MasterMailboxes:
        return _NotifyingMailboxes(self.network, self._wake, self._lived_s)

    def hire(self, worker: str, machine: Machine) -> SimulatedWorker:
        options, mailbox = options_of(worker, machine, self._scenario), self.network.worker(worker)
        hired = self._hired[worker] = self._trainer(options, mailbox, self._clock, machine.speed)
        return hired

    def _deliver(self, payload: bytes) -> Sequence[tuple[float, bytes]]:
        """What arrives of a message, an answer or a chunk, and how much later."""
        arrivals = [(delay + self._scenario.travel_s, arrived) for delay, arrived in self._delivery(payload)]
        self._sent += 1
        self._lost += all(arrived != payload for _, arrived in arrivals)
        return arrivals

    def _lived_s(self, worker: str) -> float:
        """Until when a worker's process has lived, by now."""
        hired = self._hired.get(worker)
        return 0.0 if hired is None else hired.lived_s

    def _wake(self, worker: str, at_s: float) -> None:
        """A reply reaches a worker then, which need not look for it before."""
        waiting = self._hired.get(worker)
        if waiting is not None:
            self._clock.at(at_s, waiting.notice_reply)


@final
class _NotifyingMailboxes(Forwarding):
    """A master's end that reports when each reply arrives, and where heartbeats go on while processes live."""

    def __init__(
        self, network: FaultyNetwork, notify: Callable[[str, float], None], lived_s: Callable[[str], float]
    ) -> None:
        super().__init__(network.master())
        self._network = network
        self._notify = notify
        self._lived_s = lived_s

    def heartbeat(self, worker: str) -> Heartbeat | None:
        said = super().heartbeat(worker)
        return None if said is None else going_on(said, self._lived_s(worker))

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        box = self._network.mailboxes.get(worker)
        before = 0 if box is None else len(box.replies)
        super().answer(worker, number, payload)
        for parcel in [] if box is None else box.replies[before:]:
            self._notify(worker, parcel.at_s)
