"""Measurements of a run's workers: the cost of their chunks, their speed, and how long they live.

They are kept by kind of machine, as workers name it, and for all together. Only the last few dozen measures of each
sort are remembered, and a few hundred lives: memory grows with the workers that live, and with nothing else.
`CopyCosts` measures what it takes to copy vertices: bytes of a vertex in a chunk, and the master's seconds per byte
and per chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from chunk_model.goodput import Costs
from chunk_model.observations import Observations
from gridml.protocol.foreign import MAX_DURATION_S, MIN_VERTEX_S
from gridml.protocol.messages import Sync
from master.state.jobs import State
from master.state.spans import Delay
from master.state.worker_records import WorkerLife, WorkerRecord
from master.store.reader import PushCosts
from master.store.rundir import ORPHANED
from master.telemetry.staffing import RECENT_S, Queue

BYTE_S = 1e-8  # seconds for a byte, where measures cannot tell it from what is alike for every chunk: 100 MB/s
_COPYING_FADING = 0.9  # bytes are weighed over the last ten chunks or so


def fit_line(points: Sequence[tuple[float, float]], usual: float = 0.0) -> tuple[float, float]:
    """(t_s, t_c) of the points (n, seconds): the least squares of t_s + n·t_c, neither negative.

    Where all n are alike, or more take less time, they cannot be told apart: t_c is then as `usual`, as far as that
    explains the seconds, and the rest is t_s. (0, 0) without points.
    """
    if not points:
        return 0.0, 0.0
    mean_n = sum(n for n, _ in points) / len(points)
    mean_s = sum(s for _, s in points) / len(points)
    spread = sum((n - mean_n) ** 2 for n, _ in points)
    slope = 0.0
    if spread > 1e-6 * mean_n**2 * len(points):
        slope = sum((n - mean_n) * (s - mean_s) for n, s in points) / spread
    if slope <= 0:
        slope = min(usual, mean_s / mean_n) if mean_n > 0 else 0.0
        return max(0.0, mean_s - slope * mean_n), slope
    if mean_s - slope * mean_n < 0:
        return 0.0, sum(n * s for n, s in points) / sum(n * n for n, _ in points)
    return mean_s - slope * mean_n, slope


class CopyCosts:
    """One master's measures. `vertex_bytes` are guessed from the graph until chunks were cut."""

    def __init__(self, vertex_bytes: float = 0.0) -> None:
        self.vertex_bytes = vertex_bytes
        self._vertices = self._bytes = 0.0  # of late
        self.nbytes = 0  # of all chunks
        self._grants: deque[tuple[float, float]] = deque(maxlen=MAX_MEASURES)  # (bytes, seconds)

    @property
    def vertex_s(self) -> float:
        """Seconds for a vertex, where they were not measured."""
        return self.vertex_bytes * BYTE_S

    @property
    def grant_s(self) -> float:
        """The master's seconds for a lease, however large it is: those for its bytes are not among them."""
        return fit_line(self._grants, BYTE_S)[0]

    def cut(self, vertices: int, nbytes: int) -> None:
        """Take note of a chunk that was cut."""
        if not nbytes:
            return  # none travels
        self.nbytes += nbytes
        self._vertices = _COPYING_FADING * self._vertices + vertices
        self._bytes = _COPYING_FADING * self._bytes + nbytes
        self.vertex_bytes = self._bytes / self._vertices

    def grant(self, leases: int, nbytes: int, seconds: float) -> None:
        """Take note of what it took the master to grant so many leases, with so many bytes of chunks."""
        if leases:
            self._grants.append((nbytes / leases, seconds / leases))


MAX_MEASURES = 64  # measures of one sort
MIN_MEASURES = 3  # measures of a kind's own; with fewer those of all kinds are believed
MAX_KINDS = 16  # that are told apart: their names come from other machines
MAX_LIVES = 512  # in a sample
UNMEASURED_PUSH_S = 0.1  # seconds of training that a push costs, until a worker has told,
UNMEASURED_TRAVEL_S = 10.0  # and from sending it to its answer: a worker is taken for late only after that
SLACK, SLACK_S = 1.1, 1.0  # by which a worker's clock and ours may differ
_FADING = 0.999  # training is weighed over the last thousand or so syncs


def died(state: str, cancelled: bool, detail: str) -> bool:
    """Whether the end of a worker is one of its machine's: not when the master ended it, its work was done, or a master
    left it behind."""
    return not cancelled and (state == State.EVICTED or (state == State.LOST and detail != ORPHANED))


