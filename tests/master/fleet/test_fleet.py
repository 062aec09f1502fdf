"""The fleet: submissions, strikes and the end of a run, as they follow from events of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from gridml.errors import DEVICE, RunError
from master.fleet.fleet import Fleet, Workplace
from master.state.failures import MAX_TRIES
from master.state.jobs import HeldFor, JobEvent, State
from master.state.worker_records import LostWorker, WorkerRecord, WorkerStatus, WorkerTable
from master.store.ledger import Ledger
from master.store.reader import NO_HEADWAY
from master.store.rundir import EventFacts, RunDirectory
from master.store.settings import Settings
from master.telemetry.measures import Measures
from master.telemetry.staffing import MAX_DEATHS, MAX_FAILED_STARTS


class Stub:
    """Mailboxes, an exchange and a back end that do nothing."""

    max_workers: int | None = None
    longer_lives = ""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.said: list[tuple[str, str]] = []

    def heartbeat(self, worker: str) -> None:
        return None

    def open(self, worker: str) -> None: ...

    def close(self, worker: str) -> None: ...

    def release(
        self, record: WorkerRecord, because: str, now: float, *, reserved_until_s: float | None = None
    ) -> None: ...

    def fail_lease(self, record: WorkerRecord, why: str, last_words: str, now: float) -> bool:
        return False

    def count(
        self, record: WorkerRecord, because: str, now: float, *, distrusted: bool = False, device: bool = False
    ) -> None:
        record.faults.failures += device

    def record(self, topic: str, facts: EventFacts, text: str, *, quiet: bool = False) -> None:
        self.said.append((topic, text))

    @property
    def failures(self) -> Stub:
        return self

    @property
    def reports(self) -> Stub:
        return self

    @property
    def store(self) -> Stub:
        return self

    def take_lost(self) -> list[LostWorker]:
        return []

    def avoid(self, machines: frozenset[str]) -> None: ...

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None: ...

    def submit(self, worker: str) -> None: ...

    def advice(self, detail: str) -> str:
        return "Make room."

    release_command = "release them"
    max_run_s: float | None = None


@pytest.fixture
def measures() -> Measures:
    return Measures()


@pytest.fixture
def workers() -> WorkerTable:
    return WorkerTable()


@pytest.fixture
def fleet(tmp_path: Path, measures: Measures, workers: WorkerTable) -> Fleet:
    directory = RunDirectory(tmp_path / "run")
    directory.create()
    ledger = Ledger(directory.ledger, shared_disk=False, create=True, durable=False)
    stub = cast(Any, Stub(ledger))
    place = Workplace(Settings(Path("p.py"), workers=2), directory, stub, stub)
    fleet = Fleet(place, workers, stub, measures, stub)
    with ledger.transaction():
        fleet.expect("w1", 0.0)
        fleet.expect("w2", 0.0)
    return fleet


def report(record: WorkerRecord, now: float) -> None:
    """Let a worker send a valid message."""
    record.contact.has_reported = True
    record.signs.record_contact(now)


def test_a_hold_ends_the_life_of_a_worker_but_is_no_death(
    fleet: Fleet, measures: Measures, workers: WorkerTable
) -> None:
    for worker in ("w1", "w2"):
        fleet.handle([JobEvent(10.0, worker, State.RUNNING)], 10.0)
        report(workers.of(worker), 11.0)
    measures.speeds.put(workers.of("w1"), 5.0)
    fleet.handle([JobEvent(40.0, "w1", State.HELD, detail="the disk is full")], 40.0)
    assert workers.of("w1").measured.speed is None
    assert measures.lives.deaths == 0
    assert measures.lives.exposure_s(100.0) == 30.0 + 90.0
    fleet.handle([JobEvent(100.0, "w1", State.QUEUED)], 100.0)
    fleet.handle([JobEvent(110.0, "w1", State.RUNNING)], 110.0)
    assert measures.lives.exposure_s(120.0) == 30.0 + 10.0 + 110.0


def test_workers_that_never_report_stop_a_run_only_if_no_other_works(fleet: Fleet, workers: WorkerTable) -> None:
    def lost(worker: str, at_s: float) -> None:
        fleet.handle([JobEvent(at_s, worker, State.RUNNING), JobEvent(at_s, worker, State.LOST)], at_s)

    fleet.handle([JobEvent(1.0, "w1", State.RUNNING)], 1.0)
    report(workers.of("w1"), 1.0)
    for k in range(3 * MAX_FAILED_STARTS):
        lost(f"w{10 + k}", 2.0)
    fleet.handle([JobEvent(3.0, "w1", State.EVICTED)], 3.0)
    for k in range(MAX_FAILED_STARTS - 1):
        lost(f"w{50 + k}", 4.0)
    with pytest.raises(RunError, match="5 workers in a row ended before they had any work"):
        lost("w60", 5.0)


def device_fails(fleet: Fleet, worker: str, at_s: float) -> None:
    """Let a worker train for a second, log that its device failed, and exit."""
    fleet.handle([JobEvent(at_s, worker, State.RUNNING, f"slot-{worker}")], at_s)
    report(fleet._workers.of(worker), at_s)
    fleet._place.directory.log(worker).write_text(
        "trains on cuda:0\nDeviceFailedError: cuda:0 out of memory: 20 GiB.\n"
    )
    fleet.handle([JobEvent(at_s + 1, worker, State.LOST, f"slot-{worker}", exit_code=DEVICE)], at_s + 1)


def test_failing_devices_end_a_run_if_no_worker_does_better(fleet: Fleet, workers: WorkerTable) -> None:
    fleet._place.directory.logs.mkdir(exist_ok=True)
    for k in range(MAX_TRIES - 1):
        device_fails(fleet, f"w{10 + k}", 10.0 * k)
    said = cast(Any, fleet._exchange).said
    assert [each for each in said if each[0] == "device"] == [
        ("device", f"w{10 + k}: DeviceFailedError: cuda:0 out of memory: 20 GiB.") for k in (0, 1)
    ]
    with pytest.raises(RunError, match=r"of 3 workers failed .* The last one said: .* 20 GiB\. .*gridml resume"):
        device_fails(fleet, "w70", 90.0)


def test_failing_devices_do_not_end_a_run_while_another_worker_trains(fleet: Fleet, workers: WorkerTable) -> None:
    fleet._place.directory.logs.mkdir(exist_ok=True)
    fleet.handle([JobEvent(1.0, "w1", State.RUNNING)], 1.0)
    report(workers.of("w1"), 1.0)
    workers.of("w1").measured.trained = 64
    for k in range(3 * MAX_TRIES):
        device_fails(fleet, f"w{10 + k}", 10.0 * k)
    fleet.handle([JobEvent(200.0, "w1", State.LOST)], 200.0)
    with pytest.raises(RunError, match=r"devices of 10 workers failed"):
        device_fails(fleet, "w80", 210.0)


def test_a_bad_machine_does_not_stop_a_run_whose_other_workers_have_just_started(fleet: Fleet) -> None:
    """Regression: five workers of a bad machine, lost within a second while the others imported torch, ended a run."""

    def lost(worker: str, at_s: float) -> None:
        fleet.handle([JobEvent(at_s, worker, State.RUNNING), JobEvent(at_s, worker, State.LOST)], at_s)

    fleet.handle([JobEvent(1.0, "w1", State.RUNNING), JobEvent(1.0, "w2", State.RUNNING)], 1.0)
    for k in range(3 * MAX_FAILED_STARTS):
        lost(f"w{10 + k}", 2.0 + 0.1 * k)
    fleet.handle([JobEvent(9.0, "w1", State.LOST), JobEvent(9.0, "w70", State.RUNNING)], 9.0)  # w70 came later
    with pytest.raises(RunError, match=r"\d+ workers in a row ended before they had any work"):
        fleet.handle([JobEvent(9.0, "w2", State.LOST)], 9.0)


def test_the_timeout_of_a_range_doubles_when_its_holder_falls_silent(fleet: Fleet, workers: WorkerTable) -> None:
    ledger = fleet._ledger
    with ledger.transaction():
        ledger.open_epoch(0, 100, 0.0)
        ledger.lease(ledger.spans[0], 50, "w1", 0.0, "test")
    fleet.handle([JobEvent(0.0, "w1", State.RUNNING)], 0.0)
    fleet.give_up(61.0)
    fleet.give_up(121.0)
    assert workers.of("w1").status is WorkerStatus.GIVEN_UP
    with ledger.transaction():
        for lease in [*ledger.leases]:
            ledger.end_lease(lease, 121.0, "silent")
        ledger.lease(ledger.spans[0], 20, "w2", 0.0, "test")
    fleet.handle([JobEvent(200.0, "w2", State.RUNNING)], 200.0)
    for now in (261.0, 321.0, 439.0):
        fleet.give_up(now)
        assert workers.of("w2").status is WorkerStatus.RUNNING
    fleet.give_up(441.0)
    assert workers.of("w2").status is WorkerStatus.GIVEN_UP


class AtWork(Stub):
    """A stub that says whether a worker was training when it ended."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.is_at_work = True
        self.counted: list[str] = []

    def fail_lease(self, record: WorkerRecord, why: str, last_words: str, now: float) -> bool:
        self.counted += [why] if self.is_at_work else []
        return self.is_at_work


