"""The pace of one worker among many: batch size, learning rates and push interval.

They are pure functions of the number of live workers and of the credited share. The rules and the measurements
behind them are in docs/averaging.md.

The settings in use, as a run prints them, replace the program's own batch, learning rates and schedule. Their
figures come from the functions that a worker calls before each batch, so the printed text cannot differ from what f
is given. docs/training.md lists everything that gridml changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gridml.model.program import Program
from gridml.model.schedule import DECAY, Schedule, TorchSchedule, Warmup, constant, linear_decay

MAX_BATCH_PARTS = 4  # that a batch is cut into
STALENESS_STEP = 512  # vertices per push and root of workers that kept accuracy flat in those measurements
MAX_BUDGET_FACTOR = 8  # times the push budget that pushes may take where rarer ones cost more


def batch_size(batch: int, min_batch: int, live: int) -> int:
    """The program's batch shared by the live workers: a quarter of it from four workers on, at least `min_batch`.

    What many workers push is averaged, so that each may take smaller and noisier steps; the learning rate is scaled
    along (`rate_scale`). Below a quarter accuracy gains little and the time for a vertex grows.
    """
    return max(min_batch, -(-batch // min(max(1, live), MAX_BATCH_PARTS)))


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
    """Seconds until a worker without work asks again: all that wait together ask at most 500 times a second, but each
    at least every 5 seconds."""
    return min(5.0, max(0.1, waiting / 500))


PAGE = "docs/training.md"  # which has the full list, under "What gridml changes"
MAX_RATES = 3  # learning rates that are listed one by one


@dataclass(frozen=True)
class UsedSettings:
    """What each of `workers` that train at a time uses."""

    workers: int
    batch: int  #: vertices of a batch, as a worker aims at
    largest: int  #: vertices of the largest batch that a chunk of whole batches is cut into
    rate_factor: float  #: of the optimisers' rates, beside that of the schedule


def schedule_name(schedule: Schedule) -> str:
    """Return what programs that read events know a schedule by: linear_decay, constant, torch or own."""
    if isinstance(schedule, TorchSchedule):
        return "torch"
    return next((f.__name__ for f in (linear_decay, constant) if schedule is f), "own")


def used_settings(program: Program, workers: int) -> tuple[UsedSettings, str]:
    """Return what each worker uses while so many train, and that in words."""
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
    """Return why several workers do not share the batch, where they do not."""
    if used.workers == 1 or used.rate_factor < 1 or program.update.batch in (None, 1):
        return ""
    if program.normalises:
        return " (not shared: a layer normalises by its batch)"
    return " (not shared: min_batch)" if program.rates != () else " (not shared: no optimiser)"
