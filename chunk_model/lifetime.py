"""Lifetimes of workers: distributions of a life T ≥ 0, defined by the survival function S(t) = P[T > t].

A distribution is a small frozen class with its own formulae. `Lifetime` derives everything else from them: vectorised
calls, sampling, and the residual life. Sampling inverts the survival function. So one state of the generator gives the
same ranks for every distribution, and a lifetime scaled by a factor gives the same lives times that factor. Formulae
use log S, because it stays finite in the tail, where S itself is 0 in float64.
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
#: A number or an array. The result has the same form: a float for a number, float64 of the same shape for an array.
Given = TypeVar("Given", float, NDArray[Any])

# Bounds of times in text: beyond them, sums and ratios of times overflow.
MIN_DURATION_S, MAX_DURATION_S = 1e-9, 1e12
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:e([+-]?\d+))?\s*([smhd]?)", re.IGNORECASE)


class LifetimeError(ValueError):
    """A lifetime or duration cannot be parsed, or has invalid parameters."""


def as_given(given: Given, value: Any) -> Given:
    """Return computed values in the form of the argument: a float for a float, an array for an array."""
    formed: Given = value if isinstance(given, np.ndarray) else float(value)
    return formed


@dataclass(frozen=True)
class Lifetime(ABC):
    """The distribution of a life in seconds. Its mean is finite and above zero.

    Subclasses implement log S, log f, the inverse of log S, the mean, and the mean residual life at an age.
    """

    NAME: ClassVar[str | None] = None
    """The family's name in `fit`; None if it cannot be fitted."""

    @abstractmethod
    def mean(self) -> float:
        """E[T] in seconds."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """Return the distribution of factor·T, factor > 0; `scaled(1 / 60)` turns minutes into seconds."""

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
        """E[T − t | T > t] in seconds for finite t ≥ 0, elementwise: the mean residual life at age t."""

    def _hazard(self, t: Floats) -> Floats:
        """h(t) = f(t)/S(t) for t ≥ 0, elementwise. Subclasses override it to avoid cancellation."""
        return np.exp(self.log_density(t) - self.log_survival(t))

    def _restricted_mean(self, t: Floats) -> Floats:
        """E[min(T, t)] for finite t ≥ 0, elementwise. Subclasses override it with a formula that does not subtract."""
        return self.mean() - np.exp(self.log_survival(t)) * self.mean_left(t)

    def survival(self, t: Given) -> Given:
        """S(t) = P[T > t], t in seconds: float for a float, float64 of the same shape for an array; 1 for t < 0."""
        return as_given(t, np.exp(self.log_survival(np.maximum(np.asarray(t, np.float64), 0.0))))

    def hazard(self, t: Given) -> Given:
        """h(t) = −d/dt ln S(t) in 1/s for finite t ≥ 0: float for a float, float64 of the same shape for an array.

        The hazard can be infinite at t = 0, as that of a Weibull distribution with a shape below 1.
        """
        return as_given(t, self._hazard(np.asarray(t, np.float64)))

    def restricted_mean(self, t: Given) -> Given:
        """E[min(T, t)] = ∫₀ᵗ S(u) du in seconds, for t ≥ 0 in seconds; the mean for infinite t. Float for a float,
        float64 of the same shape for an array."""
        given = np.asarray(t, np.float64)
        finite = np.where(np.isfinite(given), given, 0.0)
        # The bounds t·S(t) and t keep full precision for short t, where the formula cancels.
        lowest = finite * np.exp(self.log_survival(finite))
        within = np.minimum(np.maximum(self._restricted_mean(finite), lowest), finite)
        return as_given(t, np.where(np.isinf(given), self.mean(), within))

    def quantile(self, q: Given) -> Given:
        """Return the life in seconds that a share q of the workers does not exceed. Raises LifetimeError unless
        0 ≤ q < 1."""
        shares = np.asarray(q, np.float64)
        if not bool(np.all((shares >= 0) & (shares < 1))):
            raise LifetimeError(f"a quantile needs shares with 0 <= q < 1, got {q!r}")
        return as_given(q, self.inverse_log_survival(np.log1p(-shares)))

    @overload
    def sample(self, rng: np.random.Generator, n: None = None) -> float: ...
    @overload
    def sample(self, rng: np.random.Generator, n: int) -> Floats: ...
    def sample(self, rng: np.random.Generator, n: int | None = None) -> float | Floats:
        """Return one life in seconds, or n of them, float64 [n]. Draws one uniform number from `rng` per life."""
        return self.quantile(rng.random()) if n is None else self.quantile(rng.random(n))

    def after(self, age_s: float) -> Lifetime:
        """Return the residual life at an age: survival S(age + t)/S(age).

        Raises LifetimeError for an age that is negative or not finite, or that no life reaches (S(age) = 0).
        """
        return self if age_s == 0 else Residual(self, age_s)


@dataclass(frozen=True)
class Residual(Lifetime):
    """The residual life T − `age_s` given T > `age_s`, where T has the distribution `base`. It is computed from log S,
    so that any age works."""

    base: Lifetime
    age_s: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.age_s) and self.age_s >= 0):
            raise LifetimeError(f"an age must be finite and at least 0 s, got {self.age_s!r}")
        if not math.isfinite(self._log_reached()):
            raise LifetimeError(f"by {self.base} no life reaches the age of {self.age_s} s: fit the lifetimes again")

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
    """Parse "90s", "45m", "2h", "1.5h", "1d" or a plain number of seconds. Return seconds.

    Raises LifetimeError for other text, and unless the time is 0 or from MIN_DURATION_S to MAX_DURATION_S.
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