@pytest.mark.parametrize("state", [State.LOST, State.FINISHED])
def test_a_worker_that_exits_while_it_trains_has_failed_whatever_its_exit_status(fleet: Fleet, state: State) -> None:
    exchange = fleet._exchange = cast(Any, AtWork(fleet._ledger))
    fleet.handle([JobEvent(1.0, "w1", State.RUNNING), JobEvent(2.0, "w1", state, detail="so", exit_code=0)], 2.0)
    fleet.handle([JobEvent(1.0, "w2", State.RUNNING), JobEvent(2.0, "w2", State.EVICTED, exit_code=0)], 2.0)
    assert exchange.counted == ["the worker ended with so"]


def test_workers_that_crash_without_work_stop_a_run(fleet: Fleet, workers: WorkerTable) -> None:
    exchange = fleet._exchange = cast(Any, AtWork(fleet._ledger))
    exchange.is_at_work = False

    def crash(worker: str) -> None:
        fleet.handle([JobEvent(1.0, worker, State.RUNNING)], 1.0)
        report(workers.of(worker), 1.0)
        fleet.handle([JobEvent(1.0, worker, State.LOST, exit_code=1)], 1.0)

    fleet.handle([JobEvent(0.0, "w1", State.EVICTED), JobEvent(0.0, "w2", State.EVICTED)], 0.0)
    for k in range(MAX_FAILED_STARTS - 1):
        crash(f"w{10 + k}")
    with pytest.raises(RunError, match="5 workers in a row ended before they had any work"):
        crash("w60")


