"""A mixture of lifetimes: machines of several sorts, of which nobody knows which is which."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from chunk_model.lifetime import Floats, Lifetime, LifetimeError

_SUMS_TO_ONE = 1e-9  # weights read from text were rounded
_STEPS = 100  # of the search for a quantile; halving alone would need about 60


@dataclass(frozen=True)
class Mixture(Lifetime):
    """S(t) = Σ wᵢ·Sᵢ(t). Raises LifetimeError for no parts, or weights that are not above zero or do not sum to 1."""

    weights: tuple[float, ...]
    parts: tuple[Lifetime, ...]

    def __post_init__(self) -> None:
        if not self.parts or len(self.parts) != len(self.weights):
            got = f"{len(self.weights)} weights and {len(self.parts)} parts"
            raise LifetimeError(f"a mixture needs at least one part, and a weight for each, got {got}")
        if not (min(self.weights) > 0 and abs(math.fsum(self.weights) - 1) <= _SUMS_TO_ONE):
            raise LifetimeError(f"a mixture's weights must be above 0 and sum to 1, got {self.weights}")

    def __str__(self) -> str:
        """Return the text that `chunk_model.parse` reads back, if it can read the parts."""
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
        # Rounded weights may sum to a little less or more than 1, and S(0) = 1 all the same.
        return np.where(t > 0, np.minimum(np.logaddexp.reduce(self._log_alive(t)), 0.0), 0.0)

    def log_density(self, t: Floats) -> Floats:
        each = self._log_weights(t) + np.stack([part.log_density(t) for part in self.parts])
        return np.asarray(np.logaddexp.reduce(each))

    def inverse_log_survival(self, log_survival: Floats) -> Floats:
        """By Newton's method on ln S between the least and the largest of the parts' own, halving where it strays."""
        target = np.asarray(log_survival, np.float64)
        each = np.stack([part.inverse_log_survival(target) for part in self.parts])
        low, high = np.min(each, axis=0), np.max(each, axis=0)
        t: Floats = (low + high) / 2
        for _ in range(_STEPS):
            above = self.log_survival(t) - target
            low, high = np.where(above >= 0, t, low), np.where(above >= 0, high, t)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = t + above / self._hazard(t)
            # A root far below the middle is found by halving its logarithm.
            middle = np.where(high > 16 * low, np.sqrt(np.maximum(low, high * 1e-12) * high), (low + high) / 2)
            new = np.where((step > low) & (step < high), step, middle)
            if bool(np.all(np.abs(new - t) <= 1e-13 * np.abs(t))):
                break
            t = new
        return t

    def mean_left(self, t: Floats) -> Floats:
        """Σ wᵢ·Sᵢ(t)·E[Tᵢ − t | Tᵢ > t] / S(t): each part counts by what of it is still alive."""
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
        """Return the mean of `values` over the parts by weights given as logarithms, of which only the ratios count."""
        top = np.max(log_weight, axis=0)
        # Where every part is extinct (all −∞), all count alike; where one is, its infinite hazard does not count.
        weight = np.exp(log_weight - np.where(np.isfinite(top), top, 0.0))
        weight = np.where(np.isfinite(top), weight, 1.0)
        return np.asarray(np.sum(weight * np.where(weight > 0, values, 0.0), axis=0) / np.sum(weight, axis=0))
