"""Maximum-likelihood fits of lifetimes to observations, and selection of the family.

A life that ended contributes its density to the likelihood, and a right-censored life its survival. The simplest family
that predicts held-out lives about as well as the best family is selected.

scipy's `fit` of censored data is not used, because it has no truncation at 0 and no mixtures, and searches without
gradients. For 300 lives scipy takes 56 ms for a Weibull fit and 54 ms for a log-normal fit; this module takes 0.1 ms
and 0.6 ms. Parameters are bounded so that every mean is finite: one death, or simultaneous deaths of all workers, must
give a distribution and not an infinite likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import expit, log_ndtr

from chunk_model.families import Exponential, LogNormal, Mixture, Normal, Weibull, mills
from chunk_model.kaplan_meier import UNSEEN_DEATH, KaplanMeier
from chunk_model.lifetime import Floats, Lifetime, LifetimeError
from chunk_model.observations import ObservationError, Observations

# The spread of a distribution is at least this share of a typical life, because lives of equal length would otherwise
# have no spread and an infinite density.
_MIN_SPREAD = 0.01
# Bounds of a Weibull shape. Below the lower bound the mean exceeds a million times the scale. The upper bound gives the
# minimum spread, because sd/mean → 1.28/shape.
_SHAPES = (0.1, 1.28 / _MIN_SPREAD)
_SIGMAS = (_MIN_SPREAD, 5.0)  # bounds of a log-normal σ; above the upper one the mean exceeds 10⁵ times the median
# A typical life is at most this multiple of the longest observed life, even if most lives are censored.
_MAX_SCALE_FACTOR = 1e3
# A tighter bound for the scale of a mixture's part, also in multiples of the longest observed life. If no death of a
# part was observed, all its scales beyond the record are equally likely. Without this bound the part would be fitted as
# machines that live a thousand times as long as the observation, and chunks would be sized for such machines.
_MAX_PART_SCALE_FACTOR = 3.0
# Bounds of the Weibull shape and the weight of a mixture's part: a sharper or rarer part is a group that died together,
# not a kind of machine.
_PART_SHAPES = (0.2, 20.0)
_MIN_WEIGHT = 0.02
_MAX_LIVES_FOR_START = 2000  # enough lives to choose the start of a mixture's search
# Starts of a mixture's search: odds of the first part, shape of the second part, and the scales of both parts in mean
# lives. The three starts stand for many early failures, a peak among the rest, and a few immediate failures. For ten
# distributions these three starts found the same optima as six starts, and no two of the three did.
_STARTS = ((0.3, 2.0, 0.3, 1.3), (1.0, 4.0, 1.0, 1.0), (0.1, 1.5, 0.05, 1.2))


@dataclass(frozen=True)
class Fitted:
    """A fitted distribution."""

    lifetime: Lifetime
    log_likelihood: float  #: log-likelihood of the observations, with densities in 1/s
    parameters: int  #: number of free parameters


def fit(family: str, observations: Observations) -> Fitted:
    """Return the maximum-likelihood distribution of a family (one of FAMILIES).

    If no life has ended, every family gives an exponential whose rate is half a death in the time observed (Jeffreys'
    prior of a rate). Raises ObservationError for no observations and LifetimeError for an unknown family, nothing else.
    """
    if family not in _FITS:
        raise LifetimeError(f"there is no family {family!r} of lifetimes; expected one of {', '.join(FAMILIES)}")
    if not len(observations):
        raise ObservationError("no lives were given: observe at least one, ended or not")
    seen = observations.positive()
    lifetime, parameters = _FITS[family](seen) if seen.deaths else _exponential(seen)
    return Fitted(lifetime, float(np.sum(log_likelihoods(lifetime, seen))), parameters)


def log_likelihoods(lifetime: Lifetime, observations: Observations) -> Floats:
    """Return float64 [n]: ln f of each life that ended, ln S of each censored one."""
    t = observations.duration_s
    return np.where(observations.ended, lifetime.log_density(t), lifetime.log_survival(t))


def _exponential(seen: Observations) -> tuple[Lifetime, int]:
    """Fit the mean: the observed time divided by the number of deaths."""
    return Exponential(seen.exposure_s / (seen.deaths or UNSEEN_DEATH)), 1


def _weibull(seen: Observations) -> tuple[Lifetime, int]:
    """Fit k as the root of Σ tᵏ ln t / Σ tᵏ − 1/k − (mean of ln t over deaths), which rises with k. Then λᵏ = Σ tᵏ /
    deaths."""
    longest = float(np.max(seen.duration_s))
    log_t = np.log(seen.duration_s / longest)  # at most 0, so that no power overflows
    of_dead = float(np.mean(log_t[seen.ended]))

    def slope(log_shape: float) -> float:
        shape = math.exp(log_shape)
        power = np.exp(shape * log_t)
        return float(power @ log_t / np.sum(power)) - 1 / shape - of_dead

    least, most = (math.log(bound) for bound in _SHAPES)
    if slope(least) >= 0:
        log_shape = least
    elif slope(most) <= 0:
        log_shape = most
    else:
        log_shape = brentq(slope, least, most, xtol=1e-10)
    shape = math.exp(log_shape)
    log_scale = math.log(float(np.sum(np.exp(shape * log_t))) / seen.deaths) / shape
    return Weibull(shape, longest * math.exp(log_scale)), 2


def _lognormal(seen: Observations) -> tuple[Lifetime, int]:
    """Fit a normal distribution to ln t."""
    log_t = np.log(seen.duration_s)
    far = float(np.max(log_t)) + math.log(_MAX_SCALE_FACTOR)
    mu, sigma = _bell(log_t, seen.ended, (float(np.min(log_t)), far), _SIGMAS, cut=-math.inf)
    return LogNormal(math.exp(mu), sigma), 2


def _normal(seen: Observations) -> tuple[Lifetime, int]:
    """Fit a normal distribution truncated at 0. If the spread of lives exceeds their mean, only the falling half of the
    bell remains."""
    t, typical = seen.duration_s, seen.exposure_s / len(seen)
    far = _MAX_SCALE_FACTOR * float(np.max(t))
    mu, sigma = _bell(t, seen.ended, (1e-3 * typical, far), (_MIN_SPREAD * typical, far), cut=0.0)
    return Normal(mu, sigma), 2


def _bell(
    x: Floats, ended: NDArray[np.bool_], means: tuple[float, float], sds: tuple[float, float], cut: float
) -> tuple[float, float]:
    """Fit a normal distribution truncated at `cut` to right-censored x. Return (mean, standard deviation), each within
    its bounds."""
    centre, unit = float(np.mean(x)), float(np.std(x))
    unit = min(max(unit, sds[0]), sds[1])
    u, low = (x - centre) / unit, (cut - centre) / unit

    def loss(at: Floats) -> tuple[float, Floats]:
        mu, sd = float(at[0]), math.exp(at[1])
        z, a = (u - mu) / sd, (mu - low) / sd
        m = mills(z)
        value = np.sum(np.where(ended, -z * z / 2 - at[1], log_ndtr(-z)))
        to_mu = np.sum(np.where(ended, z, m)) / sd
        to_sd = np.sum(np.where(ended, z * z - 1, m * z))
        if math.isfinite(a):
            kept = len(u) * float(mills(np.asarray(-a)))
            value, to_mu, to_sd = value - len(u) * log_ndtr(a), to_mu - kept / sd, to_sd + kept * a
        return -float(value) / len(u), np.array([-to_mu, -to_sd]) / len(u)

    bounds = [
        ((means[0] - centre) / unit, (means[1] - centre) / unit),
        (math.log(sds[0] / unit), math.log(sds[1] / unit)),
    ]
    best = _minimise(loss, [np.zeros(2)], bounds)
    return centre + unit * float(best[0]), unit * math.exp(best[1])


def _mixture(seen: Observations) -> tuple[Lifetime, int]:
    """Fit an exponential and a Weibull part, or two Weibull parts if BIC says that they are worth a further parameter.

    A quasi-Newton search with gradients takes about 30 evaluations from each start. EM (expectation maximisation) took
    31 steps for well-separated parts, and up to 1,700 for overlapping parts.
    """
    typical = seen.exposure_s / len(seen)
    fits = []
    for free in (False, True):
        at, value = _two_parts(seen.duration_s / typical, seen.ended, free=free)
        fits.append((value - (4 + free) * math.log(len(seen)) / 2, at, free))
    _, at, free = max(fits, key=lambda fitted: fitted[0])
    weight, shapes, scales = float(expit(at[0])), np.exp(at[1:3]), np.exp(at[3:5]) * typical
    first = Weibull(float(shapes[0]), float(scales[0])) if free else Exponential(float(scales[0]))
    return Mixture((weight, 1 - weight), (first, Weibull(float(shapes[1]), float(scales[1])))), 4 + free


def _two_parts(t: Floats, ended: NDArray[np.bool_], *, free: bool) -> tuple[Floats, float]:
    """Fit two parts to lives whose mean is 1. Return (parameters, their log-likelihood). The parameters are the logit
    of the first weight, two ln shapes and two ln scales.

    The first shape is 1 unless `free`.
    """
    shapes = (math.log(_PART_SHAPES[0]), math.log(_PART_SHAPES[1]))
    scales = (math.log(float(np.min(t))) - 1, math.log(float(np.max(t)) * _MAX_PART_SCALE_FACTOR))
    weights = (math.log(_MIN_WEIGHT / (1 - _MIN_WEIGHT)), -math.log(_MIN_WEIGHT / (1 - _MIN_WEIGHT)))
    bounds = [weights, shapes if free else (0.0, 0.0), shapes, scales, scales]
    starts = [np.log([w, 1.0, k, first, second]) for w, k, first, second in _STARTS]
    starts = [np.clip(start, *np.transpose(bounds)) for start in starts]
    loss = _two_part_loss(t, ended)
    if len(t) > _MAX_LIVES_FOR_START:
        few = slice(None, None, math.ceil(len(t) / _MAX_LIVES_FOR_START))
        starts = [_minimise(_two_part_loss(t[few], ended[few]), starts, bounds)]
    best = _minimise(loss, starts, bounds)
    return best, -loss(best)[0] * len(t)


def _two_part_loss(t: Floats, ended: NDArray[np.bool_]) -> Callable[[Floats], tuple[float, Floats]]:
    """Return a loss of (logit weight, 2 ln shapes, 2 ln scales): a function that returns minus the mean log-likelihood,
    and its gradient."""
    log_t, n, died = np.log(t), len(t), ended.astype(np.float64)

    def loss(at: Floats) -> tuple[float, Floats]:
        weight = float(expit(at[0]))
        shape, scale = np.exp(at[1:3])[:, None], at[3:5][:, None]
        y = shape * (log_t - scale)
        z = np.exp(np.minimum(y, 300.0))
        each = np.log([[weight], [1 - weight]]) - z + died * (at[1:3, None] + y - log_t)
        total = np.logaddexp(each[0], each[1])
        share = np.exp(each - total)
        to_shape = np.sum(share * (died * (1 + y) - z * y), axis=1)
        to_scale = np.sum(share * (z - died), axis=1) * shape[:, 0]
        gradient = np.concatenate(([np.sum(share[0]) - n * weight], to_shape, to_scale))
        return -float(np.sum(total)) / n, -gradient / n

    return loss


def _minimise(
    loss: Callable[[Floats], tuple[float, Floats]], starts: list[Floats], bounds: list[tuple[float, float]]
) -> Floats:
    """Minimise a loss that returns its gradient, by L-BFGS-B from each start. Return the best minimum."""
    results = [
        minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-8}) for start in starts
    ]
    return np.asarray(min(results, key=lambda result: float(result.fun)).x)


def _kaplan_meier(seen: Observations) -> tuple[Lifetime, int]:
    estimate = KaplanMeier.of(seen)
    return estimate, estimate.intervals


_FITS: dict[str, Callable[[Observations], tuple[Lifetime, int]]] = {
    "exponential": _exponential,
    "weibull": _weibull,
    "lognormal": _lognormal,
    "normal": _normal,
    "mixture": _mixture,
    "kaplan_meier": _kaplan_meier,
}
FAMILIES: tuple[str, ...] = tuple(_FITS)


FOLDS = 5
FEW_DEATHS = 10  # with fewer independent deaths, only the exponential is considered, and it counts as a guess
SOME_DEATHS = 30  # with fewer independent deaths, no family with more than two parameters is considered
_FLEXIBLE = ("mixture", "kaplan_meier")
_MIN_LOG_LIKELIHOOD = -1e6  # of a life that a model excludes, instead of −∞, so that sums stay finite


@dataclass(frozen=True)
class Selected:
    """The selected family, fitted to all observations."""

    lifetime: Lifetime
    family: str
    scores: Mapping[str, float]  #: held-out log-likelihood per life (densities in 1/s) of each family compared
    reason: str
    deaths: int  #: observed deaths
    is_sure: bool  #: False: too few independent deaths for more than a guess


def select(observations: Observations, families: Sequence[str] = FAMILIES, seed: int = 0) -> Selected:
    """Select the family that predicts best by 5-fold cross-validation, and fit it to all observations.

    Lives that ended at one moment are in one fold, so that a mass eviction does not predict itself. Among the families
    whose score is within one standard error of the best (Breiman's rule), the one with the fewest parameters is
    selected. The standard error is that of the difference from the best score, computed over independent deaths. With
    few deaths, families with many parameters are excluded; if none of `families` is left, the exponential is selected.
    The result is deterministic for a given seed. Raises as `fit` does.
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
        is_sure=independent >= FEW_DEATHS,
    )


