"""What a run has seen of its workers: what their chunks cost them, how fast they are, how long they live.

Measured by kind of machine, as workers name it, and of all together. Only the last few dozen measures of each sort are
remembered, and a few hundred lives: memory grows with the workers that live, and with nothing else.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chunk_model.costs import Costs
from chunk_model.observations import Observations
from gridml.protocol.messages import Sync
from master.backends.base import State
from master.decisions.leasing import Delay
from master.store.status import ORPHANED

REMEMBERED = 64  # measures of one sort
ENOUGH = 3  # measures of a kind's own; with fewer those of all kinds are believed
KINDS = 16  # that are told apart: their names come from other machines
LIVES = 512  # in a sample
# Seconds that a worker may tell. What cannot be is not believed, so no decision has to reckon with infinite ones.
LEAST_VERTEX_S, MOST_S = 1e-12, 1e9
UNMEASURED_PUSH_S = 0.1  # seconds of training that a push costs, until a worker has told,
UNMEASURED_TRAVEL_S = 10.0  # and from sending it to its answer: a worker is taken for late only after that
_FADING = 0.999  # training is weighed over the last thousand or so syncs


def line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(t_s, t_c) of the points (n, seconds): the least squares of t_s + n·t_c, neither negative.

    Where all n are alike they cannot be told apart, and all is taken for t_s. (0, 0) without points.
    """
    if not points:
        return 0.0, 0.0
    mean_n = sum(n for n, _ in points) / len(points)
    mean_s = sum(s for _, s in points) / len(points)
    spread = sum((n - mean_n) ** 2 for n, _ in points)
    if spread <= 1e-6 * mean_n**2 * len(points):
        return mean_s, 0.0
    slope = sum((n - mean_n) * (s - mean_s) for n, s in points) / spread
    if slope <= 0:
        return mean_s, 0.0
    if mean_s - slope * mean_n < 0:
        return 0.0, sum(n * s for n, s in points) / sum(n * n for n, _ in points)
    return mean_s - slope * mean_n, slope


def died(state: str, cancelled: bool, detail: str) -> bool:
    """Whether the end of a worker is one of its machine's: not when the master ended it, its work was done, or a master
    left it behind."""
    return not cancelled and (state == State.EVICTED or (state == State.LOST and detail != ORPHANED))


def _a_speed(vertices: int, seconds: float) -> bool:
    """Whether so many vertices can have been trained in that time."""
    return vertices > 0 and LEAST_VERTEX_S * vertices <= seconds <= MOST_S


def _recent() -> deque[float]:
    return deque(maxlen=REMEMBERED)


@dataclass
class Kind:
    """What was measured of one kind of worker, in seconds; `begun` are (vertices, seconds) of chunks begun."""

    begun: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
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
    """Vertices per second of training, of the workers that live, and their sum."""

    def __init__(self) -> None:
        self._of: dict[str, float] = {}
        self._total = 0.0
        self._changes = 0  # since the sum was last taken over all

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, worker: str) -> float | None:
        return self._of.get(worker)

    def put(self, worker: str, rate: float) -> None:
        self._total += rate - self._of.get(worker, 0.0)
        self._of[worker] = rate
        self._changed()

    def drop(self, worker: str) -> None:
        self._total -= self._of.pop(worker, 0.0)
        self._changed()

    @property
    def total(self) -> float:
        return max(0.0, self._total)

    @property
    def mean(self) -> float | None:
        """None before any worker has trained."""
        return self.total / len(self._of) if self._of and self._total > 0 else None

    def _changed(self) -> None:
        """Rounding would add up; a sum over all is due only after as many changes."""
        self._changes += 1
        if self._changes > max(1024, len(self._of)):
            self._total, self._changes = math.fsum(self._of.values()), 0


@dataclass
class _Life:
    began_s: float
    kind: str = ""
    ended_s: float | None = None
    died: bool = False


