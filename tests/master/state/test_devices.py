"""Decisions after the failure of a device: the rest of its machine, and the end of the run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from master.state.failures import MAX_DEVICE_REST_S, MAX_TRIES, MIN_DEVICE_REST_S, after_device_failure, rest_of_device


def test_a_machine_rests_for_longer_each_time() -> None:
    seconds = [rest_of_device(times)[0] for times in range(1, 30)]
    assert seconds[:3] == [MIN_DEVICE_REST_S, 2 * MIN_DEVICE_REST_S, 4 * MIN_DEVICE_REST_S]
    assert seconds == sorted(seconds) and seconds[-1] == MAX_DEVICE_REST_S
    assert rest_of_device(3)[1] == "its device failed 3 times in a row; no worker there for 20 s"


@given(st.integers(1, 10**6))
def test_a_run_goes_on_while_others_work(in_a_row: int) -> None:
    assert after_device_failure(in_a_row, others_work=True) == (True, "other workers train")


def test_a_run_ends_after_some_device_failures_if_no_other_worker_trains() -> None:
    goes_on = [after_device_failure(tries, others_work=False)[0] for tries in range(1, MAX_TRIES + 2)]
    assert goes_on == [True] * (MAX_TRIES - 1) + [False, False]
    assert after_device_failure(MAX_TRIES, others_work=False)[1].startswith(f"the devices of {MAX_TRIES} workers")
