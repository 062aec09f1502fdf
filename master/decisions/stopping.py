"""Whether a run has trained enough: the next epoch begins only while it cannot turn out to be one too many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gridml.model.goals import EarlyStopping


@dataclass(frozen=True)
class StoppingFacts:
    """The goal's `values` in the evaluations so far, oldest first, with the epochs (from 0) that they are of; `pending`
    evaluations are due of epochs that have begun, and not made yet."""

    values: Sequence[tuple[int, float]]
    pending: int


@dataclass(frozen=True)
class Standing:
    """The best value, the epoch (from 0) that it is of, and how many evaluations since were not better."""

    best: float
    epoch: int
    without: int


def standing(facts: StoppingFacts, wanted: EarlyStopping) -> Standing:
    """Return how the evaluations stand. Better is what is better than the best before by more than `min_delta`."""
    best, epoch, without = math.nan, -1, 0
    for at, value in facts.values:
        if wanted.goal.better(value, best, wanted.min_delta):
            best, epoch, without = value, at, 0
        else:
            without += 1
    return Standing(best, epoch, without)


def stops(facts: StoppingFacts, wanted: EarlyStopping) -> tuple[bool, str]:
    """Return whether the run has trained enough, and why."""
    now = standing(facts, wanted)
    metric = wanted.goal.metric
    if now.without < wanted.patience:
        return False, f"{now.without} of {wanted.patience} evaluations in a row have not brought {metric} further"
    by = f" by more than {wanted.min_delta:g}" if wanted.min_delta else ""
    times = f"{now.without} evaluations in a row have" if now.without > 1 else "the last evaluation has"
    best = "it never was a number" if now.epoch < 0 else f"its best is {now.best:.4g}, after epoch {now.epoch + 1}"
    return True, f"{times} not brought {metric} further{by}; {best}"


def may_begin(facts: StoppingFacts, wanted: EarlyStopping) -> tuple[bool, str]:
    """Return whether another epoch may begin, and why: not while the evaluations that are due, if none of them brings
    the goal further, end the run."""
    now = standing(facts, wanted)
    if now.without + facts.pending < wanted.patience:
        return True, f"{now.without} evaluations without progress and {facts.pending} to come are no reason to stop"
    return False, f"the evaluation of {facts.pending} epochs is awaited: the run may have trained enough"
