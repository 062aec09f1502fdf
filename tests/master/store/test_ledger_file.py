"""The file of a ledger: one that is damaged, missing, full or foreign is reported with advice."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from gridml.errors import LedgerError, StorageError
from master.store.ledger import Ledger
from master.store.schema import SCHEMA_VERSION
from tests.support.in_ledger import credits_of


def test_a_full_disk_is_reported_with_advice(ledger: Ledger) -> None:
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count = {pages}")

    def fill() -> None:
        with ledger.transaction():
            for at in range(1000):
                ledger.event(float(at), "filling", "x" * 1000)

    with pytest.raises(StorageError, match="gridml resume"):
        fill()
    assert ledger._one("SELECT count(*) FROM events") == 0


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
def test_a_damaged_file_is_reported_with_advice(
    ledger: Ledger, replica: bytes, damage: Callable[[Path], None], copied: bool
) -> None:
    if copied:
        ledger.backup()
        (ledger.path.parent / "versions").mkdir()
        (ledger.path.parent / "versions" / "v00000000.safetensors").write_bytes(replica)
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
    kept = [*ledger.spans]
    with ledger.transaction():
        ledger.lease(ledger.spans[0], 9, "w2", 0.0, "test")
    ledger.close()
    overwritten(ledger.path)
    # Follow the advice of the error:
    shutil.copyfile(ledger.path.with_name("ledger.backup.db"), ledger.path)
    for suffix in ("-wal", "-shm"):
        ledger.path.with_name(ledger.path.name + suffix).unlink(missing_ok=True)
    restored = Ledger(ledger.path, shared_disk=False)
    assert (restored.spans, list(credits_of(restored))) == (kept, [(0, 0, 5)])
    assert restored.copied_versions == [0]
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
