"""A worker that only takes time: it holds leases, pushes and leaves as a real one does, and trains nothing.

It keeps to the rules of a session, on which exact credit rests: a push continues its lease from the last one, at most
one is under way, what a refused push held is dropped, and a message without an answer is sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, final

from chunk_model.costs import Costs
from gridml.protocol.codec import InProcessPayload, spoken
from gridml.protocol.messages import Lease, Push, Reply, Sync, Verdict

RESEND_S = 15.0  # as couriers do


class Line(Protocol):
    """A worker's end of the wire, with its time."""

    @property
    def now_s(self) -> float: ...
    def send(self, number: int, payload: bytes) -> None: ...
    def beat(self, lease: int, upto: int) -> None: ...


class Gone(Exception):
    """There is nothing more to do, or nobody to do it for."""


@dataclass
class _Work:
    lease: Lease
    at: int  # positions up to here are trained,
    pushed: int  # and up to here were sent,
    sequence: int = 0  # in so many pushes


@final
class CostOnlyWorker:
    """The life of one worker process, one wait at a time. `speed` divides its training time; `chunks` it trains at
    most; `kind` says what machine it is on."""

    def __init__(
        self, name: str, costs: Costs, line: Line, speed: float = 1.0, chunks: int | None = None, kind: str = ""
    ) -> None:
        self.name = name
        self._costs = costs
        self._line = line
        self._vertex_s = costs.exec_s / speed
        self._chunks = chunks
        self._leases: deque[Lease] = deque()
        self._work: _Work | None = None
        self._version = -1
        self._number = 0  # of the last message
        self._sync: Sync | None = None  # the message under way,
        self._reply: Reply | None = None  # and its answer
        self._push_every = 0
        self._evicted = False
        self._trained = 0
        self._train_s = 0.0
        self._kind = kind
        self._begun = self._begun_vertices = 0
        self._begin_s = self._end_s = self._travel_s = 0.0
        self._ended_s: float | None = None  # when the last lease was trained to its end, until another is in hand
        self._posted_s = self._sent_s = 0.0  # when the message under way was posted first, and last
        self.woken: Callable[[], None] = lambda: None  # called when something comes that a wait may be cut short for
        self.interruptible = False  # whether the wait that was yielded last may be cut short

    def evict(self) -> None:
        """SIGTERM: push what there is and leave."""
        self._evicted = True
        self.woken()

    def heard(self, number: int, payload: bytes) -> None:
        """An answer has come."""
        if number == self._number and self._sync is not None and isinstance(payload, InProcessPayload):
            message = payload.message
            if isinstance(message, Reply):
                if self._reply is None and self._sync.push is not None:
                    self._travel_s = self._line.now_s - self._posted_s
                self._reply = message
                self.woken()

    def life(self) -> Iterator[float]:
        """Everything it does. Yields the seconds to wait before it goes on."""
        try:
            yield self._costs.boot_s
            while True:
                if self._work is None:
                    yield from self._obtain()
                else:
                    yield from self._advance(self._work)
        except (Gone, FileNotFoundError):
            return

    def _obtain(self) -> Iterator[float]:
        """The next lease: one that came ahead, or ask until there is one."""
        while not self._leases:
            self._leave_if_asked()
            if self._sync is not None:
                yield from self._settle()
            elif self._chunks is not None and self._chunks <= 0:
                self._post(self._said(leaving=True))
                raise Gone
            else:
                self._post(self._said(wants=True))
                reply = yield from self._settle()
                if reply.lease is None:
                    self._end_measured()
                    yield reply.wait_s
        self._end_measured()
        lease = self._leases.popleft()
        self._chunks = None if self._chunks is None else self._chunks - 1
        self._work = _Work(lease, lease.start, lease.start)
        self._line.beat(lease.id, lease.start)
        began, vertices = self._line.now_s, lease.stop - lease.start
        yield self._costs.start_s + vertices * self._costs.copy_s
        self._begun, self._begun_vertices, self._begin_s = self._begun + 1, vertices, self._line.now_s - began

    def _end_measured(self) -> None:
        if self._ended_s is not None:
            self._end_s, self._ended_s = self._line.now_s - self._ended_s, None

    def _advance(self, work: _Work) -> Iterator[float]:
        """Train up to the next push, and send it; or let go of the lease."""
        if work.at >= work.lease.stop:
            yield from self._finish(work)
            return
        due = min(work.lease.stop, work.pushed + self._push_every) if self._push_every else work.lease.stop
        overdue = due <= work.at  # the last push has no answer yet: train on until it has
        if overdue:
            due = work.lease.stop
        if self._sync is not None:  # and send it again meanwhile
            left_s = self._sent_s + RESEND_S - self._line.now_s
            due = min(due, work.at + max(1, int(left_s / self._vertex_s)))
        began = self._line.now_s
        self.interruptible = overdue
        yield (due - work.at) * self._vertex_s
        self.interruptible = False
        passed = self._line.now_s - began
        done = due - work.at
        if overdue and (self._reply is not None or self._evicted):  # the wait may have been cut short
            done = min(done, round(passed / self._vertex_s))
        # Else it was waited out and all is trained, whatever the clock tells: half of its last digit does not move it.
        work.at += done
        self._trained += done
        self._train_s += passed
        self._line.beat(work.lease.id, work.at)
        if self._reply is not None:
            self._hear()
        elif self._sync is not None and self._line.now_s - self._sent_s > RESEND_S - self._vertex_s:
            self._send(self._sync)
        self._leave_if_asked()
        enough = work.at - work.pushed >= self._push_every > 0
        nearly_done = work.lease.stop - work.at < self._push_every // 2
        if self._work is work and self._sync is None and enough and not nearly_done:
            yield from self._push(work)

    def _finish(self, work: _Work) -> Iterator[float]:
        ended = self._line.now_s
        while self._sync is not None:
            yield from self._settle()
        if self._work is not work or work.at < work.lease.stop:
            return
        if work.at > work.lease.stop:
            self._drop()  # it was cut behind our back
            return
        if self._costs.end_s:
            yield self._costs.end_s
        self._work, self._ended_s = None, ended
        if work.at > work.pushed:
            yield from self._push(work)

    def _push(self, work: _Work) -> Iterator[float]:
        if self._costs.push_s:
            yield self._costs.push_s
        self._send_push(work)

    def _send_push(self, work: _Work, *, leaving: bool = False) -> None:
        work.sequence += 1
        lease = work.lease
        push = Push(lease.id, lease.term, work.sequence, self._version, work.at, work.at - work.pushed)
        work.pushed = work.at
        wants = not self._leases and (self._chunks is None or self._chunks > 0)
        self._post(self._said(push=push, wants=wants, leaving=leaving))

    def _leave_if_asked(self) -> None:
        if not self._evicted:
            return
        work = self._work
        if self._sync is None and work is not None and work.pushed < work.at <= work.lease.stop:
            self._send_push(work, leaving=True)
        elif self._sync is None:
            self._post(self._said(leaving=True))
        raise Gone

    def _settle(self) -> Generator[float, None, Reply]:
        """Wait for the answer to the message under way, and send it again until it comes."""
        sync = self._sync
        assert sync is not None
        while self._reply is None:
            self._leave_if_asked()
            self.interruptible = True
            yield RESEND_S
            self.interruptible = False
            if self._reply is None:
                self._send(sync)
        return self._hear()

    def _hear(self) -> Reply:
        reply, sync = self._reply, self._sync
        assert reply is not None and sync is not None
        self._reply = self._sync = None
        self._version, self._push_every = reply.version, reply.pace.push_every
        if reply.lease is not None:
            self._leases.append(reply.lease)
        if reply.verdict is Verdict.REFUSED:
            self._drop()
        elif reply.stop_at is not None and self._work is not None:
            pushed = sync.push is not None and sync.push.lease == self._work.lease.id
            if pushed and reply.stop_at < self._work.lease.stop:
                self._work.lease = replace(self._work.lease, stop=reply.stop_at)
        if reply.leave:
            raise Gone
        return reply

    def _drop(self) -> None:
        self._work = None
        self._leases.clear()
        self._version = -1

    def _post(self, sync: Sync) -> None:
        self._number += 1
        self._sync, self._reply, self._posted_s = sync, None, self._line.now_s
        self._send(sync)

    def _send(self, sync: Sync) -> None:
        self._sent_s = self._line.now_s
        self._line.send(self._number, spoken(sync))

    def _said(self, *, wants: bool = False, leaving: bool = False, push: Push | None = None) -> Sync:
        held = [*self._leases] if self._work is None else [self._work.lease, *self._leases]
        return Sync(
            self.name,
            have=self._version,
            holds=tuple(lease.id for lease in held),
            wants=wants,
            leaving=leaving,
            push=push,
            trained=self._trained,
            train_s=self._train_s,
            push_s=self._costs.push_s or 0.0,
            travel_s=self._travel_s,
            kind=self._kind,
            begun=self._begun,
            begun_vertices=self._begun_vertices,
            begin_s=self._begin_s,
            end_s=self._end_s,
        )
