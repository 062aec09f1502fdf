"""An in-memory carrier with faults, and a virtual clock, for simulations and tests.

A *delivery* is a function from a payload to its arrivals. An arrival is a delay and the bytes that arrive. A payload
without an arrival is lost; two arrivals make a duplicate; different delays change the order. Truncated or corrupted
bytes do not match the SHA-256 that is sent with them, and are dropped on receipt.

The virtual clock advances only on request, and runs the planned actions in the order of their times.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from gridml.carriers.base import Heartbeat, MasterMailboxes, Message, WorkerMailbox
from gridml.protocol import bundle
from gridml.protocol.payload import Payload

#: Maps a payload to its arrivals: (delay in seconds, bytes).
Delivery = Callable[[bytes], Sequence[tuple[float, bytes]]]


def on_time(payload: bytes) -> list[tuple[float, bytes]]:
    """Deliver a payload intact and without delay."""
    return [(0.0, payload)]


@dataclass
class NetworkTraffic:
    """Counts of messages and replies."""

    sent: int = 0
    lost: int = 0  # those of which no copy arrives intact


@dataclass(frozen=True)
class Chances:
    """Probabilities of faults (0 to 1) for each payload, and the maximum delay."""

    lose: float = 0.0
    repeat: float = 0.0  # two arrivals, each with its own delay and damage
    truncate: float = 0.0
    corrupt: float = 0.0  # one bit is flipped
    delay_s: float = 0.0  # maximum delay; delays are uniform from 0 to this

    def delivery(self, seed: int) -> Delivery:
        """Return a random delivery. With the same seed, the same sequence of payloads has the same arrivals."""
        random_numbers = random.Random(seed)

        def deliver(payload: bytes) -> list[tuple[float, bytes]]:
            if random_numbers.random() < self.lose:
                return []
            copies = 2 if random_numbers.random() < self.repeat else 1
            return [
                (random_numbers.uniform(0.0, self.delay_s), self._damaged(payload, random_numbers))
                for _ in range(copies)
            ]

        return deliver

    def _damaged(self, payload: bytes, random_numbers: random.Random) -> bytes:
        if random_numbers.random() < self.truncate:
            return truncated(payload, random_numbers.random())
        if random_numbers.random() < self.corrupt:
            return corrupted(payload, random_numbers.randrange(max(1, len(payload) * 8)))
        return payload


def truncated(payload: bytes, share: float) -> bytes:
    """Return the beginning of a payload; `share` (from 0 to below 1) is its share of the bytes."""
    return payload[: int(len(payload) * share)]


def corrupted(payload: bytes, bit: int) -> bytes:
    """Return a payload with one bit flipped."""
    damaged = bytearray(payload)
    if damaged:
        damaged[bit // 8 % len(damaged)] ^= 1 << bit % 8
    return bytes(damaged)


@dataclass
class Arrival:
    """A payload that is under way, or that has arrived and was not yet received."""

    at_s: float  # time of arrival
    number: int  # number of the message
    payload: bytes  # the bytes that arrive, perhaps damaged
    sha256: str  # of the payload as it was sent


@dataclass
class Mailbox:
    """Messages on their way from and to one worker, and its last heartbeat."""

    syncs: list[Arrival] = field(default_factory=list)
    replies: list[Arrival] = field(default_factory=list)
    heartbeat: Heartbeat | None = None


@final
class FaultyNetwork:
    """All mailboxes and published chunks of a run. `deliver` is called for each payload when it is sent, and may be
    replaced at any time."""

    def __init__(self, clock: Callable[[], float], deliver: Delivery = on_time) -> None:
        self.clock = clock
        self.deliver = deliver
        self.mailboxes: dict[str, Mailbox] = {}
        self.chunks: dict[str, bytes] = {}

    def master(self) -> MasterMailboxes:
        """Return the master's end. A restarted master gets a new end, with all messages that are still unanswered."""
        return _FaultyMaster(self)

    def worker(self, name: str) -> WorkerMailbox:
        """Return a worker's end."""
        return _FaultyWorker(self, name)

    def sent(self, number: int, payload: Payload) -> list[Arrival]:
        """Return the arrivals of a payload that is sent now."""
        now_s, sha256 = self.clock(), bundle.digest(payload)
        return [Arrival(now_s + delay_s, number, arrived, sha256) for delay_s, arrived in self.deliver(bytes(payload))]

    def arrived(self, on_the_way: list[Arrival]) -> tuple[list[Arrival], list[Arrival]]:
        """Return (intact arrivals up to now, ordered by number; damaged arrivals up to now). The damaged arrivals are
        removed from `on_the_way`."""
        now_s = self.clock()
        due = [arrival for arrival in on_the_way if arrival.at_s <= now_s]
        damaged = [arrival for arrival in due if bundle.digest(arrival.payload) != arrival.sha256]
        for arrival in damaged:
            on_the_way.remove(arrival)
        return sorted((each for each in due if each not in damaged), key=lambda arrival: arrival.number), damaged


