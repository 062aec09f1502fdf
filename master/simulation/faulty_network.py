"""A carrier in memory on which anything may happen to a payload: for simulations and tests.

What happens is a plain function of the payload, its *delivery*: the arrivals it has, each with a delay and the bytes
that arrive. None is a loss, two are a repetition, different delays reorder, and bytes may be altered or missing: their
SHA-256, which travels beside them, then gives them away, and a damaged payload counts as none.

A clock that jumps: time passes only when somebody asks for it, and what is due by then happens in its order.
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

Delivery = Callable[[bytes], Sequence[tuple[float, bytes]]]  # arrivals of a payload: (delay in seconds, bytes)


def on_time(payload: bytes) -> list[tuple[float, bytes]]:
    """Deliver a payload to which nothing happens."""
    return [(0.0, payload)]


@dataclass(frozen=True)
class Chances:
    """How often a payload is lost, repeated, truncated and altered (0 to 1), and the longest delay in seconds."""

    lose: float = 0.0
    repeat: float = 0.0
    truncate: float = 0.0
    corrupt: float = 0.0
    delay_s: float = 0.0

    def delivery(self, seed: int) -> Delivery:
        """Return a delivery drawn from a seed: the same payloads in the same order arrive in the same way."""
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
    """Return the first `share` (0 to 1, not 1) of a payload."""
    return payload[: int(len(payload) * share)]


def corrupted(payload: bytes, bit: int) -> bytes:
    """Return a payload with one bit flipped."""
    damaged = bytearray(payload)
    if damaged:
        damaged[bit // 8 % len(damaged)] ^= 1 << bit % 8
    return bytes(damaged)


@dataclass
class Arrival:
    """A payload that arrives at `at_s`, whole if `sha256`, which is that of what was sent, is its own."""

    at_s: float
    number: int
    payload: bytes
    sha256: str


@dataclass
class Mailbox:
    """What is on its way from and to one worker, and its last heartbeat."""

    syncs: list[Arrival] = field(default_factory=list)
    replies: list[Arrival] = field(default_factory=list)
    heartbeat: Heartbeat | None = None


@final
class FaultyNetwork:
    """All mailboxes and published chunks of a run. `deliver` decides on what is sent, and may be exchanged any time."""

    def __init__(self, clock: Callable[[], float], deliver: Delivery = on_time) -> None:
        self.clock = clock
        self.deliver = deliver
        self.mailboxes: dict[str, Mailbox] = {}
        self.chunks: dict[str, bytes] = {}

    def master(self) -> MasterMailboxes:
        """Return the master's end; a master that starts again makes a new one, and finds what was sent meanwhile."""
        return _FaultyMaster(self)

    def worker(self, name: str) -> WorkerMailbox:
        """Return the end of a worker."""
        return _FaultyWorker(self, name)

    def sent(self, number: int, payload: Payload) -> list[Arrival]:
        """Return what a payload becomes on its way."""
        now_s, sha256 = self.clock(), bundle.digest(payload)
        return [Arrival(now_s + delay_s, number, arrived, sha256) for delay_s, arrived in self.deliver(bytes(payload))]

    def arrived(self, on_the_way: list[Arrival]) -> list[Arrival]:
        """Return what has arrived whole, by number. What is damaged is dropped, as whoever gets it does."""
        now_s = self.clock()
        due = [arrival for arrival in on_the_way if arrival.at_s <= now_s]
        whole = [arrival for arrival in due if bundle.digest(arrival.payload) == arrival.sha256]
        for arrival in due:
            if arrival not in whole:
                on_the_way.remove(arrival)
        return sorted(whole, key=lambda arrival: arrival.number)


@final
class _FaultyWorker(WorkerMailbox):
    def __init__(self, network: FaultyNetwork, name: str) -> None:
        self._network = network
        self._name = name

    def send(self, number: int, payload: Payload) -> None:
        self._mailbox().syncs += self._network.sent(number, payload)

    def receive(self, number: int) -> bytes | None:
        replies, payload = self._mailbox().replies, None
        for reply in self._network.arrived(replies):
            if reply.number <= number:
                replies.remove(reply)
                payload = reply.payload if reply.number == number else payload
        return payload

    def fetch(self, name: str, sha256: str) -> bytes:
        chunks = self._network.chunks
        arrivals = self._network.deliver(chunks[name]) if name in chunks else []
        if not arrivals:
            raise FileNotFoundError(f"chunk {name} cannot be had")
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

    def open(self, worker: str) -> None:
        self._network.mailboxes.setdefault(worker, Mailbox())

    def collect(self) -> list[Message]:
        messages = []
        for worker, mailbox in sorted(self._network.mailboxes.items()):
            for sync in self._network.arrived(mailbox.syncs)[-1:]:
                problem = "" if len(sync.payload) <= self.longest else f"it has {len(sync.payload):,} bytes"
                messages.append(Message(worker, sync.number, b"" if problem else sync.payload, problem))
        return messages

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        if worker in self._network.mailboxes:
            self._network.mailboxes[worker].replies += self._network.sent(number, payload)
        self.discard(worker, number)

    def discard(self, worker: str, number: int) -> None:
        syncs = self._network.mailboxes[worker].syncs if worker in self._network.mailboxes else []
        for sync in self._network.arrived(syncs):
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
    """Seconds since an arbitrary start, which a call returns. Actions planned for one instant happen in that order."""

    def __init__(self, start_s: float = 0.0) -> None:
        self.now_s = start_s
        self._planned: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()

    def __call__(self) -> float:
        return self.now_s

    def at(self, time_s: float, action: Action) -> None:
        """Plan an action; what lies in the past happens at the next advance."""
        heapq.heappush(self._planned, (time_s, next(self._numbers), action))

    @property
    def next_s(self) -> float | None:
        """When the next planned thing is due, None if there is none."""
        return self._planned[0][0] if self._planned else None

    def sleep(self, seconds: float) -> None:
        """Let that much time pass: what stands in for time.sleep."""
        self.advance(self.now_s + seconds)

    def advance(self, until_s: float) -> int:
        """Let time pass up to `until_s` and what is due by then happen; return how many things did."""
        count, planned = 0, self._planned
        while planned and planned[0][0] <= until_s:
            time_s, _, action = heapq.heappop(planned)
            self.now_s = max(self.now_s, time_s)
            action()
            count += 1
        self.now_s = max(self.now_s, until_s)
        return count
