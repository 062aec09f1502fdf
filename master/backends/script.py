"""Scripts: the planned lives and deaths of machines, as pure functions that a back end plays.

A script has *slots*, each of which holds one worker at a time. `life(slot, k, free_s)` plans the slot's k-th worker:
its earliest start, how long it lives, and how it ends. The plan depends only on these arguments and the script's
settings. So the same seed gives the same failures whatever the workers do, and the local and the simulated back end can
play the same script.

All times are seconds on the script's clock, which starts at 0 with the back end. Durations in settings are divided by
`speedup`.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from chunk_model.lifetime import Lifetime
from chunk_model.traces import TraceEvent
from gridml.errors import UsageError

# One stream of random numbers per purpose, so that a setting added later does not change the lives of old seeds.
_LIFE, _GAP, _LATE, _KIND = range(4)


@dataclass(frozen=True)
class PlannedLife:
    """The planned life of one worker in a slot. It ends after `duration_s` or at `closes_s`, whichever is first."""

    opens_s: float  # earliest start
    duration_s: float | None = None  # from the worker's start; None: unlimited
    closes_s: float | None = None  # None: never
    graceful: bool = False  # True: SIGTERM, and SIGKILL after `grace_s`; False: SIGKILL at once
    grace_s: float = 0.0

    def ends_s(self, began_s: float) -> float | None:
        """Return when the script ends a worker that started at `began_s`, None for never."""
        ends = [began_s + self.duration_s] if self.duration_s is not None else []
        ends += [self.closes_s] if self.closes_s is not None else []
        return min(ends, default=None)


class Script(ABC):
    """The plan for `slots` machines."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """The number of slots, open or not."""

    def grown(self, workers: int) -> Script:
        """Return the script with at least `workers` slots, if their number can be chosen. Existing lives stay."""
        return self

    def machine(self, slot: int) -> str:
        """Return the name of a slot's machine, unique in the script."""
        return f"slot-{slot + 1}"

    @abstractmethod
    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife | None:
        """Return the life of the k-th worker (from 0) of a slot free since `free_s`; None if the slot never
        opens again.

        `opens_s` is at least `free_s`, and `closes_s`, if given, is after `opens_s`.
        """


@dataclass(frozen=True)
class _Chosen(Script):
    """A script with one machine per worker."""

    workers: int

    def __post_init__(self) -> None:
        _at_least("workers", self.workers, 1)

    @property
    def slots(self) -> int:
        return self.workers

    def grown(self, workers: int) -> Script:
        return replace(self, workers=max(workers, self.workers))


@dataclass(frozen=True)
class Steady(_Chosen):
    """Machines that are available from the start and never taken away."""

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(opens_s=free_s)


@dataclass(frozen=True)
class ScriptedLives(_Chosen):
    """Machines with random lives, drawn from `lifetime` and counted from the start of each worker.

    Graceful ends are distributed evenly and not at random: of the first n lives of a slot n·share end gracefully, give
    or take one. The same holds for the first n lives of all slots together.
    """

    lifetime: Lifetime
    seed: int = 0
    graceful_share: float = 0.5  # share of the lives that end with SIGTERM and `grace_s`; the others end with SIGKILL
    grace_s: float = 120.0
    gap_s: float = 0.0  # mean of the exponential time for which a slot is closed between two lives
    #: number of slots (the last ones) that open only after 0.1 to 0.5 of a mean life; None: a quarter, rounded down
    late: int | None = None
    speedup: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _settings(self.seed, self.graceful_share, self.grace_s, self.speedup)
        if not (math.isfinite(self.gap_s) and self.gap_s >= 0):
            raise UsageError(f"gap_s is {self.gap_s}, expected a finite number of seconds, 0 or more")
        if self.late is not None and not 0 <= self.late <= self.workers:
            raise UsageError(f"late is {self.late}, expected 0 to {self.workers} (workers), or None for a quarter")

    def opens_s(self, slot: int) -> float:
        """Return when a slot opens for the first time."""
        late = self.late if self.late is not None else self.workers // 4
        if slot < self.workers - late:
            return 0.0
        return self.lifetime.mean() * float(self._rng(_LATE, slot).uniform(0.1, 0.5)) / self.speedup

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        gap_s = self.gap_s * float(self._rng(_GAP, slot, k).exponential()) if k else 0.0
        return PlannedLife(
            opens_s=max(self.opens_s(slot), free_s + gap_s / self.speedup),
            duration_s=self.lifetime.sample(self._rng(_LIFE, slot, k)) / self.speedup,
            graceful=_dealt(k, self.graceful_share, self._offsets[slot]),
            grace_s=self.grace_s / self.speedup,
        )

    @cached_property
    def _offsets(self) -> list[float]:
        """The phase of each slot in the sequence of graceful ends, in [0, 1): evenly spread, in seeded order."""
        ranks = self._rng(_KIND).permutation(self.workers)
        return [float(offset) for offset in (ranks + 0.5) / self.workers]

    def _rng(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *stream])


