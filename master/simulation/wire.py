"""The carrier of a simulation: payloads between objects of one process, each delivered as a plan says.

It keeps no files and looks only at mailboxes in which something lies, so the cost of a master's turn follows the
messages that arrived and not the number of workers. A payload that is altered or torn on its way is dropped, as its
SHA-256 would have it. `MergingTime` is what merging costs a simulated master: seconds for each push, which it
spends before it looks for messages again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from gridml.carriers.base import Heartbeat, MasterMailboxes, Message
from gridml.protocol.bundle import MAX_HEADER_BYTES
from gridml.protocol.codec import BundleCodec, Codec, InProcessCodec, InProcessPayload
from gridml.protocol.messages import Reply, Sync, Verdict
from gridml.protocol.payload import Arrived, Payload
from gridml.protocol.push import PushContent, ReplicaPart
from master.simulation.faulty_network import Delivery, VirtualClock

Deliver = Callable[[int, bytes], None]  # a reply's number and payload reach a worker
ProgressSource = Callable[
    [], tuple[float, int, int]
]  # of a process: until when it has lived, and at which vertex of which lease
BEAT_S = 0.5  # between two heartbeats of a process that lives, whatever it does: as remote.stepped has it


def going_on(heartbeat: Heartbeat, lived_s: float) -> Heartbeat:
    """Return the heartbeat that a process would have said by now that has lived until `lived_s`, on a clock that never
    stands still: it says its last one again and again."""
    return heartbeat._replace(number=heartbeat.number + int(lived_s / BEAT_S))


@final
class WireCodec(Codec):
    """Messages handed over as they are; what was written as bytes, as hostile ones are, passes the real codec."""

    def __init__(self) -> None:
        self._handed_over, self._written = InProcessCodec(), BundleCodec()

    def read(self, payload: Arrived, max_header: int = MAX_HEADER_BYTES) -> tuple[Sync, PushContent]:
        codec = self._handed_over if isinstance(payload, InProcessPayload) else self._written
        return codec.read(payload, max_header)

    def write(self, reply: Reply, replica: ReplicaPart) -> Payload:
        return self._handed_over.write(reply, replica)


@dataclass
class _Box:
    deliver: Deliver | None = None
    progress: ProgressSource | None = None
    messages: dict[int, bytes] = field(default_factory=dict)  # by number: whole, and not yet answered
    heartbeat: Heartbeat | None = None  # that the worker said when something began or ended


@final
class Wire(MasterMailboxes):
    """Both ends in one: it outlives every master. `travel_s` is how long a payload takes, beyond `delivery`."""

    carries_chunks = False

    def __init__(self, clock: VirtualClock, delivery: Delivery | None, travel_s: float = 0.0) -> None:
        self._clock = clock
        self._delivery = delivery
        self._travel_s = travel_s
        self._boxes: dict[str, _Box] = {}
        self._waiting: dict[str, None] = {}  # workers with messages, in the order of arrival
        self.sent = self.lost = 0

    # --- the worker's end

    def listen(self, worker: str, deliver: Deliver, progress: ProgressSource | None = None) -> None:
        """Replies to `worker` go there from now on, and its heartbeats go on by where it stands. Raises
        FileNotFoundError where it has no mailbox."""
        box = self._box(worker)
        box.deliver, box.progress = deliver, progress

    def send(self, worker: str, number: int, payload: bytes) -> None:
        """Raises FileNotFoundError when the mailbox was closed."""
        self._box(worker)
        self._travel(payload, lambda: self._arrive(worker, number, payload))

    def beat(self, worker: str, lease: int, upto: int) -> None:
        box = self._boxes.get(worker)
        if box is not None:
            box.heartbeat = Heartbeat(lease, upto, 1 if box.heartbeat is None else box.heartbeat.number + 1)

    def _box(self, worker: str) -> _Box:
        if worker not in self._boxes:
            raise FileNotFoundError(f"the mailbox of {worker} was closed")
        return self._boxes[worker]

    def _travel(self, payload: bytes, arrive: Callable[[], None]) -> None:
        self.sent += 1
        now = self._clock.now_s + self._travel_s
        if self._delivery is None:
            self._clock.at(now, arrive)
            return
        whole = [delay for delay, arrived in self._delivery(payload) if arrived is payload]
        self.lost += not whole
        for delay in whole:
            self._clock.at(now + delay, arrive)

    def _arrive(self, worker: str, number: int, payload: bytes) -> None:
        box = self._boxes.get(worker)
        if box is not None:
            box.messages[number] = payload
            self._waiting[worker] = None

    def _hand_over(self, worker: str, number: int, payload: bytes) -> None:
        box = self._boxes.get(worker)
        if box is not None and box.deliver is not None:
            box.deliver(number, payload)

    # --- the master's end

    def open(self, worker: str) -> None:
        self._boxes.setdefault(worker, _Box())

    def collect(self) -> list[Message]:
        return [Message(worker, *max(self._boxes[worker].messages.items())) for worker in self._waiting]

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        if worker in self._boxes:
            carried = payload if isinstance(payload, bytes) else bytes(payload)
            self._travel(carried, lambda: self._hand_over(worker, number, carried))
        self.discard(worker, number)

    def discard(self, worker: str, number: int) -> None:
        box = self._boxes.get(worker)
        if box is None:
            return
        if len(box.messages) == 1 and number in box.messages:
            box.messages.clear()
        else:
            box.messages = {n: payload for n, payload in box.messages.items() if n > number}
        if not box.messages:
            self._waiting.pop(worker, None)

    def publish(self, name: str, payload: Payload) -> None:
        """Nothing: there are no chunks."""

    def retract(self, name: str) -> None:
        pass

    def heartbeat(self, worker: str) -> Heartbeat | None:
        box = self._boxes.get(worker)
        if box is None or box.heartbeat is None or box.progress is None:
            return None if box is None else box.heartbeat
        lived_s, lease, upto = box.progress()
        said = box.heartbeat
        if said.lease == lease and said.upto <= upto:  # hostile ones say what they like
            said = said._replace(upto=upto)
        return going_on(said, lived_s)

    def clear(self) -> None:
        self._boxes.clear()
        self._waiting.clear()

    def close(self, worker: str) -> None:
        self._boxes.pop(worker, None)
        self._waiting.pop(worker, None)


@final
class MergingTime(Codec):
    """Reads and writes as `codec` does, and counts `merge_s` for each push that is answered as merged.

    Answers leave at once, so a push whose master is behind is answered too early, by no more than one group's time;
    what comes meanwhile waits, so no more are merged than the time allows.
    """

    def __init__(self, codec: Codec, merge_s: float) -> None:
        self.spent_s = 0.0
        self._codec = codec
        self._merge_s = merge_s

    def read(self, payload: Arrived, max_header: int = MAX_HEADER_BYTES) -> tuple[Sync, PushContent]:
        return self._codec.read(payload, max_header)

    def write(self, reply: Reply, replica: ReplicaPart) -> Payload:
        if reply.verdict is Verdict.MERGED:
            self.spent_s += self._merge_s
        return self._codec.write(reply, replica)
