"""Parametric families of lifetimes, and mixtures of them.

The families are normal (truncated at 0), exponential, Weibull and log-normal. `str` gives the name and parameters, as
in `weibull(1.5,2400.0s)`, which `chunk_model.parse` reads back. A mixture models machines of several kinds when the
kind of a machine is unknown.

In the tail, φ(x)/Φ(−x) is computed as √(2/π)/erfcx(x/√2), with erfcx(x) = exp(x²)·erfc(x), because this form neither
overflows nor cancels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np
from scipy.special import erfcx, gammainc, gammaincc, gammaln, log_ndtr, ndtri_exp

from chunk_model.lifetime import Floats, Lifetime, LifetimeError

_LOG_ROOT_2PI = math.log(2 * math.pi) / 2


@dataclass(frozen=True)
class Family(Lifetime):
    """A lifetime with a name and one or two parameters. Raises LifetimeError unless the parameters and the mean are
    finite and above zero."""

    NAME: ClassVar[str]
    UNITS: ClassVar[tuple[str, ...]]  # unit of each parameter in text, "" for a pure number

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise LifetimeError(f"{type(self).__name__}.{field.name} must be finite and above 0, got {value!r}")
        if not (math.isfinite(mean := self.mean()) and mean > 0):
            raise LifetimeError(
                f"{self!r} has no usable mean ({mean} s): choose parameters nearer to what was observed"
            )

    def __str__(self) -> str:
        """Return the text form, from which `chunk_model.parse` makes an equal distribution."""
        values = (float(getattr(self, field.name)) for field in fields(self))
        return f"{self.NAME}({','.join(f'{value!r}{unit}' for value, unit in zip(values, self.UNITS, strict=True))})"


@dataclass(frozen=True)
class Normal(Family):
    """The normal distribution, which the paper uses, truncated at 0: S(t) = Φ((μ − t)/σ) / Φ(μ/σ) with μ = mean_s and
    σ = sd_s."""

    NAME: ClassVar[str] = "normal"
    UNITS: ClassVar[tuple[str, ...]] = ("s", "s")

    mean_s: float
    sd_s: float

    def _log_positive(self) -> float:
        """ln Φ(μ/σ): the logarithm of the share of the bell that lies above 0 and is kept."""
        return float(log_ndtr(self.mean_s / self.sd_s))

    def mean(self) -> float:
        """μ + σ·φ(μ/σ)/Φ(μ/σ): a little above `mean_s`, as the negative part is cut off."""
        return self.mean_s + self.sd_s * float(mills(np.asarray(-self.mean_s / self.sd_s)))

    def scaled(self, factor: float) -> Self:
        return type(self)(self.mean_s * factor, self.sd_s * factor)

    def log_survival(self, t: Floats) -> Floats:
        return np.asarray(log_ndtr((self.mean_s - t) / self.sd_s) - self._log_positive())

    def log_density(self, t: Floats) -> Floats:
        x = (t - self.mean_s) / self.sd_s
        return np.asarray(-x * x / 2 - _LOG_ROOT_2PI - math.log(self.sd_s) - self._log_positive())

    def inverse_log_survival(self, log_survival: Floats) -> Floats:
        # If S is nearly 1, rounding can give a negative number or −∞. It is replaced by 0, because no life is negative.
        return np.asarray(np.maximum(self.mean_s - self.sd_s * ndtri_exp(log_survival + self._log_positive()), 0.0))

    def mean_left(self, t: Floats) -> Floats:
        """σ·(φ(x)/Φ(−x) − x) with x = (t − μ)/σ, which tends to σ/x."""
        x = (t - self.mean_s) / self.sd_s
        far = np.maximum(x, 1e3)  # above 1e3 the difference would cancel; two terms of its series are exact enough
        return self.sd_s * np.where(x > 1e3, (1 - 2 / far**2) / far, mills(x) - x)

    def _hazard(self, t: Floats) -> Floats:
        return mills((t - self.mean_s) / self.sd_s) / self.sd_s


@dataclass(frozen=True)
class Exponential(Family):
    """No memory: S(t) = exp(−t/μ)."""

    NAME: ClassVar[str] = "exponential"
    UNITS: ClassVar[tuple[str, ...]] = ("s",)

    mean_s: float

    def mean(self) -> float:
        return self.mean_s

    def scaled(self, factor: float) -> Self:
        return type(self)(self.mean_s * factor)

    def after(self, age_s: float) -> Lifetime:
        super().after(age_s)  # raises for an invalid age
        return self

    def log_survival(self, t: Floats) -> Floats:
        return np.asarray(-t / self.mean_s)

    def log_density(self, t: Floats) -> Floats:
        return np.asarray(-t / self.mean_s - math.log(self.mean_s))

    def inverse_log_survival(self, log_survival: Floats) -> Floats:
        return np.asarray(-self.mean_s * log_survival)

    def mean_left(self, t: Floats) -> Floats:
        return np.full_like(t, self.mean_s)

    def _hazard(self, t: Floats) -> Floats:
        return np.full_like(t, 1 / self.mean_s)

    def _restricted_mean(self, t: Floats) -> Floats:
        """μ·(1 − exp(−t/μ))."""
        return np.asarray(-self.mean_s * np.expm1(-t / self.mean_s))


@dataclass(frozen=True)
class Weibull(Family):
    """S(t) = exp(−(t/λ)^k) with k = shape and λ = scale_s: k < 1 for machines that fail young, k > 1 for machines that
    wear out."""

    NAME: ClassVar[str] = "weibull"
    UNITS: ClassVar[tuple[str, ...]] = ("", "s")

    shape: float
    scale_s: float

    def mean(self) -> float:
        """λ·Γ(1 + 1/k)."""
        with np.errstate(over="ignore"):
            return self.scale_s * float(np.exp(gammaln(1 + 1 / self.shape)))

    def scaled(self, factor: float) -> Self:
        return type(self)(self.shape, self.scale_s * factor)

    def _z(self, t: Floats) -> Floats:
        """(t/λ)^k = −ln S(t)."""
        with np.errstate(over="ignore"):  # ∞ is right: nothing lives that long
            return np.asarray((t / self.scale_s) ** self.shape)

    def log_survival(self, t: Floats) -> Floats:
        return -self._z(t)

    def log_density(self, t: Floats) -> Floats:
        with np.errstate(divide="ignore"):  # at t = 0 the density is ∞ for k < 1, 0 for k > 1
            power = (self.shape - 1) * np.log(t / self.scale_s) if self.shape != 1 else 0.0
        return np.asarray(math.log(self.shape / self.scale_s) + power - self._z(t))

    def inverse_log_survival(self, log_survival: Floats) -> Floats:
        return np.asarray(self.scale_s * (-log_survival) ** (1 / self.shape))

    def mean_left(self, t: Floats) -> Floats:
        """(λ/k)·exp(z)·Γ(1/k, z) with z = (t/λ)^k (the upper incomplete gamma function)."""
        a, z = 1 / self.shape, self._z(t)
        near = np.minimum(z, 500.0)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value = np.exp(gammaln(a) + near) * gammaincc(a, near)
            far = np.maximum(z, 500.0)
            # Above 500, exp(z) and Γ(a, z) would leave the range of float64: use Legendre's continued fraction.
            below = far + 61 - a
            for i in range(30, 0, -1):
                below = far + 2 * i - 1 - a - i * (i - a) / below
            beyond = np.exp(a * np.log(far)) / below
        return self.scale_s / self.shape * np.where(z > 500, beyond, value)

    def _hazard(self, t: Floats) -> Floats:
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray(self.shape / self.scale_s * (t / self.scale_s) ** (self.shape - 1))

    def _restricted_mean(self, t: Floats) -> Floats:
        """λ·Γ(1 + 1/k)·P(1/k, (t/λ)^k), P the regularised lower incomplete gamma function."""
        return np.asarray(self.mean() * gammainc(1 / self.shape, self._z(t)))


@dataclass(frozen=True)
class LogNormal(Family):
    """ln T ~ N(ln m, σ²): S(t) = Φ(−ln(t/m)/σ) with m = median_s and σ = sigma. The long tail models machines that are
    never reclaimed."""

    NAME: ClassVar[str] = "lognormal"
    UNITS: ClassVar[tuple[str, ...]] = ("s", "")

    median_s: float
    sigma: float

    def mean(self) -> float:
        """m·exp(σ²/2)."""
        with np.errstate(over="ignore"):
            return self.median_s * float(np.exp(self.sigma**2 / 2))

    def scaled(self, factor: float) -> Self:
        return type(self)(self.median_s * factor, self.sigma)

    def _x(self, t: Floats) -> Floats:
        with np.errstate(divide="ignore"):  # ln 0 = −∞, and Φ(∞) = 1
            return np.asarray(np.log(t / self.median_s) / self.sigma)

    def log_survival(self, t: Floats) -> Floats:
        return np.asarray(log_ndtr(-self._x(t)))

    def log_density(self, t: Floats) -> Floats:
        # The square is completed, because at t = 0 the plain sum would be −∞ + ∞; this form gives −∞.
        x = self._x(t) + self.sigma
        return np.asarray(-x * x / 2 + self.sigma**2 / 2 - _LOG_ROOT_2PI - math.log(self.sigma * self.median_s))

    def inverse_log_survival(self, log_survival: Floats) -> Floats:
        return np.asarray(self.median_s * np.exp(-self.sigma * ndtri_exp(log_survival)))

    def mean_left(self, t: Floats) -> Floats:
        """E[T]·Φ(σ − x)/Φ(−x) − t with x = ln(t/m)/σ. In the tail t is factored out, by φ(x)·t = φ(x − σ)·E[T]."""
        x = self._x(t)
        tail = np.maximum(x, self.sigma)
        far: Floats = t * (erfcx((tail - self.sigma) / math.sqrt(2)) / erfcx(tail / math.sqrt(2)) - 1)
        body = np.minimum(x, self.sigma)
        near: Floats = self.mean() * np.exp(log_ndtr(self.sigma - body) - log_ndtr(-body)) - t
        return np.where(x > self.sigma, far, near)

    def _hazard(self, t: Floats) -> Floats:
        """φ(x)/Φ(−x)/(σ·t), x = ln(t/m)/σ; 0 at t = 0."""
        positive = np.maximum(t, np.finfo(np.float64).tiny)
        return np.asarray(mills(self._x(positive)) / (self.sigma * positive))

    def _restricted_mean(self, t: Floats) -> Floats:
        """E[T]·Φ(x − σ) + t·Φ(−x) with x = ln(t/m)/σ."""
        x = self._x(t)
        return np.asarray(self.mean() * np.exp(log_ndtr(x - self.sigma)) + t * np.exp(log_ndtr(-x)))


def mills(x: Floats) -> Floats:
    """φ(x)/Φ(−x), the hazard of the standard normal distribution (the inverse of Mills' ratio)."""
    return np.asarray(math.sqrt(2 / math.pi) / erfcx(x / math.sqrt(2)))


FORMULAS: dict[str, type[Family]] = {family.NAME: family for family in (Normal, Exponential, Weibull, LogNormal)}
"""The families by their names in text."""


_SUMS_TO_ONE = 1e-9  # tolerance, since weights in text are rounded
_STEPS = 100  # maximum steps of the search for a quantile; bisection alone would need about 60


@dataclass(frozen=True)
class Mixture(Lifetime):
    """S(t) = Σ wᵢ·Sᵢ(t). Raises LifetimeError for no parts, or weights that are not above zero or do not sum to 1."""

    NAME: ClassVar[str] = "mixture"

    weights: tuple[float, ...]
    parts: tuple[Lifetime, ...]

    def __post_init__(self) -> None:
        if not self.parts or len(self.parts) != len(self.weights):
            got = f"{len(self.weights)} weights and {len(self.parts)} parts"
            raise LifetimeError(f"a mixture needs at least one part, and a weight for each, got {got}")
        if not (min(self.weights) > 0 and abs(math.fsum(self.weights) - 1) <= _SUMS_TO_ONE):
            raise LifetimeError(f"a mixture's weights must be above 0 and sum to 1, got {self.weights}")

    def __str__(self) -> str:
        """Return the text form, which `chunk_model.parse` can read if it can read the parts."""
        each = (f"{float(weight)!r}*{part}" for weight, part in zip(self.weights, self.parts, strict=True))
        return f"mixture({','.join(each)})"

    def mean(self) -> float:
        """Σ wᵢ·E[Tᵢ]."""
        return math.fsum(weight * part.mean() for weight, part in zip(self.weights, self.parts, strict=True))

    def scaled(self, factor: float) -> Self:
        return type(self)(self.weights, tuple(part.scaled(factor) for part in self.parts))

    def _log_weights(self, t: Floats) -> Floats:
        """ln wᵢ, float64 [parts, 1, …] so that it broadcasts over `t`."""
        return np.log(self.weights).reshape(-1, *(1,) * np.ndim(t))

    def _log_alive(self, t: Floats) -> Floats:
        """ln wᵢ·Sᵢ(t), float64 [parts, …]."""
        return self._log_weights(t) + np.stack([part.log_survival(t) for part in self.parts])

    def log_survival(self, t: Floats) -> Floats:
        # S is set to 1 at t = 0 and bounded by 1, because rounded weights can sum to a little less or more than 1.
        return np.where(t > 0, np.minimum(np.logaddexp.reduce(self._log_alive(t)), 0.0), 0.0)

    def log_density(self, t: Floats) -> Floats:
        each = self._log_weights(t) + np.stack([part.log_density(t) for part in self.parts])
        return np.asarray(np.logaddexp.reduce(each))

    def inverse_log_survival(self, log_survival: Floats) -> Floats:
        """Invert ln S by Newton's method, starting with the parts' lowest and highest quantiles as the bracket. A step
        that leaves the bracket is replaced by bisection."""
        target = np.asarray(log_survival, np.float64)
        each = np.stack([part.inverse_log_survival(target) for part in self.parts])
        low, high = np.min(each, axis=0), np.max(each, axis=0)
        t: Floats = (low + high) / 2
        for _ in range(_STEPS):
            above = self.log_survival(t) - target
            low, high = np.where(above >= 0, t, low), np.where(above >= 0, high, t)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = t + above / self._hazard(t)
            # Bisect the logarithm of a wide bracket, because the root can be orders of magnitude below the middle.
            middle = np.where(high > 16 * low, np.sqrt(np.maximum(low, high * 1e-12) * high), (low + high) / 2)
            new = np.where((step > low) & (step < high), step, middle)
            if bool(np.all(np.abs(new - t) <= 1e-13 * np.abs(t))):
                break
            t = new
        return t

    def mean_left(self, t: Floats) -> Floats:
        """Σ wᵢ·Sᵢ(t)·E[Tᵢ − t | Tᵢ > t] / S(t): each part is weighted by its share of the survivors."""
        return self._weighted(self._log_alive(t), np.stack([part.mean_left(t) for part in self.parts]))

    def _hazard(self, t: Floats) -> Floats:
        return self._weighted(
            self._log_alive(t), np.stack([np.asarray(part.hazard(np.asarray(t))) for part in self.parts])
        )

    def _restricted_mean(self, t: Floats) -> Floats:
        each = np.stack([np.asarray(part.restricted_mean(np.asarray(t))) for part in self.parts])
        return self._weighted(np.broadcast_to(self._log_weights(t), each.shape), each)

    @staticmethod
    def _weighted(log_weight: Floats, values: Floats) -> Floats:
        """Return the mean of `values` over the parts. `log_weight` is the logarithm of the weights, up to a constant
        that all parts share."""
        top = np.max(log_weight, axis=0)
        # If all parts are extinct (log weight −∞), they weigh the same. Otherwise an extinct part is left out, because
        # its value, such as a hazard, can be infinite.
        weight = np.exp(log_weight - np.where(np.isfinite(top), top, 0.0))
        weight = np.where(np.isfinite(top), weight, 1.0)
        return np.asarray(np.sum(weight * np.where(weight > 0, values, 0.0), axis=0) / np.sum(weight, axis=0))
