"""Learning-rate schedules by share, by step and by torch, and the step count at a point of a run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gridml
from gridml.errors import ProgramError
from gridml.model.schedule import Progress, StepCount, check_schedule, factor_of
from gridml.model.update import Update


def by_progress(at: gridml.Progress) -> float:
    return 1.0 / (1 + at.epoch)


def test_a_schedule_gets_what_it_is_annotated_with() -> None:
    at = Progress(epoch=3, share=0.8, step=7, steps=10)
    assert factor_of(gridml.linear_decay, at) == pytest.approx(0.5)
    assert factor_of(lambda share: share, at) == 0.8
    assert factor_of(by_progress, at) == 0.25
    assert factor_of(gridml.by_step(lambda step: 0.5**step), at) == 0.5**7


def test_a_warm_up_rises_to_the_schedule_that_follows() -> None:
    by_steps = gridml.warmup(steps=4, then=gridml.constant)
    assert [factor_of(by_steps, Progress(step=k)) for k in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    by_share = gridml.warmup(share=0.2)
    steps = [Progress(share=k / 20, step=k, steps=20) for k in range(20)]
    factors = [factor_of(by_share, at) for at in steps]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[10] == 1.0
    assert factors[16] == pytest.approx(0.5)  # linear_decay's


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: gridml.warmup(), "expected one of them"),
        (lambda: gridml.warmup(steps=3, share=0.1), "expected one of them"),
        (lambda: gridml.warmup(steps=0), "steps=0"),
        (lambda: gridml.warmup(share=1.5), "share=1.5"),
        (lambda: gridml.warmup(steps=3, then=gridml.torch_schedule(print)), "SequentialLR"),
        (lambda: gridml.by_step(0.1), "by_step got 0.1"),  # type: ignore[arg-type]
        (lambda: gridml.torch_schedule(0.1), "torch_schedule got 0.1"),  # type: ignore[arg-type]
    ],
    ids=["neither", "both", "no step", "more than all", "torch's after ours", "no function", "no maker"],
)
def test_schedules_that_make_no_sense_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        make()


def test_one_that_fails_somewhere_is_refused_before_a_run() -> None:
    with pytest.raises(ProgramError, match=r"schedule\(999\) returned -1"):
        check_schedule(gridml.by_step(lambda step: 1 if step < 600 else -1))
    check_schedule(by_progress)


@given(st.integers(1, 300), st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_steps_are_counted_as_a_loop_counts_them(
    count: int, batch: int, accumulate: int, epochs: int, drop_last: bool
) -> None:
    batch = min(batch, count)
    update = Update(print, batch, 1, drop_last=drop_last, accumulate=accumulate)
    counts = update.steps(count)
    step = 0  # as the loop counts
    for epoch in range(epochs):
        trained = count - count % batch if drop_last else count
        gathered = 0
        for at in range(0, trained, batch):
            assert counts.at(epoch * count + at, epochs) == step
            gathered += 1
            if gathered == accumulate or at + batch >= trained:
                step, gathered = step + 1, 0
    assert counts.per_epoch * epochs == step
    assert counts.at(count * epochs, epochs) == step - 1, "there is none after the last"


def test_a_count_of_one_vertex_has_one_step() -> None:
    assert StepCount(1, 1, 64).at(0, 1) == 0
