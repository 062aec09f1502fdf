"""What a simulation plays: machines and how fast they are, what a vertex costs, and everything that goes wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from chunk_model.costs import Costs
from gridml.carriers.faulty import Chances
from gridml.errors import UsageError
from master.backends.script import PlannedLife, Script

_SPEED, _STORM, _CRASH, _WIRE = range(100, 104)  # streams of random numbers, apart from those of scripts


@dataclass(frozen=True)
class Speeds:
    """How fast machines are against the costs' own: a share `fast` of them is `factor` times as fast as the others
    (those with AVX, say), and all vary log-normally with `sigma`. The median of the slow ones is 1."""

    fast: float = 0.0
    factor: float = 1.0
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.fast <= 1:
            raise UsageError(f"the share of fast machines is {self.fast}; expected 0 to 1.")
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise UsageError(f"fast machines are {self.factor} times as fast; expected a number above 0.")
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise UsageError(f"the spread of speeds is {self.sigma}; expected a number from 0.")

    def of(self, slot: int, seed: int) -> float:
        """The speed of one machine, the same in every life."""
        if not self.fast and not self.sigma:
            return 1.0
        rng = np.random.default_rng([seed, _SPEED, slot])
        kind = self.factor if rng.random() < self.fast else 1.0
        return kind * math.exp(self.sigma * float(rng.standard_normal()))


@dataclass(frozen=True)
class Storms(Script):
    """Another script in which, besides, a share of all machines is taken at one instant, every `every_s` on average."""

    base: Script
    every_s: float
    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.every_s) and self.every_s > 0):
            raise UsageError(f"storms come every {self.every_s} s; expected a number of seconds above 0.")
        if not 0 < self.share <= 1:
            raise UsageError(f"a storm takes a share {self.share} of the machines; expected above 0, at most 1.")

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
        ends = [struck_s] if planned.closes_s is None else [struck_s, planned.closes_s]
        return PlannedLife(planned.opens_s, planned.duration_s, min(ends), planned.graceful, planned.grace_s)

    def _next(self, slot: int, after_s: float) -> float:
        """The first storm after an instant that takes this machine: one in every interval of `every_s`, at a drawn
        moment."""
        interval = math.floor(after_s / self.every_s)
        while True:
            draw = np.random.default_rng([self.seed, _STORM, interval])
            moment = (interval + float(draw.random())) * self.every_s
            taken = np.random.default_rng([self.seed, _STORM, interval, slot]).random() < self.share
            if moment > after_s and taken:
                return moment
            interval += 1


@dataclass(frozen=True)
class Scenario:
    """All of it. `crash_every_s` kills the master that often on average, and `restart_s` later the next one begins;
    `turn_s` is how often the master looks for letters, `travel_s` how long one takes; `chunks_per_job` ends a worker
    after so many chunks, 0: never."""

    script: Script
    costs: Costs
    speeds: Speeds = field(default_factory=Speeds)
    faults: Chances | None = None
    crash_every_s: float | None = None
    restart_s: float = 10.0
    turn_s: float = 0.05
    travel_s: float = 0.0
    chunks_per_job: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.crash_every_s is not None and not self.crash_every_s > 0:
            raise UsageError(f"the master crashes every {self.crash_every_s} s; expected a number above 0.")
        if not self.turn_s > 0:
            raise UsageError(f"the master looks for letters every {self.turn_s} s; expected a number above 0.")

    def crash_s(self, k: int) -> float | None:
        """How long the k-th master lives before it is killed, None if it is not."""
        if self.crash_every_s is None:
            return None
        return float(np.random.default_rng([self.seed, _CRASH, k]).exponential(self.crash_every_s))

    @property
    def wire_seed(self) -> int:
        return int(np.random.default_rng([self.seed, _WIRE]).integers(2**31))
