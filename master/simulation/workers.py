"""The two kinds of simulated workers, each with its carrier: cost-only workers and workers that really train.

`Hostility` makes the additional messages of workers on hostile machines. Fields of such a message have hostile values,
which no honest worker sends.
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
from gridml.protocol.messages import Failure, Push, Sync, to_json
from gridml.protocol.payload import Payload
from gridml.protocol.push import Array, BundleCodec, Codec, InProcessPayload
from gridml.protocol.worker_state import WorkerOptions
from master.simulation.cost_only_worker import CostOnlyWorker, Wire, WireCodec, extrapolated
from master.simulation.faulty_network import Delivery, FaultyNetwork, NetworkTraffic, VirtualClock, on_time
from master.simulation.scenario import Machine, Scenario
from master.simulation.simulated import SimulatedWorker

Tensors = Mapping[str, Array]
FieldPath = tuple[str, ...]  # (name,) in a sync, or (part, name) in its push or failure


def nested(depth: int) -> list[Any]:
    """Return a list that is nested `depth` times."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


# Hostile values by the declared type of a field: limits of integer types, non-finite floats, texts that break encoders,
# terminals, markup, SQL and paths.
INTEGERS: Final = (-1, 0, 1, 2**31, 2**53 - 1, 2**53, -(2**63), 2**63 - 1, 2**63, 2**64, -(2**70), 10**400)
SECONDS: Final = (-1.0, -0.0, -1e-320, 5e-324, 1e-320, 1e-300, 1e-9, 1e12, 1e15, 1e300, 1e308, -1e308,
                  math.nan, math.inf, -math.inf)  # fmt: skip
