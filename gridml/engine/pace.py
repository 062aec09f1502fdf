"""The pace of one worker among many: batch size, learning rates and push interval.

All functions are pure. docs/averaging.md has the measurements behind the rules.

A run prints the batch, rates and schedule that its workers use in place of the program's own. The text is computed by
`choose_pace`, from the functions that a worker calls before each batch. docs/training.md lists everything that gridml
changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from gridml.model.program import Program
from gridml.model.schedule import DECAY, Schedule, TorchSchedule, Warmup, constant, linear_decay
from gridml.protocol.messages import NO_PUSH

# A worker's batch is at least the program's divided by this. Smaller batches gain little accuracy and cost more time
# per vertex.
MAX_BATCH_PARTS = 4
# Vertices between two pushes of a single worker; w workers push every 512/sqrt(w) vertices. In the measurements of
# docs/averaging.md accuracy stayed flat at this value.
STALENESS_STEP = 512
MAX_BUDGET_FACTOR = 8  # pushes may take this many times their share of the time if rarer pushes would cost even more
# Parts into which workers may share a batch whose steps are added. They need more parts than averaged replicas do: the
# smaller the parts, the fewer steps of others a step has missed.
MAX_ADDED_PARTS = 16
# Batches of the program that others may train while a worker trains a batch whose step is added.
MAX_MISSED_BATCHES = 2.0
# A batch whose step is added grows to up to twice its share of the program's batch if a push costs more than this part
# of its time, or is longer under way than it takes.
MAX_ADDED_COST = 0.5
# Vertices of a round of w workers, in vertices that are trained in the time of a push: this over sqrt(w), at least 1.
ROUND_COST = 8.0
# The averaged replicas of W workers are worth at most W to this power loops; steps are added where they are worth more.
AVERAGED_POWER = 0.5


def batch_size(batch: int, min_batch: int, live: int) -> int:
    """Return a worker's batch size: the program's `batch` divided by the number of live workers, but by at most
    MAX_BATCH_PARTS, and never less than `min_batch`.

    The pushes of many workers are averaged, so each worker may take smaller and noisier steps. The learning rate falls
    with the batch (`rate_scale`).
    """
    return max(min_batch, -(-batch // min(max(1, live), MAX_BATCH_PARTS)))


def rate_scale(share: float, *, keeps_rate: bool = False) -> float:
    """Return the factor of the learning rate for a batch that has `share` (0 to 1) times the size of the program's: the
    square root of `share`, or 1 for a program that keeps its rate.

    The root keeps the noise of one step (Krizhevsky, arXiv 1404.5997, section 5; for adaptive optimisers Malladi et
    al., arXiv 2205.10287). A linear rule would train networks whose rate is near its limit further, and lose more on
    others.
    """
    return 1.0 if keeps_rate else math.sqrt(share)


def added_rate(share: float, others: float) -> float:
    """Return the factor of the learning rate for a batch of `share` (0 to 1) times the size of the program's, whose
    step is added: `share`, so that the steps of a whole batch together are as long as the program's own step, and less
    if more than `MAX_MISSED_BATCHES` batches of other workers are trained beside it. `others`: see `Pace`."""
    return share / max(1.0, share * others / MAX_MISSED_BATCHES)


def added_sizes(batch: int, min_batch: int, live: int) -> tuple[int, int]:
    """Return (the smallest, the largest size of a batch whose step is added); the largest is less if there is none."""
    part = max(min_batch, -(-batch // min(max(1, live), MAX_ADDED_PARTS)))
    return part, min(2 * part, batch // 2)


def batch_and_rate(
    batch: int,
    min_batch: int,
    live: int,
    added: int = 0,
    others: float = 0.0,
    *,
    keeps_rate: bool = False,
    gathered: bool = False,
) -> tuple[int, float]:
    """Return (vertices of a worker's batch, factor of the learning rate) among `live` workers, where `batch` is that of
    the program. `added` is the size of batches whose steps are added (0: replicas are averaged), `others` as in
    `Pace`. `gathered`: replicas are averaged in rounds, of which all workers begin with the same one.

    The mean of W replicas that began as one is W times less noisy than each of them. So each trains a vertex at √W
    times the rate that the program has for it, but never takes a longer step than the program would.
    """
    if added:
        return added, added_rate(added / batch, others)
    size = batch_size(batch, min_batch, live)
    if gathered and not keeps_rate:
        return size, min(1.0, live**0.5 * size / batch)
    return size, rate_scale(size / batch, keeps_rate=keeps_rate)


def steps_missed(others: float) -> float:
    """Return how far the other workers go between the version from which a worker trains a batch and the merge of its
    own step, in lengths of that step: twice as far as while it trains one batch (`others`), because the push of one
    batch travels while the worker trains the next."""
    return 2 * others


def next_batch(left: int, size: int, least: int, *, alike: bool) -> int:
    """Return the size of the next batch of a lease that has `left` untrained vertices: about `size`, and chosen so that
    no batch of the lease has fewer than `least` vertices.

    If `alike`, the batches have equal sizes. Otherwise they have `size` vertices while at least `least` remain for the
    last batch. A short last batch would be a noisy step, and BatchNorm fails on a single vertex. If `least` is more
    than half of `size`, batches may have to exceed `size`, by less than `least`.
    """
    most = max(1, left // least)  # maximum number of batches
    if not alike and (left <= size or left - size >= least):
        return min(left, size)
    return -(-left // min(-(-left // size) if alike else 2, most))


class TypicalCosts(NamedTuple):
    """The costs of a typical worker of a run, from which the merging of all workers is chosen together."""

    speed: float  #: vertices that it trains per second: the mean of live workers; 0: not measured
    push_s: float  #: seconds that a push costs it and the master, a median; 0: not measured
    travel_s: float  #: seconds from sending a push to its reply, a median; 0: not measured

    @property
    def delay_s(self) -> float:
        """Seconds from the last batch of a push to its reply."""
        return self.push_s + self.travel_s


class PaceFacts(NamedTuple):
    """The facts that decide the pace of one worker."""

    live: int  #: workers that hold leases
    batch: int  #: vertices of the program's batch
    min_batch: int = 1  #: the smallest batch that workers may take in its place
    keeps_rate: bool = False  #: a smaller batch has the program's rates, too
    speed: float = 0.0  #: vertices that the worker trains per second; 0: not measured
    push_s: float = 0.0  #: seconds that a push costs this worker and the master; 0: not measured
    budget: float = 1.0  #: share of the time that pushes may take
    drift: float = 0.0  #: share of its distance to its optimum that a row moves per vertex; 0: unknown
    merging_s: float = 0.0  #: shortest interval in which one master merges the pushes of all workers
    max_interval_s: float = math.inf  #: longest interval that the lifetimes of workers allow; infinity: unknown
    asked: int | None = None  #: the interval that the user wants
    #: the costs that decide whether steps are added, and how long rounds are; None for a program without either
    typical: TypicalCosts | None = None
    adds: bool = True  #: steps may be added (`Program.adds_steps`)
    gathers: bool = False  #: pushes that are not added are gathered in rounds (`gridml.rounds`)
    weight: float = 1.0  #: steps of the rows for each vertex: 1, or the edges of a vertex that stages train


class PaceChoice(NamedTuple):
    """The pace of one worker."""

    batch: int  #: vertices of a batch
    rate: float  #: factor of the program's learning rates
    push_every: int  #: vertices between two pushes
    #: vertices of a typical worker's batch, if a push has the step of one batch, and is added; 0: replicas are averaged
    added: int = 0
    others: float = 0.0  #: as in `Pace`
    #: seconds between two ticks, at which all workers push, if pushes are gathered in rounds; 0: they are not
    round_s: float = 0.0


def choose_pace(facts: PaceFacts) -> tuple[PaceChoice, str]:
    """Return (batch, rate and push interval of one worker, reason of the interval).

    Where pushes are cheap, workers share each batch of the program and push the step of each part, and the master adds
    the steps: W workers take the steps of a plain loop in nearly 1/W of its time. Where pushes are dear, workers take
    many steps before they push, and their replicas are averaged.

    Workers whose replicas are averaged would pull back those whose steps are added. So that is decided by the costs of
    the typical worker, alike for all workers.
    """
    typical, why = _added_batch(facts)
    if typical:
        added, others = _own_part(facts, typical)
        rate = added_rate(added / facts.batch, others)
        return PaceChoice(added, rate, added, typical, others), why
    batch, rate = batch_and_rate(facts.batch, facts.min_batch, facts.live, keeps_rate=facts.keeps_rate)
    if why:
        return PaceChoice(batch, rate, batch), why
    measured = facts.typical is not None and facts.typical.speed > 0
    # Where no pushes are wanted before the end of a chunk, each of those is a round of its own.
    if facts.gathers and facts.live > 1 and measured and facts.asked != NO_PUSH:
        return _round(facts)
    if facts.asked is not None:
        return PaceChoice(batch, rate, facts.asked), "asked for"
    every, reason = _push_every(facts, batch)
    return PaceChoice(batch, rate, every), reason


def _added_batch(facts: PaceFacts) -> tuple[int, str]:
    """Return (vertices of a typical worker's batch whose step is added, reason); 0: replicas are averaged. Then the
    reason is that of a first push after one batch, or "".

    It is a worker's part of the program's batch. The next one is trained while a push is under way, so that its way
    costs nothing while it is no longer than a batch takes; then the worker waits.
    """
    costs = facts.typical
    part, most = added_sizes(facts.batch, facts.min_batch, facts.live)
    adds = facts.adds and not facts.keeps_rate and part <= most
    if costs is None or facts.live < 2 or facts.asked is not None or not (adds or facts.gathers):
        return 0, ""
    if costs.speed <= 0:
        return 0, "one batch: the costs of a push are not measured yet"
    if not adds:
        return 0, ""
    cost, way = costs.speed * costs.push_s, costs.speed * max(costs.travel_s, facts.merging_s)
    size = max(part, min(most, math.ceil(max(cost / MAX_ADDED_COST, way))))
    worth = facts.live * used_share(costs, facts.merging_s, size)
    if worth < facts.live**AVERAGED_POWER or size > facts.max_interval_s * costs.speed:
        return 0, ""
    return size, f"steps are added: a push costs as much time as {cost:.2g} vertices"


def used_share(costs: TypicalCosts, merging_s: float, size: int) -> float:
    """Return the share of its time in which a typical worker trains, if it pushes after each batch of `size` vertices
    and the master merges the pushes of all workers in `merging_s` seconds."""
    trains_s = size / costs.speed
    return trains_s / max(trains_s + costs.push_s, costs.travel_s, merging_s)


def _own_part(facts: PaceFacts, typical: int) -> tuple[int, float]:
    """Return (vertices of a worker's batch, how far the others go meanwhile in lengths of its step), where a typical
    worker's batch has `typical` vertices.

    A faster worker has a larger part, so that parts take equally long, and all miss equally many steps of others.
    """
    assert facts.typical is not None, "steps are added by typical costs"
    ratio = facts.speed / facts.typical.speed if facts.speed > 0 else 1.0
    own = max(facts.min_batch, min(facts.batch, round(typical * ratio)), 1)
    return own, max(0.0, (facts.live * typical - own) / own)


def _round(facts: PaceFacts) -> tuple[PaceChoice, str]:
    """Return (the pace of a worker whose pushes are gathered in rounds, reason of the interval).

    The mean of W workers is W times less noisy than one of them, so that each trains a vertex at √W times the program's
    rate. More workers share the loss by longer rounds less well, so their rounds are shorter for the cost of a push.
    """
    costs = facts.typical
    assert costs is not None, "rounds are paced by the typical worker"
    batch, rate = batch_and_rate(facts.batch, facts.min_batch, facts.live, keeps_rate=facts.keeps_rate, gathered=True)
    cost = costs.speed * costs.push_s
    every, reason = facts.asked, "asked for"
    if every is None:
        wanted = cost * max(1.0, ROUND_COST / facts.live**0.5)
        longest = facts.max_interval_s * costs.speed
        every = max(batch, round(min(wanted, longest)))
        reason = f"rounds: a push costs as much time as {cost:.2g} vertices"
        if longest < wanted:
            reason = "rounds: workers do not live for longer ones to pay"
    round_s = max(every / costs.speed + costs.push_s, 2 * costs.delay_s, facts.merging_s)
    own = max(1, round(every * facts.speed / costs.speed)) if facts.speed > 0 else every
    return PaceChoice(batch, rate, own, round_s=round_s), reason


def _push_every(facts: PaceFacts, batch: int) -> tuple[int, str]:
    """Return (vertices between two pushes, reason). The number is rounded to whole batches.

    The merge rule wants a push every 512/sqrt(live) vertices, or edges of stages, each of which is a step. A push
    costs as much time as k = speed·push_s vertices. Pushes may take at most the fraction `budget` of the time, or up to
    MAX_BUDGET_FACTOR times that if rarer pushes cost more.

    Rarer pushes cost more if each vertex reduces the distance of a row to its optimum by a share `drift`. Of what
    `live` workers train in h vertices each, up to the share drift·live·h is then done twice. The total cost
    k/h + drift·live·h is least at h = sqrt(k/(drift·live)).

    Short lives make the interval shorter, and the time in which the master merges the pushes of all makes it longer.
    """
    live, cost_ms = max(1, facts.live), f"a push costs {facts.push_s * 1e3:.1f} ms"
    wanted, cost = STALENESS_STEP / facts.weight / live**0.5, facts.speed * facts.push_s
    affordable = cost / facts.budget
    worth = math.sqrt(cost / (facts.drift * live)) if live > 1 and facts.drift > 0 else math.inf
    chosen = max(wanted, min(affordable, max(worth, affordable / MAX_BUDGET_FACTOR)))
    if chosen == wanted:
        counted = "vertices" if facts.weight == 1 else f"edges of {facts.weight:.3g} a vertex"
        reason = f"512/sqrt({live}) {counted}, as the merge rule wants"
    elif chosen == affordable:
        reason = f"{cost_ms} and may take {facts.budget:.0%} of the time"
    else:
        reason = f"{cost_ms}, and rows of {live} workers drift apart"
    every = max(1, -(-int(chosen) // batch)) * batch
    if facts.speed <= 0:
        return every, reason
    shortest = max(1, round(facts.merging_s * facts.speed / batch)) * batch
    if shortest > every:
        return shortest, f"{shortest:,} vertices: the master merges no faster"
    batches = facts.max_interval_s * facts.speed / batch
    if (capped := max(shortest, round(min(batches, every)) * batch)) < every:
        return capped, f"{capped:,} vertices: workers do not live for longer pushes to pay"
    return every, reason


def poll_interval_s(waiting: int) -> float:
    """Return the seconds until a worker without work polls again. All `waiting` workers together poll at most 500 times
    a second, but each polls at least every 5 seconds."""
    return min(5.0, max(0.1, waiting / 500))


PAGE = "docs/training.md"  # its section "What gridml changes" is the full list
AVERAGING_PAGE = "docs/averaging.md"
FIXED_RATE = '@gridml.update(rate="fixed")'
MAX_RATES = 3  # the text lists up to this many learning rates one by one


@dataclass(frozen=True)
class UsedSettings:
    """The settings that each worker uses while `workers` train at the same time."""

    workers: int
    batch: int  #: vertices of a normal batch
    largest: int  #: vertices of the largest batch in a chunk of whole batches
    rate_factor: float  #: factor of the optimisers' rates, in addition to the schedule's
    added: bool = False  #: the step of each batch is added; otherwise replicas are averaged


def schedule_name(schedule: Schedule) -> str:
    """Return the name by which events refer to a schedule: linear_decay, constant, torch or own."""
    if isinstance(schedule, TorchSchedule):
        return "torch"
    return next((f.__name__ for f in (linear_decay, constant) if schedule is f), "own")


def used_settings(program: Program, workers: int, added: int = 0, *, adds: bool = False) -> tuple[UsedSettings, str]:
    """Return (the settings of each of `workers` workers, the same as text). `added` is the size of the batches whose
    steps are added; 0: replicas are averaged, but if `adds` their steps may be added later (`Program.adds_steps`)."""
    whole, keeps_rate = program.shape.batch or 1, program.shape.keeps_rate
    how = {"keeps_rate": keeps_rate, "gathered": program.gathers}
    size, rate = batch_and_rate(whole, program.min_target_batch, workers, added, workers - 1.0, **how)
    largest = max(size, next_batch(whole, size, program.min_actual_batch, alike=workers > 1))
    used = UsedSettings(workers, size, largest, rate, bool(added))
    who = "1 worker" if workers == 1 else f"{workers:,} workers"
    kept, rates = _kept(program, used), _rates(program, used)
    return used, f"{who}: {_batch(program, used)}{kept}{rates}{_added(program, used) if adds else ''}: {PAGE}"


def _batch(program: Program, used: UsedSettings) -> str:
    update = program.shape
    if update.edges is not None:
        return f"mini-batches of about {update.edges:,} edges"
    if update.batch is None:
        return "one vertex at a time"
    text = f"batch {used.batch:,}"
    if used.largest > used.batch:
        text += f" to {used.largest:,}"
    if used.batch < update.batch:
        text += f" of {update.batch:,}"
    if used.added:
        text += ", whose steps are added"
    elif program.gathers and used.workers > 1:
        text += ", averaged in rounds"
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


def _added(program: Program, used: UsedSettings) -> str:
    """Return what is used in place of these settings while steps are added, as text; "" if they cannot be."""
    batch = program.shape.batch or 1
    part, most = added_sizes(batch, program.min_target_batch, used.workers)
    if used.added or used.workers == 1 or part > most:
        return ""
    rates = [f"{added_rate(size / batch, used.workers - 1):.2g}" for size in (part, most)]
    sizes, times = f"{part:,}", rates[0]
    if part < most:
        sizes, times = f"{part:,} to {most:,}", " to ".join(rates)
    return f"; steps are added while pushes are cheap (batch {sizes}, rates times {times})"


def _kept(program: Program, used: UsedSettings) -> str:
    """Return the reason, as text, why each of several workers has the program's full batch; "" if they share it."""
    whole = program.shape.batch
    if used.workers == 1 or program.shape.edges is not None or whole in (None, 1) or used.batch < (whole or 1):
        return ""
    if program.normalises:
        return " (not shared: a layer normalises by its batch)"
    return " (not shared: min_batch)" if program.rates != () else " (not shared: no optimiser)"


def averaging_cost(program: Program, workers: int, *, adds: bool) -> tuple[tuple[str, ...], str]:
    """Return (what a user may set, what it costs that `workers` replicas are averaged, as text); ((), "") without cost.

    An average of replicas is no further trained than one of them, whatever its noise. So after the same epochs it is
    usually worse than a loop's (docs/averaging.md). Workers whose steps are added lose nothing; if `adds`, that is
    decided by what pushes cost, which no run knows as it begins.
    """
    if workers == 1 or program.rates == ():
        return (), ""
    used, _ = used_settings(program, workers)
    ways, nearer = ["--workers 1", "--epochs"], "more --epochs"
    # Measured: Adam gains by it at the rates that people choose, and SGD loses by it at the largest rate that it bears.
    if used.rate_factor < 1:
        ways.append(FIXED_RATE)
        nearer += f"; {FIXED_RATE} if the rate could be larger, as Adam's often could"
    when = "unless pushes turn out cheap, replicas" if adds else "replicas"
    return tuple(ways), (
        f"{when} of {workers:,} workers are averaged: after the same epochs the model may be worse than a loop's. As "
        f"good: --workers 1. Nearer: {nearer}: {AVERAGING_PAGE}"
    )