def _deaths_for(family: str) -> int:
    if family == "exponential":
        return 0
    return SOME_DEATHS if family in _FLEXIBLE else FEW_DEATHS


def _folds(seen: Observations, independent: int, seed: int) -> NDArray[np.intp]:
    """Return the fold of each life, [n]. Groups (`Observations.groups`) are shuffled and dealt out to the folds; groups
    with deaths come first."""
    groups = seen.groups()
    dead = np.zeros(groups.max() + 1, np.bool_)
    dead[groups[seen.ended]] = True
    shuffled = np.random.default_rng(seed).permutation(len(dead))
    order = shuffled[np.argsort(~dead[shuffled], kind="stable")]
    fold = np.empty(len(dead), np.intp)
    fold[order] = np.arange(len(dead)) % FOLDS
    return fold[groups]


def _held_out(family: str, seen: Observations, folds: NDArray[np.intp]) -> Floats:
    """Return the log-likelihood of each life, [n], under the family fitted to the other folds."""
    scores = np.empty(len(seen))
    for fold in range(FOLDS):
        inside = folds == fold
        if np.any(inside):
            scores[inside] = log_likelihoods(fit(family, seen.take(~inside)).lifetime, seen.take(inside))
    return np.maximum(scores, _MIN_LOG_LIKELIHOOD)


