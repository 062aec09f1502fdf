"""What workers are worth, from their course and that of a loop."""

from __future__ import annotations

import pytest

from benchmarks.averaging.pacing import mean_curve, worth
from benchmarks.averaging.runs import SMALL_TASKS, TASKS, Curve, Point

ACCURACY, LOSS = TASKS["MNIST, LeNet"], SMALL_TASKS["Bible, small transformer"]


def curve(*points: tuple[float, float]) -> Curve:
    return Curve(tuple(Point(*point) for point in points), 1)


def test_the_goal_is_the_end_of_the_one_that_is_behind() -> None:
    loop = curve((10.0, 0.5), (20.0, 0.7), (30.0, 0.9))
    assert worth(ACCURACY, loop, curve((3.0, 0.6), (6.0, 0.8))) == pytest.approx(25.0 / 6.0)
    assert worth(ACCURACY, loop, curve((5.0, 0.85), (10.0, 0.95))) == pytest.approx(30.0 / 7.5)
    assert worth(ACCURACY, loop, loop) == 1.0


def test_a_loss_is_better_where_it_is_less() -> None:
    assert worth(LOSS, curve((10.0, 3.0), (20.0, 2.0)), curve((4.0, 2.5), (8.0, 2.5))) == pytest.approx(15.0 / 4.0)


def test_seeds_are_averaged_epoch_by_epoch() -> None:
    mean = mean_curve([curve((10.0, 0.5), (20.0, 0.7)), curve((12.0, 0.7), (24.0, 0.9))])
    assert [(point.time_s, point.value) for point in mean.points] == [(11.0, 0.6), (22.0, pytest.approx(0.8))]
