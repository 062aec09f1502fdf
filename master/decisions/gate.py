"""Whether a replica that is well-formed may be merged as it is, with a smaller step, or not at all."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from statistics import median

OUTLIER = 5.0  # a step this many times the median is an outlier
ENOUGH = 10  # steps to know before any is called an outlier
REMEMBERED = 64  # steps that the running median looks back on


def step_size(sumsq: float, vertices: int) -> float:
    """The length of a step per root of its vertices: comparable between pushes of different size."""
    return math.sqrt(sumsq) / math.sqrt(max(1, vertices))


def gate(
    not_finite: str | None, size: float, history: Sequence[float], *, fast_forward: bool
) -> tuple[float | None, str]:
    """(scale of the step, reason); None refuses the replica.

    An outlying step is shortened to 5 times the running median of `history` instead of being refused for ever. A
    fast-forward is taken whole: nobody else's work is at stake, and one worker stays exactly plain SGD.
    """
    if not_finite is not None:
        return None, f"{not_finite} is not finite (NaN or infinity)"
    if fast_forward or len(history) < ENOUGH:
        return 1.0, "accepted"
    usual = median(history[-REMEMBERED:])
    if usual > 0 and size > OUTLIER * usual:
        return (
            max(OUTLIER * usual / size, sys.float_info.min),  # never 0, however far out
            f"step {size:.3g} is {size / usual:.1f} times the median; shortened to {OUTLIER:g}",
        )
    return 1.0, "accepted"