def test_a_suspended_worker_is_not_silent_and_its_leases_go_to_others(
    fleet: Fleet, workers: WorkerTable, measures: Measures
) -> None:
    released: list[str] = []
    cast(Any, fleet._exchange).release = lambda record, because, now: released.append(because)
    ledger = fleet._ledger
    with ledger.transaction():
        ledger.open_epoch(0, 100, 0.0)
        ledger.lease(ledger.spans[0], 50, "w1", 0.0, "test")
    fleet.handle([JobEvent(0.0, "w1", State.RUNNING, "slot-1"), JobEvent(5.0, "w1", State.SUSPENDED, "slot-1")], 5.0)
    fleet.give_up(120.0)
    assert released == [] and workers.of("w1").status is WorkerStatus.SUSPENDED
    fleet.give_up(126.0)
    assert released == ["suspended for 121 s (limit 120 s)"]
    fleet.give_up(1e6)
    assert workers.of("w1").status is WorkerStatus.SUSPENDED and measures.lives.deaths == 0
    fleet.handle([JobEvent(1e6, "w1", State.RUNNING, "slot-1")], 1e6)
    assert workers.of("w1").status is WorkerStatus.RUNNING
    fleet.give_up(1e6 + 100.0)
    assert workers.of("w1").status is WorkerStatus.RUNNING, "its timeout restarts"


def end(fleet: Fleet, worker: str, at_s: float, *, lived_s: float = 0.0, code: int = -11, machine: str = "") -> None:
    """Let a worker that has never reported end by itself."""
    fleet.handle([JobEvent(at_s - lived_s, worker, State.RUNNING, machine)], at_s - lived_s)
    fleet.handle([JobEvent(at_s, worker, State.LOST, machine, exit_code=code)], at_s)