def _standard_error(differences: Floats, groups: NDArray[np.intp]) -> float:
    """Return the standard error of the mean of differences that are independent only between groups."""
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
    """Return the first half of the reason: the comparison with other families."""
    if seen.deaths == 0:
        return f"exponential: no worker has died in {seen.exposure_s:.6g} s, so lives are longer than that, a guess."
    if independent < FEW_DEATHS:
        return f"{family}: fewer than {FEW_DEATHS} independent deaths only give a mean life, so this is a guess."
    if not scores:
        return f"{family}: the only family allowed that this number of deaths supports."
    rivals = sorted((other for other in scores if other != family), key=lambda other: -scores[other])
    against = rivals[0]
    scored = f"{family} ({scores[family]:.4f} a life on held-out lives, in nats)"
    if family == best:
        beaten = scores[best] - scores[against]
        return f"{scored}: predicts best, {beaten:.4f} ± {errors[against]:.4f} above the runner-up {against}."
    behind = scores[best] - scores[family]
    return f"{scored}: simpler than the best, {best}, and only {behind:.4f} ± {errors[family]:.4f} behind it."


def _of(seen: Observations, independent: int) -> str:
    """Return the second half of the reason: the data."""
    going_on = len(seen) - seen.deaths
    moments = f" at {independent} moments" if independent < seen.deaths else ""
    return f"Of {len(seen)} lives {seen.deaths} ended{moments} and {going_on} went on when last seen."