class Lives:
    """Lives from RUNNING to their end: all are counted, and every k-th in the order of their beginnings is remembered.

    That sample is fair: whether a life is in it has nothing to do with how long it lasts. The newest ones, say, would
    all be young where thousands live at once. k is doubled whenever there are more than `limit`.
    """

    def __init__(self, limit: int = LIVES) -> None:
        self.deaths = 0
        self._limit = limit
        self._every = 1
        self._begun = 0
        self._sample: dict[int, _Life] = {}  # by number
        self._numbers: dict[str, int] = {}  # of those that live and are in the sample
        self._living: dict[str, float] = {}  # when each began
        self._sum_s = 0.0  # of the beginnings of all that live
        self._past_s = 0.0  # lived by all that have ended

    def began(self, worker: str, at_s: float) -> None:
        """The first time that a worker runs; it counts once."""
        if worker in self._living:
            return
        self._living[worker] = at_s
        self._sum_s += at_s
        if self._begun % self._every == 0:
            self._sample[self._begun] = _Life(at_s)
            self._numbers[worker] = self._begun
        self._begun += 1
        if len(self._sample) > self._limit:
            self._every *= 2
            self._sample = {n: life for n, life in self._sample.items() if n % self._every == 0}
            self._numbers = {name: n for name, n in self._numbers.items() if n % self._every == 0}

    def is_of(self, worker: str, kind: str) -> None:
        number = self._numbers.get(worker)
        if number is not None:
            self._sample[number].kind = kind

    def ended(self, worker: str, at_s: float, *, died: bool) -> None:
        """Ends of workers that never ran, or have ended before, do not count."""
        began_s = self._living.pop(worker, None)
        if began_s is None:
            return
        self._sum_s -= began_s
        self._past_s += max(0.0, at_s - began_s)
        self.deaths += died
        number = self._numbers.pop(worker, None)
        if number is not None:
            life = self._sample[number]
            life.ended_s, life.died = max(at_s, began_s), died

    def exposure_s(self, now: float) -> float:
        """Seconds lived by all workers together."""
        return max(0.0, self._past_s + len(self._living) * now - self._sum_s)

    def observations(self, now: float, kind: str | None = None) -> Observations:
        """The sample, or those in it that are of one kind; the living are censored."""
        lives = [life for life in self._sample.values() if kind is None or life.kind == kind]
        end = [now if life.ended_s is None else life.ended_s for life in lives]
        lasted = [max(0.0, end_s - life.began_s) for life, end_s in zip(lives, end, strict=True)]
        return Observations(np.array(lasted), np.array([life.died for life in lives], np.bool_), np.array(end))


@dataclass
class _Worker:
    """What was last heard of one worker."""

    submitted_s: float | None = None
    started_s: float | None = None
    heard_s: float | None = None
    kind: str = ""
    begun: int = 0
    trained: int = 0
    train_s: float = 0.0