def test_evictions_do_not_reset_the_count_of_deaths(fleet: Fleet) -> None:
    """Regression: each eviction reset the count of failed starts, so a run on a busy pool never ended."""
    with pytest.raises(
        RunError, match=r"20 workers ended by themselves.*: 14 with signal SIGSEGV, 6 with exit status 3"
    ):
        for k in range(2 * MAX_DEATHS):
            end(fleet, f"w{100 + k}", 10.0 * k, code=3 if k % 3 == 1 and k < 18 else -11)
            fleet.handle([JobEvent(10.0 * k + 1, f"w{200 + k}", State.RUNNING)], 10.0 * k + 1)
            fleet.handle([JobEvent(10.0 * k + 2, f"w{200 + k}", State.EVICTED)], 10.0 * k + 2)


def test_evictions_alone_stop_nothing(fleet: Fleet) -> None:
    for k in range(10 * MAX_DEATHS):
        fleet.handle([JobEvent(1.0 * k, f"w{100 + k}", State.RUNNING)], 1.0 * k)
        fleet.handle([JobEvent(1.0 * k, f"w{100 + k}", State.EVICTED)], 1.0 * k)


def test_jobs_that_a_policy_removes_one_after_another_stop_a_run(fleet: Fleet) -> None:
    """Regression: they counted as evictions, and were replaced for ever."""
    with pytest.raises(RunError, match=r"20 with their jobs removed; the last one: periodic_remove"):
        for k in range(2 * MAX_DEATHS):
            gone = JobEvent(1.0 * k, f"w{100 + k}", State.EVICTED, detail="periodic_remove", removed=True)
            fleet.handle([JobEvent(1.0 * k, gone.worker, State.QUEUED), gone], 1.0 * k)


def test_a_worker_that_has_outlived_all_that_died_keeps_a_run_going(fleet: Fleet, workers: WorkerTable) -> None:
    for k in range(3 * MAX_DEATHS):
        if k == 1:  # it starts after the first death, and trains its first batch for long
            fleet.handle([JobEvent(10.0, "w1", State.RUNNING)], 10.0)
            report(workers.of("w1"), 11.0)
        end(fleet, f"w{100 + k}", 15.0 + k, lived_s=0.5, machine="black hole")
    fleet.handle([JobEvent(100.0, "w1", State.EVICTED)], 100.0)
    with pytest.raises(RunError, match="61 workers ended by themselves"):
        end(fleet, "w999", 101.0)


def test_a_queue_that_starts_nothing_is_named_until_it_starts_a_worker(fleet: Fleet) -> None:
    said = cast(Stub, fleet._place.backend).said
    fleet.handle([JobEvent(0.0, "w2", State.HELD, detail="no such file: x")], 0.0)
    for now in (1.0, 600.0, 700.0, 710.0, 1500.0):
        fleet.staff(now, work_left=True)
    texts = [text for topic, text in said if topic == "headway"]
    assert len(texts) == 2 and texts[0].startswith("nothing was credited in 11.7 min: no worker has run for 11.7 min: ")
    assert "1 are held: no such file: x" in texts[0]
    fleet.handle([JobEvent(1501.0, "w1", State.RUNNING)], 1501.0)
    fleet.staff(1510.0, work_left=True)
    assert said[-1] == ("headway", "workers run, and may be leased a range")
    assert fleet._ledger.get(NO_HEADWAY, "") is None


def test_a_credit_ends_a_row_of_lives_that_brought_none(fleet: Fleet, workers: WorkerTable) -> None:
    said = cast(Stub, fleet._place.backend).said
    workers.requested = 0
    fleet.staff(0.0, work_left=True)
    for k in range(60):
        now = 10.0 * k
        fleet.handle([JobEvent(now, f"w{10 + k}", State.RUNNING)], now)
        fleet.handle([JobEvent(now + 9.0, f"w{10 + k}", State.EVICTED)], now + 9.0)
        fleet.staff(now + 9.0, work_left=True)
    texts = [text for topic, text in said if topic == "headway"]
    assert len(texts) == 2 and "30 workers in a row ended and brought no credit, 30 of them before" in texts[0]
    fleet._ledger.credited += 1
    fleet.staff(700.0, work_left=True)
    fleet.staff(900.0, work_left=True)
    assert said[-1] == ("headway", "vertices are credited again")


def test_a_credit_resets_the_count_of_deaths(fleet: Fleet) -> None:
    for k in range(4 * MAX_DEATHS):
        fleet._ledger.credited += k % MAX_FAILED_STARTS == 0
        end(fleet, f"w{100 + k}", 1.0 * k)
        fleet.handle([JobEvent(1.0 * k, f"w{500 + k}", State.EVICTED)], 1.0 * k)


