"""The scenario of a simulation: machines and their speeds, the cost of a vertex, and all that goes wrong.

`CrashPoints` wraps the master's end of a carrier: the master can be killed there between two replies, two chunks,
or two mailboxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from chunk_model.goodput import Costs
from chunk_model.lifetime import Lifetime
from gridml.carriers.base import Forwarding, MasterMailboxes
from gridml.errors import UsageError
from gridml.protocol.payload import Payload
from master.backends.script import PlannedLife, Script
from master.simulation.faulty_network import Chances
from master.simulation.simulated import Negotiation
from master.store.settings import check_seed

POINTS = ("before-version", "after-version", "after-patch", "before-commit", "after-commit", "after-grants",
          "after-answers", "after-base", "before-base-commit", "after-base-commit", "after-backup",
          "submit", "publish", "answer", "close")  # fmt: skip
"""Where a master may be killed: its own commit points, and whatever it does to the world."""


@final
class CrashPoints(Forwarding):
    """Tells `reached` the name of what is about to be done."""

    def __init__(self, end: MasterMailboxes, reached: Callable[[str], None]) -> None:
        super().__init__(end)
        self._reached = reached

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        self._reached("answer")
        super().answer(worker, number, payload)

    def publish(self, name: str, payload: Payload) -> None:
        self._reached("publish")
        super().publish(name, payload)

    def close(self, worker: str) -> None:
        self._reached("close")
        super().close(worker)


Numbers = NDArray[np.float64]
# Streams of random numbers, apart from those of scripts.
_SPEED, _STORM, _CRASH, _WIRE, _ABSENT, _LIVES, _HOSTILE = range(100, 107)
MOST_TIMES, MOST_SIGMA = 1000.0, 2.0  # by which the speeds of machines may differ, and the logarithm's deviation
LEAST_STORM_S, LEAST_STORM = 1.0, 1e-3  # seconds between two storms, and the share that one takes
_FAR = 5.0  # standard deviations that nothing lies beyond: one in three million does
_SPARED = 20.0  # storms that would have taken a machine on average and did not: one in half a billion escapes them
# Kinds of machines in the words of real workers: without AVX, and with it.
PLAIN, VECTORS = "x86_64", "x86_64 avx"
_WAKING = 0.25  # the share of masters that are killed as they take over


@dataclass(frozen=True)
class Machine:
    """How fast a worker trains there, against the costs' own speed, the kind that it reports to the master, and whether
    f `fails` there whatever it is given. Workers of a `hostile` one send hostile messages, too."""

    speed: float = 1.0
    kind: str = PLAIN
    fails: bool = False
    hostile: bool = False


@dataclass(frozen=True)
class MachineSpeeds:
    """How fast machines are against the costs' own: a share `fast` of them is `factor` times as fast as the others
    (those with AVX, say), and all vary log-normally with `sigma`. The median of the slow ones is 1.

    Workers report to the master which of the two their machine is, as real ones do, and nothing of how it varies.
    """

    fast: float = 0.0
    factor: float = 1.0
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.fast <= 1:
            raise UsageError(f"the share of fast machines is {self.fast}; expected 0 to 1.")
        if not 1 / MOST_TIMES <= self.factor <= MOST_TIMES:
            raise UsageError(
                f"fast machines are {self.factor} times as fast; expected a number from {1 / MOST_TIMES:g} to "
                f"{MOST_TIMES:g}."
            )
        if not 0 <= self.sigma <= MOST_SIGMA:
            raise UsageError(f"the spread of speeds is {self.sigma}; expected a number from 0 to {MOST_SIGMA:g}.")

    @property
    def fastest(self) -> float:
        """A speed that practically no machine exceeds."""
        return (max(1.0, self.factor) if self.fast else 1.0) * math.exp(_FAR * self.sigma)

    @property
    def slowest(self) -> float:
        """A speed that practically every machine has."""
        return (min(1.0, self.factor) if self.fast else 1.0) * math.exp(-_FAR * self.sigma)

    def of(self, slot: int, seed: int) -> Machine:
        """Return a machine, the same in every life."""
        if not self.fast and not self.sigma:
            return Machine()
        rng = np.random.default_rng([seed, _SPEED, slot])
        speed, kind = (self.factor, VECTORS) if rng.random() < self.fast else (1.0, PLAIN)
        return Machine(speed * math.exp(self.sigma * float(rng.standard_normal())), kind)


@dataclass(frozen=True)
class ManyLives(Script):
    """As `master.backends.script.ScriptedLives`, for simulations in which drawing would take most of the time: lives
    are drawn `BLOCK` at a time, so the same seed gives other ones."""

    workers: int
    lifetime: Lifetime
    seed: int = 0
    graceful_share: float = 0.5
    grace_s: float = 120.0
    gap_s: float = 0.0

    BLOCK: ClassVar[int] = 32

    @property
    def slots(self) -> int:
        return self.workers

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        lasting, gaps, kinds = self._block(slot, k // self.BLOCK)
        at = k % self.BLOCK
        opens_s = free_s + (float(gaps[at]) * self.gap_s if k else 0.0)
        return PlannedLife(opens_s, float(lasting[at]), None, bool(kinds[at] < self.graceful_share), self.grace_s)

    def _block(self, slot: int, block: int) -> tuple[Numbers, Numbers, Numbers]:
        """Return (seconds of life, gaps before them in units of `gap_s`, numbers in [0, 1) that decide on grace)."""
        entry = self._blocks.get(slot)
        if entry is None or entry[0] != block:
            rng = np.random.default_rng([self.seed, _LIVES, slot, block])
            drawn = self.lifetime.sample(rng, self.BLOCK), rng.exponential(size=self.BLOCK), rng.random(self.BLOCK)
            entry = self._blocks[slot] = block, drawn
        return entry[1]

    @cached_property
    def _blocks(self) -> dict[int, tuple[int, tuple[Numbers, Numbers, Numbers]]]:
        return {}


@dataclass(frozen=True)
class Storms(Script):
    """Another script in which, besides, a share of all machines is taken at one instant, every `every_s` on average."""

    base: Script
    every_s: float
    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.every_s) and self.every_s >= LEAST_STORM_S):
            raise UsageError(
                f"storms come every {self.every_s} s; expected a number of seconds from {LEAST_STORM_S:g}."
            )
        if not LEAST_STORM <= self.share <= 1:
            raise UsageError(f"a storm takes a share {self.share} of the machines; expected {LEAST_STORM:g} to 1.")

    @property
    def slots(self) -> int:
        return self.base.slots

    def machine(self, slot: int) -> str:
        return self.base.machine(slot)

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife | None:
        planned = self.base.life(slot, k, free_s)
        if planned is None:
            return None
        struck_s = self._next(slot, planned.opens_s)
        closes_s = min((end for end in (struck_s, planned.closes_s) if end is not None), default=None)
        return PlannedLife(planned.opens_s, planned.duration_s, closes_s, planned.graceful, planned.grace_s)

    def _next(self, slot: int, after_s: float) -> float | None:
        """Return the first storm after an instant that takes this machine: one in every interval of `every_s`, at a
        drawn moment. None if that would be so far off that practically no machine is spared for so long."""
        first = math.floor(after_s / self.every_s)
        for interval in range(first, first + math.ceil(_SPARED / self.share) + 1):
            moment, taken = self._storm(interval)
            if moment > after_s and taken[slot]:
                return moment
        return None

    def _storm(self, interval: int) -> tuple[float, NDArray[np.bool_]]:
        """Return (when the storm of an interval comes, whether it takes each machine)."""
        storm = self._drawn.get(interval)
        if storm is None:
            rng = np.random.default_rng([self.seed, _STORM, interval])
            storm = (interval + float(rng.random())) * self.every_s, rng.random(self.slots) < self.share
            if len(self._drawn) >= 64:  # time goes on, so the oldest are not needed any more
                del self._drawn[next(iter(self._drawn))]
            self._drawn[interval] = storm
        return storm

    @cached_property
    def _drawn(self) -> dict[int, tuple[float, NDArray[np.bool_]]]:
        return {}


@dataclass(frozen=True)
class Absent(Script):
    """Another script of whose machines a share never comes, though they were promised."""

    base: Script
    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise UsageError(f"a share {self.share} of the machines never comes; expected 0 to below 1.")

    @property
    def slots(self) -> int:
        return self.base.slots

    def machine(self, slot: int) -> str:
        return self.base.machine(slot)

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife | None:
        return None if slot in self._missing else self.base.life(slot, k, free_s)

    @cached_property
    def _missing(self) -> frozenset[int]:
        order = np.random.default_rng([self.seed, _ABSENT]).permutation(self.slots)
        return frozenset(int(slot) for slot in order[: int(self.share * self.slots)])


@dataclass(frozen=True)
class Scenario:
    """All of it. `crash_every_s` kills the master that often on average, at any of its commit points, and of those that
    take over a quarter at once; `restart_s` later the next one begins. `turn_s` is how often the master looks for
    messages, `travel_s` how long one takes; `chunks_per_job` ends a worker after so many chunks, 0: never; f fails on
    the first `failing` machines; a run that has not finished after `limit_s` never will. `hostile` is the share of
    machines whose workers send hostile messages beside their own; `negotiation` is how its pool matches jobs, None: at
    once. Merging a push keeps the master busy for `merge_s`: what comes meanwhile waits."""

    script: Script
    costs: Costs
    speeds: MachineSpeeds = field(default_factory=MachineSpeeds)
    faults: Chances | None = None
    crash_every_s: float | None = None
    restart_s: float = 10.0
    turn_s: float = 0.05
    travel_s: float = 0.0
    chunks_per_job: int = 0
    failing: int = 0
    limit_s: float = math.inf
    hostile: float = 0.0
    seed: int = 0
    negotiation: Negotiation | None = None
    merge_s: float = 0.0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if not 0 <= self.hostile <= 1:
            raise UsageError(f"a share {self.hostile} of the machines is hostile; expected 0 to 1.")
        if self.chunks_per_job < 0:
            raise UsageError(f"--chunks-per-job is {self.chunks_per_job}; expected at least 0, which means never.")
        if self.crash_every_s is not None and not self.crash_every_s > 0:
            raise UsageError(f"the master crashes every {self.crash_every_s} s; expected a number above 0.")
        if not self.turn_s > 0:
            raise UsageError(f"the master looks for messages every {self.turn_s} s; expected a number above 0.")
        if not 0 <= self.travel_s < math.inf:
            raise UsageError(f"a message takes {self.travel_s} s; expected a number of at least 0.")
        if not 0 <= self.merge_s < math.inf:
            raise UsageError(f"merging a push takes {self.merge_s} s; expected a number of at least 0.")
        if not self.limit_s > 0:
            raise UsageError(f"a run may take {self.limit_s} s; expected a number above 0.")

    def machine(self, slot: int) -> Machine:
        """Return a machine, the same in every life."""
        rng = np.random.default_rng([self.seed, _HOSTILE, slot])
        hostile = self.hostile > 0 and bool(rng.random() < self.hostile)
        return replace(self.speeds.of(slot, self.seed), fails=slot < self.failing, hostile=hostile)

    def crash(self, k: int) -> tuple[float, str] | None:
        """Return (how long the k-th master lives, at which of `POINTS` it is killed then), None if it is not."""
        if self.crash_every_s is None:
            return None
        rng = np.random.default_rng([self.seed, _CRASH, k])
        lives_s, waking = float(rng.exponential(self.crash_every_s)), k > 0 and rng.random() < _WAKING
        return 0.0 if waking else lives_s, POINTS[int(rng.integers(len(POINTS)))]

    @property
    def wire_seed(self) -> int:
        return int(np.random.default_rng([self.seed, _WIRE]).integers(2**31))
