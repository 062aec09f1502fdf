"""The pace of one worker among many: batch size, learning rates and push interval.

All are pure functions. docs/averaging.md has the measurements behind the rules.

The settings that a run prints replace the program's own batch, learning rates and schedule. They come from the
functions that a worker calls before each batch, so the printed text cannot differ from what f gets. docs/training.md
lists everything that gridml changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gridml.model.program import Program
from gridml.model.schedule import DECAY, Schedule, TorchSchedule, Warmup, constant, linear_decay

MAX_BATCH_PARTS = 4  # workers that share a batch; smaller parts gain little accuracy and cost more time a vertex
# Vertices between two pushes, times the root of the number of workers. Accuracy stayed flat at this value in the
# measurements of docs/averaging.md.
STALENESS_STEP = 512
MAX_BUDGET_FACTOR = 8  # pushes may exceed their budget by this factor if rarer ones would cost more


def batch_size(batch: int, min_batch: int, live: int) -> int:
    """Return a worker's batch: the program's, divided by the live workers, at most by four, and at least `min_batch`.

    The pushes of many workers are averaged, so each may take smaller and noisier steps. The learning rate falls with
    the batch (`rate_scale`).
    """
    return max(min_batch, -(-batch // min(max(1, live), MAX_BATCH_PARTS)))


def rate_scale(share: float) -> float:
    """Return the factor of the learning rate for a batch that is `share` (0 to 1) of the program's: its root.

    The root keeps the noise of one step (Krizhevsky, arXiv 1404.5997, section 5; for adaptive optimisers Malladi et
    al., arXiv 2205.10287). A linear rule trains nets further whose rate is near its limit, and loses more on others.
    """
    return math.sqrt(share)


def next_batch(left: int, size: int, least: int, *, alike: bool) -> int:
    """Return the size of the next batch when a lease has `left` vertices: about `size`, and such that no batch of the
    lease has fewer than `least`. Batches have equal sizes if `alike`, else they are full while enough vertices remain
    for the last one.

    A short last batch would be a noisy step, and BatchNorm fails on a single vertex. If `least` is more than half of
    `size`, such sizes need not exist: then batches exceed `size`, by less than `least`.
    """
    most = max(1, left // least)  # batches
    if not alike and (left <= size or left - size >= least):
        return min(left, size)
    return -(-left // min(-(-left // size) if alike else 2, most))


def push_every(
    live: int, batch: int, rate: float, push_cost_s: float, budget: float, drift: float = 0.0
) -> tuple[int, str]:
    """Return (vertices between two pushes, reason).

    The merge rule needs a push every 512/sqrt(live) vertices. A push costs `push_cost_s` seconds of this machine and a
    worker trains `rate` vertices per second, so a push costs k = rate·push_cost_s vertices. Pushes may take at most
    `budget` (a fraction) of the time, or MAX_BUDGET_FACTOR times that where rarer ones cost more: where a vertex takes
    a share `drift` of its distance from a row, up to drift·live·h of what `live` workers train in h vertices each is
    done twice, and k/h + drift·live·h is least at h = sqrt(k/(drift·live)). Rounded up to whole batches.
    """
    wanted = STALENESS_STEP / max(1, live) ** 0.5
    cost = rate * push_cost_s
    affordable = cost / budget
    worth = math.sqrt(cost / (drift * live)) if live > 1 and drift > 0 else math.inf
    chosen = max(wanted, min(affordable, max(worth, affordable / MAX_BUDGET_FACTOR)))
    whole = max(1, -(-int(chosen) // batch)) * batch
    if chosen == wanted:
        return whole, f"512/sqrt({live}) vertices, as the merge rule wants"
    if chosen == affordable:
        return whole, f"a push costs {push_cost_s * 1e3:.1f} ms and may take {budget:.0%} of the time"
    return whole, f"a push costs {push_cost_s * 1e3:.1f} ms, and rows of {live} workers drift apart"


def poll_interval_s(waiting: int) -> float:
    """Return the seconds until a worker without work polls again: all together at most 500 times a second, each at
    least every 5 seconds."""
    return min(5.0, max(0.1, waiting / 500))


PAGE = "docs/training.md"  # its section "What gridml changes" is the full list
MAX_RATES = 3  # learning rates that the text lists one by one


@dataclass(frozen=True)
class UsedSettings:
    """The settings of each of `workers` that train at the same time."""

    workers: int
    batch: int  #: vertices of a batch, as intended
    largest: int  #: vertices of the largest batch that a chunk of whole batches is cut into
    rate_factor: float  #: factor of the optimisers' rates, in addition to the schedule's


def schedule_name(schedule: Schedule) -> str:
    """Return a schedule's name in events: linear_decay, constant, torch or own."""
    if isinstance(schedule, TorchSchedule):
        return "torch"
    return next((f.__name__ for f in (linear_decay, constant) if schedule is f), "own")


def used_settings(program: Program, workers: int) -> tuple[UsedSettings, str]:
    """Return (the settings of each of `workers` workers, the same as text)."""
    whole = program.update.batch or 1
    size = batch_size(whole, program.min_target_batch, workers)
    largest = max(size, next_batch(whole, size, program.min_actual_batch, alike=workers > 1))
    used = UsedSettings(workers, size, largest, rate_scale(size / whole))
    who = "1 worker" if workers == 1 else f"{workers:,} workers"
    return used, f"{who}: {_batch(program, used)}{_kept(program, used)}{_rates(program, used)}: {PAGE}"


def _batch(program: Program, used: UsedSettings) -> str:
    update = program.update
    if update.batch is None:
        return "one vertex at a time"
    text = f"batch {used.batch:,}"
    if used.largest > used.batch:
        text += f" to {used.largest:,}"
    if used.batch < update.batch:
        text += f" of {update.batch:,}"
    if update.accumulate > 1:
        text += f", an optimiser step every {update.accumulate:,} of them"
    return text


def _rates(program: Program, used: UsedSettings) -> str:
    if program.rates == ():
        return ""
    factor, rates = used.rate_factor, program.rates
    by_torch = isinstance(program.schedule, TorchSchedule)
    if by_torch or rates is None or len(rates) > MAX_RATES:
        whose = "torch's scheduler" if by_torch else "the program"
        text = f"rates as {whose} sets them" + (f", times {factor:.4g}" if factor != 1 else "")
    else:
        of_each = [f"{rate * factor:.4g} of {rate:.4g}" if factor != 1 else f"{rate:.4g}" for rate in rates]
        text = f"rate{'s' * (len(rates) > 1)} {' and '.join(of_each)}"
    schedule, keeps = program.schedule, "schedule"
    if schedule_name(schedule) == "own":
        text += ", times the program's own schedule"
    if isinstance(schedule, Warmup):
        schedule, keeps = schedule.then, "then"
    if schedule is linear_decay:
        text += f", falling linearly to 0 over the last {DECAY:.0%} of the run ({keeps}=gridml.constant keeps it)"
    return f", {text}"


def _kept(program: Program, used: UsedSettings) -> str:
    """Return the reason, as text, if several workers do not share the batch, else ""."""
    if used.workers == 1 or used.rate_factor < 1 or program.update.batch in (None, 1):
        return ""
    if program.normalises:
        return " (not shared: a layer normalises by its batch)"
    return " (not shared: min_batch)" if program.rates != () else " (not shared: no optimiser)"
