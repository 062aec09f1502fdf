"""The paper's own two formulas for the size of a chunk, as printed; kept so that its figures can be reproduced.

Neither says what a size is worth: evaluate their answers with `goodput`. With t_x = `exec_s`, t_c = `copy_s`,
t_s = `start_s`, t_e = `end_s`, N vertices in all and n in a chunk, w = n(t_c + t_x):

    deterministic   n = T/(t_c + t_x): every life lasts T, and a chunk fills it, with nothing left to start and end in
    stochastic      minimise (N/n)·Φ(w)·(t_s + w + t_e)

The paper calls Φ the quantile function of lifetimes; it is given a time and multiplies a cost, so the survival function
S(w) = P[T > w] is what can be meant, and is what is used here.

The defect: Φ(w) is the probability that a job gets through, and the formula weighs its cost with it: N/n jobs are paid
for, of which those that are killed cost nothing and need not be repeated. So the cost tends to 0 as n grows. It even
falls all the way: (t_s + w + t_e)/n = (t_s + t_e)/n + t_c + t_x and S(w) both do. Its minimum over any set of
candidates is therefore the largest of them, whatever the lifetimes are:

>>> import numpy as np
>>> from chunk_model.costs import Costs
>>> from chunk_model.families import Exponential
>>> costs, sizes = Costs(exec_s=1.0, start_s=60.0), np.array([10.0, 1e3, 1e5])
>>> stochastic_cost_as_printed(Exponential(1000.0), costs, sizes, vertices=1e6).round(2)
array([6930348.84,  389952.21,       0.  ])
>>> stochastic_chunk_as_printed(Exponential(1000.0), costs, sizes)
100000

Corrected, a killed job costs the time it ran and is run again: `goodput.one_chunk_safe_ends`, whose best size is the
one with the least time paid for each vertex that is kept.
"""

from __future__ import annotations

import math
from typing import overload

import numpy as np

from chunk_model.costs import Costs
from chunk_model.goodput import ChunkError, Floats, Numbers
from chunk_model.lifetime import Lifetime


def deterministic_chunk(lifetime_mean: float, costs: Costs) -> int:
    """n = T/(t_c + t_x) in whole vertices, at least one; T = `lifetime_mean` in seconds, above 0.

    Raises ChunkError for another T, or when so many vertices cannot be counted.
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


@overload
def stochastic_cost_as_printed(lifetime: Lifetime, costs: Costs, n: float, vertices: float) -> float: ...
@overload
def stochastic_cost_as_printed(lifetime: Lifetime, costs: Costs, n: Numbers, vertices: float) -> Floats: ...
def stochastic_cost_as_printed(lifetime: Lifetime, costs: Costs, n: float | Numbers, vertices: float) -> float | Floats:
    """(N/n)·S(w)·(t_s + w + t_e) in seconds, N = `vertices`; a float for a float n, float64 of n's shape for an array.

    Raises ChunkError unless n and N are finite and above 0.
    """
    if not (math.isfinite(vertices) and vertices > 0):
        raise ChunkError(f"vertices must be finite and above 0, got {vertices!r}")
    cost = vertices * np.exp(_log_cost_of_a_vertex(lifetime, costs, np.asarray(n, np.float64)))
    return cost if isinstance(n, np.ndarray) else float(cost)


def stochastic_chunk_as_printed(lifetime: Lifetime, costs: Costs, candidates: Numbers) -> int:
    """Return the candidate with the least `stochastic_cost_as_printed`, the largest of equals.

    `candidates` are vertices a chunk, at least one (ChunkError). The comparison is made between logarithms, as the
    costs of large chunks are too small for a float.
    """
    sizes = np.sort(np.asarray(candidates, np.float64).ravel())
    if not len(sizes):
        raise ChunkError("no candidates: give at least one size, in vertices")
    falling = _log_cost_of_a_vertex(lifetime, costs, sizes)[::-1]
    return int(sizes[::-1][int(np.argmin(falling))])


def _log_cost_of_a_vertex(lifetime: Lifetime, costs: Costs, n: Floats) -> Floats:
    if not bool(np.all((n > 0) & np.isfinite(n))):
        raise ChunkError(f"n, the vertices of a chunk, must be above 0 and finite, got {n}")
    work = n * costs.vertex_s
    paid = costs.start_s + work + costs.end_s
    return np.asarray(np.log(paid) - np.log(n) + lifetime.log_survival(work))
