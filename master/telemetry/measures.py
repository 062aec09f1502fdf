"""Measurements of a run's workers: the cost of their chunks, their speed, and their lifetimes.

Each measurement is kept per kind of machine (workers report their kind) and for all kinds together. Only the last few
dozen values of a measurement and a few hundred lives are kept, so memory grows only with the number of live workers.
`CopyCosts` holds the mean bytes of a vertex in a chunk, and the seconds that a lease costs the master.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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

BYTE_S = 1e-8  # assumed seconds per byte (100 MB/s) if measurements cannot separate them from the fixed cost of a chunk
_COPYING_FADING = 0.9  # factor on the sums over earlier chunks at each new one: about the last ten chunks count


def fit_line(points: Sequence[tuple[float, float]], usual: float = 0.0) -> tuple[float, float]:
    """Return (t_s, t_c), the non-negative least-squares fit of t_s + n·t_c to the points (n, seconds).

    If all n are equal, or larger n took less time, t_s and t_c cannot be separated. Then t_c is `usual`, but at most
    the mean seconds divided by the mean n, and t_s is the rest of the mean seconds. Without points, (0, 0).
    """
    if not points:
        return 0.0, 0.0
    mean_n = sum(n for n, _ in points) / len(points)
    mean_s = sum(s for _, s in points) / len(points)
    spread = sum((n - mean_n) ** 2 for n, _ in points)
    slope = 0.0
    # Sizes that differ by less than 0.1% fit only the noise of the clock.
    if spread > 1e-6 * mean_n**2 * len(points):
        slope = sum((n - mean_n) * (s - mean_s) for n, s in points) / spread
    if slope <= 0:
        slope = min(usual, mean_s / mean_n) if mean_n > 0 else 0.0
        return max(0.0, mean_s - slope * mean_n), slope
    if mean_s - slope * mean_n < 0:  # a negative intercept: fit again through the origin
        return 0.0, sum(n * s for n, s in points) / sum(n * n for n, _ in points)
    return mean_s - slope * mean_n, slope


class CopyCosts:
    """Costs of copying vertices into chunks, measured by one master."""

    def __init__(self, vertex_bytes: float = 0.0) -> None:
        self.vertex_bytes = vertex_bytes  # estimated from the graph until a chunk is cut
        self._vertices = self._bytes = 0.0  # faded sums over recent chunks
        self.nbytes = 0  # bytes of all chunks so far
        self._grants: deque[tuple[float, float]] = deque(maxlen=MAX_MEASURES)  # (bytes, seconds) per lease

    @property
    def vertex_s(self) -> float:
        """Estimated seconds to copy a vertex, used until workers report measured seconds."""
        return self.vertex_bytes * BYTE_S

    @property
    def grant_s(self) -> float:
        """Seconds that a lease costs the master whatever its size: the fitted cost of an empty chunk."""
        return fit_line(self._grants, BYTE_S)[0]

    def cut(self, vertices: int, nbytes: int) -> None:
        """Record a chunk that was cut."""
        if not nbytes:
            return  # workers have the data already, so this says nothing about bytes per vertex
        self.nbytes += nbytes
        self._vertices = _COPYING_FADING * self._vertices + vertices
        self._bytes = _COPYING_FADING * self._bytes + nbytes
        self.vertex_bytes = self._bytes / self._vertices

    def grant(self, leases: int, nbytes: int, seconds: float) -> None:
        """Record the time that the master took to grant `leases` leases, with `nbytes` of chunks in all."""
        if leases:
            self._grants.append((nbytes / leases, seconds / leases))


MAX_MEASURES = 64  # values kept of one measurement
MIN_MEASURES = 3  # with fewer values of its own, a kind of worker uses those of all kinds
MAX_KINDS = 16  # kinds measured separately; bounded because their names come from other machines
MAX_LIVES = 512  # lives in the sample
UNMEASURED_PUSH_S = 0.1  # assumed training time lost per push, until a worker reports it
UNMEASURED_TRAVEL_S = 10.0  # assumed time from a push to its answer; large, so that no worker counts as late too soon
SLACK, SLACK_S = 1.1, 1.0  # a worker's duration is plausible up to this factor times the master's, plus these seconds
_FADING = 0.999  # factor on the sums over earlier syncs at each new one: about the last thousand syncs count


def died(state: str, cancelled: bool, detail: str) -> bool:
    """Return whether a worker was ended by its machine, rather than by the master or the end of its work. An orphan of
    an earlier master does not count."""
    return not cancelled and (state == State.EVICTED or (state == State.LOST and detail != ORPHANED))


def _is_plausible_speed(vertices: int, seconds: float) -> bool:
    """Return whether `vertices` can have been trained in `seconds`."""
    return vertices > 0 and MIN_VERTEX_S * vertices <= seconds <= MAX_DURATION_S


def _recent() -> deque[float]:
    return deque(maxlen=MAX_MEASURES)


@dataclass
class KindMeasures:
    """Recent measurements of one kind of worker."""

    #: (vertices, seconds to start it) of each chunk
    begun: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=MAX_MEASURES))
    ends: deque[float] = field(default_factory=_recent)  #: seconds to end a chunk
    pushes: deque[float] = field(default_factory=_recent)  #: seconds of training that a push costs its worker
    travels: deque[float] = field(default_factory=_recent)  #: seconds from sending a push to its answer
    boots: deque[float] = field(default_factory=_recent)  #: seconds from RUNNING to the first message
    waits: deque[float] = field(default_factory=_recent)  #: seconds from submission to RUNNING
    trained: float = 0.0  #: vertices trained recently, a faded sum
    train_s: float = 0.0  #: seconds that these took, a sum faded in the same way

    def train(self, vertices: int, seconds: float) -> None:
        self.trained = _FADING * self.trained + vertices
        self.train_s = _FADING * self.train_s + seconds

    @property
    def exec_s(self) -> float | None:
        """t_x, the seconds to train a vertex; None before any was trained."""
        return self.train_s / self.trained if self.trained > 0 and self.train_s > 0 else None


class Speeds:
    """Running sum of the live workers' speeds. Each speed is stored in its worker's record and set only here."""

    def __init__(self) -> None:
        self.count = 0  # workers whose record has a speed
        self._total = self._rounded = 0.0  # the sum, and its rounding error (see `_add`)

    def put(self, record: WorkerRecord, speed: float) -> None:
        """Set a worker's speed, in vertices per second."""
        self.drop(record)
        record.measured.speed = speed
        self.count += 1
        self._add(speed)

    def drop(self, record: WorkerRecord) -> None:
        """Remove the speed of a worker that no longer trains. Idempotent."""
        if record.measured.speed is not None:
            self.count -= 1
            self._add(-record.measured.speed)
            record.measured.speed = None

    def _add(self, speed: float) -> None:
        """Add with Neumaier's compensated summation, because rounding errors of a plain sum add up over a long run."""
        total = self._total + speed
        lost = (self._total - total) + speed if abs(self._total) >= abs(speed) else (speed - total) + self._total
        self._total, self._rounded = total, self._rounded + lost

    @property
    def total(self) -> float:
        return max(0.0, self._total + self._rounded) if self.count else 0.0

    @property
    def mean(self) -> float | None:
        """Mean speed of the workers that have one; None before any has trained."""
        return self.total / self.count if self.total > 0 else None


