"""Takeovers: a master inherits the workers that live on, unless they belong to another program or ledger."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridml.carriers.directory import DirectoryMailbox
from gridml.errors import ProgramError, StorageError
from gridml.protocol import bundle, outbox
from gridml.protocol.messages import Lease, Push, Reply, Sync, Verdict, reply_from, to_json
from gridml.protocol.outbox import UnansweredPush
from gridml.protocol.push import PushContent, ReplicaPart, RowValues
from master.fleet.fleet import RESERVED_S
from master.launch import resume, start
from master.ports.environment import Environment
from master.run import MasterRun
from master.simulation.faulty_network import VirtualClock
from master.state.failures import Failed, MachineRecord
from master.state.jobs import Backend, JobEvent, State
from master.store.ledger import Ledger
from master.store.settings import Settings
from master.sync import version_use
from tests.support.in_ledger import credits_of

PROGRAM = Path(__file__).parents[1] / "programs" / "slow_count.py"


class Left(Backend):
    """A back end on which `w1` outlives every master."""

    name = "left"

    def __init__(self) -> None:
        self.kept: list[bool] = []  # whether each master wanted to keep the workers
        self.ends: list[str] = []
        self.avoided: Collection[str] | None = None

    def inherit(self, *, keep: bool) -> list[str]:
        self.kept.append(keep)
        return ["w1"] if keep and len(self.kept) > 1 else []

    def submit(self, worker: str) -> None:
        """Do nothing: no worker starts."""

    def poll(self) -> list[JobEvent]:
        return []

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        """Do nothing: it has no jobs."""

    def avoid(self, machines: Collection[str]) -> None:
        self.avoided = machines

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


def begun(program: Path, root: Path, environment: Environment) -> MasterRun:
    return start(Settings(program=program, workers=1), root, environment)


def begun_again(root: Path, environment: Environment, backend: Left | None = None) -> MasterRun:
    """Resume with a master that inherits no live worker."""
    return resume(root, replace(environment, backend=lambda settings, directory: backend or Left()))


def test_a_worker_that_lives_on_keeps_its_place(
    program: Path, tmp_path: Path, backend: Left, environment: Environment
) -> None:
    with begun(program, tmp_path / "run", environment) as run:
        run.parts.fleet.staff(1.0, work_left=True)
        assert [row["worker"] for row in run.ledger.workers()] == ["w1"]
    with resume(tmp_path / "run", environment) as run:
        run.parts.fleet.staff(1.0, work_left=True)
        assert run.parts.workers.of("w1").moments.asked is None, "the master before may have asked for them"
        (worker,) = run.ledger.workers()
        assert (worker["worker"], worker["ended_s"]) == ("w1", None)
    assert backend.kept == [True, True]


def test_another_program_inherits_no_worker(
    program: Path, tmp_path: Path, backend: Left, environment: Environment
) -> None:
    begun(program, tmp_path / "run", environment).__exit__(None, None, None)
    program.write_text(program.read_text() + "# mended\n")
    for _ in range(2):
        resume(tmp_path / "run", environment, with_changes=True).__exit__(None, None, None)
    assert backend.kept == [True, False, True]  # the workers of the second master run the fixed program


def test_a_run_goes_on_with_the_program_that_it_was_begun_with(
    program: Path, tmp_path: Path, backend: Left, environment: Environment
) -> None:
    root, said = tmp_path / "run", list[str]()
    environment = replace(environment, report=lambda topic, text, facts: said.append(text))
    begun(program, root, environment).__exit__(None, None, None)
    kept, before = root / "program" / program.name, program.read_text()
    program.write_text("half a thou")
    resume(root, environment).__exit__(None, None, None)
    assert kept.read_text() == before
    assert backend.kept == [True, True]
    (text,) = [text for text in said if "changed since" in text]
    assert text == (
        f"{program.name} has changed since the run began, and it goes on with its own copy. To take what is there now: "
        f"gridml resume {root} --with-changes"
    )
    with pytest.raises(ProgramError, match="half a thou"):
        resume(root, environment, with_changes=True)
    assert kept.read_text() == before
    program.write_text(before + "# mended\n")
    with resume(root, environment, with_changes=True) as run:
        assert run.parts.spec.settings.program == program
    assert kept.read_text() == program.read_text()
    assert backend.kept == [True, True, False]
    program.unlink()
    resume(root, environment).__exit__(None, None, None)  # it is not needed any more
    assert backend.kept == [True, True, False, True]


def test_modules_of_its_own_are_part_of_a_program(
    program: Path, tmp_path: Path, backend: Left, environment: Environment
) -> None:
    root, helper = tmp_path / "run", program.parent / "helper_of_a_takeover.py"
    helper.write_text("SPEED = 1\n")
    program.write_text(f"import helper_of_a_takeover\n{program.read_text()}")
    begun(program, root, environment).__exit__(None, None, None)
    helper.write_text("SPEED = 2\n")
    resume(root, environment).__exit__(None, None, None)
    assert (root / "program" / helper.name).read_text() == "SPEED = 1\n"
    resume(root, environment, with_changes=True).__exit__(None, None, None)
    assert (root / "program" / helper.name).read_text() == "SPEED = 2\n"
    program.write_text(program.read_text().replace("import helper_of_a_takeover\n", ""))
    resume(root, environment, with_changes=True).__exit__(None, None, None)
    assert backend.kept == [True, True, False, False]


def test_failures_stand_after_a_killed_master_and_not_when_a_person_resumes(
    program: Path, tmp_path: Path, environment: Environment
) -> None:
    root, failed = tmp_path / "run", Failed("w1", "slot-1", 5)
    with begun(program, root, environment) as run, run.ledger.transaction():
        run.ledger.end_lease(run.ledger.lease(run.ledger.spans[0], 5, "w1", 1.0, "test"), 1.0, "test", failed=failed)
        run.ledger.machine_failed(MachineRecord("slot-1", 1, 4, 7.0, "w1: it lied"))
    with begun_again(root, environment, backend := Left()) as run:
        assert [span.failed for span in run.ledger.spans] == [(failed,), ()]
        (machine,) = run.parts.fleet._workers.machines
        assert (machine.failures, machine.distrusted, machine.reason) == (1, 4, "w1: it lied")
        assert backend.avoided == {"slot-1"}, "before any worker is asked for"
        run.ledger.set("status", "failed")
    with begun_again(root, environment, backend := Left()) as run:
        assert [span.failed for span in run.ledger.spans] == [()]
        assert run.ledger.machines() == [] and not [*run.parts.fleet._workers.machines]
        assert backend.avoided == frozenset()


def test_a_restored_ledger_inherits_no_worker(
    program: Path, tmp_path: Path, backend: Left, environment: Environment
) -> None:
    with begun(program, tmp_path / "run", environment) as run:
        run.ledger.backup()
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "run" / "ledger.backup.db", tmp_path / "run" / "ledger.db")
    for _ in range(2):
        resume(tmp_path / "run", environment).__exit__(None, None, None)
    assert backend.kept == [True, False, True]


def test_messages_from_an_undone_time_are_dropped(program: Path, tmp_path: Path, environment: Environment) -> None:
    root = tmp_path / "run"
    with begun(program, root, environment) as run:
        run.ledger.backup()
        run.parts.fleet.staff(1.0, work_left=True)
        DirectoryMailbox(root, "w1").send(9, b"of a worker that the copy does not know")
    shutil.copy(root / "ledger.backup.db", root / "ledger.db")
    with resume(root, environment) as run:
        assert not (root / "mail" / "w1").exists()
        run.parts.fleet.staff(1.0, work_left=True)
        assert run.parts.mailboxes.collect() == []


@pytest.mark.parametrize(("file", "credited"), [("w1", 10), ("w2", 0)])
def test_recovered_messages_are_credited_to_their_own_job_only(
    program: Path, tmp_path: Path, environment: Environment, file: str, credited: int
) -> None:
    root = tmp_path / "run"
    with begun(program, root, environment) as run:
        run.parts.fleet.staff(1.0, work_left=True)
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
        assert run.parts.leases.sizing.measures.speeds.count == 0  # a worker that has ended trains no more


def test_a_master_that_leaves_lets_its_workers_live(
    program: Path, tmp_path: Path, backend: Left, environment: Environment
) -> None:
    with begun(program, tmp_path / "run", environment) as run:
        run.leave()
    with resume(tmp_path / "run", environment):
        pass
    assert backend.ends == ["left", "closed"]


def test_a_master_that_cannot_begin_ends_no_worker(
    program: Path, tmp_path: Path, backend: Left, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(program, tmp_path / "run", environment).__exit__(None, None, None)

    def full(ledger: Ledger, at_s: float, **_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Ledger, "orphan_workers", full)
    with pytest.raises(StorageError, match="No space left"):
        resume(tmp_path / "run", environment)
    assert backend.ends == ["closed", "left"]


def test_workers_left_behind_count_as_alive_until_their_master_ended(
    program: Path, tmp_path: Path, backend: Left, environment: Environment
) -> None:
    with begun(program, tmp_path / "run", environment) as run:
        run.parts.fleet.staff(1.0, work_left=True)
        with run.ledger.transaction():
            run.ledger.worker_event(JobEvent(10.0, "w1", State.RUNNING), 10.0)
            run.ledger.event(100.0, "epoch", "the last sign of the first master")
            run.ledger.set("started_s", 0.0)
        run.leave()
    clock = VirtualClock(1e6)
    again = replace(environment, backend=lambda settings, directory: Left(), clock=clock)
    with resume(tmp_path / "run", again) as run:
        (row,) = run.ledger.workers()
        lives = run.parts.leases.sizing.measures.lives
        assert row["ended_s"] is not None
        assert lives.exposure_s(1e6) == row["ended_s"] - 10.0
        assert lives.exposure_s(2e6) == lives.exposure_s(1e6)  # the lifetimes do not grow any more


# --- what must survive a restart is in the ledger


class Scripted(Left):
    """A back end whose events and surviving workers are set by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.survivors: list[str] = []
        self.events: list[JobEvent] = []

    def inherit(self, *, keep: bool) -> list[str]:
        return [*self.survivors]

    def poll(self) -> list[JobEvent]:
        events, self.events = self.events, []
        return events


