"""How many workers still help: as long as what they bring has more in common than it has noise.

A push of n vertices moves the replica by n·G + √n·ε: a common direction G, and noise of covariance Σ. The noise scale
B = tr(Σ)/|G|² (McCandlish et al., arXiv 1812.06162, equation 2.8), in vertices, says what M vertices that are trained
from one version are worth: (B + n)/(B + M) of what they would be n after n (Pollux, arXiv 2008.12260, equation 7). With
c workers M is c·n, so together they are worth c·(B + n)/(B + c·n) workers: half of their work is lost where they
are 2 + B/n, and no number of them is worth more than 1 + B/n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_PUSHES = 16.0  # before anything is said
ERRORS = 2.0  # standard errors that the common direction must be long, to be more than an accident


@dataclass(frozen=True)
class Spread:
    """What pushes of a run have in common, as moves per vertex. `product` is the mean inner product of one of `pushes`
    with the last ones of other workers, an estimate of |G|² with the standard error `error`; `square` is the mean of
    n·|move|² over pushes of n vertices, which is n·|G|² + tr(Σ) on average, and `vertices` the mean of n."""

    pushes: float
    product: float
    error: float
    square: float
    vertices: float


def noise_scale(spread: Spread) -> tuple[float, bool]:
    """Return B in vertices, and whether that is an estimate; otherwise B is at least so large."""
    measured = spread.product > ERRORS * spread.error
    common = spread.product if measured else max(0.0, spread.product) + ERRORS * spread.error
    noise = max(0.0, spread.square - spread.vertices * max(0.0, spread.product))
    return (noise / common if common > 0 else math.inf), measured


def helpful_workers(spread: Spread) -> tuple[int | None, str]:
    """Return how many workers help at most, and why; None while too little is known to say."""
    if not spread.pushes >= LEAST_PUSHES or not spread.square > 0:
        return None, f"{spread.pushes:.0f} pushes were compared with those of others, expected {LEAST_PUSHES:.0f}"
    scale, measured = noise_scale(spread)
    if not math.isfinite(scale):
        return None, "the pushes have no direction in common"
    count = 1 + int(scale / spread.vertices)
    at = "at" if measured else "at no fewer than"
    return count, (
        f"the noise of the pushes is as large as what they have in common {at} {scale:,.0f} vertices, and a push "
        f"has {spread.vertices:,.0f}"
    )
