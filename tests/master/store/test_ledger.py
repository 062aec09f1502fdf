"""The ledger: all or nothing, the mirror is the file, and a damaged file is told with what to do."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridml.errors import LedgerError, StorageError
from master.decisions.leasing import Span
from master.store.ledger import SCHEMA_VERSION, LeaseRow, Ledger
from master.store.write_batch import WriteBatch

COUNT = 20


def made(path: Path) -> Ledger:
    """A ledger of one epoch of 20 vertices."""
    ledger = Ledger(path, shared_disk=False, create=True, durable=False)
    with ledger.transaction():
        ledger.add_version(0, "0" * 64, 0, 0.0)
        ledger.open_epoch(0, COUNT, 0.0)
    return ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return made(tmp_path / "ledger.db")


def state(ledger: Ledger) -> tuple[dict[int, LeaseRow], list[Span], int, int]:
    spans = sorted(ledger.spans, key=lambda s: (s.epoch, s.start))
    return ledger.leases, spans, ledger.credited, ledger._next_lease


def reread(ledger: Ledger) -> tuple[dict[int, LeaseRow], list[Span], int, int]:
    other = Ledger(ledger.path, shared_disk=False)
    try:
        return state(other)
    finally:
        other.close()


# --- transactions


def test_a_transaction_that_fails_leaves_nothing_in_the_file(ledger: Ledger) -> None:
    before = reread(ledger)

    def fail() -> None:
        with ledger.transaction():
            row = ledger.lease(ledger.spans[0], 5, "w1", 1.0, "test")
            ledger.credit(row, 3, 1, 0.0, 1.0)
            ledger.set("status", "spoilt")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert reread(ledger) == before
    assert ledger.get("status", "untouched") == "untouched"
    assert list(ledger.credits()) == []


@pytest.mark.parametrize("failing", ["before", "within"])
def test_the_next_transaction_writes_nothing_of_one_that_failed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    with ledger.transaction():
        held = ledger.lease(ledger.spans[0], 5, "w1", 1.0, "test")
    before = reread(ledger)

    def no_room(self: WriteBatch, *arguments: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    def fail() -> None:
        with ledger.transaction(), monkeypatch.context() as patched:
            ledger.credit(held, 3, 1, 0.0, 1.0)
            ledger.lease(ledger.spans[0], 9, "w2", 1.0, "test")
            ledger.worker_said("w1", 1.0, 3, 1.0, 10)
            if failing == "before":
                raise OSError(28, "No space left on device")
            patched.setattr(WriteBatch, "write", no_room)
            ledger._write_pending()

    with pytest.raises((OSError, StorageError)):
        fail()
    with ledger.transaction():
        ledger.set("status", "failed")  # as a master does that gives up
    assert reread(ledger) == before == state(ledger)
    assert list(ledger.credits()) == []
    with ledger.transaction():
        row = ledger.lease(ledger.spans[0], 9, "w2", 1.0, "test")
        ledger.end_lease(row, 2.0, "test")
    assert reread(ledger) == state(ledger)


def test_what_is_committed_is_there_for_whoever_reads(ledger: Ledger) -> None:
    with ledger.transaction():
        row = ledger.lease(ledger.spans[0], 5, "w1", 1.0, "test")
        ledger.credit(row, 3, 1, 0.0, 1.0)
        inside = reread(ledger)
    assert inside[0] == {}  # nobody sees half of it
    assert reread(ledger) == state(ledger)
    assert list(ledger.credits()) == [(0, 0, 3)]


def test_a_full_disk_is_told_with_what_to_do(ledger: Ledger) -> None:
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count = {pages}")

    def fill() -> None:
        with ledger.transaction():
            for at in range(1000):
                ledger.event(float(at), "filling", "x" * 1000)

    with pytest.raises(StorageError, match="gridml resume"):
        fill()
    assert ledger._one("SELECT count(*) FROM events") == 0


# --- the mirror

Operation = st.tuples(st.sampled_from(["lease", "lease", "credit", "credit", "end", "fail", "cut", "open"]),
                      st.integers(0, 9), st.integers(1, COUNT))  # fmt: skip


def perform(ledger: Ledger, kind: str, which: int, much: int) -> None:
    rows = sorted(ledger.leases.values(), key=lambda r: r.id)
    row = rows[which % len(rows)] if rows else None
    if kind == "lease" and ledger.spans:
        span = ledger.spans[which % len(ledger.spans)]
        ledger.lease(span, min(span.stop, span.start + much), f"w{which}", 1.0, "test")
    elif kind == "open":
        newest, _ = ledger.newest_epoch()
        if newest < 2:
            ledger.open_epoch(newest + 1, COUNT, 1.0)
    elif row is None:
        return
    elif kind == "credit" and row.left:
        ledger.credit(row, min(row.stop, row.upto + much), 1, 0.0, 1.0)
    elif kind == "cut" and row.left > 1:
        ledger.cut(row, min(row.stop - 1, row.upto + much))
    elif kind in ("end", "fail"):
        ledger.end_lease(row, 2.0, "test", failed=kind == "fail")


@settings(max_examples=150, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(Operation, min_size=1, max_size=4), max_size=15))
def test_the_mirror_is_what_a_fresh_read_of_the_file_gives(transactions: list[list[tuple[str, int, int]]]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="ledger"))
    ledger = made(folder / "ledger.db")
    try:
        for operations in transactions:
            with ledger.transaction():
                for operation in operations:
                    perform(ledger, *operation)
            assert reread(ledger) == state(ledger)
            for row in ledger.epochs():
                parts = [(a, b) for e, a, b in ledger.credits() if e == row["epoch"]]
                assert row["credited"] == sum(b - a for a, b in parts)
                parts += [(s.start, s.stop) for s in ledger.spans if s.epoch == row["epoch"]]
                parts += [(r.upto, r.stop) for r in ledger.leases.values() if r.epoch == row["epoch"] and r.left]
                covered = [position for a, b in sorted(parts) for position in range(a, b)]
                assert covered == list(range(COUNT))
    finally:
        ledger.close()
        shutil.rmtree(folder)


def test_free_ranges_join_what_they_touch(ledger: Ledger) -> None:
    with ledger.transaction():
        rows = [ledger.lease(ledger.spans[-1], stop, "w1", 0.0, "test") for stop in (5, 10, 15)]
        for row in (rows[0], rows[2], rows[1]):
            ledger.end_lease(row, 1.0, "test")
    assert ledger.spans == [Span(0, 0, COUNT)]


def test_a_range_in_which_f_failed_stays_apart(ledger: Ledger) -> None:
    with ledger.transaction():
        ledger.end_lease(ledger.lease(ledger.spans[0], 5, "w1", 0.0, "test"), 1.0, "test", failed=True)
    assert sorted(ledger.spans, key=lambda s: s.start) == [Span(0, 0, 5, 1), Span(0, 5, COUNT, 0)]


def test_an_ended_lease_is_remembered(ledger: Ledger) -> None:
    with ledger.transaction():
        row = ledger.credit(ledger.lease(ledger.spans[0], 5, "w1", 0.0, "test"), 2, 1, 0.0, 1.0)
        ledger.end_lease(row, 1.0, "worker evicted")
    assert ledger.closed_lease(row.id) == (row, "worker evicted")
    assert ledger.closed_lease(row.id + 1) is None


# --- files


def test_a_missing_file_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"is not a run.*gridml run PROGRAM"):
        Ledger(tmp_path / "ledger.db", shared_disk=False)


def overwritten(path: Path) -> None:
    path.write_bytes(b"this is no database, whatever its name says" * 100)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)


def scribbled(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(8 * 4096))


@pytest.mark.parametrize("damage", [overwritten, emptied, cut_short, scribbled])
@pytest.mark.parametrize("copied", [False, True])
def test_a_damaged_file_is_told_with_what_to_do(ledger: Ledger, damage: Callable[[Path], None], copied: bool) -> None:
    if copied:
        ledger.backup()
    ledger.close()
    damage(ledger.path)
    advice = "cp .*ledger.backup.db.*gridml resume" if copied else "start the run again with gridml run"
    with pytest.raises(LedgerError, match=f"(?s)cannot be read.*{advice}"):
        Ledger(ledger.path, shared_disk=False)


def test_another_schema_is_left_to_its_own_gridml(ledger: Ledger) -> None:
    ledger._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    ledger.close()
    with pytest.raises(LedgerError, match=f"schema {SCHEMA_VERSION + 1}.*its own gridml"):
        Ledger(ledger.path, shared_disk=False)


def test_a_copy_replaces_a_damaged_ledger(ledger: Ledger) -> None:
    with ledger.transaction():
        ledger.credit(ledger.lease(ledger.spans[0], 5, "w1", 0.0, "test"), 5, 1, 0.0, 1.0)
    ledger.backup()
    kept = reread(ledger)
    with ledger.transaction():
        ledger.lease(ledger.spans[0], 9, "w2", 0.0, "test")
    ledger.close()
    overwritten(ledger.path)
    # What the error tells one to do:
    shutil.copyfile(ledger.path.with_name("ledger.backup.db"), ledger.path)
    for suffix in ("-wal", "-shm"):
        ledger.path.with_name(ledger.path.name + suffix).unlink(missing_ok=True)
    restored = Ledger(ledger.path, shared_disk=False)
    assert state(restored) == kept
    assert restored.get("backup_version") == 0
    restored.close()


def test_a_copy_is_whole_or_not_there(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.backup()
    before = ledger.path.with_name("ledger.backup.db").read_bytes()

    def full(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError):
        ledger.backup()
    assert ledger.path.with_name("ledger.backup.db").read_bytes() == before


@pytest.mark.parametrize(("shared", "mode"), [(False, "wal"), (True, "delete")])
def test_the_journal_is_one_that_the_disk_can_bear(tmp_path: Path, shared: bool, mode: str) -> None:
    ledger = Ledger(tmp_path / "ledger.db", shared_disk=shared, create=True)
    assert ledger._one("PRAGMA journal_mode") == mode
    assert ledger._one("PRAGMA synchronous") == 2  # FULL
    ledger.close()
    again = Ledger(tmp_path / "ledger.db", shared_disk=True)
    assert again._one("PRAGMA journal_mode") == "delete"
    assert not (tmp_path / "ledger.db-wal").exists()
    again.close()


def test_a_second_writer_is_kept_out(ledger: Ledger) -> None:
    other = sqlite3.connect(ledger.path, isolation_level=None, timeout=0)
    with ledger.transaction(), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    other.close()