def _is_plausible_speed(vertices: int, seconds: float) -> bool:
    """Whether so many vertices can have been trained in that time."""
    return vertices > 0 and MIN_VERTEX_S * vertices <= seconds <= MAX_DURATION_S


def _recent() -> deque[float]:
    return deque(maxlen=MAX_MEASURES)


@dataclass
class KindMeasures:
    """What was measured of one kind of worker, in seconds; `begun` are (vertices, seconds) of chunks begun."""

    begun: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=MAX_MEASURES))
    ends: deque[float] = field(default_factory=_recent)
    pushes: deque[float] = field(default_factory=_recent)
    travels: deque[float] = field(default_factory=_recent)
    boots: deque[float] = field(default_factory=_recent)
    waits: deque[float] = field(default_factory=_recent)
    trained: float = 0.0  # vertices, and
    train_s: float = 0.0  # what they took; both of late

    def train(self, vertices: int, seconds: float) -> None:
        self.trained = _FADING * self.trained + vertices
        self.train_s = _FADING * self.train_s + seconds

    @property
    def exec_s(self) -> float | None:
        """t_x, seconds to train a vertex; None before any was."""
        return self.train_s / self.trained if self.trained > 0 and self.train_s > 0 else None


class Speeds:
    """The sum of the speeds of the workers that live; each is in its worker's record."""

    def __init__(self) -> None:
        self.count = 0  # of workers that have a speed
        self._total = self._rounded = 0.0

    def put(self, record: WorkerRecord, speed: float) -> None:
        """Take note that a worker trains `speed` vertices per second."""
        self.drop(record)
        record.measured.speed = speed
        self.count += 1
        self._add(speed)

    def drop(self, record: WorkerRecord) -> None:
        """Leave out a worker that trains no more. Idempotent."""
        if record.measured.speed is not None:
            self.count -= 1
            self._add(-record.measured.speed)
            record.measured.speed = None

    def _add(self, speed: float) -> None:
        """Keep what rounding takes from the sum (Neumaier's summation): over a long run it would add up."""
        total = self._total + speed
        lost = (self._total - total) + speed if abs(self._total) >= abs(speed) else (speed - total) + self._total
        self._total, self._rounded = total, self._rounded + lost

    @property
    def total(self) -> float:
        return max(0.0, self._total + self._rounded) if self.count else 0.0

    @property
    def mean(self) -> float | None:
        """None before any worker has trained."""
        return self.total / self.count if self.total > 0 else None


class Lives:
    """Lives from RUNNING to their end: all are counted, and every k-th in the order of their beginnings is remembered.

    That sample is fair: whether a life is in it has nothing to do with how long it lasts. The newest ones, say, would
    all be young where thousands live at once. k is doubled whenever there are more than `limit`. A life that goes on
    is in its worker's record.
    """

    def __init__(self, limit: int = MAX_LIVES) -> None:
        self.deaths = 0
        self._limit = limit
        self._every = 1
        self._begun = 0
        self._sample: dict[int, WorkerLife] = {}  # by number, in the order of their beginnings
        self._living = 0
        self._sum_s = 0.0  # of the beginnings of all that live
        self._past_s = 0.0  # lived by all that have ended

    def begin(self, record: WorkerRecord, at_s: float) -> None:
        """Begin the life of a worker that runs for the first time; it counts once."""
        if record.measured.life is not None:
            return
        record.measured.life = WorkerLife(at_s, record.measured.kind)
        self._living += 1
        self._sum_s += at_s
        if self._begun % self._every == 0:
            self._sample[self._begun] = record.measured.life
        self._begun += 1
        if len(self._sample) > self._limit:
            self._every *= 2
            self._sample = {n: life for n, life in self._sample.items() if n % self._every == 0}

    def end(self, record: WorkerRecord, at_s: float, *, died: bool) -> None:
        """End a worker's life. One that never ran, or has ended before, does not count."""
        life = record.measured.life
        if life is None:
            return
        record.measured.life = None
        self._living -= 1
        self._sum_s -= life.began_s
        self._past_s += max(0.0, at_s - life.began_s)
        self.deaths += died
        life.ended_s, life.died = max(at_s, life.began_s), died

    def exposure_s(self, now: float) -> float:
        """Seconds lived by all workers together."""
        return max(0.0, self._past_s + self._living * now - self._sum_s)

    def observations(self, now: float, kind: str | None = None) -> Observations:
        """The sample, or those in it that are of one kind; the living are censored."""
        lives = [life for life in self._sample.values() if kind is None or life.kind == kind]
        end = [now if life.ended_s is None else life.ended_s for life in lives]
        lasted = [max(0.0, end_s - life.began_s) for life, end_s in zip(lives, end, strict=True)]
        return Observations(np.array(lasted), np.array([life.died for life in lives], np.bool_), np.array(end))


