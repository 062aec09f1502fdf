"""The paper's two formulas for the chunk size, as printed, to reproduce its figures.

Neither gives the goodput of a size: evaluate their results with `goodput`. With t_x = `exec_s`, t_c = `copy_s`,
t_s = `start_s`, t_e = `end_s`, N vertices in all and n in a chunk, w = n(t_c + t_x):

    deterministic   n = T/(t_c + t_x): every life lasts T, and a chunk fills the life, without time to start and end
    stochastic      TotalTime(n) = (N/n)·Φ(w)·(t_s + w + t_e), minimised over n

TotalTime is read as the time in seconds that all jobs take one after another. Parallel machines divide this time, but
do not change the best n. The paper's Figure 4 is assumed to show this time, too. `total_time` computes a corrected
TotalTime (see the end).

The paper calls Φ the quantile function of lifetimes. There are three readings:

    quantile        takes a probability, but is given a time here: undefined for w above 1
    survival        S(w) = P[T > w], the share of the jobs that finish
    distribution    F(w) = P[T ≤ w], the usual meaning of Φ for normal lives: the share of the jobs that are killed

Survival: N/n jobs are counted. Killed jobs cost nothing and are not repeated. So TotalTime tends to 0 as n grows. It
falls monotonically, because (t_s + w + t_e)/n = (t_s + t_e)/n + t_c + t_x and S(w) both fall. For all lifetimes, the
best of any set of candidates is therefore the largest one:

>>> import numpy as np
>>> from chunk_model.goodput import Costs
>>> from chunk_model.families import Exponential
>>> costs, sizes = Costs(exec_s=1.0, start_s=60.0), np.array([10.0, 1e3, 1e5])
>>> stochastic_cost_as_printed(Exponential(1000.0), costs, sizes, vertices=1e6).round(2)
array([6930348.84,  389952.21,       0.  ])
>>> stochastic_chunk_as_printed(Exponential(1000.0), costs, sizes)
100000

Distribution: only killed jobs are counted, and finished jobs cost nothing. For the normal distribution, which includes
negative lives, there is a minimum: a smaller chunk starts more often, a larger one is killed more often. At the minimum
hardly any job is killed. For lives of 45 minutes, the minimum is at about a minute of work:

>>> costs, sizes = Costs(exec_s=0.1, copy_s=0.01, start_s=60.0, end_s=6.0), np.arange(1.0, 40_000.0)
>>> best = normal_chunk_as_printed(2700.0, 600.0, costs, sizes)
>>> best, round(best * 0.11)
(595, 65)
>>> normal_cost_as_printed(2700.0, 600.0, costs, np.array([60.0, 595.0, 5950.0]), vertices=1e6).round(2)
array([ 4.33,  1.25, 39.45])

In the corrected TotalTime, a killed job costs the time that it ran, and runs again. `total_time` computes it from
`goodput.one_chunk_safe_ends`: the size with the best goodput takes the least time per credited vertex.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr

from chunk_model.goodput import ChunkError, Costs, Floats, Numbers, one_chunk_safe_ends
from chunk_model.lifetime import Given, Lifetime, as_given


def deterministic_chunk(lifetime_mean: float, costs: Costs) -> int:
    """Return n = T/(t_c + t_x) in whole vertices, at least one; T = `lifetime_mean` in seconds, above 0.

    Raises ChunkError for an invalid T, or if n is not finite.
    """
    if not (math.isfinite(lifetime_mean) and lifetime_mean > 0):
        raise ChunkError(f"lifetime_mean must be a time in seconds, finite and above 0, got {lifetime_mean!r}")
    vertices = lifetime_mean / costs.vertex_s
    if not math.isfinite(vertices):
        raise ChunkError(
            f"{lifetime_mean} s of life at {costs.vertex_s} s a vertex are more vertices than can be counted: give a "
            f"longer time for a vertex, or shorter lives"
        )
    return max(1, math.floor(vertices))


def stochastic_cost_as_printed(lifetime: Lifetime, costs: Costs, n: Given, vertices: float) -> Given:
    """Return (N/n)·S(w)·(t_s + w + t_e) in seconds, N = `vertices`: a float for a float n, float64 [n] for an array.

    Raises ChunkError unless n and N are finite and above 0.
    """
    return _of_all(vertices, _log_cost_of_a_vertex(costs, np.asarray(n, np.float64), lifetime.log_survival), n)


def stochastic_chunk_as_printed(lifetime: Lifetime, costs: Costs, candidates: Numbers) -> int:
    """Return the candidate with the least `stochastic_cost_as_printed`; of equally cheap candidates, the largest.

    `candidates` are chunk sizes in vertices. The logarithms of the costs are compared, because the costs of large
    chunks underflow. Raises ChunkError for no candidates.
    """
    return _cheapest(costs, candidates, lifetime.log_survival)


def normal_cost_as_printed(mean_s: float, sd_s: float, costs: Costs, n: Given, vertices: float) -> Given:
    """Return (N/n)·Φ((w − μ)/σ)·(t_s + w + t_e) in seconds: the third reading, in which Φ is the normal distribution
    function.

    μ = `mean_s` and σ = `sd_s` are above 0. Shapes and errors are those of `stochastic_cost_as_printed`.
    """
    return _of_all(vertices, _log_cost_of_a_vertex(costs, np.asarray(n, np.float64), _log_normal(mean_s, sd_s)), n)


def normal_chunk_as_printed(mean_s: float, sd_s: float, costs: Costs, candidates: Numbers) -> int:
    """Return the candidate with the least `normal_cost_as_printed`. Otherwise like `stochastic_chunk_as_printed`."""
    return _cheapest(costs, candidates, _log_normal(mean_s, sd_s))


def total_time(lifetime: Lifetime, costs: Costs, n: Given, vertices: float) -> Given:
    """Return the corrected TotalTime: the seconds of all jobs, including killed ones, until N = `vertices` are
    credited; infinite if that never happens.

    Each job has a life of its own, and its chunk is all or nothing. Raises as `one_chunk_safe_ends`.
    """
    _check_vertices(vertices)
    with np.errstate(divide="ignore"):
        seconds = vertices * costs.exec_s / np.asarray(one_chunk_safe_ends(lifetime, costs, np.asarray(n, np.float64)))
    return as_given(n, seconds)


_LogShare = Callable[[Floats], float | Floats]  # ln Φ(w)


def _log_normal(mean_s: float, sd_s: float) -> _LogShare:
    if not (math.isfinite(mean_s) and mean_s > 0 and math.isfinite(sd_s) and sd_s > 0):
        raise ChunkError(f"mean_s and sd_s must be times in seconds, finite and above 0, got {mean_s!r}, {sd_s!r}")
    return lambda work: np.asarray(log_ndtr((work - mean_s) / sd_s))


def _check_vertices(vertices: float) -> None:
    if not (math.isfinite(vertices) and vertices > 0):
        raise ChunkError(f"vertices must be finite and above 0, got {vertices!r}")


def _of_all(vertices: float, log_cost: Floats, n: Given) -> Given:
    _check_vertices(vertices)
    return as_given(n, vertices * np.exp(log_cost))


def _cheapest(costs: Costs, candidates: Numbers, log_share: _LogShare) -> int:
    sizes = np.sort(np.asarray(candidates, np.float64).ravel())
    if not len(sizes):
        raise ChunkError("no candidates: give at least one size, in vertices")
    falling = _log_cost_of_a_vertex(costs, sizes, log_share)[::-1]
    return int(sizes[::-1][int(np.argmin(falling))])


def _log_cost_of_a_vertex(costs: Costs, n: Floats, log_share: _LogShare) -> Floats:
    if not bool(np.all((n > 0) & np.isfinite(n))):
        raise ChunkError(f"n, the vertices of a chunk, must be above 0 and finite, got {n}")
    work = n * costs.vertex_s
    paid = costs.start_s + work + costs.end_s
    return np.asarray(np.log(paid) - np.log(n) + log_share(work))
