"""Facts about a run as a whole, read from its directory with and without a master."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from master.store.ledger import Ledger
from master.store.reader import RunClock, opened, read_clock, read_facts, read_status
from master.store.rundir import RunStatus


@contextmanager
def reading(root: Path, **facts: object) -> Iterator[sqlite3.Connection]:
    """A maker of the ledger of a run with given facts and an event at second 140."""
    ledger = Ledger(root / "ledger.db", shared_disk=False, create=True)
    with ledger.transaction():
        for key, value in facts.items():
            ledger.set(key, value)
        ledger.event(140.0, "warning", "the last thing it wrote")
    ledger.close()
    with opened(root) as connection:
        yield connection


@contextmanager
def driven(root: Path) -> Iterator[None]:
    """Act as if a master held the run."""
    with (root / "master.lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_the_clock_leaves_out_what_no_master_saw() -> None:
    clock = RunClock(100.0, 200.0, ((110.0, 130.0), (150.0, 151.0)))
    assert [clock.at(time_s) for time_s in (100.0, 110.0, 120.0, 130.0, 160.0)] == [0.0, 10.0, 10.0, 10.0, 39.0]


@pytest.mark.parametrize("status", [status for status in RunStatus if status is not RunStatus.STOPPED])
def test_a_status_is_what_the_ledger_says_while_a_master_holds_the_run(status: RunStatus, tmp_path: Path) -> None:
    with driven(tmp_path), reading(tmp_path, status=status) as connection:
        assert read_facts(connection) == {"status": status.value}
        assert read_status(connection, tmp_path) is status


def test_a_run_without_a_master_has_stopped_at_its_last_event(tmp_path: Path) -> None:
    with reading(tmp_path, status="running", started_s=100.0) as connection:
        assert read_status(connection, tmp_path) is RunStatus.STOPPED
        assert read_clock(connection, tmp_path, now=1e6) == RunClock(100.0, 140.0)


@pytest.mark.parametrize(("status", "end_s"), [("finished", 120.0), ("failed", 140.0), ("cancelled", 140.0)])
def test_the_end_of_a_run(status: str, end_s: float, tmp_path: Path) -> None:
    with reading(tmp_path, status=status, started_s=100.0, ended_s=120.0, gaps=[[105.0, 110.0]]) as connection:
        assert read_clock(connection, tmp_path, now=1e6) == RunClock(100.0, end_s, ((105.0, 110.0),))


def test_a_run_that_goes_on_ends_now(tmp_path: Path) -> None:
    with driven(tmp_path), reading(tmp_path, status="running", started_s=100.0) as connection:
        assert read_clock(connection, tmp_path, now=1e6) == RunClock(100.0, 1e6)