TEXTS: Final = (
    "caf\udce9.txt",  # os.fsdecode returns such names; no encoder accepts the lone surrogate
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
NEAR: Final = (-64, -2, -1, 1, 2, 64)  # offsets to honest integers, for plausible values

_PARTS: Final = {"push": Push, "failure": Failure}
_BY_TYPE: Final[dict[Any, tuple[Any, ...]]] = {int: INTEGERS, float: SECONDS, str: TEXTS, bool: (True, False)}
FIELDS: Final[dict[FieldPath, Any]] = {(name,): declared for name, declared in get_type_hints(Sync).items()} | {
    (part, name): declared for part, of in _PARTS.items() for name, declared in get_type_hints(of).items()
}
"""The declared type of every field of a sync, of its push and of its failure."""


def value_for(path: FieldPath, honest: object, rng: random.Random) -> object:
    """Draw a hostile value for the field at `path`."""
    chance, declared = rng.random(), FIELDS[path]
    if chance < 0.2:
        return rng.choice(WRONG_TYPES)
    if chance < 0.4 and type(honest) is int:  # not isinstance: True is an int, too
        return honest + rng.choice(NEAR)
    if declared in _BY_TYPE:
        return rng.choice(_BY_TYPE[declared])
    return rng.choice(LEASES if path == ("holds",) else WRONG_TYPES)


def alter(sync: Sync, rng: random.Random, fields: int = 1) -> dict[str, Any]:
    """Return the JSON of a sync in which `fields` random fields have hostile values; sometimes a field is removed or
    added instead. If a random field belongs to a push or failure that the sync lacks, a push or failure is made up."""
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
            holder[name] = dict(value) if isinstance(value, dict) else value  # a copy, because it may be changed later
    return message


def altered(sync: Sync, rng: random.Random, fields: int = 1, tensors: Tensors | None = None) -> bytes:
    """Return `alter`'s message as a payload."""
    return bundle.encode(alter(sync, rng, fields), dict(tensors or {}))


def _made_up(part: str, rng: random.Random) -> dict[str, Any]:
    """Return a push or a failure under a random lease, as JSON."""
    lease, at = rng.randrange(1, 200), rng.randrange(1_000)
    if part == "push":
        return Push(lease, rng.choice((1, 1_000_000)), rng.randrange(1, 4), rng.randrange(-1, 20), at, at)._asdict()
    return dataclasses.asdict(Failure(lease, 1_000_000, rng.choice(TEXTS), rng.choice(TEXTS), at, at))


def nonsense(rng: random.Random) -> bytes:
    """Return random bytes."""
    return rng.randbytes(rng.choice((0, 1, 7, 8, 9, 100, 4_000)))


# Share of a hostile machine's honest messages that hostile messages follow, and of its heartbeats that are hostile.
HOSTILE_SHARE = 0.5
MAX_MESSAGES = 4  # hostile messages after one honest message
MAX_FIELDS = 4  # fields altered in one hostile message
#: A hostile message has the number of the honest message plus one of these offsets. Most have the same number, so that
#: one message replaces the other. A much larger number makes all later honest messages count as late copies.
OFFSETS = (0,) * 20 + (-1, -1, 1, 1, 1_000)
_HEARTBEATS = tuple(value for value in INTEGERS if -(2**63) <= value < 2**63)  # a heartbeat's file holds int64


@final
class Hostility:
    """Draws hostile messages from a seed."""

    def __init__(self, seed: int) -> None:
        self.values = 0  # hostile fields so far; a message of random bytes counts as one field
        self._rng = random.Random(f"hostile/{seed}")

    def messages(self, number: int, payload: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (number, payload) of the hostile messages that follow an honest one."""
        rng = self._rng
        if rng.random() >= HOSTILE_SHARE or not isinstance(payload, InProcessPayload):
            return
        assert isinstance(payload.message, Sync), "workers send syncs"
        for _ in range(rng.randint(1, MAX_MESSAGES)):
            fields = rng.randint(0, MAX_FIELDS)
            self.values += max(1, fields)
            hostile = altered(payload.message, rng, fields) if fields else nonsense(rng)
            yield max(0, number + rng.choice(OFFSETS)), hostile

    def heartbeat(self, lease: int, upto: int) -> tuple[int, int]:
        """Return the honest heartbeat (lease, upto), or a hostile one."""
        if self._rng.random() >= HOSTILE_SHARE:
            return lease, upto
        self.values += 1
        return self._rng.choice(((lease, self._rng.choice(_HEARTBEATS)), (self._rng.choice(_HEARTBEATS), upto)))


class Workers(ABC):
    """All workers of a simulation. They are of the same kind, and outlive every master."""

    codec: Codec
    traffic: NetworkTraffic

    @abstractmethod
    def mailboxes(self) -> MasterMailboxes:
        """Return the carrier's end for the next master."""

    @abstractmethod
    def hire(self, worker: str, machine: Machine) -> SimulatedWorker:
        """Start a worker process on a machine."""


class TrainingWorker(SimulatedWorker, Protocol):
    """A worker that really trains."""

    @property
    def lived_s(self) -> float:
        """Time up to which its process has lived."""

    def notice_reply(self) -> None:
        """Check for a reply. Called when one may have arrived."""


class RealTrainer(Protocol):
    """Makes workers that really train. `remote.stepped` implements it; the master must not import `remote`."""

    def __call__(
        self, options: WorkerOptions, mailbox: WorkerMailbox, clock: Callable[[], float], speed: float
    ) -> TrainingWorker: ...


def options_of(worker: str, machine: Machine, scenario: Scenario) -> WorkerOptions:
    """Return the identity and the limits of a worker on a machine."""
    return WorkerOptions(worker, machine.kind, scenario.chunks_per_job or None)


def delivery_of(scenario: Scenario) -> Delivery | None:
    """Return the delivery of a scenario; None for a carrier without faults."""
    return None if scenario.faults is None else scenario.faults.delivery(scenario.wire_seed)


@final
class CostOnlyWorkers(Workers):
    """Cost-only workers. Their messages stay objects."""

    def __init__(self, clock: VirtualClock, scenario: Scenario) -> None:
        self.codec = WireCodec()
        self.wire = Wire(clock, delivery_of(scenario), scenario.travel_s)
        self.traffic = self.wire.traffic
        self.hostility = Hostility(scenario.wire_seed)
        self._clock = clock
        self._scenario = scenario

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
    """A worker's end of the wire. On a hostile machine it also sends hostile messages under the worker's name."""

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
    """Workers that really train, made by `trainer`. Their messages are encoded to bytes as by real workers."""

    def __init__(self, clock: VirtualClock, scenario: Scenario, trainer: RealTrainer) -> None:
        self.codec = BundleCodec()
        self.network = FaultyNetwork(clock, self._deliver)
        self._delivery = delivery_of(scenario) or on_time
        self._scenario = scenario
        self.traffic = NetworkTraffic()
        self._clock = clock
        self._trainer = trainer
        # Weak references: the pool holds the live workers, and an ended worker is freed together with its replica.
        self._hired: WeakValueDictionary[str, TrainingWorker] = WeakValueDictionary()

    def mailboxes(self) -> MasterMailboxes:
        return _NotifyingMailboxes(self.network, self._wake, self._lived_s)

    def hire(self, worker: str, machine: Machine) -> SimulatedWorker:
        options, mailbox = options_of(worker, machine, self._scenario), self.network.worker(worker)
        hired = self._hired[worker] = self._trainer(options, mailbox, self._clock, machine.speed)
        return hired

    def _deliver(self, payload: bytes) -> Sequence[tuple[float, bytes]]:
        """Return the arrivals of a message, a reply or a chunk, as a `Delivery`."""
        arrivals = [(delay + self._scenario.travel_s, arrived) for delay, arrived in self._delivery(payload)]
        self.traffic.sent += 1
        self.traffic.lost += all(arrived != payload for _, arrived in arrivals)
        return arrivals

    def _lived_s(self, worker: str) -> float:
        """Return the time up to which a worker's process has lived; 0 for one that has ended."""
        hired = self._hired.get(worker)
        return 0.0 if hired is None else hired.lived_s

    def _wake(self, worker: str, at_s: float) -> None:
        """Notify a worker when a reply arrives, so that it need not poll."""
        waiting = self._hired.get(worker)
        if waiting is not None:
            self._clock.at(at_s, waiting.notice_reply)


@final
class _NotifyingMailboxes(Forwarding):
    """A master's end that reports the arrival time of each reply, and extrapolates the heartbeats of live processes."""

    def __init__(
        self, network: FaultyNetwork, notify: Callable[[str, float], None], lived_s: Callable[[str], float]
    ) -> None:
        super().__init__(network.master())
        self._network = network
        self._notify = notify
        self._lived_s = lived_s

    def heartbeat(self, worker: str) -> Heartbeat | None:
        last = super().heartbeat(worker)
        return None if last is None else extrapolated(last, self._lived_s(worker))

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        box = self._network.mailboxes.get(worker)
        before = 0 if box is None else len(box.replies)  # the call below appends the new arrivals
        super().answer(worker, number, payload)
        for arrival in [] if box is None else box.replies[before:]:
            self._notify(worker, arrival.at_s)
