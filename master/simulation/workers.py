"""The two sorts of simulated workers, each with its carrier: some only take time, others really train.

`Hostility` adds messages of workers on hostile machines: values that no honest worker sends, in every field.
"""

from __future__ import annotations

import dataclasses
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, final, get_type_hints
from weakref import WeakValueDictionary

from gridml.carriers.base import Forwarding, Heartbeat, MasterMailboxes, WorkerMailbox
from gridml.protocol import bundle
from gridml.protocol.codec import BundleCodec, Codec, InProcessPayload
from gridml.protocol.messages import Failure, Push, Sync, to_json
from gridml.protocol.payload import Payload
from gridml.protocol.push import Array
from gridml.protocol.worker_state import WorkerOptions
from master.simulation.cost_only_worker import CostOnlyWorker
from master.simulation.faulty_network import Delivery, FaultyNetwork, VirtualClock, on_time
from master.simulation.scenario import Machine, Scenario
from master.simulation.simulated import SimulatedWorker
from master.simulation.wire import Wire, WireCodec, going_on

Tensors = Mapping[str, Array]
FieldPath = tuple[str, ...]  # of a field: its name, or that of the part which has it and its name there


def nested(depth: int) -> list[Any]:
    """Return lists within lists."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


INTEGERS: Final = (-1, 0, 1, 2**31, 2**53 - 1, 2**53, -(2**63), 2**63 - 1, 2**63, 2**64, -(2**70), 10**400)
SECONDS: Final = (-1.0, -0.0, -1e-320, 5e-324, 1e-320, 1e-300, 1e-9, 1e12, 1e15, 1e300, 1e308, -1e308,
                  math.nan, math.inf, -math.inf)  # fmt: skip
TEXTS: Final = (
    "caf\udce9.txt",  # as os.fsdecode gives a name that is no UTF-8: no encoder takes the lone surrogate
    "\ud800\udfff",
    "\x1b[2J\x1b]0;title\x07\x1b[31m",  # clears a terminal and renames its window
    "\r\x08\x7f\x9b1A",
    "\x00",
    "\u202etxt.exe\u2066",
    "[bold]markup[/] [/] [link=file:///etc/passwd]",
    "\n" * 200,
    "'; DROP TABLE leases; --",
    "../../ledger.db",
    "",
    "w1",
    "x" * 65_536,
    "\U0010ffff" * 1_000,
)
LEASES: Final[tuple[Any, ...]] = ([], [-1], [2**63], [1, 1, 1], list(range(1_000)), ["1"], [None], [True], [1.5],
                                  [math.nan], [[1]], "123", nested(60))  # fmt: skip
WRONG_TYPES: Final[tuple[Any, ...]] = (None, True, False, 7, 1.5, "7", "", [], [7], {}, {"lease": 1}, nested(60))
NEAR: Final = (-64, -2, -1, 1, 2, 64)  # added to an honest number, a lie that fits almost

_PARTS: Final = {"push": Push, "failure": Failure}
_BY_TYPE: Final[dict[Any, tuple[Any, ...]]] = {int: INTEGERS, float: SECONDS, str: TEXTS, bool: (True, False)}
FIELDS: Final[dict[FieldPath, Any]] = {(name,): declared for name, declared in get_type_hints(Sync).items()} | {
    (part, name): declared for part, of in _PARTS.items() for name, declared in get_type_hints(of).items()
}
"""Every field of a sync, of its push and of its failure, with the type that is declared."""


def value_for(path: FieldPath, honest: object, rng: random.Random) -> object:
    """Draw a value for the field at `path`, whose honest value is given."""
    chance, declared = rng.random(), FIELDS[path]
    if chance < 0.2:
        return rng.choice(WRONG_TYPES)
    if chance < 0.4 and type(honest) is int:
        return honest + rng.choice(NEAR)
    if declared in _BY_TYPE:
        return rng.choice(_BY_TYPE[declared])
    return rng.choice(LEASES if path == ("holds",) else WRONG_TYPES)


def alter(sync: Sync, rng: random.Random, fields: int = 1) -> dict[str, Any]:
    """Return the JSON of a sync with `fields` hostile values; at times one is missing, or there is one more. A sync
    without a push or a failure gets one where a field of it is drawn."""
    message = to_json(sync)
    for path in rng.sample(list(FIELDS), fields):
        holder = message
        if len(path) == 2:
            if not isinstance(message.get(path[0]), dict):
                message[path[0]] = _made_up(path[0], rng)
            holder = message[path[0]]
        chance, name = rng.random(), path[-1]
        if chance < 0.03:
            holder.pop(name, None)
        elif chance < 0.06:
            holder[rng.choice(TEXTS)] = rng.choice(WRONG_TYPES)
        else:
            value = value_for(path, holder.get(name), rng)
            holder[name] = dict(value) if isinstance(value, dict) else value  # fields may be put into that
    return message


def altered(sync: Sync, rng: random.Random, fields: int = 1, tensors: Tensors | None = None) -> bytes:
    """Return `alter`'s message as a payload."""
    return bundle.encode(alter(sync, rng, fields), dict(tensors or {}))


