"""Names of workers, and of the jobs of which they are attempts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.protocol.outbox import attempt_of, is_attempt, job_of, worker_name


def test_the_first_attempt_of_a_job_has_its_name() -> None:
    assert [worker_name("w7", n) for n in range(3)] == ["w7", "w7.1", "w7.2"]


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_job_and_life_can_be_read_from_the_name(job: int, starts: int) -> None:
    worker = worker_name(f"w{job}", starts)
    assert (job_of(worker), attempt_of(worker)) == (f"w{job}", starts)
    assert is_attempt(worker, f"w{job}")


@pytest.mark.parametrize("name", ["w8", "w7.x", "w7.01", "w7.", "../w7", "w7/../w8", ""])
def test_no_other_name_is_that_of_a_life(name: str) -> None:
    assert not is_attempt(name, "w7")


def test_a_path_is_no_job() -> None:
    assert not is_attempt("../w7", "../w7")