@dataclass(frozen=True)
class Replay(Script):
    """The nodes of a trace as slots. A slot is open while its node is present; its worker ends with the node's stay."""

    trace: tuple[TraceEvent, ...]  # as validated by `chunk_model.traces`
    seed: int = 0
    graceful_share: float = 0.5  # share of all removals, distributed evenly, whether or not the slot has a worker
    grace_s: float = 120.0
    speedup: float = 1.0

    def __post_init__(self) -> None:
        _settings(self.seed, self.graceful_share, self.grace_s, self.speedup)
        if not self.trace:
            raise UsageError("the trace to replay is empty: give one with at least one line such as 0,add,node1")

    @property
    def slots(self) -> int:
        return len(self._nodes)

    def machine(self, slot: int) -> str:
        return self._nodes[slot]

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife | None:
        for stay in self._stays[self._nodes[slot]]:
            opens_s = max(stay.opens_s, free_s)
            if stay.closes_s is None or stay.closes_s > opens_s:
                return replace(stay, opens_s=opens_s)
        return None

    @cached_property
    def _nodes(self) -> list[str]:
        return list(self._stays)

    @cached_property
    def _stays(self) -> dict[str, list[PlannedLife]]:
        """The stays of each node, in order. Nodes are in order of first appearance."""
        offset = float(np.random.default_rng([self.seed, _KIND]).random())
        removals = itertools.count()
        stays: dict[str, list[PlannedLife]] = {}
        for event in self.trace:
            time_s = event.time_s / self.speedup
            own = stays.setdefault(event.node, [])
            if event.joined:
                own.append(PlannedLife(time_s, grace_s=self.grace_s / self.speedup))
            else:
                own[-1] = replace(
                    own[-1], closes_s=time_s, graceful=_dealt(next(removals), self.graceful_share, offset)
                )
        return stays


def _dealt(k: int, share: float, offset: float) -> bool:
    """Return whether the k-th of a sequence (from 0) is chosen; of the first n, ⌊n·share + offset⌋ are."""
    return math.floor((k + 1) * share + offset) > math.floor(k * share + offset)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"{name} is {value}, expected {least} or more")


def _settings(seed: int, graceful_share: float, grace_s: float, speedup: float) -> None:
    _at_least("seed", seed, 0)
    if not 0 <= graceful_share <= 1:
        raise UsageError(f"graceful_share is {graceful_share}, expected 0 (all SIGKILL) to 1 (all SIGTERM)")
    if not (math.isfinite(grace_s) and grace_s >= 0):
        raise UsageError(f"grace_s is {grace_s}, expected a finite number of seconds, 0 or more")
    if not (math.isfinite(speedup) and speedup > 0):
        raise UsageError(f"speedup is {speedup}, expected a finite number above 0 (60: a minute passes in a second)")