def _made_up(part: str, rng: random.Random) -> dict[str, Any]:
    """Return a push or a failure under some lease, as JSON."""
    lease, at = rng.randrange(1, 200), rng.randrange(1_000)
    if part == "push":
        return Push(lease, rng.choice((1, 1_000_000)), rng.randrange(1, 4), rng.randrange(-1, 20), at, at)._asdict()
    return dataclasses.asdict(Failure(lease, 1_000_000, rng.choice(TEXTS), rng.choice(TEXTS), at, at))


def nonsense(rng: random.Random) -> bytes:
    """Return bytes that are no message."""
    return rng.randbytes(rng.choice((0, 1, 7, 8, 9, 100, 4_000)))


SHARE = 0.5  # of the messages and heartbeats from a hostile machine
MOST = 4  # hostile messages beside one that is honest
MOST_FIELDS = 4  # altered in one of them
# Numbers that they come under, after that of the honest message: for the most part its own, whose place they take or
# which takes theirs; a number far off makes those that follow late copies.
OFFSETS = (0,) * 20 + (-1, -1, 1, 1, 1_000)
_HEARTBEATS = tuple(value for value in INTEGERS if -(2**63) <= value < 2**63)  # what its file can hold


@final
class Hostility:
    """Draws hostile messages from a seed. `values` counts what was put into fields, or in place of a whole message."""

    def __init__(self, seed: int) -> None:
        self.values = 0
        self._rng = random.Random(f"hostile/{seed}")

    def messages(self, number: int, payload: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (number, payload) of the hostile messages that come beside a worker's message."""
        rng = self._rng
        if rng.random() >= SHARE or not isinstance(payload, InProcessPayload):
            return
        assert isinstance(payload.message, Sync), "workers send syncs"
        for _ in range(rng.randint(1, MOST)):
            fields = rng.randint(0, MOST_FIELDS)
            self.values += max(1, fields)
            hostile = altered(payload.message, rng, fields) if fields else nonsense(rng)
            yield max(0, number + rng.choice(OFFSETS)), hostile

    def heartbeat(self, lease: int, upto: int) -> tuple[int, int]:
        """Return a heartbeat, at times a hostile one."""
        if self._rng.random() >= SHARE:
            return lease, upto
        self.values += 1
        return self._rng.choice(((lease, self._rng.choice(_HEARTBEATS)), (self._rng.choice(_HEARTBEATS), upto)))


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


class RealTrainer(Protocol):
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
        self.wire.listen(worker, hired.receive, hired.progress)
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

    def __init__(self, clock: VirtualClock, scenario: Scenario, trainer: RealTrainer) -> None:
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
