"""Survival as it was observed, without a family: the product-limit estimate of Kaplan and Meier (JASA 53, 1958)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from chunk_model.lifetime import Floats, Lifetime
from chunk_model.observations import ObservationError, Observations

# What a death counts for that has not been seen yet: Jeffreys' prior of a rate, Gamma(1/2, 0).
UNSEEN_DEATH = 0.5


@dataclass(frozen=True, eq=False)
class KaplanMeier(Lifetime):
    """A step at each death, S(t) = Π over deaths at tᵢ ≤ t of (1 − dᵢ/nᵢ), dᵢ of the nᵢ still observed having died.

    Beyond the last observation S falls exponentially, at the rate of the last quarter of the deaths (deaths by seconds
    of life after three quarters of them), so that the mean is finite. Where the last step would bring S to 0, half a
    death more is thought to be at risk, so that a worker who lives longer than any before is never impossible.

    A step has no density. Hazard and density are those of a smoother curve, which passes through the steps at every
    ⌈√deaths⌉-th death and falls exponentially in between (and, after the last death, at the tail's rate). This density
    integrates to 1, so its held-out likelihood can be compared with a formula's. Were the mass of each death spread
    over the gap before it, chance gaps would cost 0.4 nats a death; over m of them they cost 1/(2m).
    """

    NAME: ClassVar[str] = "kaplan_meier"

    time_s: Floats  # [m] moments of death in a life, each once, ascending, above 0
    alive: Floats  # [m] S at and after each, descending, above 0
    tail_from_s: float
    tail_rate: float  # 1/s
    knots: NDArray[np.intp]  # which of the m steps the smoother curve passes through; the last one is among them
    deaths: int
    censored: int

    @classmethod
    def of(cls, observations: Observations) -> Self:
        """Return the estimate from lives; zeros count as in `Observations.positive`. ObservationError for none."""
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
        # Nobody died later than that where the longest lives all ended alike.
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
        """Return whether all steps and the tail are the same: then it is the same law."""
        if not isinstance(other, KaplanMeier):
            return NotImplemented
        tails = (self.tail_from_s, self.tail_rate) == (other.tail_from_s, other.tail_rate)
        return tails and np.array_equal(self.time_s, other.time_s) and np.array_equal(self.alive, other.alive)

    def __hash__(self) -> int:
        return hash((self.tail_from_s, self.tail_rate, self.deaths, self.censored))

    def __str__(self) -> str:
        """Return a short description. It cannot be read back: the observations themselves are the parameters."""
        return f"kaplan_meier({self.deaths} deaths, {self.censored} censored, median {self.quantile(0.5):.6g}s)"

    @property
    def intervals(self) -> int:
        """In how many intervals, the tail included, the smoother curve has a hazard of its own."""
        return len(self.knots) + 1

    def scaled(self, factor: float) -> Self:
        rest = (self.knots, self.deaths, self.censored)
        return type(self)(self.time_s * factor, self.alive, self.tail_from_s * factor, self.tail_rate / factor, *rest)

    @cached_property
    def _edge_s(self) -> Floats:
        """[m + 2] where a piece of S begins: 0, every step, the tail."""
        return np.concatenate(([0.0], self.time_s, [self.tail_from_s]))

    @cached_property
    def _height(self) -> Floats:
        """[m + 2] S at the beginning of each piece."""
        return np.concatenate(([1.0], self.alive, [self.alive[-1] if len(self.alive) else 1.0]))

    @cached_property
    def _beyond(self) -> Floats:
        """[m + 2] ∫ S from the beginning of each piece to infinity."""
        areas = np.append(self._height[:-1] * np.diff(self._edge_s), self._height[-1] / self.tail_rate)
        return np.cumsum(areas[::-1])[::-1]

    @cached_property
    def _smooth(self) -> tuple[Floats, Floats, Floats]:
        """The smoother curve, piece by piece [knots + 1]: where it begins, ln S there, and its hazard."""
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
        """Return the first t with ln S(t) ≤ `log_survival`: a moment of death, or one in the tail."""
        target, lowest = np.asarray(log_survival, np.float64), math.log(self._height[-1])
        step = np.searchsorted(-np.log(self.alive), -target)
        in_tail = self.tail_from_s + np.maximum(lowest - target, 0.0) / self.tail_rate
        return np.where(target >= lowest, self._edge_s[step + 1], in_tail)

    def mean_left(self, t: Floats) -> Floats:
        piece = np.minimum(self._piece(t), len(self._edge_s) - 2)
        area = self._height[piece] * (self._edge_s[piece + 1] - t) + self._beyond[piece + 1]
        return np.where(t >= self.tail_from_s, 1 / self.tail_rate, area / self._height[piece])