class Lives:
    """Lifetimes of workers, from RUNNING to their end: totals over all lives, and a sample of every k-th one.

    k doubles whenever the sample exceeds `limit`. Sampling by start order is unbiased, because whether a life is in the
    sample does not depend on how long it lasts; keeping the newest lives would keep young ones only.
    """

    def __init__(self, limit: int = MAX_LIVES) -> None:
        self.deaths = 0  # lives ended by the worker's machine
        self._limit = limit
        self._every = 1  # k; a power of two, so that each later sample is a subset of the earlier one
        self._begun = 0  # number of lives begun so far
        self._sample: dict[int, WorkerLife] = {}  # by number in start order; holds the same objects as the records
        # Sums, so that `exposure_s` needs no pass over the workers:
        self._living = 0  # number of lives under way
        self._sum_s = 0.0  # sum of the start times of lives under way
        self._past_s = 0.0  # total seconds of all lives that have ended

    def begin(self, record: WorkerRecord, at_s: float) -> None:
        """Begin a worker's life, unless it has begun already."""
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
        """End a worker's life. Does nothing if the worker never ran or its life has ended."""
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
        """Return the sum of the lifetimes of all workers so far, in seconds."""
        return max(0.0, self._past_s + self._living * now - self._sum_s)

    def observations(self, now: float, kind: str | None = None) -> Observations:
        """Return the sampled lives, of one `kind` if given; lives under way are censored at `now`."""
        lives = [life for life in self._sample.values() if kind is None or life.kind == kind]
        end = [now if life.ended_s is None else life.ended_s for life in lives]
        lasted = [max(0.0, end_s - life.began_s) for life, end_s in zip(lives, end, strict=True)]
        return Observations(np.array(lasted), np.array([life.died for life in lives], np.bool_), np.array(end))


