"""Failures: the range goes to other workers, the worker rests for a while, and both are saved in the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridml.protocol.messages import Failure, Sync
from master.leases.leases import Leases
from master.simulation import cost_only_worker
from master.simulation.cost_only_worker import Wire
from master.simulation.faulty_network import VirtualClock
from master.state.failures import MAX_FAILURES, MIN_PAUSE_S, pause
from master.state.lease_records import LeaseState
from master.state.worker_records import WorkerStatus, WorkerTable
from master.store.ledger import Ledger
from master.store.rundir import EventFacts
from master.store.settings import Settings
from master.store.spec import RunSpec
from master.sync.recovery import Failures
from master.views.progress import read_progress

COUNT, CHUNK = 1000, 100


class RecordedEvents(list[tuple[str, str, EventFacts]]):
    """A stand-in for Events that keeps the records."""

    def record(self, topic: str, facts: EventFacts, text: str, *, quiet: bool = False) -> None:
        self.append((topic, text, facts))


class Desk:
    """A master's leases and failures over a ledger, without workers; the test acts for them and sets the time."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        program = cost_only_worker.program_of(COUNT, 1)
        settings = Settings(Path("program.py"), chunk=CHUNK, workers=4)
        spec = RunSpec(settings, program, program.graph())
        self.ledger = Ledger(path, shared_disk=False, create=create, durable=False)
        self.workers = WorkerTable()
        self.events = RecordedEvents()
        mailboxes = Wire(VirtualClock(), None)
        self.leases = Leases(spec, settings, self.ledger, self.workers, mailboxes, self.events)
        self.failures = Failures(self.ledger, self.leases, self.workers, mailboxes, self.events)
        if create:
            with self.ledger.transaction():
                self.leases.epochs.open_first(0.0)

    def start(self, *names: tuple[str, str]) -> None:
        for worker, machine in names:
            with self.ledger.transaction():
                self.ledger.worker_submitted(worker, 0.0)
                self.ledger._db.execute("UPDATE workers SET machine = ? WHERE worker = ?", (machine, worker))
            record = self.workers.add(worker)
            self.workers.move(record, WorkerStatus.RUNNING)
            self.workers.set_machine(record, machine)

    def ask(self, worker: str, now: float) -> LeaseState | None:
        with self.ledger.transaction():
            return self.leases.grant(self.workers.of(worker), Sync(worker, wants=True), now)

    def fail(self, worker: str, now: float) -> LeaseState:
        """Let a worker fail on its lease."""
        lease = self.ask(worker, now)
        assert lease is not None
        with self.ledger.transaction():
            self.failures.record(lease, Failure(lease.id, lease.term, "ValueError: no", "Traceback", -1, -1), now)
        return lease

    def credit(self, worker: str, now: float) -> None:
        lease = self.ask(worker, now)
        assert lease is not None
        with self.ledger.transaction():
            self.ledger.credit(lease, lease.stop, 1, 0.0, now)
            self.leases.end(lease, now, "trained to its end")
            self.failures.clear(self.workers.of(worker))

    def again(self) -> Desk:
        """Return the next master of the run."""
        self.ledger.close()
        desk = Desk(self.path)
        for machine in desk.ledger.machines():
            desk.workers.machines.restore(machine, 0.0)
        for row in desk.ledger.workers():
            if row["ended_s"] is None:
                desk.workers.move(desk.workers.add(row["worker"]), WorkerStatus.RUNNING)
            desk.workers.restore_failures(row)
            if row["ended_s"] is None:
                desk.workers.set_machine(desk.workers.of(row["worker"]), row["machine"])
        return desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path / "ledger.db", create=True)
    made.start(("w1", "a"), ("w2", "b"), ("w3", "c"))
    return made


def test_a_worker_is_not_leased_what_it_failed_on(desk: Desk) -> None:
    first = desk.fail("w1", 0.0)
    assert desk.ask("w1", MIN_PAUSE_S / 2) is None
    other, again = desk.ask("w1", MIN_PAUSE_S), desk.ask("w2", MIN_PAUSE_S)
    assert other is not None and other.start == first.stop
    assert again is not None and (again.start, again.stop) == (first.start, first.stop)


def test_three_workers_that_fail_on_a_range_end_the_run(desk: Desk) -> None:
    for worker in ("w1", "w2", "w3"):
        assert desk.failures.stop_because is None
        desk.fail(worker, 0.0)
    error = desk.failures.stop_because
    assert error is not None and "failed 3 times, by 3 workers" in str(error) and error.traceback_text == "Traceback"


