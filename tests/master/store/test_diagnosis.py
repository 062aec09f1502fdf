"""Diagnosis of storage errors: the right cause, and fitting advice. Restoring is advised for damage alone."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gridml.errors import DamagedError, LedgerError, StorageError
from gridml.protocol import bundle
from master.launch import resume
from master.ports.environment import Environment
from master.state.jobs import Backend, JobEvent
from master.store import ledger_file
from master.store.diagnosis import FileTrouble, diagnose, explain, translate_errors
from master.store.ledger import Ledger

REPLICA = bundle.encode({"version": 0, "credited": 0}, {})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.db", shared_disk=False, create=True, durable=False)
    with made.transaction():
        made.add_version(0, "0" * 64, 0, 0.0)
        made.open_epoch(0, 10, 0.0)
    yield made
    made.close()


def refusal(ledger: Ledger) -> str:
    """Return the message for a ledger that cannot be opened but is not damaged."""
    with pytest.raises(StorageError) as caught:
        Ledger(ledger.path, shared_disk=False)
    assert "backup" not in str(caught.value)
    assert "gridml resume" in str(caught.value)
    return str(caught.value)


def test_a_text_that_is_no_utf_8_is_damage(ledger: Ledger) -> None:
    """SQLite's check of the file does not see it: the row fails when it is read."""
    worker = "INSERT INTO workers (worker, state, submitted_s) VALUES ('w1', CAST(x'66ff6e' AS TEXT), 1.0)"
    with ledger.transaction():
        ledger._db.execute(worker)
    with (
        pytest.raises(LedgerError, match=r"cannot be read: Could not decode.*gridml"),
        translate_errors(ledger.path.parent),
        closing(Ledger(ledger.path, shared_disk=False)) as other,
    ):
        other.workers()


def test_a_lock_is_no_damage(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "BUSY_TIMEOUT_S", 0.01)
    mine = Ledger(ledger.path, shared_disk=False)
    other = sqlite3.connect(ledger.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match=r"locked by another process.*fuser -v .*gridml resume"), mine.transaction():
        pass
    other.execute("ROLLBACK")
    with mine.transaction():  # nothing else was wrong
        mine.set("status", "running")
    other.close()
    mine.close()


def test_no_descriptors_left_is_no_damage(ledger: Ledger) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
    try:
        while len(held) < 1000:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        said = refusal(ledger)
    finally:
        for handle in held:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "cannot be opened" in said and "Too many open files" in said and "ulimit -n" in said


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    point = tmp_path / "disk"
    point.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(point)], check=False).returncode != 0:
        pytest.skip("mounting a small disk is not allowed here")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def made_on(disk: Path) -> Ledger:
    ledger = Ledger(disk / "ledger.db", shared_disk=False, create=True, durable=False)
    with ledger.transaction():
        ledger.add_version(0, "0" * 64, 0, 0.0)
        ledger.open_epoch(0, 10, 0.0)
    return ledger


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(512))
        except OSError as error:
            assert error.errno == errno.ENOSPC


def test_a_full_disk_is_no_damage(mounted: Path) -> None:
    ledger = made_on(mounted)
    fill(mounted)

    def write() -> None:
        with ledger.transaction():
            ledger.event(0.0, "test", "x" * 100_000)

    with pytest.raises(StorageError, match=r"cannot be written.*make room on its disk.*gridml resume"):
        write()
    (mounted / "ballast").unlink()
    write()
    ledger.close()


def test_a_disk_that_is_full_before_the_ledger_is_opened_is_no_damage(mounted: Path) -> None:
    ledger = made_on(mounted)
    ledger.close()
    fill(mounted)
    assert "make room on its disk" in refusal(ledger)


def test_a_disk_that_is_mounted_for_reading_is_no_damage(mounted: Path) -> None:
    ledger = made_on(mounted)
    ledger.close()
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    said = refusal(ledger)
    assert "may not be written" in said and "how its disk is mounted" in said


def test_a_run_that_is_resumed_there_says_so_too(mounted: Path) -> None:
    made_on(mounted).close()
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    with pytest.raises(StorageError, match="may not be written"):
        resume(mounted, Environment(lambda settings, directory: Steadfast()))


