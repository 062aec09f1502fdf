"""How long a worker lives: distributions of a life T ≥ 0, each given by its survival function S(t) = P[T > t].

A distribution is one small frozen class with its own formulae; everything that follows from them (vectorised calls,
drawing, the life that is left) is in `Lifetime`. Draws invert the survival function, so the same generator gives the
same ranks whatever the distribution, and a compressed life is the same life, only shorter. Formulae are in log S, which
stays finite far out in the tail, where S itself is 0 in float64.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_Numbers = TypeVar("_Numbers", float, Floats)

# Of times that are read: beyond them sums and ratios of times leave what floats can hold.
MIN_DURATION_S, MAX_DURATION_S = 1e-9, 1e12
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:e([+-]?\d+))?\s*([smhd]?)", re.IGNORECASE)


class LifetimeError(ValueError):
    """A lifetime or duration cannot be read, or has parameters that describe no distribution."""


def _as(given: _Numbers, value: Any) -> _Numbers:
    """Return values in the form of what they were computed from: a float for a float, an array for an array."""
    formed: _Numbers = value if isinstance(given, np.ndarray) else float(value)
    return formed


@dataclass(frozen=True)
class Lifetime(ABC):
    """The distribution of a life in seconds. Its mean is finite and above zero.

    A distribution gives log S, log f, the inverse of log S, the mean, and the mean of what is left at an age.
    """

    NAME: ClassVar[str | None] = None
    """By which `fit` knows the family; None where it does not fit it."""

    @abstractmethod
    def mean(self) -> float:
        """E[T] in seconds."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """Return the distribution of factor·T, factor > 0; `scaled(1 / 60)` lets a minute pass in a second."""

    @abstractmethod
    def log_survival(self, t: Floats) -> Floats:
        """ln S(t) for t ≥ 0 in seconds, elementwise; finite wherever S(t) > 0, however small."""

    @abstractmethod
    def log_density(self, t: Floats) -> Floats:
        """ln f(t) for t ≥ 0 in seconds, elementwise, f in 1/s; finite wherever f(t) > 0, however small."""

    @abstractmethod
    def inverse_log_survival(self, log_survival: Floats) -> Floats:
        """Return the t ≥ 0 in seconds with ln S(t) = `log_survival` ≤ 0, elementwise."""

    @abstractmethod
    def mean_left(self, t: Floats) -> Floats:
        """E[T − t | T > t] in seconds for finite t ≥ 0, elementwise: what is left, on average, at age t."""

    def _hazard(self, t: Floats) -> Floats:
        """h(t) = f(t)/S(t) for t ≥ 0, elementwise; overridden where that would cancel."""
        return np.exp(self.log_density(t) - self.log_survival(t))

    def _restricted_mean(self, t: Floats) -> Floats:
        """E[min(T, t)] for finite t ≥ 0, elementwise; overridden where nothing need be subtracted."""
        return self.mean() - np.exp(self.log_survival(t)) * self.mean_left(t)

    def survival(self, t: _Numbers) -> _Numbers:
        """S(t) = P[T > t], t in seconds: float for a float, float64 of the same shape for an array; 1 for t < 0."""
        return _as(t, np.exp(self.log_survival(np.maximum(np.asarray(t, np.float64), 0.0))))

    def hazard(self, t: _Numbers) -> _Numbers:
        """h(t) = −d/dt ln S(t) in 1/s for finite t ≥ 0: float for a float, float64 of the same shape for an array.

        It may be infinite at t = 0 (a Weibull of shape below 1).
        """
        return _as(t, self._hazard(np.asarray(t, np.float64)))

    def restricted_mean(self, t: _Numbers) -> _Numbers:
        """E[min(T, t)] = ∫₀ᵗ S(u) du in seconds, t ≥ 0 in seconds or infinite (the mean); float or array, as `t`."""
        given = np.asarray(t, np.float64)
        finite = np.where(np.isfinite(given), given, 0.0)
        # Its bounds t·S(t) and t keep the digits where t is so short that the formula would lose them.
        lowest = finite * np.exp(self.log_survival(finite))
        within = np.minimum(np.maximum(self._restricted_mean(finite), lowest), finite)
        return _as(t, np.where(np.isinf(given), self.mean(), within))

    def quantile(self, q: _Numbers) -> _Numbers:
        """Return the life in seconds that a share q of the workers does not outlast, 0 ≤ q < 1 (LifetimeError)."""
        shares = np.asarray(q, np.float64)
        if not bool(np.all((shares >= 0) & (shares < 1))):
            raise LifetimeError(f"a quantile needs shares with 0 <= q < 1, got {q!r}")
        return _as(q, self.inverse_log_survival(np.log1p(-shares)))

    @overload
    def sample(self, rng: np.random.Generator) -> float: ...
    @overload
    def sample(self, rng: np.random.Generator, n: None) -> float: ...
    @overload
    def sample(self, rng: np.random.Generator, n: int) -> Floats: ...
    def sample(self, rng: np.random.Generator, n: int | None = None) -> float | Floats:
        """Return one life in seconds, or n of them, float64 [n]. Takes one uniform number from `rng` per life."""
        return self.quantile(rng.random()) if n is None else self.quantile(rng.random(n))

    def after(self, age_s: float) -> Lifetime:
        """Return the life that is left at an age: survival S(age + t)/S(age).

        Raises LifetimeError for an age that is negative or not finite, or that nobody reaches (S(age) = 0).
        """
        return self if age_s == 0 else Residual(self, age_s)


@dataclass(frozen=True)
class Residual(Lifetime):
    """What is left of a life of law `base` at `age_s`: T − age given T > age. In logs, so that any age will do."""

    base: Lifetime
    age_s: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.age_s) and self.age_s >= 0):
            raise LifetimeError(f"an age must be finite and at least 0 s, got {self.age_s!r}")
        if not math.isfinite(self._log_reached()):
            raise LifetimeError(f"by {self.base} nobody reaches the age of {self.age_s} s: fit the lifetimes again")

    def __str__(self) -> str:
        return f"{self.base} at the age of {self.age_s}s"

    def _log_reached(self) -> float:
        return float(self.base.log_survival(np.asarray(self.age_s)))

    def mean(self) -> float:
        return float(self.base.mean_left(np.asarray(self.age_s)))

    def scaled(self, factor: float) -> Self:
        return type(self)(self.base.scaled(factor), self.age_s * factor)

    def after(self, age_s: float) -> Lifetime:
        return self if age_s == 0 else Residual(self.base, self.age_s + age_s)

    def log_survival(self, t: Floats) -> Floats:
        return self.base.log_survival(self.age_s + t) - self._log_reached()

    def log_density(self, t: Floats) -> Floats:
        return self.base.log_density(self.age_s + t) - self._log_reached()

    def inverse_log_survival(self, log_survival: Floats) -> Floats:
        return np.maximum(self.base.inverse_log_survival(log_survival + self._log_reached()) - self.age_s, 0.0)

    def mean_left(self, t: Floats) -> Floats:
        return self.base.mean_left(self.age_s + t)

    def _hazard(self, t: Floats) -> Floats:
        return np.asarray(self.base.hazard(np.asarray(self.age_s + t)))


def parse_duration(text: str) -> float:
    """Return seconds from "90s", "45m", "2h", "1.5h", "1d" or a plain number of seconds: 0, or within MIN_DURATION_S
    and MAX_DURATION_S.

    Raises LifetimeError otherwise.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise LifetimeError(f'cannot read the duration "{text}": give a number with s, m, h or d, such as 90s or 1.5h')
    number, exponent, unit = match.groups()
    value = float(f"{number}e{exponent or 0}") * _SECONDS[unit.lower()]
    if value != 0 and not MIN_DURATION_S <= value <= MAX_DURATION_S:
        raise LifetimeError(
            f'the duration "{text}" is {value:g} s: give 0, or from {MIN_DURATION_S:g} to {MAX_DURATION_S:g} s'
        )
    return value
