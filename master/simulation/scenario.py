"""The scenario of a simulation: machines and their speeds, the cost of a vertex, and faults.

`CrashPoints` wraps the master's end of a carrier, so that the master can be killed between two replies, between two
chunks, or between closing two mailboxes.
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
"""Points at which a master can be killed: around its commits, and at its calls to the carrier and the back end."""


@final
class CrashPoints(Forwarding):
    """Calls `reached` with the name of an operation before doing it."""

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
# Numbers of random streams. Scripts of lifetimes (`master.backends.script`) use streams with other numbers.
_SPEED, _STORM, _CRASH, _WIRE, _ABSENT, _LIVES, _HOSTILE = range(100, 107)
MAX_FACTOR, MAX_SIGMA = 1000.0, 2.0  # bounds of MachineSpeeds
MIN_STORM_INTERVAL_S, MIN_STORM_SHARE = 1.0, 1e-3  # bounds of Storms
#: Standard deviations at which a normal distribution is cut off: one draw in three million exceeds them.
_FAR = 5.0
#: The search for the next storm that takes a machine covers intervals in which this number of hits is expected. The
#: chance of no hit in them is one in half a billion.
_SPARED = 20.0
# Kinds of machines as real workers report them: without AVX, and with it.
PLAIN, VECTORS = "x86_64", "x86_64 avx"
#: Share of the masters that are killed while they take over the run; the first master takes over nothing.
_TAKEOVER_KILL_SHARE = 0.25


@dataclass(frozen=True)
class Machine:
    """A simulated machine."""

    speed: float = 1.0  # divides the training time of the costs
    kind: str = PLAIN  # as its workers report it to the master
    fails: bool = False  # True: f fails on every batch
    hostile: bool = False  # True: its workers send hostile messages in addition to honest messages


@dataclass(frozen=True)
class MachineSpeeds:
    """The distribution of machines' speeds, relative to the costs. The median of the slow machines is 1.

    Like real workers, simulated workers report the kind of their machine (fast or slow) to the master. They do not know
    the random factor of the machine's speed.
    """

    fast: float = 0.0  # share of fast machines, such as those with AVX
    factor: float = 1.0  # median speed of a fast machine divided by that of a slow one
    sigma: float = 0.0  # sigma of the log-normal factor of every machine's speed

    def __post_init__(self) -> None:
        if not 0 <= self.fast <= 1:
            raise UsageError(f"the share of fast machines is {self.fast}; expected 0 to 1.")
        if not 1 / MAX_FACTOR <= self.factor <= MAX_FACTOR:
            raise UsageError(
                f"fast machines are {self.factor} times as fast; expected a number from {1 / MAX_FACTOR:g} to "
                f"{MAX_FACTOR:g}."
            )
        if not 0 <= self.sigma <= MAX_SIGMA:
            raise UsageError(f"the spread of speeds is {self.sigma}; expected a number from 0 to {MAX_SIGMA:g}.")

    @property
    def fastest(self) -> float:
        """The speed that practically no machine exceeds."""
        return (max(1.0, self.factor) if self.fast else 1.0) * math.exp(_FAR * self.sigma)

    @property
    def slowest(self) -> float:
        """The speed that practically every machine reaches."""
        return (min(1.0, self.factor) if self.fast else 1.0) * math.exp(-_FAR * self.sigma)

    def of(self, slot: int, seed: int) -> Machine:
        """Return the machine of a slot, the same for each of its lives."""
        if not self.fast and not self.sigma:
            return Machine()
        rng = np.random.default_rng([seed, _SPEED, slot])
        speed, kind = (self.factor, VECTORS) if rng.random() < self.fast else (1.0, PLAIN)
        return Machine(speed * math.exp(self.sigma * float(rng.standard_normal())), kind)


@dataclass(frozen=True)
class ManyLives(Script):
    """A faster `master.backends.script.ScriptedLives`, for simulations where drawing lives takes most of the time.

    It draws `BLOCK` lives at once, so one seed gives different lives in the two classes.
    """

    workers: int  # machines, one worker on each
    lifetime: Lifetime
    seed: int = 0
    graceful_share: float = 0.5  # share of the lives that end with a warning
    grace_s: float = 120.0  # from the warning to the end
    gap_s: float = 0.0  # mean time between two lives of a machine

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
        """Return (lifetimes in seconds, gaps before them in units of `gap_s`, numbers in [0, 1) that decide whether a
        life ends with a warning)."""
        entry = self._blocks.get(slot)
        if entry is None or entry[0] != block:
            rng = np.random.default_rng([self.seed, _LIVES, slot, block])
            drawn = self.lifetime.sample(rng, self.BLOCK), rng.exponential(size=self.BLOCK), rng.random(self.BLOCK)
            entry = self._blocks[slot] = block, drawn
        return entry[1]

    @cached_property
    def _blocks(self) -> dict[int, tuple[int, tuple[Numbers, Numbers, Numbers]]]:
        return {}  # by slot: only its newest block, because a slot's lives are requested in order


@dataclass(frozen=True)
class _Changed(Script):
    """The machines of the script `base`, with other lives."""

    base: Script

    @property
    def slots(self) -> int:
        return self.base.slots

    def machine(self, slot: int) -> str:
        return self.base.machine(slot)


@dataclass(frozen=True)
class Storms(_Changed):
    """The script `base` with storms: each storm takes a random share of all machines at the same instant."""

    every_s: float  # length of an interval; each has one storm, at a random time
    share: float  # expected share of the machines that a storm takes
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.every_s) and self.every_s >= MIN_STORM_INTERVAL_S):
            raise UsageError(
                f"storms come every {self.every_s} s; expected a number of seconds from {MIN_STORM_INTERVAL_S:g}."
            )
        if not MIN_STORM_SHARE <= self.share <= 1:
            raise UsageError(f"a storm takes a share {self.share} of the machines; expected {MIN_STORM_SHARE:g} to 1.")

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife | None:
        planned = self.base.life(slot, k, free_s)
        if planned is None:
            return None
        struck_s = self._next(slot, planned.opens_s)
        closes_s = min((end for end in (struck_s, planned.closes_s) if end is not None), default=None)
        return PlannedLife(planned.opens_s, planned.duration_s, closes_s, planned.graceful, planned.grace_s)

    def _next(self, slot: int, after_s: float) -> float | None:
        """Return the time of the first storm after `after_s` that takes this machine; None if the search finds no such
        storm (see `_SPARED`)."""
        first = math.floor(after_s / self.every_s)
        for interval in range(first, first + math.ceil(_SPARED / self.share) + 1):
            moment, taken = self._storm(interval)
            if moment > after_s and taken[slot]:
                return moment
        return None

    def _storm(self, interval: int) -> tuple[float, NDArray[np.bool_]]:
        """Return (time of the storm in an interval, a mask of the machines that it takes)."""
        storm = self._drawn.get(interval)
        if storm is None:
            rng = np.random.default_rng([self.seed, _STORM, interval])
            storm = (interval + float(rng.random())) * self.every_s, rng.random(self.slots) < self.share
            if len(self._drawn) >= 64:  # time only advances, so the oldest storms are not needed again
                del self._drawn[next(iter(self._drawn))]
            self._drawn[interval] = storm
        return storm

    @cached_property
    def _drawn(self) -> dict[int, tuple[float, NDArray[np.bool_]]]:
        return {}


@dataclass(frozen=True)
class Absent(_Changed):
    """The script `base`, except that a share of the machines never becomes available."""

    share: float  # share of the machines that never come
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise UsageError(f"a share {self.share} of the machines never comes; expected 0 to below 1.")

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife | None:
        return None if slot in self._missing else self.base.life(slot, k, free_s)

    @cached_property
    def _missing(self) -> frozenset[int]:
        order = np.random.default_rng([self.seed, _ABSENT]).permutation(self.slots)
        return frozenset(int(slot) for slot in order[: int(self.share * self.slots)])


@dataclass(frozen=True)
class Scenario:
    """Everything that is simulated around the master. Times are in simulated seconds."""

    script: Script  # lives of the machines
    costs: Costs
    speeds: MachineSpeeds = field(default_factory=MachineSpeeds)
    faults: Chances | None = None  # faults of the carrier; None: it has none
    crash_every_s: float | None = None  # mean life of a master until it is killed at one of `POINTS`; None: no kills
    restart_s: float = 10.0  # time from a kill to the next master
    turn_s: float = 0.05  # time between two turns of the master
    travel_s: float = 0.0  # time that a message takes, without the additional delay of `faults`
    chunks_per_job: int = 0  # a worker ends after this many chunks; 0: no limit
    failing: int = 0  # number of machines on which f fails; they are the first slots
    limit_s: float = math.inf  # time after which the run counts as hung
    hostile: float = 0.0  # share of the machines that are hostile
    seed: int = 0
    negotiation: Negotiation | None = None  # None: jobs are matched with machines immediately
    merge_s: float = 0.0  # time that the master takes to merge one push

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
        """Return the machine of a slot, the same for each of its lives."""
        rng = np.random.default_rng([self.seed, _HOSTILE, slot])
        hostile = self.hostile > 0 and bool(rng.random() < self.hostile)
        return replace(self.speeds.of(slot, self.seed), fails=slot < self.failing, hostile=hostile)

    def crash(self, k: int) -> tuple[float, str] | None:
        """Return (seconds that the k-th master lives, the point in `POINTS` at which it is killed); None: no kill."""
        if self.crash_every_s is None:
            return None
        rng = np.random.default_rng([self.seed, _CRASH, k])
        lives_s, at_once = float(rng.exponential(self.crash_every_s)), k > 0 and rng.random() < _TAKEOVER_KILL_SHARE
        return 0.0 if at_once else lives_s, POINTS[int(rng.integers(len(POINTS)))]

    @property
    def wire_seed(self) -> int:
        return int(np.random.default_rng([self.seed, _WIRE]).integers(2**31))