@dataclass
class Attempt:
    """A worker at its mailbox. It trains a lease instantly."""

    root: Path
    name: str
    number: int = 0
    leases: list[Lease] = field(default_factory=list)

    def send(self, run: MasterRun, tensors: Mapping[str, Any] | None = None, **values: Any) -> Reply:
        """Send a message and return the answer to it."""
        self.number += 1
        mailbox = DirectoryMailbox(self.root, self.name)
        mailbox.send(self.number, bundle.encode(to_json(Sync(self.name, **values)), tensors or {}))
        run.step()
        reply = reply_from(bundle.decode(mailbox.receive(self.number) or b"")[0])
        if reply.lease is not None:
            self.leases.append(reply.lease)
        return reply

    def want(self, run: MasterRun, **values: Any) -> Lease | None:
        return self.send(run, wants=True, **values).lease

    def push(self, run: MasterRun, lease: Lease, base: int, start: int, stop: int, sequence: int = 1) -> Reply:
        """Push the work of a lease between two positions."""
        push = Push(lease.id, lease.term, sequence, base, stop, stop - start)
        tensors = {"Total/count": np.array([stop - start]), "@rows/Total": np.array([0])}
        return self.send(run, tensors, holds=(lease.id,), push=push)


@dataclass
class Time:
    now_s: float = 1e6