def test_one_that_always_fails_ends_nothing_and_is_replaced(desk: Desk) -> None:
    desk.credit("w2", 0.0)
    desk.workers.of("w2").measured.trained = CHUNK
    now = 0.0
    for k in range(MAX_FAILURES):
        assert desk.workers.take_lost() == []
        now += pause(k)[0]
        desk.fail("w1", now)
    assert desk.failures.stop_because is None
    (replaced,) = desk.workers.take_lost()
    assert replaced.record.name == "w1" and "while others succeed" in replaced.reason
    assert 30 < now < 60


def test_success_resets_the_pauses(desk: Desk) -> None:
    desk.fail("w1", 0.0)
    desk.fail("w1", 1.0)
    assert desk.workers.of("w1").faults.avoided_until_s == 1.0 + 2 * MIN_PAUSE_S
    desk.credit("w1", 2.0)
    desk.fail("w1", 2.0)
    assert desk.workers.of("w1").faults.avoided_until_s == 2.0 + MIN_PAUSE_S


def test_all_of_it_outlives_the_master(desk: Desk) -> None:
    desk.fail("w1", 0.0)
    desk.fail("w2", 0.0)
    desk.fail("w1", 1.0)  # the next range: w3 might take the first
    later = desk.again()
    assert later.ask("w1", 1.1) is None
    assert later.workers.of("w1").faults.failures == 2
    first = later.fail("w3", 1.1)
    assert first.start == 0 and later.failures.stop_because is not None


def test_a_machine_hands_its_failures_on_to_its_next_worker(desk: Desk) -> None:
    desk.fail("w1", 0.0)
    desk.fail("w1", 1.0)
    with desk.ledger.transaction():
        desk.ledger._db.execute("UPDATE workers SET ended_s = 2.0 WHERE worker = 'w1'")
    desk.workers.end(desk.workers.of("w1"))
    for later in (desk, None):
        later = later or desk.again()
        later.start(("w4", "a"), ("w5", "d"))
        assert (later.workers.of("w4").faults.failures, later.workers.of("w5").faults.failures) == (2, 0)
        assert later.workers.of("w4").faults.avoided_until_s == 1.0 + 2 * MIN_PAUSE_S


def test_why_is_kept_and_shown(desk: Desk) -> None:
    desk.fail("w1", 0.0)
    desk.fail("w1", 1.0)
    rows = desk.ledger._db.execute("SELECT worker, machine, start, stop, reason FROM failures").fetchall()
    assert rows[0] == ("w1", "a", 0, CHUNK, "1 of 3 workers failed on it; another worker will try")
    (avoided,) = read_progress(desk.ledger._db, 1.1).avoided
    assert (avoided.worker, avoided.machine, avoided.failures) == ("w1", "a", 2)
    assert avoided.because == "failed 2 times in a row; no lease for 0.5 s" and avoided.seconds_left == pytest.approx(
        0.4
    )
    (_, _, failed), _, (topic, text, facts) = desk.events
    assert failed == {"worker": "w1", "machine": "a", "lease": 1, "epoch": 1, "start": 0, "stop": CHUNK}
    assert (topic, text) == ("avoided", "w1 on a: failed 2 times in a row; no lease for 0.5 s")
    assert facts == {"worker": "w1", "machine": "a", "failures": 2, "distrusted": 0, "avoided_s": pytest.approx(0.5)}


def test_the_vertex_that_failed_says_how_far_credit_must_come(desk: Desk) -> None:
    lease = desk.ask("w1", 0.0)
    assert lease is not None
    vertex = int(desk.leases.epochs.vertices(0, 40, 41)[0])
    with desk.ledger.transaction():
        desk.failures.record(lease, Failure(lease.id, lease.term, "ValueError: no", "", vertex, vertex), 0.0)
    assert [failure.upto for failure in desk.ledger.spans[0].failed] == [41]


def test_when_a_person_has_mended_it_no_failure_stands(desk: Desk) -> None:
    for worker in ("w1", "w2", "w3"):
        desk.fail(worker, 0.0)
    desk.fail("w1", 1.0)
    with desk.ledger.transaction():
        desk.ledger.clear_failures()
        desk.workers.clear_failures()
    for later in (desk, None):
        later = later or desk.again()
        assert [(span.start, span.stop, span.failed) for span in later.ledger.spans] == [(0, COUNT, ())]
        assert later.workers.of("w1").faults.failures == 0 and later.workers.of("w1").faults.avoided_until_s == 0.0
    assert len(later.ledger._db.execute("SELECT * FROM failures").fetchall()) == 4
