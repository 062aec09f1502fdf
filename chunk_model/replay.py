"""Goodput of a chunk size by replaying given lives, event by event: a check of `goodput` without its formulas.

The times of a worker's events do not depend on when the worker dies. So one timetable serves all lives: it is made by
summing durations (start and copying, training, push, …), and a life has the events that come before its end. A
timetable has at most `_EVENTS` events; for a life that outlasts the timetable, division is used instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from chunk_model.goodput import ChunkError, Costs

Floats = NDArray[np.float64]

_EVENTS = 1 << 16  # maximum events of a timetable, which bounds its memory


@dataclass(frozen=True)
class Replayed:
    """The result of a replay, over all lives together."""

    goodput: float  #: credited·exec_s / paid_s, from 0 to 1; 0 if nothing was paid
    low: float  #: lower end of the 95% confidence interval of the goodput
    high: float  #: upper end
    credited: float  #: vertices credited
    paid_s: float  #: seconds of machine time, including the wait for machines
    lost_s: float  #: seconds of training that were not credited


def replay(
    lives: Floats,
    costs: Costs,
    n: int,
    push_every: int | None = None,
    many: bool = False,
    *,
    instants: Floats | None = None,
) -> Replayed:
    """Replay `lives`, float64 [lives] in seconds, with n vertices a chunk and a push every `push_every` vertices.

    If `push_every` is None, a chunk has one push, at its end, or none if costs.push_s is None. With `many`, a worker
    boots and takes chunk after chunk until it dies; without `many` it takes one chunk and is released at the chunk's
    end. An event at the very time of death still counts.

    The confidence interval is that of a ratio of means (delta method, Student's t). Lives that end together are not
    independent. `instants`, float64 [lives], has the time at which each life ended: lives with the same time count as
    one observation, and a life with NaN counts as one by itself. With a single observation the interval is 0 to 1.

    Raises ChunkError for no lives, a life that is negative or not finite, a chunk or push below one vertex, pushes
    without a cost, or `instants` of another shape.
    """
    credited, paid, lost = replay_each(lives, costs, n, push_every, many)
    if instants is not None and np.shape(instants) != credited.shape:
        raise ChunkError(f"instants must have one moment for each of {len(credited)} lives, got {np.shape(instants)}")
    goodput, low, high = _ratio(credited * costs.exec_s, paid, instants)
    return Replayed(goodput, low, high, float(credited.sum()), float(paid.sum()), float(lost.sum()))


def replay_each(
    lives: Floats, costs: Costs, n: int, push_every: int | None = None, many: bool = False
) -> tuple[Floats, Floats, Floats]:
    """Return three arrays, float64 [lives]: vertices credited, seconds paid and seconds of work lost of each life.

    This is for callers that aggregate in another way than `replay`, such as over resampled lives. Arguments and errors
    are those of `replay`.
    """
    lives = np.asarray(lives, np.float64)
    if lives.ndim != 1 or not len(lives):
        raise ChunkError(f"lives must be a row of at least one time in seconds, got shape {lives.shape}")
    if not bool(np.all(np.isfinite(lives) & (lives >= 0))):
        raise ChunkError("a life must be a time in seconds, finite and at least 0; censor or leave out the others")
    if n < 1 or (push_every is not None and push_every < 1):
        raise ChunkError(f"a chunk and a push have at least 1 vertex, got n={n} and push_every={push_every}")
    if push_every is not None and costs.push_s is None:
        raise ChunkError(f"push_every is {push_every}, but the costs are without pushes: give push_s, what one costs")

    boot_s = costs.boot_s if many else 0.0
    working = np.maximum(lives - boot_s, 0.0)
    timetable = _Timetable.of(costs, n, push_every, float(working.max()))
    credited, lost = timetable.by_events(working, many)
    if bool(np.any(long := working > timetable.until_s(many))):
        credited[long], lost[long] = timetable.by_division(working[long], many)
    return credited, costs.wait_s + (lives if many else np.minimum(lives, timetable.chunk_s)), lost


@dataclass(frozen=True)
class _Timetable:
    """One chunk as a sequence of stretches, each of which ends with an event that credits vertices."""

    idle_s: Floats  # [events] seconds before training: start and copying of the chunk in the first stretch, else 0
    work_s: Floats  # [events] seconds of training
    done_s: Floats  # [events] seconds after training: the push, or the end of an all-or-nothing chunk
    credit: Floats  # [events] vertices credited
    end_s: float  # seconds from the last event to the end of the chunk
    events: int  # number of events of a whole chunk; the arrays have at most the first `_EVENTS` of them
    chunk_s: float  # seconds of a whole chunk
    vertices: int  # vertices of a whole chunk
    longest_s: float  # the longest life, which bounds the timetable

    @staticmethod
    def of(costs: Costs, n: int, push_every: int | None, longest_s: float) -> _Timetable:
        each = min(n, push_every or n)
        events = -(-n // each)
        credit = np.full(min(events, _EVENTS), float(each))
        if events <= _EVENTS:
            credit[-1] = n - (events - 1) * each
        idle = np.zeros_like(credit)
        idle[0] = costs.start_s + n * costs.copy_s
        push_s, end_s = (0.0, costs.end_s) if costs.push_s is None else (costs.push_s, 0.0)
        done = np.full_like(credit, push_s + end_s)
        chunk_s = costs.start_s + n * (costs.copy_s + costs.exec_s) + events * push_s + costs.end_s
        return _Timetable(idle, credit * costs.exec_s, done, credit, costs.end_s - end_s, events, chunk_s, n, longest_s)

    def _repeats(self, many: bool) -> int:
        if not many or self.events > _EVENTS:
            return 1
        return int(min(_EVENTS // len(self.credit), self.longest_s // self.chunk_s + 2))

    def until_s(self, many: bool) -> float:
        """Return the age up to which `by_events` is valid; infinity if a life has only one chunk and the timetable has
        all events of the chunk."""
        if not many and self.events <= _EVENTS:
            return np.inf
        stretches = float((self.idle_s + self.work_s + self.done_s).sum())
        return self._repeats(many) * stretches if self.events <= _EVENTS else stretches

    def by_events(self, lives: Floats, many: bool) -> tuple[Floats, Floats]:
        """Return vertices credited and seconds lost, each float64 [lives]."""
        repeats = self._repeats(many)
        idle, work, done, credit = (
            np.tile(each, repeats) for each in (self.idle_s, self.work_s, self.done_s, self.credit)
        )
        idle[len(self.credit) :: len(self.credit)] += self.end_s
        over = np.cumsum(idle + work + done)
        count = np.searchsorted(over, lives, side="right")
        sums = np.concatenate([[0.0], np.cumsum(credit)])
        since = lives - np.concatenate([[0.0], over])[count]
        # After the last event of the timetable no training can be lost.
        lost = np.clip(since - np.append(idle, 0.0)[count], 0.0, np.append(work, 0.0)[count])
        return sums[count], lost

    def by_division(self, lives: Floats, many: bool) -> tuple[Floats, Floats]:
        """Return the same as `by_events`, but for lives of any length, by division instead of the timetable."""
        chunks = np.floor(lives / self.chunk_s) if many else np.zeros_like(lives)
        into = lives - chunks * self.chunk_s
        step = float(self.work_s[0] + self.done_s[0])
        start = float(self.idle_s[0])
        each = float(self.credit[0])
        count = np.clip(np.floor((into - start) / step), 0.0, self.events - 1)
        rest = self.vertices - count * each
        rest_s = rest / each * self.work_s[0]
        since = into - start - count * step
        last = (count == self.events - 1) & (since >= rest_s + self.done_s[0])
        work = np.where(count == self.events - 1, rest_s, self.work_s[0])
        lost = np.where(last, 0.0, np.clip(since, 0.0, work))
        return chunks * self.vertices + np.where(last, self.vertices, count * each), lost


def _ratio(useful: Floats, paid: Floats, instants: Floats | None) -> tuple[float, float, float]:
    """Return Σuseful/Σpaid and its 95% confidence interval, all within [0, 1]."""
    total = float(paid.sum())
    if total == 0:
        return 0.0, 0.0, 1.0
    ratio = float(useful.sum()) / total
    residuals = useful - ratio * paid
    if instants is not None:
        _, group = np.unique(instants, return_inverse=True, equal_nan=False)
        residuals = np.bincount(group.ravel(), weights=residuals).astype(np.float64)
    count = len(residuals)
    if count < 2:
        return ratio, 0.0, 1.0
    deviation = float(np.sqrt(count / (count - 1) * np.sum(residuals**2))) / total
    margin = float(stdtrit(count - 1, 0.975)) * deviation
    return min(ratio, 1.0), max(0.0, ratio - margin), min(1.0, ratio + margin)
