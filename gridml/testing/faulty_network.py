"""A carrier in memory on which anything may happen to a payload: for simulations and tests.

What happens is a plain function of the payload, its *fate*: the arrivals it has, each with a delay and the bytes that
arrive. None is a loss, two are a repetition, different delays reorder, and bytes may be altered or missing: their
SHA-256, which travels beside them, then gives them away, and a damaged payload counts as none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

from gridml.carriers.base import MasterMailboxes, Message, WorkerMailbox
from gridml.protocol import bundle

Delivery = Callable[[bytes], Sequence[tuple[float, bytes]]]  # arrivals of a payload: (delay in seconds, bytes)


def on_time(payload: bytes) -> list[tuple[float, bytes]]:
    """The fate of a payload that nothing happens to."""
    return [(0.0, payload)]


@dataclass(frozen=True)
class Chances:
    """How often a payload is lost, repeated, truncated and altered (0 to 1), and the longest delay in seconds."""

    lose: float = 0.0
    repeat: float = 0.0
    truncate: float = 0.0
    corrupt: float = 0.0
    delay_s: float = 0.0

    def fate(self, seed: int) -> Delivery:
        """Draws these chances from a seed: the same payloads in the same order have the same fates."""
        draw = random.Random(seed)

        def decide(payload: bytes) -> list[tuple[float, bytes]]:
            if draw.random() < self.lose:
                return []
            copies = 2 if draw.random() < self.repeat else 1
            return [(draw.uniform(0.0, self.delay_s), self._damaged(payload, draw)) for _ in range(copies)]

        return decide

    def _damaged(self, payload: bytes, draw: random.Random) -> bytes:
        if draw.random() < self.truncate:
            return truncated(payload, draw.random())
        if draw.random() < self.corrupt:
            return corrupted(payload, draw.randrange(max(1, len(payload) * 8)))
        return payload


def truncated(payload: bytes, share: float) -> bytes:
    """The first `share` (0 to 1, not 1) of a payload."""
    return payload[: int(len(payload) * share)]


def corrupted(payload: bytes, bit: int) -> bytes:
    """A payload with one bit flipped."""
    damaged = bytearray(payload)
    if damaged:
        damaged[bit // 8 % len(damaged)] ^= 1 << bit % 8
    return bytes(damaged)


@dataclass
class _Parcel:
    """A payload under way. `sha256` is that of what was sent."""

    at_s: float
    number: int
    payload: bytes
    sha256: str


@dataclass
class _Box:
    syncs: list[_Parcel] = field(default_factory=list)
    replies: list[_Parcel] = field(default_factory=list)
    progress: tuple[int, int] | None = None


@final
class FaultyNetwork:
    """All mailboxes and published chunks of a run. `fate` decides on what is sent, and may be exchanged any time."""

    def __init__(self, clock: Callable[[], float], fate: Delivery = on_time) -> None:
        self.clock = clock
        self.fate = fate
        self.boxes: dict[str, _Box] = {}
        self.chunks: dict[str, bytes] = {}

    def master(self) -> MasterMailboxes:
        """The master's end; a master that starts again makes a new one, and finds what was sent meanwhile."""
        return _FaultyMaster(self)

    def worker(self, name: str) -> WorkerMailbox:
        """A worker's end."""
        return _FaultyWorker(self, name)

    def sent(self, number: int, payload: bytes) -> list[_Parcel]:
        """What a payload becomes on its way."""
        sha256 = bundle.digest(payload)
        return [_Parcel(self.clock() + delay, number, arrived, sha256) for delay, arrived in self.fate(payload)]

    def arrived(self, way: list[_Parcel]) -> list[_Parcel]:
        """What has arrived whole, by number. Damaged parcels are dropped, as whoever finds one does."""
        now = self.clock()
        there = [p for p in way if p.at_s <= now]
        whole = [p for p in there if bundle.digest(p.payload) == p.sha256]
        for parcel in there:
            if parcel not in whole:
                way.remove(parcel)
        return sorted(whole, key=lambda p: p.number)


@final
class _FaultyWorker(WorkerMailbox):
    def __init__(self, post: FaultyNetwork, name: str) -> None:
        self._post = post
        self._name = name

    def send(self, number: int, payload: bytes) -> None:
        if self._name not in self._post.boxes:
            raise FileNotFoundError(f"the mailbox of {self._name} was closed")
        self._post.boxes[self._name].syncs += self._post.sent(number, payload)

    def receive(self, number: int) -> bytes | None:
        box = self._post.boxes.get(self._name)
        if box is None:
            raise FileNotFoundError(f"the mailbox of {self._name} was closed")
        found = None
        for parcel in self._post.arrived(box.replies):
            if parcel.number <= number:
                box.replies.remove(parcel)
                found = parcel.payload if parcel.number == number else found
        return found

    def fetch(self, name: str, sha256: str) -> bytes:
        arrivals = self._post.fate(self._post.chunks[name]) if name in self._post.chunks else []
        if not arrivals:
            raise FileNotFoundError(f"chunk {name} cannot be had")
        payload = arrivals[0][1]
        if bundle.digest(payload) != sha256:
            raise ValueError(f"chunk {name} has another SHA-256 than its lease says")
        return payload

    def beat(self, lease: int, upto: int) -> None:
        if self._name in self._post.boxes:
            self._post.boxes[self._name].progress = (lease, upto)

    def close(self) -> None:
        pass


@final
class _FaultyMaster(MasterMailboxes):
    def __init__(self, post: FaultyNetwork) -> None:
        self._post = post

    def open(self, worker: str) -> None:
        self._post.boxes.setdefault(worker, _Box())

    def collect(self) -> list[Message]:
        found = []
        for worker, box in sorted(self._post.boxes.items()):
            newest = {p.number: p.payload for p in self._post.arrived(box.syncs)}
            found += [Message(worker, number, payload) for number, payload in newest.items()]
        return found

    def answer(self, worker: str, number: int, payload: bytes) -> None:
        if worker in self._post.boxes:
            self._post.boxes[worker].replies += self._post.sent(number, payload)
        self.discard(worker, number)

    def discard(self, worker: str, number: int) -> None:
        box = self._post.boxes.get(worker)
        for parcel in [] if box is None else self._post.arrived(box.syncs):
            if box is not None and parcel.number <= number:
                box.syncs.remove(parcel)

    def publish(self, name: str, payload: bytes) -> None:
        self._post.chunks[name] = payload

    def retract(self, name: str) -> None:
        self._post.chunks.pop(name, None)

    def heartbeat(self, worker: str) -> tuple[int, int] | None:
        box = self._post.boxes.get(worker)
        return None if box is None else box.progress

    def clear(self) -> None:
        self._post.boxes.clear()

    def close(self, worker: str) -> None:
        self._post.boxes.pop(worker, None)