@dataclass
class World:
    """A run with several masters, one after the other."""

    root: Path
    backend: Scripted
    time: Time
    environment: Environment

    def resume(self, after_s: float, *survivors: str) -> MasterRun:
        """Return the next master, with these workers alive."""
        self.time.now_s += after_s
        self.backend.survivors = [*survivors]
        return resume(self.root, self.environment)

    def tell(self, run: MasterRun, *events: tuple[str, State, str]) -> None:
        """Report (worker, state, next attempt) from the back end."""
        self.backend.events = [
            JobEvent(self.time.now_s, name, state, next_attempt=later) for name, state, later in events
        ]
        run.step()


@pytest.fixture
def world(tmp_path: Path) -> World:
    backend, time = Scripted(), Time()
    environment = Environment(lambda settings, directory: backend, durable=False, clock=lambda: time.now_s)
    return World(tmp_path / "run", backend, time, environment)


def positions(ledger: Ledger, epoch: int) -> list[int]:
    """Return the credited positions, repeated if credited more than once."""
    return sorted(at for of, start, stop in credits_of(ledger) if of == epoch for at in range(start, stop))


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize(("late_s", "verdict"), [(RESERVED_S / 2, Verdict.MERGED), (RESERVED_S, Verdict.REFUSED)])
def test_a_reservation_is_honoured_by_the_master_after_the_next(
    program: Path, world: World, monkeypatch: pytest.MonkeyPatch, watched: bool, late_s: float, verdict: Verdict
) -> None:
    """Either the first master has `watched` the end of the worker, or the next one finds a later attempt of its job."""
    monkeypatch.setattr(version_use, "SPARE_VERSIONS", 1)  # a version without users is removed at once
    settings = Settings(program=program, workers=2, epochs=1, chunk=500, push_every=1000)
    first, later, other = (Attempt(world.root, name) for name in ("w1", "w1.1", "w2"))

    def work(run: MasterRun) -> None:
        """Let the other worker train its lease in two pushes, each a version, and get another lease."""
        lease = other.leases[-1]
        middle = (lease.start + lease.stop) // 2
        for sequence, begin, end in ((1, lease.start, middle), (2, middle, lease.stop)):
            base = other.send(run, holds=(lease.id,)).version
            assert other.push(run, lease, base, begin, end, sequence).verdict is Verdict.MERGED
        other.want(run)

    with start(settings, world.root, world.environment) as run:
        run.step()
        world.tell(run, ("w1", State.RUNNING, ""), ("w2", State.RUNNING, ""))
        lease = first.want(run)
        assert lease is not None and other.want(run) is not None
        base = run.ledger.newest_version()[0]
        if watched:
            world.tell(run, ("w1", State.EVICTED, "w1.1"), ("w1.1", State.QUEUED, ""))
            assert {*run.ledger.leases.reserved} == {lease.id}
        work(run)
        run.leave()
    with world.resume(100.0, "w1.1", "w2") as run:
        assert {*run.ledger.leases.reserved} == {lease.id}
        work(run)
        run.leave()
    with world.resume(late_s - 100.0 if watched else late_s, "w1.1", "w2") as run:
        assert {*run.ledger.leases.reserved} == {lease.id}
        if verdict is Verdict.MERGED:
            work(run)
        assert later.push(run, lease, base, lease.start, lease.start + 400).verdict is verdict
        assert run.ledger.leases.reserved == {}
        brought = 400 if verdict is Verdict.MERGED else 0
        credited = [position for position in positions(run.ledger, 0) if lease.start <= position < lease.stop]
        assert credited == [*range(lease.start, lease.start + brought)]
        while not run.parts.leases.epochs.is_finished():
            work(run)
        assert positions(run.ledger, 0) == [*range(4000)]
        events = [*run.ledger._db.execute("SELECT text FROM events WHERE topic = 'late'")]
        assert len(events) == (verdict is Verdict.MERGED)
        run.leave()


