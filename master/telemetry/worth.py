"""The worth of several workers, and how many of them are asked for.

Workers are worth the time that one of them would need for the same progress, over the time that they take. Together
they train a vertex sooner, but it brings the model less far than it would bring one worker's: the average of replicas
that were trained side by side is no further trained than one of them, and steps that are added come late. What is left
was measured (docs/averaging.md, "What workers are worth").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from gridml.engine.pace import MAX_ADDED_PARTS, PaceFacts, TypicalCosts, choose_pace, used_share
from master.store.settings import STEPS_EACH

# Share of a worker's training that each further worker costs it, where whole replicas are averaged and where steps are
# added. Found on LeNet (0.13 to 0.16; added 0.05 to 0.07) and, averaged, a transformer (0.27 to 0.35).
AVERAGED_LOSS, ADDED_LOSS = 0.2, 0.06


def kept_share(live: int, *, averages: bool, added: bool) -> float:
    """Return how much of a vertex's training is kept if `live` workers train at the same time: 1/(1 + loss·(live − 1)).

    `averages`: whole replicas are averaged, unless steps are `added`; otherwise rows or sums are merged one by one, and
    all is counted as kept.
    """
    loss = ADDED_LOSS if added else AVERAGED_LOSS if averages else 0.0
    return 1.0 / (1.0 + loss * (max(1, live) - 1))


@dataclass
class KeptTraining:
    """The credited vertices of a run, and those that one worker would have trained for the same progress."""

    credited: int = 0
    kept: float = 0.0

    FACT = "kept_training"  # its name in the ledger

    def add(self, vertices: int, share: float) -> None:
        """Record a merged push, of which `share` is kept."""
        self.credited += vertices
        self.kept += vertices * share


class WorthFacts(NamedTuple):
    """The facts that `worth` needs."""

    workers: int  #: number of workers that the user wants
    trained: KeptTraining
    spent_s: float  #: seconds that workers trained what was credited, all workers together
    elapsed_s: float  #: seconds since the run began, while a master drove it


def worth(facts: WorthFacts) -> tuple[float | None, str]:
    """Return (the number of workers that the workers of a run are worth so far, why); None for one worker, and before
    anything was credited.

    It counts boots, kills, lost work, and the time of pushes. It assumes that one worker would train a
    vertex as fast as these workers do on average, that it would never be killed, and that each further worker costs the
    others the shares AVERAGED_LOSS or ADDED_LOSS of their training, whatever the program and however long the run.
    """
    if facts.workers < 2:
        return None, "one worker is wanted"
    if not (facts.trained.credited > 0 and facts.spent_s > 0 and facts.elapsed_s > 0):
        return None, "nothing was credited yet"
    share = facts.trained.kept / facts.trained.credited
    alone_s = share * facts.spent_s
    kept = "" if share > 0.995 else f" (an estimate: {share:.0%} of what they train is kept)"
    return alone_s / facts.elapsed_s, f"one would need {alone_s:,.0f} s for what took {facts.elapsed_s:,.0f} s{kept}"


# This many workers are always allowed, because batches of a quarter of the size make up for averaging
# (`gridml.engine.pace`).
MIN_WORKERS = 4
# Costs must be this many times less than necessary before more workers are asked for, or more before fewer are.
MARGIN = 1.5
# More workers are asked for while each of them trains for at least this share of its time. If it is less, the master
# may be what limits them, and then fewer with larger parts are worth more.
MIN_USED = 2 / 3
# For so long costs must be too high before fewer are asked for. A master that begins again measures how long pushes
# waited for it.
STAYS_S = 60.0


def sharing_workers(facts: PaceFacts | None, before: int, dear_s: float = math.inf) -> tuple[int, str]:
    """Return (largest number of workers that share each batch of the program with full effect, reason); 0: none can.

    Their steps are added, and the rate of a step is not cut for what others trained beside it. `facts` are those of a
    worker alone; None: costs are not measured yet. `before` is the last answer: it stays while costs are within a
    factor of MARGIN of what it needs, or have been too high for less than STAYS_S (`dear_s`: seconds), so
    that workers do not come and go as costs vary.
    """
    if facts is None:
        return before, "" if before else "more are asked for if pushes turn out to be cheap"
    count = min(max(before, _sharing(facts, MARGIN)), _sharing(facts, 1 / MARGIN))
    if count < before and dear_s < STAYS_S:
        return before, f"pushes cost too much for {before} workers to share a batch, but only for {dear_s:.0f} s so far"
    if count == MAX_ADDED_PARTS:
        return count, f"no more than {count} workers share a batch"
    return count, f"pushes cost too much for more than {count} workers to share a batch" if count else ""


def _sharing(facts: PaceFacts, factor: float) -> int:
    """Return how many workers can share a batch if costs are `factor` times what was measured."""
    if facts.typical is None:
        return 0
    costs = TypicalCosts(facts.typical.speed, factor * facts.typical.push_s, factor * facts.typical.travel_s)
    for count in range(MAX_ADDED_PARTS, 1, -1):
        merging_s = factor * count * facts.merging_s
        chosen, _ = choose_pace(facts._replace(typical=costs, live=count, merging_s=merging_s))
        is_uncut = chosen.added and chosen.rate == chosen.batch / facts.batch
        if is_uncut and used_share(costs, merging_s, chosen.added) >= MIN_USED:
            return count
    return 0


@dataclass(frozen=True)
class RunLength:
    """The amount of training in a run."""

    vertices: int  #: vertices of all epochs together
    batch: int  #: vertices of a batch
    steps_each: int = STEPS_EACH  #: batches that each worker should train at least; 0: no minimum


def worker_limit(length: RunLength, sharing: tuple[int, str] = (0, "")) -> tuple[int | None, str]:
    """Return the number of workers that should not be exceeded, and the reason; None: no limit.

    Replicas that workers train separately are averaged: with too few steps for each, a run ends sooner, but with a
    worse model. So the run's length limits their number. `sharing` (`sharing_workers`) takes its place where that many
    workers whose steps are added are worth more.
    """
    if length.steps_each < 1:
        return None, "however little each trains"
    count, (shared, why) = max(MIN_WORKERS, length.vertices // (length.batch * length.steps_each)), sharing
    if shared * kept_share(shared, averages=True, added=True) > count * kept_share(count, averages=True, added=False):
        return max(MIN_WORKERS, shared), why
    return count, (
        f"{length.vertices:,} vertices are {length.vertices // length.batch:,} batches of {length.batch:,}, and of "
        f"more than {count:,} workers each would train fewer than {length.steps_each:,}"
        f"{f'; {why}' if why and not shared else ''}"
    )