class Measures:
    """All of it, for one master; `take_up` begins with what the ledger knows of workers."""

    def __init__(self) -> None:
        self.all = Kind()
        self.kinds: dict[str, Kind] = {}
        self.speeds = Speeds()
        self.lives = Lives()
        self._workers: dict[str, _Worker] = {}

    def take_up(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """The workers of earlier masters, as the ledger has them."""
        for row in rows:
            worker, started_s, ended_s = row["worker"], row["started_s"], row["ended_s"]
            if row["state"] == State.HELD:
                continue  # it ended when it was held, and lives anew when it is released
            if ended_s is None:
                known = self._workers.setdefault(worker, _Worker())
                known.submitted_s, known.started_s = row["submitted_s"], started_s
                known.heard_s = row["first_sync_s"]
            if started_s is not None:
                self.lives.began(worker, started_s)
                self._is_of(worker, row["kind"])
            if ended_s is not None:
                self.gone(worker)  # it may have been heard meanwhile
                self._workers.pop(worker, None)
                self.lives.ended(worker, ended_s, died=died(row["state"], bool(row["cancelled"]), row["detail"] or ""))

    def submitted(self, worker: str, now: float) -> None:
        self._workers.setdefault(worker, _Worker(now))

    def runs(self, worker: str, now: float) -> None:
        known = self._workers.setdefault(worker, _Worker())
        self.lives.began(worker, now if known.started_s is None else known.started_s)
        self.lives.is_of(worker, known.kind)
        if known.started_s is None:
            known.started_s = now
            if known.submitted_s is not None:
                self.all.waits.append(max(0.0, now - known.submitted_s))  # clocks are set back at times
            if known.heard_s is not None:  # before the back end told of it
                self._booted(known, known.heard_s - now)

    def ended(self, worker: str, now: float, *, died: bool) -> None:
        self.gone(worker)
        self.lives.ended(worker, now, died=died)
        self._workers.pop(worker, None)

    def silent(self, worker: str, now: float) -> None:
        """It was given up: it lived until it was last heard."""
        known = self._workers.get(worker, _Worker())
        self.ended(worker, known.heard_s or known.started_s or now, died=True)

    def gone(self, worker: str) -> None:
        """It trains no more."""
        self.speeds.drop(worker)

    def heard(self, sync: Sync, now: float) -> None:
        """What a worker says of itself."""
        known = self._workers.get(sync.worker)
        if known is None:
            known = self._workers[sync.worker] = _Worker()
        if sync.kind != known.kind:
            known.kind = self._is_of(sync.worker, sync.kind)
        kinds = self._kinds(known)
        if known.heard_s is None and known.started_s is not None:
            self._booted(known, now - known.started_s)
        known.heard_s = now
        if sync.trained < known.trained:  # another process of the same worker
            known.trained, known.train_s, known.begun = 0, 0.0, 0
        if _a_speed(sync.trained - known.trained, sync.train_s - known.train_s):
            for kind in kinds:
                kind.train(sync.trained - known.trained, sync.train_s - known.train_s)
            if _a_speed(sync.trained, sync.train_s):
                self.speeds.put(sync.worker, sync.trained / sync.train_s)
        known.trained, known.train_s = sync.trained, sync.train_s
        if sync.begun != known.begun and sync.begun_vertices > 0 and 0 <= sync.begin_s <= MOST_S:
            for kind in kinds:
                kind.begun.append((sync.begun_vertices, sync.begin_s))
                if sync.begun > 1 and 0 <= sync.end_s <= MOST_S:
                    kind.ends.append(sync.end_s)
        known.begun = sync.begun
        if sync.push is not None and 0 < sync.travel_s <= MOST_S:  # a push before this one was answered
            for kind in kinds:
                kind.travels.append(sync.travel_s)
                if 0 < sync.push_s <= MOST_S:
                    kind.pushes.append(sync.push_s)

    def kind_of(self, worker: str) -> str:
        """ "" where it has not said."""
        known = self._workers.get(worker)
        return "" if known is None else known.kind

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
        return line(begun if len(begun) >= ENOUGH else self.all.begun)

    def _kinds(self, known: _Worker) -> tuple[Kind, ...]:
        return (self.all,) if not known.kind else (self.all, self.kinds[known.kind])

    def _booted(self, known: _Worker, seconds: float) -> None:
        for kind in self._kinds(known):
            kind.boots.append(max(0.0, seconds))

    def _mean(self, name: str, what: str) -> float | None:
        found: deque[float] = getattr(self.kinds.get(name, self.all), what)
        if len(found) < ENOUGH:
            found = getattr(self.all, what)
        return sum(found) / len(found) if found else None

    def _is_of(self, worker: str, kind: str) -> str:
        """The name by which the worker's kind is told apart."""
        if kind not in self.kinds:
            if not kind or len(self.kinds) >= KINDS:
                return ""
            self.kinds[kind] = Kind()
        self.lives.is_of(worker, kind)
        return kind
