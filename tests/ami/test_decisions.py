"""The decisions of the boot daemon."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ami.decisions import (
    MAX_PAUSE_S,
    MAX_SHORT_RUNS,
    SHORT_RUN_S,
    WorkerEnd,
    is_followed,
    last_contact_s,
    orphan_reason,
    patience_s,
    pause_s,
)
from gridml.errors import UNFIT, RunError
from gridml.protocol.outbox import SAVED

LONG_S = 2 * SHORT_RUN_S


@pytest.mark.parametrize(
    ("end", "followed", "why"),
    [
        (WorkerEnd(0, LONG_S), False, "the worker ended with status 0"),
        (WorkerEnd(UNFIT, 1.0, "no torch"), False, "the worker ended with status 69: no torch"),
        (WorkerEnd(SAVED, LONG_S), True, "had no answer for long"),
        (WorkerEnd(RunError.exit_status, LONG_S, "no route"), True, "could not reach the master: no route"),
        (WorkerEnd(SAVED, 1.0, short_runs=MAX_SHORT_RUNS - 1), False, "3 workers ended within 60 s"),
        (WorkerEnd(SAVED, LONG_S, short_runs=MAX_SHORT_RUNS - 1), True, "had no answer"),
        (WorkerEnd(SAVED, LONG_S, stop_reason="spot interruption"), False, "spot interruption"),
        (WorkerEnd(-9, LONG_S, stop_reason="spot interruption"), False, "spot interruption"),
        (WorkerEnd(SAVED, LONG_S, stop_reason="shutting down"), False, "shutting down"),
    ],
)
def test_after_a_worker(end: WorkerEnd, followed: bool, why: str) -> None:
    found, reason = is_followed(end)
    assert found is followed and why in reason


@given(st.integers(-15, 255), st.floats(0, 1e6), st.integers(0, 10))
def test_a_worker_that_must_leave_is_not_restarted(status: int, lived_s: float, short_runs: int) -> None:
    assert is_followed(WorkerEnd(status, lived_s, "", "reason", short_runs)) == (False, "reason")


def test_the_time_of_the_last_contact_with_the_master() -> None:
    arguments = ["--seed", "0", "--patience", "120"]
    assert last_contact_s(WorkerEnd(0, 900.0), 1000.0, arguments, 100.0) == 1000.0
    assert last_contact_s(WorkerEnd(SAVED, 900.0), 1000.0, arguments, 100.0) == 880.0
    assert last_contact_s(WorkerEnd(SAVED, 10.0), 110.0, arguments, 100.0) == 100.0  # since it enrolled
    assert last_contact_s(WorkerEnd(RunError.exit_status, 60.0), 160.0, arguments, 100.0) == 100.0


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        (["--patience", "30"], 30.0),
        (["--patience=7.5", "--keep", "9"], 7.5),
        (["--seed", "3"], 0.0),
        (["--patience"], 0.0),
        (["--patience", "long"], 0.0),
    ],
)
def test_the_patience_of_a_worker(arguments: list[str], seconds: float) -> None:
    assert patience_s(arguments) == seconds


def test_an_instance_without_a_master_ends_itself() -> None:
    assert orphan_reason(899.0, 900.0) is None
    assert orphan_reason(900.0, 900.0) == "nothing was heard from the master for 900 s, and 900 s are allowed"


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_to_a_limit(attempt: int, draw: float) -> None:
    assert 0.5 <= pause_s(attempt, draw) <= MAX_PAUSE_S
    assert pause_s(attempt, draw) <= pause_s(attempt + 1, draw)
    assert pause_s(attempt, 0.0) * 2 >= pause_s(attempt, draw)