class Measures:
    """All of it, for one master. What was last heard of a worker is in its record."""

    def __init__(self, vertex_bytes: float = 0.0) -> None:
        self.copying = CopyCosts(vertex_bytes)
        self.all = KindMeasures()
        self.kinds: dict[str, KindMeasures] = {}
        self.speeds = Speeds()
        self.lives = Lives()
        self._starts: deque[float] = deque()  # of workers, within the last `RECENT_S`

    def submit(self, record: WorkerRecord, now: float) -> None:
        if record.measured.submitted_s is None:
            record.measured.submitted_s = now

    def run(self, record: WorkerRecord, now: float) -> None:
        """Begin the worker's life, unless it runs on: its wait and its boot are measured the first time."""
        own = record.measured
        self.lives.begin(record, now if own.started_s is None else own.started_s)
        if own.started_s is None:
            own.started_s = now
            self._starts.append(now)
            self._forget_starts(now)
            if own.submitted_s is not None:
                self.all.waits.append(max(0.0, now - own.submitted_s))  # clocks are set back at times
            if own.message_s is not None:  # before the back end told of it
                self._boot(record, own.message_s - now)

    def queue(self, queue: Queue, now: float) -> Queue:
        """Return a queue with what has been seen of how jobs leave it."""
        self._forget_starts(now)
        deaths, waits = self.lives.deaths, self.all.waits
        return replace(
            queue,
            started=len(self._starts),
            wait_s=sum(waits) / len(waits) if waits else None,
            life_s=self.lives.exposure_s(now) / deaths if deaths else None,
        )

    def _forget_starts(self, now: float) -> None:
        while self._starts and self._starts[0] <= now - RECENT_S:
            self._starts.popleft()

    def recall(self, record: WorkerRecord, row: Mapping[str, Any]) -> None:
        """Take up the life of a worker that an earlier master saw start, as its ledger row has it."""
        if row["state"] == State.HELD:
            return  # its life ended when it was held, and begins anew when it is released
        own = record.measured
        own.submitted_s, own.started_s = row["submitted_s"], row["started_s"]
        own.message_s = row["first_sync_s"]
        own.kind = self._kind(row["kind"] or "")
        if row["started_s"] is not None:
            self.lives.begin(record, row["started_s"])
        if row["ended_s"] is not None:
            by_machine = died(row["state"], bool(row["cancelled"]), row["detail"] or "")
            self.lives.end(record, row["ended_s"], died=by_machine)

    def hold(self, record: WorkerRecord, now: float) -> None:
        """End a life that its machine did not end: the worker lives anew when it is released."""
        self.end(record, now, died=False)
        own = record.measured
        own.submitted_s = own.started_s = own.message_s = None
        own.trained, own.train_s, own.begun = 0, 0.0, 0

    def end(self, record: WorkerRecord, now: float, *, died: bool) -> None:
        self.speeds.drop(record)
        self.lives.end(record, now, died=died)

    def give_up(self, record: WorkerRecord, now: float, *, died: bool = True) -> None:
        """End a life that nobody saw end: a silent worker lived until it was last heard."""
        last_s = record.measured.message_s or record.measured.started_s or now
        self.end(record, last_s, died=died)

    def handle_sync(self, record: WorkerRecord, sync: Sync, now: float, *, worked: bool = True) -> None:
        """Take what a worker says of itself, as far as it can be true. What it says of its costs is believed only when
        it has `worked`, and its work came with it; and nothing has taken longer than the worker lives."""
        own = record.measured
        if sync.kind != own.kind:
            own.kind = self._kind(sync.kind)
            if own.life is not None:
                own.life.kind = own.kind
        kinds = self._kinds(record)
        if own.message_s is None and own.started_s is not None:
            self._boot(record, now - own.started_s)
        own.message_s = now
        if sync.travel_s > 0:  # a push was answered: what it cost is known in full
            own.push_s = sync.push_s
        if not worked:
            return
        most_s = MAX_DURATION_S if own.started_s is None else SLACK * max(0.0, now - own.started_s) + SLACK_S
        if sync.trained < own.trained:  # another process of the same worker
            own.trained, own.train_s, own.begun = 0, 0.0, 0
        if _is_plausible_speed(sync.trained - own.trained, sync.train_s - own.train_s):
            for kind in kinds:
                kind.train(sync.trained - own.trained, sync.train_s - own.train_s)
            if _is_plausible_speed(sync.trained, sync.train_s):
                self.speeds.put(record, sync.trained / sync.train_s)
        own.trained, own.train_s = sync.trained, sync.train_s
        if sync.begun != own.begun and sync.begun_vertices > 0 and 0 <= sync.begin_s <= most_s:
            for kind in kinds:
                kind.begun.append((sync.begun_vertices, sync.begin_s))
                if sync.begun > 1 and 0 <= sync.end_s <= most_s:
                    kind.ends.append(sync.end_s)
        own.begun = sync.begun
        if sync.push is not None and 0 < sync.travel_s <= most_s:  # a push before this one was answered
            for kind in kinds:
                kind.travels.append(sync.travel_s)
                if 0 < sync.push_s <= most_s:
                    kind.pushes.append(sync.push_s)

    def costs(self, name: str = "", *, many: bool = True) -> Costs | None:
        """What a chunk costs workers of a kind ("": all together); None while nobody has trained.

        A push travels while its worker trains on, so its cost is what it takes of the worker's own time. Where a
        worker has one chunk only (not `many`), its boot is part of that chunk's start.
        """
        exec_s = self.exec_s(name)
        if exec_s is None:
            return None
        start_s, copy_s = self._begin(name)
        boot_s = self._mean(name, "boots") or 0.0
        return Costs(
            exec_s=exec_s,
            copy_s=copy_s,
            start_s=start_s + (0.0 if many else boot_s),
            end_s=self._mean(name, "ends") or 0.0,
            push_s=self._mean(name, "pushes") or UNMEASURED_PUSH_S,
            wait_s=self._mean("", "waits") or 0.0,
            boot_s=boot_s if many else 0.0,
        )

    def exec_s(self, name: str = "") -> float | None:
        """Seconds in which a worker of a kind trains a vertex; None while nobody has."""
        return self.kinds.get(name, self.all).exec_s or self.all.exec_s

    def push_s(self, name: str = "") -> float | None:
        """What a push keeps a worker of a kind from training; None while nobody has told."""
        return self._mean(name, "pushes")

    def push_costs(self, merge_s: float) -> PushCosts | None:
        """What a push costs all together, the master `merge_s`; None before one was answered."""
        push_s = self.push_s()
        return None if push_s is None else PushCosts(push_s, self.travel_s(), merge_s)

    def travel_s(self, name: str = "") -> float:
        """From sending a push to its answer: a worker cannot push more often."""
        return self._mean(name, "travels") or 0.0

    def delay(self, name: str = "") -> Delay:
        """What passes beside training until a lease of such a worker is credited."""
        start_s, copy_s = self._begin(name)
        push_s, travel_s = self._mean(name, "pushes"), self._mean(name, "travels")
        return Delay(
            start_s + (self._mean(name, "ends") or 0.0),
            copy_s,
            UNMEASURED_PUSH_S if push_s is None else push_s,
            UNMEASURED_TRAVEL_S if travel_s is None else travel_s,
        )

    def _begin(self, name: str) -> tuple[float, float]:
        """(t_s, t_c) of the chunks that workers of a kind have begun."""
        begun = self.kinds.get(name, self.all).begun
        return fit_line(begun if len(begun) >= MIN_MEASURES else self.all.begun, self.copying.vertex_s)

    def _kinds(self, record: WorkerRecord) -> tuple[KindMeasures, ...]:
        return (self.all,) if not record.measured.kind else (self.all, self.kinds[record.measured.kind])

    def _boot(self, record: WorkerRecord, seconds: float) -> None:
        for kind in self._kinds(record):
            kind.boots.append(max(0.0, seconds))

    def _mean(self, name: str, what: str) -> float | None:
        measured: deque[float] = getattr(self.kinds.get(name, self.all), what)
        if len(measured) < MIN_MEASURES:
            measured = getattr(self.all, what)
        return sum(measured) / len(measured) if measured else None

    def _kind(self, kind: str) -> str:
        """Return the name by which a kind is told apart from others, "" where it is not."""
        if kind not in self.kinds:
            if not kind or len(self.kinds) >= MAX_KINDS:
                return ""
            self.kinds[kind] = KindMeasures()
        return kind
