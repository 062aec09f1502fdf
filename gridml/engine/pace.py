"""How a worker trains when it is one of many: pure functions of the number of live workers and the credited share.

The rules and what they were measured on are in docs/averaging.md.
"""

from __future__ import annotations

import math

MOST_PARTS = 4  # that a batch is cut into
STALENESS_STEP = 512  # vertices per push and root of workers that kept accuracy flat in those measurements
DEAREST = 8  # times the push budget that pushes may take where rarer ones cost more


def batch_size(batch: int, min_batch: int, live: int) -> int:
    """The program's batch shared by the live workers: a quarter of it from four workers on, at least `min_batch`.

    What many workers push is averaged, so that each may take smaller and noisier steps; the learning rate is scaled
    along (`rate_scale`). Below a quarter accuracy gains little and the time for a vertex grows.
    """
    return max(min_batch, -(-batch // min(max(1, live), MOST_PARTS)))


def rate_scale(share: float) -> float:
    """What to multiply the learning rate by when a batch is `share` (0 to 1) of the program's.

    The root, so that the noise of one step stays what the program's own has (Krizhevsky, arXiv 1404.5997, section 5;
    for adaptive optimisers Malladi et al., arXiv 2205.10287). In proportion to the batch SGD trains nets further whose
    rate is near its limit, and loses more on others.
    """
    return math.sqrt(share)


def next_batch(left: int, size: int, least: int, *, alike: bool) -> int:
    """The next batch of about `size`, when the `left` vertices of a lease are cut into batches none of which has fewer
    than `least`: of one size if they are to be `alike`, otherwise full ones as long as enough stay for the last.

    A short last batch would be a noisy step, and one of a single vertex none at all where f has a BatchNorm. Where
    `least` is more than half of `size` there is not always such a cut: then batches are larger than `size`, by less
    than `least`.
    """
    most = max(1, left // least)  # batches
    if not alike and (left <= size or left - size >= least):
        return min(left, size)
    return -(-left // min(-(-left // size) if alike else 2, most))


def push_every(
    live: int, batch: int, rate: float, push_cost_s: float, budget: float, drift: float = 0.0
) -> tuple[int, str]:
    """Vertices between two pushes, and why.

    The merge rule wants a push every 512/sqrt(live) vertices. A push costs `push_cost_s` seconds of this machine and a
    worker trains `rate` vertices per second, so a push costs k = rate·push_cost_s vertices. Pushes may take at most
    `budget` (a fraction) of the time, or DEAREST times that where rarer ones cost more: where a vertex takes a share
    `drift` of its distance from a row, up to drift·live·h of what `live` workers do apart in h vertices each is done
    twice, and k/h + drift·live·h is least at h = sqrt(k/(drift·live)). Rounded up to whole batches.
    """
    wanted = STALENESS_STEP / max(1, live) ** 0.5
    cost = rate * push_cost_s
    affordable = cost / budget
    worth = math.sqrt(cost / (drift * live)) if live > 1 and drift > 0 else math.inf
    chosen = max(wanted, min(affordable, max(worth, affordable / DEAREST)))
    whole = max(1, -(-int(chosen) // batch)) * batch
    if chosen == wanted:
        return whole, f"512/sqrt({live}) vertices, as the merge rule wants"
    if chosen == affordable:
        return whole, f"a push costs {push_cost_s * 1e3:.1f} ms and may take {budget:.0%} of the time"
    return whole, f"a push costs {push_cost_s * 1e3:.1f} ms, and rows of {live} workers drift apart"


def ask_again_s(waiting: int) -> float:
    """Seconds until a worker without work asks again: all that wait together ask at most 500 times a second, but each
    at least every 5 seconds."""
    return min(5.0, max(0.1, waiting / 500))
