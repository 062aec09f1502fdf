"""Whom a master inherits from the one before: all that live on, unless what they do has nothing to do with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gridml.errors import StorageError
from master.backends.base import Backend, JobEvent
from master.beginning import resume, start
from master.ledger import Ledger
from master.run import Outside, Run
from master.settings import Settings

PROGRAM = Path(__file__).parents[1] / "programs" / "slow_count.py"


class Left(Backend):
    """A back end on which `w1` outlives every master."""

    name = "left"

    def __init__(self) -> None:
        self.asked: list[bool] = []
        self.ends: list[str] = []

    def inherit(self, *, keep: bool) -> list[str]:
        self.asked.append(keep)
        return ["w1"] if keep and len(self.asked) > 1 else []

    def submit(self, worker: str) -> None:
        """Nobody comes."""

    def poll(self) -> list[JobEvent]:
        return []

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        """There is nobody."""

    def leave(self) -> None:
        self.ends.append("left")

    def close(self) -> None:
        self.ends.append("closed")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return Path(shutil.copy(PROGRAM, tmp_path / "program.py"))


@pytest.fixture
def backend() -> Left:
    return Left()


@pytest.fixture
def outside(backend: Left) -> Outside:
    return Outside(lambda settings, directory: backend, durable=False)


def begun(program: Path, root: Path, outside: Outside) -> Run:
    return start(Settings(program=program, workers=1), root, outside)


def test_a_worker_that_lives_on_keeps_its_place(program: Path, tmp_path: Path, backend: Left, outside: Outside) -> None:
    with begun(program, tmp_path / "run", outside) as run:
        run.workforce.staff(1.0, work_left=True)
        assert [row["worker"] for row in run.ledger.workers()] == ["w1"]
    with resume(tmp_path / "run", outside) as run:
        run.workforce.staff(1.0, work_left=True)
        (worker,) = run.ledger.workers()
        assert (worker["worker"], worker["ended_s"]) == ("w1", None)
    assert backend.asked == [True, True]


def test_another_program_inherits_nobody(program: Path, tmp_path: Path, backend: Left, outside: Outside) -> None:
    begun(program, tmp_path / "run", outside).__exit__(None, None, None)
    program.write_text(program.read_text() + "# mended\n")
    for _ in range(2):
        resume(tmp_path / "run", outside).__exit__(None, None, None)
    assert backend.asked == [True, False, True]  # those that the second master started run the mended one


def test_a_ledger_that_was_restored_inherits_nobody(
    program: Path, tmp_path: Path, backend: Left, outside: Outside
) -> None:
    with begun(program, tmp_path / "run", outside) as run:
        run.ledger.backup()
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "run" / "ledger.backup.db", tmp_path / "run" / "ledger.db")
    for _ in range(2):
        resume(tmp_path / "run", outside).__exit__(None, None, None)
    assert backend.asked == [True, False, True]


def test_a_master_that_leaves_lets_its_workers_live(
    program: Path, tmp_path: Path, backend: Left, outside: Outside
) -> None:
    with begun(program, tmp_path / "run", outside) as run:
        run.leave()
    with resume(tmp_path / "run", outside):
        pass
    assert backend.ends == ["left", "closed"]


def test_a_master_that_cannot_begin_ends_nobody(
    program: Path, tmp_path: Path, backend: Left, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(program, tmp_path / "run", outside).__exit__(None, None, None)

    def full(ledger: Ledger, at_s: float, **_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Ledger, "orphan_workers", full)
    with pytest.raises(StorageError, match="No space left"):
        resume(tmp_path / "run", outside)
    assert backend.ends == ["closed", "left"]
