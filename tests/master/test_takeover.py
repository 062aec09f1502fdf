"""Whom a master inherits from the one before: all that live on, unless what they do has nothing to do with it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gridml.carriers.directory import DirectoryMailbox
from gridml.errors import StorageError
from gridml.protocol import bundle, outbox
from gridml.protocol.messages import Push, Sync, reply_from, to_json
from gridml.protocol.outbox import UnansweredPush
from gridml.protocol.push import PushContent, ReplicaPart, RowValues
from master.backends.base import Backend, JobEvent
from master.environment import Environment
from master.launch import resume, start
from master.run import Run
from master.store.ledger import Ledger
from master.store.settings import Settings

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
def environment(backend: Left) -> Environment:
    return Environment(lambda settings, directory: backend, durable=False)


def begun(program: Path, root: Path, environment: Environment) -> Run:
    return start(Settings(program=program, workers=1), root, environment)


def begun_again(root: Path, environment: Environment) -> Run:
    """Resumed by a master that inherits nobody who lives."""
    return resume(root, replace(environment, backend=lambda settings, directory: Left()))


def test_a_worker_that_lives_on_keeps_its_place(
    program: Path, tmp_path: Path, backend: Left, environment: Environment
) -> None:
    with begun(program, tmp_path / "run", environment) as run:
        run.fleet.staff(1.0, work_left=True)
        assert [row["worker"] for row in run.ledger.workers()] == ["w1"]
    with resume(tmp_path / "run", environment) as run:
        run.fleet.staff(1.0, work_left=True)
        (worker,) = run.ledger.workers()
        assert (worker["worker"], worker["ended_s"]) == ("w1", None)
    assert backend.asked == [True, True]


def test_another_program_inherits_nobody(
    program: Path, tmp_path: Path, backend: Left, environment: Environment
) -> None:
    begun(program, tmp_path / "run", environment).__exit__(None, None, None)
    program.write_text(program.read_text() + "# mended\n")
    for _ in range(2):
        resume(tmp_path / "run", environment).__exit__(None, None, None)
    assert backend.asked == [True, False, True]  # those that the second master started run the mended one


def test_a_master_that_nobody_started_keeps_the_program_as_it_was(
    program: Path, tmp_path: Path, backend: Left, environment: Environment
) -> None:
    root = tmp_path / "run"
    begun(program, root, environment).__exit__(None, None, None)
    before = program.read_text()
    program.write_text("half a thou")
    with resume(root, replace(environment, unattended=True)) as run:
        assert run.settings.program.read_text() == before
        run.ledger.set("status", "cancelled")
    assert backend.asked == [True, True]
    program.write_text(before + "# mended\n")
    with resume(root, replace(environment, unattended=True)) as run:  # a person has stopped it, and submitted it again
        assert run.settings.program == program
    assert (root / "program" / program.name).read_text() == program.read_text()
    assert backend.asked == [True, True, False]


def test_a_ledger_that_was_restored_inherits_nobody(
    program: Path, tmp_path: Path, backend: Left, environment: Environment
) -> None:
    with begun(program, tmp_path / "run", environment) as run:
        run.ledger.backup()
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "run" / "ledger.backup.db", tmp_path / "run" / "ledger.db")
    for _ in range(2):
        resume(tmp_path / "run", environment).__exit__(None, None, None)
    assert backend.asked == [True, False, True]


def test_letters_of_a_time_that_is_undone_are_not_heard(
    program: Path, tmp_path: Path, environment: Environment
) -> None:
    root = tmp_path / "run"
    with begun(program, root, environment) as run:
        run.ledger.backup()
        run.fleet.staff(1.0, work_left=True)
        DirectoryMailbox(root, "w1").send(9, b"of a worker that the copy does not know")
    shutil.copy(root / "ledger.backup.db", root / "ledger.db")
    with resume(root, environment) as run:
        assert not (root / "mail" / "w1").exists()
        run.fleet.staff(1.0, work_left=True)
        assert run.mailboxes.collect() == []


@pytest.mark.parametrize(("file", "credited"), [("w1", 10), ("w2", 0)])
def test_what_a_job_brought_home_is_credited_in_its_own_name_only(
    program: Path, tmp_path: Path, environment: Environment, file: str, credited: int
) -> None:
    root = tmp_path / "run"
    with begun(program, root, environment) as run:
        run.fleet.staff(1.0, work_left=True)
        worker = DirectoryMailbox(root, "w1")
        worker.send(1, bundle.encode(to_json(Sync("w1", wants=True)), {}))
        run.step()
        reply = reply_from(bundle.decode(worker.receive(1) or b"")[0])
        assert reply.lease is not None
        run.leave()
    push = Push(reply.lease.id, reply.lease.term, 1, reply.version, reply.lease.start + 10, 10)
    (root / "recovered").mkdir()
    sync = Sync("w1", holds=(reply.lease.id,), push=push)
    count = {"count": np.array([10])}
    outbox.write(
        root / "recovered" / file,
        UnansweredPush(2, sync, PushContent(ReplicaPart(rows={"Total": RowValues(np.array([0]), count)}))),
    )
    with begun_again(root, environment) as run:
        assert run.ledger.credited == credited


def test_a_master_that_leaves_lets_its_workers_live(
    program: Path, tmp_path: Path, backend: Left, environment: Environment
) -> None:
    with begun(program, tmp_path / "run", environment) as run:
        run.leave()
    with resume(tmp_path / "run", environment):
        pass
    assert backend.ends == ["left", "closed"]


def test_a_master_that_cannot_begin_ends_nobody(
    program: Path, tmp_path: Path, backend: Left, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(program, tmp_path / "run", environment).__exit__(None, None, None)

    def full(ledger: Ledger, at_s: float, **_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Ledger, "orphan_workers", full)
    with pytest.raises(StorageError, match="No space left"):
        resume(tmp_path / "run", environment)
    assert backend.ends == ["closed", "left"]
