"""Whether a run has trained enough: the next epoch begins only while it cannot turn out to be one too many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

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


@dataclass(frozen=True)
class Trend:
    """The least-squares line through the newest `count` evaluations: its slope, in the metric's unit an evaluation,
    and what it gains for the goal from the first to the last that is a number (negative: a loss)."""

    count: int
    slope: float
    gain: float


def standing(facts: StoppingFacts, wanted: EarlyStopping) -> Standing:
    """Return how the evaluations stand. Better is what is better than the best before by more than `min_delta`."""
    best, epoch, without = math.nan, -1, 0
    for at, value in facts.values:
        if wanted.goal.better(value, best, wanted.min_delta):
            best, epoch, without = value, at, 0
        else:
            without += 1
    return Standing(best, epoch, without)


def trend(facts: StoppingFacts, wanted: EarlyStopping) -> Trend | None:
    """Return the line through the last 2 * patience + 1 evaluations, None where the last `patience` are no numbers, or
    fewer than two are one.

    The sums are exact, so that a metric that stays where it is has slope 0 and not what rounding leaves.
    """
    newest = [value for _, value in facts.values[-(2 * wanted.patience + 1) :]]
    numbers = [(k, Fraction(value)) for k, value in enumerate(newest) if math.isfinite(value)]
    if len(numbers) < 2 or numbers[-1][0] < len(newest) - wanted.patience:
        return None
    middle = Fraction(sum(k for k, _ in numbers), len(numbers))
    squares = sum((k - middle) * (k - middle) for k, _ in numbers)
    slope = sum(((k - middle) * value for k, value in numbers), Fraction(0)) / squares
    risen = slope * (numbers[-1][0] - numbers[0][0])
    return Trend(len(newest), _as_float(slope), _as_float(-risen if wanted.goal.mode == "min" else risen))


def stops(facts: StoppingFacts, wanted: EarlyStopping) -> tuple[bool, str]:
    """Return whether the run has trained enough, and why: `patience` evaluations in a row were not better than the best
    before them, and the line through the newest does not get better either."""
    now = standing(facts, wanted)
    metric = wanted.goal.metric
    if now.without < wanted.patience:
        return False, f"{now.without} of {wanted.patience} evaluations in a row have not brought {metric} further"
    by = f" by more than {wanted.min_delta:g}" if wanted.min_delta else ""
    times = f"{now.without} evaluations in a row have" if now.without > 1 else "the last evaluation has"
    best = "it never was a number" if now.epoch < 0 else f"its best is {now.best:.4g}, after epoch {now.epoch + 1}"
    plain = f"{times} not brought {metric} further{by}; {best}"
    if (line := trend(facts, wanted)) is None:
        return True, plain
    changes = f"over the last {line.count} evaluations it changes by {line.slope:+.3g} an evaluation"
    if line.gain > wanted.min_delta:
        return False, f"{plain}, but {changes}: it still gets better"
    return True, f"{plain}, and {changes}"


def may_begin(facts: StoppingFacts, wanted: EarlyStopping) -> tuple[bool, str]:
    """Return whether another epoch may begin, and why: not while the evaluations that are due, whatever they bring, may
    end the run. Where patience has run out and the trend alone goes on, the next one may always be bad enough to."""
    now = standing(facts, wanted)
    if now.without + facts.pending < wanted.patience:
        return True, f"{now.without} evaluations without progress and {facts.pending} to come are no reason to stop"
    if facts.pending:
        return False, f"the evaluation of {facts.pending} epochs is awaited: the run may have trained enough"
    enough, reason = stops(facts, wanted)
    return not enough, reason


def _as_float(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:  # of metrics near the largest float
        return math.inf if exact > 0 else -math.inf