def test_reassignments_survive_their_master(program: Path, world: World) -> None:
    program.write_text(program.read_text().replace("COUNT, EPOCHS = 4_000, 2", "COUNT, EPOCHS = 10, 1"))
    slow, quick, third = (Attempt(world.root, name) for name in ("w1", "w2", "w3"))

    def measured(run: MasterRun) -> None:
        """Let the master measure all three workers by merged work: each trains a vertex a second."""
        for attempt in (slow, quick, third):
            run.parts.leases.sizing.measures.speeds.put(run.parts.fleet._workers.of(attempt.name), 1.0)

    def times_reassigned(run: MasterRun) -> list[int]:
        return [lease.times_reassigned for lease in run.ledger.leases]

    def reassign(run: MasterRun, attempt: Attempt) -> float:
        """Wait until an idle worker is leased the whole epoch. Return the time that it took."""
        for waited_s in range(0, 3600, 5):
            measured(run)
            taken = attempt.want(run)
            if taken is not None:
                assert (taken.start, taken.stop) == (0, 10)
                return waited_s
            world.time.now_s += 5.0
        raise AssertionError("nothing was reassigned")

    with start(Settings(program=program, workers=3), world.root, world.environment) as run:
        run.step()
        world.tell(run, *((name, State.RUNNING, "") for name in ("w1", "w2", "w3")))
        measured(run)
        assert slow.want(run) is not None
        assert times_reassigned(run) == [0]
        first_s = reassign(run, quick)
        assert times_reassigned(run) == [1]
        run.leave()
    with world.resume(10.0, "w1", "w2", "w3") as run:
        assert times_reassigned(run) == [1]
        second_s = reassign(run, third)
        assert times_reassigned(run) == [2]
        assert second_s > first_s  # each time that a range is reassigned again must pay twice as well
        run.leave()
    with world.resume(10.0, "w1", "w2", "w3") as run:
        assert times_reassigned(run) == [2]
        version = run.ledger.newest_version()[0]
        assert third.push(run, third.leases[-1], version, 0, 10).verdict is Verdict.MERGED
        assert positions(run.ledger, 0) == [*range(10)]
        run.leave()
