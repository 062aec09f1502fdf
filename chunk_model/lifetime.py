"""How long a worker lives: distributions of a life T ≥ 0, each given by its survival function S(t) = P[T > t].

A distribution is one small frozen class with its own formulae; everything that follows from them (vectorised calls,
drawing, text) is in `Lifetime`. Draws invert the distribution function, so the same generator gives the same ranks
whatever the distribution, and a compressed life is the same life, only shorter.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, ndtr, ndtri

Floats = NDArray[np.float64]

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:e([+-]?\d+))?\s*([smhd]?)", re.IGNORECASE)
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)


class LifetimeError(ValueError):
    """A lifetime or duration cannot be read, or has parameters that describe no distribution."""


@dataclass(frozen=True)
class Lifetime(ABC):
    """The distribution of a life in seconds. Every parameter is finite and above zero, and so is the mean."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise LifetimeError(f"{type(self).__name__}.{field.name} must be finite and above 0, got {value!r}")
        if not (math.isfinite(mean := self.mean()) and mean > 0):
            raise LifetimeError(
                f"{self!r} has no usable mean ({mean} s): choose parameters nearer to what was observed"
            )

    @abstractmethod
    def mean(self) -> float:
        """E[T] in seconds."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """The distribution of factor·T, factor > 0; `scaled(1 / 60)` lets a minute pass in a second."""

    @abstractmethod
    def _survival(self, t: Floats) -> Floats:
        """S(t) for t ≥ 0, elementwise."""

    @abstractmethod
    def _quantile(self, q: Floats) -> Floats:
        """The t with P[T ≤ t] = q, for 0 ≤ q < 1, elementwise."""

    @overload
    def survival(self, t: float) -> float: ...
    @overload
    def survival(self, t: Floats) -> Floats: ...
    def survival(self, t: float | Floats) -> float | Floats:
        """S(t) = P[T > t], t in seconds: float for a float, float64 of the same shape for an array; 1 for t < 0."""
        value = self._survival(np.maximum(np.asarray(t, np.float64), 0.0))
        return value if isinstance(t, np.ndarray) else float(value)

    @overload
    def quantile(self, q: float) -> float: ...
    @overload
    def quantile(self, q: Floats) -> Floats: ...
    def quantile(self, q: float | Floats) -> float | Floats:
        """The life in seconds that a share q of the workers does not outlast, 0 ≤ q < 1 (LifetimeError outside)."""
        shares = np.asarray(q, np.float64)
        if not bool(np.all((shares >= 0) & (shares < 1))):
            raise LifetimeError(f"a quantile needs shares with 0 <= q < 1, got {q!r}")
        # Rounding may leave a tiny negative number at q = 0, and no life is negative.
        value = np.maximum(self._quantile(shares), 0.0)
        return value if isinstance(q, np.ndarray) else float(value)

    @overload
    def sample(self, rng: np.random.Generator) -> float: ...
    @overload
    def sample(self, rng: np.random.Generator, n: None) -> float: ...
    @overload
    def sample(self, rng: np.random.Generator, n: int) -> Floats: ...
    def sample(self, rng: np.random.Generator, n: int | None = None) -> float | Floats:
        """One life in seconds, or n of them, float64 [n]. Takes exactly one uniform number from `rng` per life."""
        return self.quantile(rng.random()) if n is None else self.quantile(rng.random(n))

    def __str__(self) -> str:
        """The text that `parse` reads back to an equal distribution."""
        name, units = _NAMES[type(self)]
        values = (float(getattr(self, field.name)) for field in fields(self))
        return f"{name}({','.join(f'{value!r}{unit}' for value, unit in zip(values, units, strict=True))})"


@dataclass(frozen=True)
class Normal(Lifetime):
    """N(mean_s, sd_s) given that it is positive (the paper's choice): S(t) = Φ((μ − t)/σ) / Φ(μ/σ)."""

    mean_s: float
    sd_s: float

    def mean(self) -> float:
        """μ + σ·φ(μ/σ)/Φ(μ/σ): a little above `mean_s`, as the negative part is cut off."""
        a = self.mean_s / self.sd_s
        return self.mean_s + self.sd_s * math.exp(-a * a / 2) / math.sqrt(2 * math.pi) / float(ndtr(a))

    def scaled(self, factor: float) -> Self:
        return type(self)(self.mean_s * factor, self.sd_s * factor)

    def _survival(self, t: Floats) -> Floats:
        return np.asarray(ndtr((self.mean_s - t) / self.sd_s) / ndtr(self.mean_s / self.sd_s))

    def _quantile(self, q: Floats) -> Floats:
        return np.asarray(self.mean_s - self.sd_s * ndtri((1 - q) * ndtr(self.mean_s / self.sd_s)))


@dataclass(frozen=True)
class Exponential(Lifetime):
    """No memory: S(t) = exp(−t/μ)."""

    mean_s: float

    def mean(self) -> float:
        return self.mean_s

    def scaled(self, factor: float) -> Self:
        return type(self)(self.mean_s * factor)

    def _survival(self, t: Floats) -> Floats:
        return np.exp(-t / self.mean_s)

    def _quantile(self, q: Floats) -> Floats:
        return -self.mean_s * np.log1p(-q)


@dataclass(frozen=True)
class Weibull(Lifetime):
    """S(t) = exp(−(t/λ)^k): shape k < 1 for machines that fail young, k > 1 for machines that wear out; λ = scale_s."""

    shape: float
    scale_s: float

    def mean(self) -> float:
        """λ·Γ(1 + 1/k)."""
        with np.errstate(over="ignore"):
            return self.scale_s * float(np.exp(gammaln(1 + 1 / self.shape)))

    def scaled(self, factor: float) -> Self:
        return type(self)(self.shape, self.scale_s * factor)

    def _survival(self, t: Floats) -> Floats:
        with np.errstate(over="ignore"):  # (t/λ)^k = ∞ is right: nothing lives that long
            return np.exp(-((t / self.scale_s) ** self.shape))

    def _quantile(self, q: Floats) -> Floats:
        return np.asarray(self.scale_s * (-np.log1p(-q)) ** (1 / self.shape))


@dataclass(frozen=True)
class LogNormal(Lifetime):
    """ln T ~ N(ln median_s, sigma²): S(t) = Φ(−ln(t/m)/σ), a long tail of machines that nobody wants back."""

    median_s: float
    sigma: float

    def mean(self) -> float:
        """m·exp(σ²/2)."""
        with np.errstate(over="ignore"):
            return self.median_s * float(np.exp(self.sigma**2 / 2))

    def scaled(self, factor: float) -> Self:
        return type(self)(self.median_s * factor, self.sigma)

    def _survival(self, t: Floats) -> Floats:
        with np.errstate(divide="ignore"):  # ln 0 = −∞, and Φ(∞) = 1
            return np.asarray(ndtr(-np.log(t / self.median_s) / self.sigma))

    def _quantile(self, q: Floats) -> Floats:
        return np.asarray(self.median_s * np.exp(self.sigma * ndtri(q)))


# Name in texts, and for each parameter the unit it is written with ("" for a pure number).
_NAMES: dict[type[Lifetime], tuple[str, tuple[str, ...]]] = {
    Normal: ("normal", ("s", "s")),
    Exponential: ("exponential", ("s",)),
    Weibull: ("weibull", ("", "s")),
    LogNormal: ("lognormal", ("s", "")),
}
_EXAMPLES = "normal(45m,10m), exponential(45m), weibull(1.5,40m) or lognormal(45m,0.8)"


def parse_duration(text: str) -> float:
    """Seconds from "90s", "45m", "2h", "1.5h", "1d" or a plain number of seconds; LifetimeError otherwise."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise LifetimeError(f'cannot read the duration "{text}": give a number with s, m, h or d, such as 90s or 1.5h')
    number, exponent, unit = match.groups()
    return float(f"{number}e{exponent or 0}") * _SECONDS[unit.lower()]


def parse(text: str) -> Lifetime:
    """The distribution named by a text such as "normal(45m,10m)" or "weibull(1.5,40m)".

    Raises LifetimeError for an unknown name, a wrong count of parameters, an unreadable number or a value out of range.
    """
    match = _CALL.fullmatch(text)
    known = {name: (kind, units) for kind, (name, units) in _NAMES.items()}
    if match is None or match[1].lower() not in known:
        raise LifetimeError(f'cannot read the lifetime "{text}": expected for example {_EXAMPLES}')
    kind, units = known[match[1].lower()]
    given = [part.strip() for part in match[2].split(",")] if match[2].strip() else []
    if len(given) != len(units):
        wanted = f"{len(units)} ({', '.join(field.name for field in fields(kind))})"
        raise LifetimeError(f'the lifetime "{text}" has {len(given)} parameters, expected {wanted}: {_EXAMPLES}')
    try:
        read = (parse_duration if unit else _number for unit in units)
        values: list[Any] = [reader(part) for reader, part in zip(read, given, strict=True)]
        return kind(*values)
    except LifetimeError as error:
        raise LifetimeError(f'cannot use the lifetime "{text}": {error}; expected for example {_EXAMPLES}') from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise LifetimeError(f'"{text}" is not a number') from None
