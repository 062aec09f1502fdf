"""How a worker trains when it is one of many: pure functions of the number of live workers and the credited share.

The rules and their measurements (LeNet on MNIST, 1 to 256 workers) are in the design's section on merging.
"""

from __future__ import annotations

import math

STALENESS_STEP = 512  # vertices per push and root of workers that kept accuracy flat in those measurements


def batch_size(batch: int, min_batch: int, live: int) -> int:
    """The program's batch times live^(-1/3), at least `min_batch`: many workers need more and smaller steps."""
    return max(min_batch, min(batch, round(batch / math.cbrt(max(1, live)))))


def evenly(left: int, size: int) -> int:
    """The next batch of at most `size`, when the `left` vertices of a lease are cut into batches of nearly one size.

    A short last batch would be a noisy step, and one of a single vertex none at all where f has a BatchNorm.
    """
    return -(-left // -(-left // size))


def push_every(live: int, batch: int, rate: float, push_cost_s: float, budget: float) -> tuple[int, str]:
    """Vertices between two pushes, and why.

    The merge rule wants a push every 512/sqrt(live) vertices. A push costs `push_cost_s` seconds of this machine and a
    worker trains `rate` vertices per second; pushes may take at most `budget` (a fraction) of that time. Rounded up to
    whole batches.
    """
    wanted = STALENESS_STEP / max(1, live) ** 0.5
    affordable = rate * push_cost_s / budget
    chosen = max(wanted, affordable)
    whole = max(1, -(-int(chosen) // batch)) * batch
    if affordable > wanted:
        return whole, f"a push costs {push_cost_s * 1e3:.1f} ms and may take {budget:.0%} of the time"
    return whole, f"512/sqrt({live}) vertices, as the merge rule wants"


def ask_again_s(waiting: int) -> float:
    """Seconds until a worker without work asks again: all that wait together ask at most 500 times a second, but each
    at least every 5 seconds."""
    return min(5.0, max(0.1, waiting / 500))
