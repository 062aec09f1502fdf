"""What a run trains for, in the words of its evaluate: which metric, and whether less or more of it is better.

Written "loss", "min:loss" or "max:accuracy". Without min or max the metric's own words say it, where they do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gridml.errors import ProgramError

Mode = Literal["min", "max"]
LESS = frozenset({"loss", "losses", "error", "errors", "perplexity", "mse", "rmse", "mae", "nll", "wer", "cer"})
MORE = frozenset(
    {"accuracy", "acc", "auc", "f1", "precision", "recall", "r2", "bleu", "iou", "dice", "score", "reward"}
)
MOST_PATIENCE = 10**6


@dataclass(frozen=True)
class Goal:
    """A metric of evaluate, and which of two values is better."""

    metric: str
    mode: Mode

    def better(self, value: float, than: float, by: float = 0.0) -> bool:
        """Say whether a value is better than another, by more than `by`. Any finite number is better than one that is
        not, such as the NaN that there is before the first; what is not finite is never better."""
        if not (math.isfinite(than) and math.isfinite(value)):
            return math.isfinite(value)
        return value < than - by if self.mode == "min" else value > than + by

    def find(self, metrics: Mapping[str, Any]) -> float | None:
        """Return the metric's value, None where there is no number of that name."""
        value = metrics.get(self.metric)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def value(self, metrics: Mapping[str, Any]) -> float:
        """Return the metric's value. Raises ProgramError where evaluate returned no number of that name."""
        value = self.find(metrics)
        if value is None:
            there = metrics.get(self.metric)
            named = f"{there} by that name" if isinstance(there, bool) else "a list of that name"
            got = named if self.metric in metrics else ", ".join(sorted(metrics)) or "nothing"
            raise ProgramError(
                f"the program goes by {self}, and evaluate returned {got}; expected a number called {self.metric!r}."
            )
        return value

    def __str__(self) -> str:
        return f"{self.mode}:{self.metric}"


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when `patience` evaluations in a row have not brought the goal further by more than `min_delta`, and the
    line through the last 2 * patience + 1 does not do so either."""

    goal: Goal
    patience: int
    min_delta: float


def early_stopping(metric: str, patience: int = 3, min_delta: float = 0.0, mode: Mode | None = None) -> EarlyStopping:
    """Say when a run has trained enough: `gridml.Program(..., early_stopping=gridml.early_stopping("loss"))`.

    `metric` is one of evaluate's, such as "loss" or "max:accuracy"; `mode` may say "min" or "max" as well. The run ends
    once `patience` evaluations in a row were not better than the best before them by more than `min_delta`, and the
    least-squares line through the last 2 * patience + 1 evaluations does not get better by more than `min_delta` from
    its first to its last either: so a metric that falls with noise is not the end. The next epoch begins only while
    that cannot happen before its end, so no epoch is under way then: with `patience=1` every epoch waits for the
    evaluation of the one before. NaN and infinite values are no progress, and no part of the line; where the last
    `patience` are all of them so, there is no line.

    Raises ProgramError for a patience below 1, a negative min_delta, and a metric of which it cannot tell what is
    better.
    """
    if mode is not None and mode not in get_args(Mode):
        raise ProgramError(f"early_stopping got mode={mode!r}; expected 'min' or 'max'.")
    named = goal(metric if mode is None else f"{mode}:{metric}", "early_stopping")
    if type(patience) is not int or not 1 <= patience <= MOST_PATIENCE:
        raise ProgramError(f"early_stopping got patience={patience!r}; expected a whole number from 1 on.")
    if type(min_delta) not in (int, float) or not (math.isfinite(min_delta) and min_delta >= 0):
        raise ProgramError(f"early_stopping got min_delta={min_delta!r}; expected a finite number from 0 on.")
    return EarlyStopping(named, patience, float(min_delta))


def kept_goal(keep: str) -> Goal:
    """Return what "best:loss", as in `gridml.Program(..., keep="best:loss")`, asks for. Raises ProgramError."""
    what, _, metric = keep.partition(":") if isinstance(keep, str) else ("", "", "")
    if what != "best" or not metric:
        raise ProgramError(f'Program got keep={keep!r}; expected "best:" and a metric, such as "best:loss".')
    return goal(metric, "keep")


def goal(text: str, who: str) -> Goal:
    """Return the goal that a text names; an error says `who` got it. Raises ProgramError where that is none."""
    if not isinstance(text, str) or not text:
        raise ProgramError(f'{who} got {text!r}; expected the name of a metric, such as "loss" or "max:accuracy".')
    mode, _, metric = text.partition(":")
    if mode in get_args(Mode) and metric:
        return Goal(metric, "min" if mode == "min" else "max")
    words = set(re.split(r"[^a-z0-9]+", text.lower()))
    less, more = bool(words & LESS), bool(words & MORE)
    if less == more:
        raise ProgramError(
            f"{who} got {text!r}, of which nobody can tell whether less or more is better; expected min:{text} or "
            f"max:{text}."
        )
    return Goal(text, "min" if less else "max")
