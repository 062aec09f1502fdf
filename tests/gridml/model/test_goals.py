"""Goals of a run: the metric, and its direction."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

import gridml
from gridml.errors import ProgramError
from gridml.model.program import EarlyStopping, Goal, Mode, goal, saved_goal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss", Goal("loss", "min")),
        ("val_loss", Goal("val_loss", "min")),
        ("top5_accuracy", Goal("top5_accuracy", "max")),
        ("F1", Goal("F1", "max")),
        ("max:loss", Goal("loss", "max")),
        ("min:whatever: it is", Goal("whatever: it is", "min")),
    ],
)
def test_a_goal_is_written_as_text(text: str, expected: Goal) -> None:
    assert goal(text, "keep") == expected
    assert saved_goal(f"best:{text}") == expected
    assert goal(str(expected), "keep") == expected


@pytest.mark.parametrize("text", ["", "counted", "accuracy_loss", "min:", 3, None])
def test_what_says_nothing_of_better_is_refused(text: object) -> None:
    with pytest.raises(ProgramError, match=r"early_stopping got .*; expected"):
        goal(text, "early_stopping")  # type: ignore[arg-type]


@pytest.mark.parametrize("keep", ["", "best", "best:", "worst:loss", "loss", 3])
def test_what_is_kept_begins_with_best(keep: object) -> None:
    with pytest.raises(ProgramError, match=r"Program got keep=.*; expected \"best:\""):
        saved_goal(keep)  # type: ignore[arg-type]


def test_better_is_a_number_and_less_or_more_by_enough() -> None:
    less, more = Goal("loss", "min"), Goal("accuracy", "max")
    assert less.better(1.0, 2.0) and not less.better(2.0, 1.0) and not less.better(1.0, 1.0)
    assert more.better(2.0, 1.0) and not more.better(1.0, 2.0)
    assert not less.better(0.95, 1.0, by=0.1) and less.better(0.85, 1.0, by=0.1)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_better_and_anything_finite_is_better_than_it(mode: Mode, value: float) -> None:
    wanted = Goal("loss", mode)
    assert not wanted.better(value, math.nan) and not wanted.better(value, 9.0) and not wanted.better(value, value)
    assert wanted.better(9.0, value) and wanted.better(9.0, value, by=0.5)


def test_early_stopping_has_its_settings() -> None:
    assert gridml.early_stopping("loss") == EarlyStopping(Goal("loss", "min"), 3, 0.0)
    assert gridml.early_stopping("x", 5, 0.1, "max") == EarlyStopping(Goal("x", "max"), 5, 0.1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: gridml.early_stopping("loss", 0), "patience=0"),
        (lambda: gridml.early_stopping("loss", 1.5), "patience=1.5"),  # type: ignore[arg-type]
        (lambda: gridml.early_stopping("loss", min_delta=-1), "min_delta=-1"),
        (lambda: gridml.early_stopping("loss", min_delta=math.nan), "min_delta=nan"),
        (lambda: gridml.early_stopping("loss", mode="less"), "mode='less'"),  # type: ignore[arg-type]
        (lambda: gridml.early_stopping("x"), "min:x or max:x"),
    ],
    ids=["no-patience", "half", "negative", "nan", "mode", "unknown"],
)
def test_what_makes_no_sense_is_refused(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(ProgramError, match=f"{said}.*expected|expected.*{said}"):
        wrong()


def test_a_value_that_is_not_there_is_said() -> None:
    with pytest.raises(ProgramError, match="has the goal min:loss, and evaluate returned accuracy; expected a number"):
        goal("loss", "keep").value({"accuracy": 1.0})
    with pytest.raises(ProgramError, match="a list of that name"):
        goal("loss", "keep").value({"loss": [1.0]})
    with pytest.raises(ProgramError, match="evaluate returned True by that name; expected a number"):
        goal("loss", "keep").value({"loss": True})
    assert goal("loss", "keep").find({"loss": 1}) == 1.0 and goal("loss", "keep").find({"loss": False}) is None
