"""Alternative uses of the machines of a trace, computed from a loop's curve."""

from __future__ import annotations

import math

import pytest

from benchmarks.averaging.runs import BOOT_S, BUDGET, EXEC_S, TASKS, Case, Curve, Point, push_s
from benchmarks.averaging.traces import Stay, restarted, synchronous

TASK = TASKS["MNIST, LeNet"]
CURVE = Curve((Point(1.0, 0.5), Point(2.0, 0.75)), 1)
EPOCH_S = TASK.vertices * EXEC_S * (1 + BUDGET)


def times(curve: Curve) -> list[float]:
    return [point.time_s for point in curve.points]


def test_one_machine_that_stays_is_a_loop_with_checkpoints() -> None:
    curve = restarted([Stay(2.0, math.inf, 1.0)], TASK, CURVE)
    assert times(curve) == pytest.approx([2.0 + BOOT_S + EPOCH_S, 2.0 + BOOT_S + 2 * EPOCH_S])
    assert [point.value for point in curve.points] == [0.5, 0.75]


def test_a_machine_that_goes_costs_a_start_and_at_most_a_checkpoint() -> None:
    went = restarted([Stay(0.0, 10.0, 1.0), Stay(0.0, math.inf, 1.0)], TASK, CURVE)
    stayed = restarted([Stay(0.0, math.inf, 1.0)], TASK, CURVE)
    lost_s = times(went)[-1] - times(stayed)[-1] - BOOT_S
    assert 0 <= lost_s <= 1_024 * EXEC_S * (1 + BUDGET)


def test_without_machines_there_is_no_work() -> None:
    curve = restarted([Stay(0.0, BOOT_S / 2, 1.0), Stay(100.0, math.inf, 1.0)], TASK, CURVE)
    assert times(curve)[0] == pytest.approx(100.0 + BOOT_S + EPOCH_S)


def test_those_that_train_together_wait_for_the_slowest() -> None:
    machines = [Stay(0.0, math.inf, 2.0), Stay(0.0, math.inf, 0.5)]
    curve = synchronous(machines, TASK, 2, 64, CURVE)
    step_s = 32 * EXEC_S / 0.5 + push_s(Case.interval)
    assert times(curve)[0] == pytest.approx(BOOT_S + TASK.vertices / 64 * step_s)


def test_any_change_of_machines_restarts_all() -> None:
    steady = [Stay(0.0, math.inf, 1.0), Stay(0.0, math.inf, 1.0)]
    alone_s = times(synchronous(steady, TASK, 2, 64, CURVE))[-1]
    changing = [Stay(0.0, math.inf, 1.0), Stay(0.0, 5.0, 1.0), Stay(0.0, math.inf, 1.0)]
    assert times(synchronous(changing, TASK, 2, 64, CURVE))[-1] == pytest.approx(alone_s + BOOT_S)
