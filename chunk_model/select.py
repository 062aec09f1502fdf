"""Which family of lifetimes to believe: the simplest of those that predict lives they were not fitted to about best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from chunk_model.fit import FAMILIES, fit, log_likelihoods
from chunk_model.lifetime import Floats, Lifetime
from chunk_model.observations import Observations

FOLDS = 5
FEW_DEATHS = 10  # with fewer independent ones only the family with one parameter is considered, and that is a guess
SOME_DEATHS = 30  # with fewer none with more than two parameters
_FLEXIBLE = ("mixture", "kaplan_meier")
_WORST = -1e6  # what a life may cost at most that a model thought impossible, so that sums stay finite


@dataclass(frozen=True)
class Selected:
    """The choice, and why. `scores`: held-out log-likelihood a life (densities in 1/s) of each family compared."""

    lifetime: Lifetime
    family: str
    scores: Mapping[str, float]
    reason: str
    deaths: int
    sure: bool  # False: too few independent deaths for more than a guess


def select(observations: Observations, families: Sequence[str] = FAMILIES, seed: int = 0) -> Selected:
    """Return the family that predicts best, fitted to all observations, by 5-fold cross-validation.

    Lives that ended at one moment stay in one fold: a mass eviction must not predict itself. Of the families within one
    standard error of the best (of the difference from it, over independent deaths; Breiman's rule) the one with the
    fewest parameters is taken. With few deaths there is less to choose from, and where none of `families` is left,
    the exponential is taken. Same seed, same answer. Raises what `fit` raises.
    """
    seen, independent = observations.positive(), observations.independent_deaths
    allowed = [family for family in families if independent >= _deaths_for(family)] or ["exponential"]
    fitted = {family: fit(family, seen) for family in allowed}
    folds = _folds(seen, independent, seed)
    held_out = {family: _held_out(family, seen, folds) for family in allowed} if len(allowed) > 1 else {}
    scores = {family: float(np.mean(each)) for family, each in held_out.items()}
    errors: dict[str, float] = {}
    family, best = allowed[0], ""
    if held_out:
        best = max(scores, key=scores.__getitem__)
        groups = seen.groups()
        errors = {other: _standard_error(held_out[best] - held_out[other], groups) for other in allowed}
        near = [other for other in allowed if scores[best] - scores[other] <= errors[other]]
        family = min(near, key=lambda other: (fitted[other].parameters, -scores[other]))
    return Selected(
        lifetime=fitted[family].lifetime,
        family=family,
        scores=MappingProxyType(scores),
        reason=f"{_why(family, best, scores, errors, seen, independent)} {_of(seen, independent)}",
        deaths=seen.deaths,
        sure=independent >= FEW_DEATHS,
    )


def _deaths_for(family: str) -> int:
    if family == "exponential":
        return 0
    return SOME_DEATHS if family in _FLEXIBLE else FEW_DEATHS


def _folds(seen: Observations, independent: int, seed: int) -> NDArray[np.intp]:
    """Return [n] the fold of each life: groups shuffled and dealt out, those with deaths first."""
    groups = seen.groups()
    dead = np.zeros(groups.max() + 1, np.bool_)
    dead[groups[seen.ended]] = True
    shuffled = np.random.default_rng(seed).permutation(len(dead))
    order = shuffled[np.argsort(~dead[shuffled], kind="stable")]
    fold = np.empty(len(dead), np.intp)
    fold[order] = np.arange(len(dead)) % FOLDS
    return fold[groups]


def _held_out(family: str, seen: Observations, folds: NDArray[np.intp]) -> Floats:
    """Return [n] the log-likelihood of each life under the family fitted to the other folds."""
    scores = np.empty(len(seen))
    for fold in range(FOLDS):
        inside = folds == fold
        if np.any(inside):
            scores[inside] = log_likelihoods(fit(family, seen.take(~inside)).lifetime, seen.take(inside))
    return np.maximum(scores, _WORST)


def _standard_error(differences: Floats, groups: NDArray[np.intp]) -> float:
    """Of the mean of differences that are independent from group to group only."""
    of_group = np.bincount(groups, differences - np.mean(differences))
    return math.sqrt(float(of_group @ of_group)) / len(differences)


def _why(
    family: str,
    best: str,
    scores: Mapping[str, float],
    errors: Mapping[str, float],
    seen: Observations,
    independent: int,
) -> str:
    """Return the first half of the reason: the choice against its rivals."""
    if seen.deaths == 0:
        return (
            f"exponential, for want of anything better: nobody has died in {seen.exposure_s:.6g} s: "
            "lives are longer than that, this is a guess."
        )
    if independent < FEW_DEATHS:
        return f"{family}: fewer than {FEW_DEATHS} independent deaths tell a mean life at most, so this is a guess."
    if not scores:
        return f"{family}: the only family allowed that so many deaths can tell."
    rivals = sorted((other for other in scores if other != family), key=lambda other: -scores[other])
    against = rivals[0]
    scored = f"{family} ({scores[family]:.4f} a life on held-out lives, in nats)"
    if family == best:
        beaten = scores[best] - scores[against]
        return f"{scored}: predicts best, {beaten:.4f} ± {errors[against]:.4f} above the runner-up {against}."
    behind = scores[best] - scores[family]
    return f"{scored}: simpler than the best, {best}, and only {behind:.4f} ± {errors[family]:.4f} behind it."


def _of(seen: Observations, independent: int) -> str:
    """Return the second half: what it rests on."""
    going_on = len(seen) - seen.deaths
    moments = f" at {independent} moments" if independent < seen.deaths else ""
    return f"Of {len(seen)} lives {seen.deaths} ended{moments} and {going_on} went on when last seen."
