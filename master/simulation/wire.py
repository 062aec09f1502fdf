"""The carrier of simulations without real training: passes payloads between objects of one process.

It has no files and polls only the mailboxes with messages. So the cost of a master's turn depends on the messages that
arrived, not on the number of workers. The carrier drops a damaged payload, as a real one does after checking its
SHA-256.

`MergingTime` simulates the time that merging takes: a number of seconds for each push, which pass before the master's
next turn.
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

Deliver = Callable[[int, bytes], None]  # called with the number and the payload of a reply
#: Returns (time up to which a process has lived, its lease, the vertex up to which the lease is trained).
ProgressSource = Callable[[], tuple[float, int, int]]
BEAT_S = 0.5  # seconds between two heartbeats of a live process, as in remote.stepped


def extrapolated(heartbeat: Heartbeat, lived_s: float) -> Heartbeat:
    """Return the present heartbeat of a process that has repeated `heartbeat` every `BEAT_S` until `lived_s`.

    Repeats are computed when the master reads them, so they need no actions of the clock.
    """
    return heartbeat._replace(number=heartbeat.number + int(lived_s / BEAT_S))


@final
class WireCodec(Codec):
    """Passes messages on as objects. Hostile messages are bytes, which the real codec reads."""

    def __init__(self) -> None:
        self._handed_over, self._written = InProcessCodec(), BundleCodec()

    def read(self, payload: Arrived, max_header: int = MAX_HEADER_BYTES) -> tuple[Sync, PushContent]:
        codec = self._handed_over if isinstance(payload, InProcessPayload) else self._written
        return codec.read(payload, max_header)

    def write(self, reply: Reply, replica: ReplicaPart) -> Payload:
        return self._handed_over.write(reply, replica)


@dataclass
class _Box:
    """The mailbox of one worker."""

    deliver: Deliver | None = None  # None until the worker's process listens
    progress: ProgressSource | None = None
    messages: dict[int, bytes] = field(default_factory=dict)  # messages that arrived and are not answered, by number
    heartbeat: Heartbeat | None = None  # the last one that the worker sent; its repeats are computed on reading


@final
class Wire(MasterMailboxes):
    """Both ends of the carrier. It outlives every master. A payload takes `travel_s` plus the delay by `delivery`."""

    carries_chunks = False

    def __init__(self, clock: VirtualClock, delivery: Delivery | None, travel_s: float = 0.0) -> None:
        self._clock = clock
        self._delivery = delivery
        self._travel_s = travel_s
        self._boxes: dict[str, _Box] = {}
        self._waiting: dict[str, None] = {}  # workers with messages, as a set in order of arrival
        self.sent = self.lost = 0  # number of messages and replies

    # --- the worker's end

    def listen(self, worker: str, deliver: Deliver, progress: ProgressSource | None = None) -> None:
        """Connect a worker's process. Replies go to `deliver`; `progress` gives the present state for heartbeats.
        Raises FileNotFoundError for a worker without a mailbox."""
        box = self._box(worker)
        box.deliver, box.progress = deliver, progress

    def send(self, worker: str, number: int, payload: bytes) -> None:
        """Send a message. Raises FileNotFoundError if the mailbox was closed."""
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
        # `Chances` returns an undamaged payload as the same object, so no digest is needed.
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
            # Bytes are not copied, because the copy of an `InProcessPayload` would lose its message object.
            carried = payload if isinstance(payload, bytes) else bytes(payload)
            self._travel(carried, lambda: self._hand_over(worker, number, carried))
        self.discard(worker, number)

    def discard(self, worker: str, number: int) -> None:
        box = self._boxes.get(worker)
        if box is None:
            return
        if len(box.messages) == 1 and number in box.messages:  # the usual case, without a new dict
            box.messages.clear()
        else:
            box.messages = {n: payload for n, payload in box.messages.items() if n > number}
        if not box.messages:
            self._waiting.pop(worker, None)

    def publish(self, name: str, payload: Payload) -> None:
        """Do nothing: this carrier has no chunks."""

    def retract(self, name: str) -> None:
        pass

    def heartbeat(self, worker: str) -> Heartbeat | None:
        box = self._boxes.get(worker)
        if box is None or box.heartbeat is None or box.progress is None:
            return None if box is None else box.heartbeat
        lived_s, lease, upto = box.progress()
        last = box.heartbeat
        if last.lease == lease and last.upto <= upto:  # otherwise it is hostile, and stays as it was sent
            last = last._replace(upto=upto)
        return extrapolated(last, lived_s)

    def clear(self) -> None:
        self._boxes.clear()
        self._waiting.clear()

    def close(self, worker: str) -> None:
        self._boxes.pop(worker, None)
        self._waiting.pop(worker, None)


@final
class MergingTime(Codec):
    """Wraps `codec`, and adds `merge_s` to `spent_s` for each reply to a merged push.

    Replies leave immediately, so a reply is too early by at most the merging time of one turn's pushes. The rate of
    merged pushes is right, because messages that arrive during the merging time wait for the next turn.
    """

    def __init__(self, codec: Codec, merge_s: float) -> None:
        self.spent_s = 0.0  # total seconds of merging; never reset
        self._codec = codec
        self._merge_s = merge_s

    def read(self, payload: Arrived, max_header: int = MAX_HEADER_BYTES) -> tuple[Sync, PushContent]:
        return self._codec.read(payload, max_header)

    def write(self, reply: Reply, replica: ReplicaPart) -> Payload:
        if reply.verdict is Verdict.MERGED:
            self.spent_s += self._merge_s
        return self._codec.write(reply, replica)