class Measures:
    """All measurements of one master. The last values that a worker reported are in its record."""

    def __init__(self, vertex_bytes: float = 0.0) -> None:
        self.copying = CopyCosts(vertex_bytes)
        self.all = KindMeasures()
        self.kinds: dict[str, KindMeasures] = {}
        self.speeds = Speeds()
        self.lives = Lives()
        self._starts: deque[float] = deque()  # start times of workers in the last `RECENT_S`, oldest first

    def submit(self, record: WorkerRecord, now: float) -> None:
        if record.measured.submitted_s is None:
            record.measured.submitted_s = now

    def run(self, record: WorkerRecord, now: float) -> None:
        """Begin a worker's life when it runs; on its first start also measure its wait and its boot."""
        own = record.measured
        self.lives.begin(record, now if own.started_s is None else own.started_s)
        if own.started_s is None:
            own.started_s = now
            self._starts.append(now)
            self._forget_starts(now)
            if own.submitted_s is not None:
                self.all.waits.append(max(0.0, now - own.submitted_s))  # the clock may have been set back
            if own.message_s is not None:  # its first message came before the back end's event
                self._boot(record, own.message_s - now)

    def queue(self, queue: Queue, now: float) -> Queue:
        """Return the queue with the measured rates at which jobs start, wait and end."""
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
        """Restore the measurements of a worker that an earlier master started, from its ledger row."""
        if row["state"] == State.HELD:
            return  # its life ended when it was held; release begins a new one
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
        """End the life of a held worker without counting a death; its release begins a new life."""
        self.end(record, now, died=False)
        own = record.measured
        own.submitted_s = own.started_s = own.message_s = None
        own.trained, own.train_s, own.begun = 0, 0.0, 0

    def end(self, record: WorkerRecord, now: float, *, died: bool) -> None:
        self.speeds.drop(record)
        self.lives.end(record, now, died=died)

    def give_up(self, record: WorkerRecord, now: float, *, died: bool = True) -> None:
        """End the life of a worker that was given up. A silent worker counts as alive until its last message."""
        last_s = record.measured.message_s or record.measured.started_s or now
        self.end(record, last_s, died=died)

    def handle_sync(self, record: WorkerRecord, sync: Sync, now: float, *, worked: bool = True) -> None:
        """Record what a worker reports about itself, if plausible.

        Costs count only if the worker has `worked`: its push came with the message and was merged. A cost longer than
        the worker's life is ignored.
        """
        own = record.measured
        if sync.kind != own.kind:
            own.kind = self._kind(sync.kind)
            if own.life is not None:
                own.life.kind = own.kind
        kinds = self._kinds(record)
        if own.message_s is None and own.started_s is not None:
            self._boot(record, now - own.started_s)
        own.message_s = now
        if sync.travel_s > 0:  # the last push was answered, so its cost is final
            own.push_s = sync.push_s
        if not worked:
            return
        most_s = MAX_DURATION_S if own.started_s is None else SLACK * max(0.0, now - own.started_s) + SLACK_S
        if sync.trained < own.trained:  # counters went back: another process of the same worker
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
        """Return the costs of a chunk for a kind of worker ("": all kinds); None before any has trained.

        A push travels while its worker keeps training, so its cost is only the training time that it takes. If a
        worker trains a single chunk (not `many`), its boot is part of that chunk's start.
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
        """Return the seconds in which a kind of worker trains a vertex; None before any vertex was trained."""
        return self.kinds.get(name, self.all).exec_s or self.all.exec_s

    def push_s(self, name: str = "") -> float | None:
        """Return the training time that a push costs a kind of worker; None before any worker reported it."""
        return self._mean(name, "pushes")

    def push_costs(self, merge_s: float) -> PushCosts | None:
        """Return the mean costs of a push; None before any was answered. `merge_s`: the master's seconds per push."""
        push_s = self.push_s()
        return None if push_s is None else PushCosts(push_s, self.travel_s(), merge_s)

    def travel_s(self, name: str = "") -> float:
        """Return the seconds from sending a push to its answer, the shortest possible push interval."""
        return self._mean(name, "travels") or 0.0

    def typical(self, what: Literal["pushes", "travels"]) -> float:
        """Return the median of recent measurements of all workers, in seconds; 0 before any. A stalled worker does not
        change it, as it would a mean."""
        measured: deque[float] = getattr(self.all, what)
        return statistics.median(measured) if measured else 0.0

    def delay(self, name: str = "") -> Delay:
        """Return the time, in addition to training, until a lease of a kind of worker is credited."""
        start_s, copy_s = self._begin(name)
        push_s, travel_s = self._mean(name, "pushes"), self._mean(name, "travels")
        return Delay(
            start_s + (self._mean(name, "ends") or 0.0),
            copy_s,
            UNMEASURED_PUSH_S if push_s is None else push_s,
            UNMEASURED_TRAVEL_S if travel_s is None else travel_s,
        )

    def _begin(self, name: str) -> tuple[float, float]:
        """Return (t_s, t_c), fitted to the chunks that a kind of worker has started."""
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
        """Return the name under which a kind is measured; "" if it is unnamed or there are too many kinds."""
        if kind not in self.kinds:
            if not kind or len(self.kinds) >= MAX_KINDS:
                return ""
            self.kinds[kind] = KindMeasures()
        return kind