@final
class _FaultyWorker(WorkerMailbox):
    def __init__(self, network: FaultyNetwork, name: str) -> None:
        self._network = network
        self._name = name

    def send(self, number: int, payload: Payload) -> None:
        self._mailbox().syncs += self._network.sent(number, payload)

    def receive(self, number: int) -> bytes | None:
        replies, payload = self._mailbox().replies, None
        for reply in self._network.arrived(replies)[0]:
            if reply.number <= number:
                replies.remove(reply)
                payload = reply.payload if reply.number == number else payload
        return payload

    def fetch(self, name: str, sha256: str) -> bytes:
        chunks = self._network.chunks
        arrivals = self._network.deliver(chunks[name]) if name in chunks else []
        if not arrivals:
            raise FileNotFoundError(f"chunk {name} is not available")
        payload = arrivals[0][1]
        if bundle.digest(payload) != sha256:
            raise ValueError(f"chunk {name} has another SHA-256 than its lease")
        return payload

    def beat(self, lease: int, upto: int) -> None:
        mailbox = self._network.mailboxes.get(self._name)
        if mailbox is not None:
            number = 1 if mailbox.heartbeat is None else mailbox.heartbeat.number + 1
            mailbox.heartbeat = Heartbeat(lease, upto, number)

    def close(self) -> None:
        pass

    def _mailbox(self) -> Mailbox:
        mailbox = self._network.mailboxes.get(self._name)
        if mailbox is None:
            raise FileNotFoundError(f"the mailbox of {self._name} was closed")
        return mailbox


@final
class _FaultyMaster(MasterMailboxes):
    def __init__(self, network: FaultyNetwork) -> None:
        self._network = network
        self._held: dict[str, int] = {}  # by worker: the last sync that is not collected again

    def open(self, worker: str) -> None:
        self._network.mailboxes.setdefault(worker, Mailbox())

    def collect(self) -> list[Message]:
        messages = []
        for worker, mailbox in sorted(self._network.mailboxes.items()):
            whole, damaged = self._network.arrived(mailbox.syncs)
            messages += [Message(worker, sync.number, b"", "torn on its way", is_damaged=True) for sync in damaged]
            for sync in [each for each in whole[-1:] if each.number > self._held.get(worker, -1)]:  # the newest alone
                problem = "" if len(sync.payload) <= self.longest else f"it has {len(sync.payload):,} bytes"
                messages.append(Message(worker, sync.number, b"" if problem else sync.payload, problem))
        return messages

    def hold(self, worker: str, number: int) -> None:
        self._held[worker] = number

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        if worker in self._network.mailboxes:
            self._network.mailboxes[worker].replies += self._network.sent(number, payload)
        self.discard(worker, number)

    def discard(self, worker: str, number: int) -> None:
        self._held.pop(worker, None)
        syncs = self._network.mailboxes[worker].syncs if worker in self._network.mailboxes else []
        for sync in self._network.arrived(syncs)[0]:
            if sync.number <= number:
                syncs.remove(sync)

    def publish(self, name: str, payload: Payload) -> None:
        self._network.chunks[name] = bytes(payload)

    def share(self, name: str, path: Path) -> bool:
        self._network.chunks[name] = path.read_bytes()
        return True

    def retract(self, name: str) -> None:
        self._network.chunks.pop(name, None)

    def heartbeat(self, worker: str) -> Heartbeat | None:
        mailbox = self._network.mailboxes.get(worker)
        return None if mailbox is None else mailbox.heartbeat

    def clear(self) -> None:
        self._network.mailboxes.clear()

    def close(self, worker: str) -> None:
        self._network.mailboxes.pop(worker, None)


Action = Callable[[], None]


@final
class VirtualClock:
    """A clock in seconds since an arbitrary start, with planned actions. Actions for the same instant run in the order
    in which they were planned."""

    def __init__(self, start_s: float = 0.0) -> None:
        self.now_s = start_s  # mutated only by `advance`; never goes back
        self._planned: list[tuple[float, int, Action]] = []  # a heap by (time, number)
        self._numbers = itertools.count()  # keeps the order of actions that are planned for the same instant

    def __call__(self) -> float:
        return self.now_s

    def at(self, time_s: float, action: Action) -> None:
        """Plan an action. If its time has passed, it runs at the next `advance`."""
        heapq.heappush(self._planned, (time_s, next(self._numbers), action))

    @property
    def next_s(self) -> float | None:
        """Time of the next planned action; None if no action is planned."""
        return self._planned[0][0] if self._planned else None

    def sleep(self, seconds: float) -> None:
        """Advance by `seconds`; replaces time.sleep."""
        self.advance(self.now_s + seconds)

    def advance(self, until_s: float) -> int:
        """Advance to `until_s`. Run all actions that are due by then, including actions planned by other actions.
        Return the number of actions that ran."""
        count, planned = 0, self._planned
        while planned and planned[0][0] <= until_s:
            time_s, _, action = heapq.heappop(planned)
            self.now_s = max(self.now_s, time_s)
            action()
            count += 1
        self.now_s = max(self.now_s, until_s)
        return count