class Steadfast(Backend):
    """A back end that is never used."""

    name = "steadfast"

    def submit(self, worker: str) -> None:
        raise AssertionError(worker)

    def poll(self) -> list[JobEvent]:
        raise AssertionError

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        raise AssertionError(worker)

    def close(self) -> None:
        raise AssertionError


def test_a_folder_in_the_place_of_the_journal_is_no_damage(ledger: Ledger) -> None:
    ledger.close()
    (ledger.path.parent / "ledger.db-wal").mkdir()
    refusal(ledger)


@pytest.mark.parametrize(
    ("number", "trouble"),
    [
        (errno.ENOSPC, FileTrouble.FULL),
        (errno.EDQUOT, FileTrouble.FULL),
        (errno.EMFILE, FileTrouble.DESCRIPTORS),
        (errno.EROFS, FileTrouble.FORBIDDEN),
        (errno.EACCES, FileTrouble.FORBIDDEN),
        (errno.EIO, FileTrouble.BROKEN),
        (errno.ENOENT, FileTrouble.GONE),
        (errno.ESTALE, FileTrouble.GONE),
        (errno.EPIPE, FileTrouble.UNREAD),
        (errno.ECONNREFUSED, FileTrouble.OTHER),
    ],
)
def test_every_reason_of_the_system_has_its_advice(tmp_path: Path, number: int, trouble: FileTrouble) -> None:
    error = OSError(number, os.strerror(number), str(tmp_path / "versions" / "v1"))
    assert diagnose(error, tmp_path)[0] is trouble
    said = explain(error, tmp_path)
    assert isinstance(said, StorageError)
    assert os.strerror(number) in str(said) and str(tmp_path / "versions") in str(said)
    assert "backup" not in str(said) and ("room" in str(said)) == (trouble is FileTrouble.FULL)


def test_every_trouble_has_words(tmp_path: Path) -> None:
    from master.store.diagnosis import _problem_and_advice

    for trouble in FileTrouble:
        if trouble is not FileTrouble.DAMAGED:
            assert all(_problem_and_advice(trouble, tmp_path))


def test_damage_is_reported_with_advice(ledger: Ledger) -> None:
    root = ledger.path.parent
    (root / "versions").mkdir()
    newest = root / "versions" / "v00000000.safetensors"
    damaged = DamagedError("versions/v3 is damaged", root / "versions" / "v00000003.safetensors")
    with ledger.transaction():
        ledger._db.execute("UPDATE versions SET sha256 = ?", (bundle.digest(REPLICA),))
    assert "no copy of the ledger" in str(explain(damaged, root))
    ledger.backup()
    newest.write_bytes(REPLICA)
    said = explain(damaged, root)
    assert isinstance(said, LedgerError) and "rm -f" in str(said) and "cp " in str(said)
    newest.write_bytes(REPLICA + b" ")  # the copy needs it, too
    assert "of no use either" in str(explain(damaged, root))
    newest.write_bytes(REPLICA)
    assert "rm -f" in str(explain(damaged, root))
    (root / "ledger.backup.db").write_bytes(b"nothing")
    assert "of no use either" in str(explain(damaged, root))


def test_a_copy_needs_every_file_that_its_version_stands_on(ledger: Ledger) -> None:
    root = ledger.path.parent
    (root / "versions").mkdir()
    parent, newest = (root / "versions" / f"v{version:08d}.safetensors" for version in (0, 1))
    rows = bundle.encode({"version": 1, "parent": 0, "parent_sha256": bundle.digest(REPLICA)}, {})
    newest.write_bytes(rows)
    with ledger.transaction():
        ledger.add_version(1, bundle.digest(rows), 1, 1.0)
    ledger.backup()
    damaged = DamagedError("ledger.db is damaged", ledger.path)
    for content, whole in ((None, False), (REPLICA, True), (REPLICA + b" ", False)):
        if content is not None:
            parent.write_bytes(content)
        assert ("of no use either" not in str(explain(damaged, root))) == whole