def test_submission_backs_off_while_workers_fail_to_start(fleet: Fleet, workers: WorkerTable) -> None:
    """One of many works, so the run continues; but the machine that kills the others gets few of them."""
    fleet.handle([JobEvent(0.0, "w1", State.RUNNING)], 0.0)
    report(workers.of("w1"), 0.0)
    fleet._submitted = workers.requested = 2
    now, asked = 10.0, 0
    while now < 3600.0:
        fleet.staff(now, work_left=True)
        for record in [record for record in workers if record.status is WorkerStatus.QUEUED]:
            asked += 1
            end(fleet, record.name, now)
        now += 1.0
    assert 20 < asked < 30
    with fleet._ledger.transaction():
        fleet.expect("w5000", now)
    fleet.handle([JobEvent(now, "w5000", State.RUNNING)], now)
    report(workers.of("w5000"), now)  # another worker has started: no back-off any more
    fleet.handle([JobEvent(now, "w1", State.EVICTED)], now)
    fleet.staff(now, work_left=True)
    assert workers.count(WorkerStatus.QUEUED) == 1


def test_a_worker_is_dismissed_before_its_job_reaches_the_limit(fleet: Fleet, workers: WorkerTable) -> None:
    cast(Any, fleet._place.backend).max_run_s = 1000.0
    workers.requested = fleet._submitted = 2
    fleet.handle([JobEvent(0.0, "w1", State.RUNNING)], 0.0)
    fleet.handle([JobEvent(500.0, "w2", State.RUNNING)], 500.0)
    fleet.staff(949.0, work_left=True)
    assert workers.count(WorkerStatus.RUNNING) == 2
    fleet.staff(951.0, work_left=True)
    assert workers.of("w1").status is WorkerStatus.DISMISSED and workers.of("w2").status is WorkerStatus.RUNNING
    assert workers.of("w3").status is WorkerStatus.QUEUED
    fleet.handle([JobEvent(960.0, "w1", State.EVICTED, cancelled=True)], 960.0)
    assert fleet._measures.lives.deaths == 0


def two_at_work(fleet: Fleet, workers: WorkerTable) -> None:
    """Let w1 and w2, all that are requested, run and report."""
    workers.requested = fleet._submitted = 2
    for worker in ("w1", "w2"):
        fleet.handle([JobEvent(0.0, worker, State.RUNNING)], 0.0)
        report(workers.of(worker), 1.0)


def test_a_job_that_a_policy_holds_is_replaced(fleet: Fleet, workers: WorkerTable) -> None:
    cancelled: list[str] = []
    cast(Any, fleet._place.backend).cancel = cancelled.append
    two_at_work(fleet, workers)
    fleet.handle([JobEvent(10.0, "w1", State.HELD, detail="30 starts", held_for=HeldFor.POLICY)], 10.0)
    fleet.staff(11.0, work_left=True)
    assert cancelled == ["w1"] and workers.of("w3").status is WorkerStatus.QUEUED
    fleet.handle([JobEvent(12.0, "w2", State.HELD, detail="by hand")], 12.0)
    fleet.staff(13.0, work_left=True)
    assert cancelled == ["w1"] and workers.of("w2").status is WorkerStatus.HELD and "w4" not in workers


def test_a_hold_by_a_person_cancels_the_planned_release_of_an_earlier_hold(fleet: Fleet, workers: WorkerTable) -> None:
    released: list[str] = []
    cast(Any, fleet._place.backend).release = released.append
    two_at_work(fleet, workers)
    fleet.handle([JobEvent(10.0, "w1", State.HELD, detail="no input", held_for=HeldFor.TRANSIENT)], 10.0)
    fleet.handle([JobEvent(12.0, "w1", State.QUEUED), JobEvent(13.0, "w1", State.HELD, detail="lunch")], 13.0)
    fleet.staff(1000.0, work_left=True)
    assert released == []
    fleet.handle([JobEvent(1000.0, "w2", State.HELD, detail="no input", held_for=HeldFor.TRANSIENT)], 1000.0)
    fleet.staff(1014.0, work_left=True)
    assert released == []
    fleet.staff(1016.0, work_left=True)
    assert released == ["w2"]
