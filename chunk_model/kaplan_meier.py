"""Nonparametric lifetimes: the product-limit estimate of Kaplan and Meier (JASA 53, 1958)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from chunk_model.lifetime import Floats, Lifetime
from chunk_model.observations import ObservationError, Observations

# A death that is not observed yet counts as this number of deaths: Jeffreys' prior of a rate, Gamma(1/2, 0).
UNSEEN_DEATH = 0.5


@dataclass(frozen=True, eq=False)
class KaplanMeier(Lifetime):
    """The product-limit estimate, a function with a step at each age tᵢ of death: S(t) = Π (1 − dᵢ/nᵢ) over all
    tᵢ ≤ t, where dᵢ lives ended at tᵢ out of the nᵢ lives that were observed up to tᵢ.

    Beyond the last observation S falls exponentially, so that the mean is finite. The rate is that of the last quarter
    of the deaths: their number, divided by the seconds that all lives together last beyond the age at which three
    quarters of the deaths have happened. If the last step would set S to 0, half a life is added to the nᵢ of that
    step, so that a life longer than all observed lives is never impossible.

    A step has no density. Hazard and density are therefore those of a smooth curve. It passes through the steps at
    every ⌈√deaths⌉-th death and falls exponentially in between; after the last death it falls at the tail's rate. This
    density integrates to 1, so its held-out likelihood is comparable with that of a formula. The curve skips steps
    because, for random gaps between deaths, a density that spreads each death over the preceding gap loses 0.4 nats per
    death, and a density that spreads each death over m gaps loses only 1/(2m) nats.
    """

    NAME: ClassVar[str] = "kaplan_meier"

    time_s: Floats  #: [m] ages at death, without duplicates, ascending, above 0
    alive: Floats  #: [m] S from each of these ages to the next, descending, above 0
    tail_from_s: float  #: the age at which the exponential tail begins
    tail_rate: float  #: hazard of the tail, 1/s
    knots: NDArray[np.intp]  #: indices of the steps that the smooth curve passes through, ascending, up to the last
    deaths: int
    censored: int

    @classmethod
    def of(cls, observations: Observations) -> Self:
        """Return the estimate from lives; `Observations.positive` replaces durations of 0. Raises ObservationError for
        no lives."""
        seen = observations.positive()
        deaths, exposure_s = seen.deaths, seen.exposure_s
        if not len(seen):
            raise ObservationError("no lives were given: observe at least one, ended or not")
        none = np.empty(0, np.intp)
        if deaths == 0:
            return cls(np.empty(0), np.empty(0), 0.0, UNSEEN_DEATH / exposure_s, none, 0, len(seen))
        time_s, died = np.unique(seen.duration_s[seen.ended], return_counts=True)
        at_risk = len(seen) - np.searchsorted(np.sort(seen.duration_s), time_s).astype(np.float64)
        if died[-1] == at_risk[-1]:
            at_risk[-1] += UNSEEN_DEATH
        dead = np.cumsum(died)
        late_s = float(time_s[np.searchsorted(dead, math.ceil(0.75 * deaths))])
        beyond_s = float(np.sum(np.maximum(seen.duration_s - late_s, 0.0)))
        beyond = int(np.count_nonzero(seen.ended & (seen.duration_s > late_s)))
        # Without a death after `late_s` (the longest lives ended together), use the mean rate of all deaths.
        rate = beyond / beyond_s if beyond else deaths / exposure_s
        bins = deaths // math.ceil(math.sqrt(deaths))
        knots = np.unique(np.searchsorted(dead, deaths * np.arange(1, bins + 1) / bins))
        return cls(
            time_s,
            np.cumprod(1 - died / at_risk, dtype=np.float64),
            float(np.max(seen.duration_s)),
            rate,
            knots,
            deaths,
            len(seen) - deaths,
        )

    def __eq__(self, other: object) -> bool:
        """Return True if all steps and the tail are equal. (The generated method cannot compare arrays.)"""
        if not isinstance(other, KaplanMeier):
            return NotImplemented
        tails = (self.tail_from_s, self.tail_rate) == (other.tail_from_s, other.tail_rate)
        return tails and np.array_equal(self.time_s, other.time_s) and np.array_equal(self.alive, other.alive)

    def __hash__(self) -> int:
        return hash((self.tail_from_s, self.tail_rate, self.deaths, self.censored))

    def __str__(self) -> str:
        """Return a short description, which cannot be parsed: the observations themselves are the parameters."""
        return f"kaplan_meier({self.deaths} deaths, {self.censored} censored, median {self.quantile(0.5):.6g}s)"

    @property
    def intervals(self) -> int:
        """The number of intervals, including the tail, in which the smooth curve has its own hazard."""
        return len(self.knots) + 1

    def scaled(self, factor: float) -> Self:
        rest = (self.knots, self.deaths, self.censored)
        return type(self)(self.time_s * factor, self.alive, self.tail_from_s * factor, self.tail_rate / factor, *rest)

    @cached_property
    def _edge_s(self) -> Floats:
        """The starts of the pieces of S, [m + 2]: 0, every step, the tail."""
        return np.concatenate(([0.0], self.time_s, [self.tail_from_s]))

    @cached_property
    def _height(self) -> Floats:
        """S at the beginning of each piece, [m + 2]."""
        return np.concatenate(([1.0], self.alive, [self.alive[-1] if len(self.alive) else 1.0]))

    @cached_property
    def _beyond(self) -> Floats:
        """∫ S from the beginning of each piece to infinity, [m + 2]."""
        areas = np.append(self._height[:-1] * np.diff(self._edge_s), self._height[-1] / self.tail_rate)
        return np.cumsum(areas[::-1])[::-1]

    @cached_property
    def _smooth(self) -> tuple[Floats, Floats, Floats]:
        """(start, ln S there, hazard) of the pieces of the smooth curve, each [knots + 1]."""
        begin = np.concatenate(([0.0], self.time_s[self.knots]))
        log_alive = np.concatenate(([0.0], np.log(self.alive[self.knots])))
        return begin, log_alive, np.append(-np.diff(log_alive) / np.diff(begin), self.tail_rate)

    def mean(self) -> float:
        """Return the area below S, its tail included."""
        return float(self._beyond[0])

    def _piece(self, t: Floats) -> NDArray[np.intp]:
        return np.asarray(np.searchsorted(self._edge_s, t, side="right") - 1)

    def log_survival(self, t: Floats) -> Floats:
        return np.asarray(np.log(self._height)[self._piece(t)] - self.tail_rate * np.maximum(t - self.tail_from_s, 0.0))

    def log_density(self, t: Floats) -> Floats:
        begin, log_alive, hazard = self._smooth
        piece = np.maximum(np.searchsorted(begin, t) - 1, 0)
        return np.asarray(np.log(hazard)[piece] + log_alive[piece] - hazard[piece] * (t - begin[piece]))

    def _hazard(self, t: Floats) -> Floats:
        begin, _, hazard = self._smooth
        return np.asarray(hazard[np.maximum(np.searchsorted(begin, t) - 1, 0)])

    def inverse_log_survival(self, log_survival: Floats) -> Floats:
        """Return the first t with ln S(t) ≤ `log_survival`: an age at death, or one in the tail."""
        target, lowest = np.asarray(log_survival, np.float64), math.log(self._height[-1])
        step = np.searchsorted(-np.log(self.alive), -target)
        in_tail = self.tail_from_s + np.maximum(lowest - target, 0.0) / self.tail_rate
        return np.where(target >= lowest, self._edge_s[step + 1], in_tail)

    def mean_left(self, t: Floats) -> Floats:
        piece = np.minimum(self._piece(t), len(self._edge_s) - 2)
        area = self._height[piece] * (self._edge_s[piece + 1] - t) + self._beyond[piece + 1]
        return np.where(t >= self.tail_from_s, 1 / self.tail_rate, area / self._height[piece])
