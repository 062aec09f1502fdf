"""The progress of a run, and its three displays."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from gridml.protocol.messages import Sync
from master.simulation.faulty_network import VirtualClock
from master.state.failures import MachineRecord
from master.state.jobs import JobEvent, State
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.reader import connect
from master.store.rundir import RunStatus
from master.views.live import EventLines, Follower, Lines, Screen, panel, progress_line
from master.views.progress import PUSHES, RunProgress, read_progress, without_master


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A run of 12 epochs of 1,000 vertices, begun at second 0."""
    made = Ledger(tmp_path / "ledger.db", shared_disk=False, create=True)
    with made.transaction():
        for key, value in {"started_s": 0.0, "status": "running", "total": 12_000}.items():
            made.set(key, value)
        made.open_epoch(0, 1000, 0.0)
        made.add_version(0, None, 0, 0.0)
    yield made
    made.close()


def push(ledger: Ledger, at_s: float, upto: int, staleness: float = 0.0) -> None:
    """Credit the newest epoch up to a position, in a new version."""
    lease = next(iter(ledger.leases), None)
    if lease is None:
        span = ledger.spans[0]
        lease = ledger.lease(span, span.stop, "w1", at_s, "")
    version = ledger.newest_version()[0] + 1
    ledger.credit(lease, upto, version, staleness, at_s)
    ledger.add_version(version, None, 1, at_s)
    if lease.left == 0:
        ledger.end_lease(lease, at_s, "trained to its end")
        ledger.close_epoch(lease.epoch, version, at_s)


def at(ledger: Ledger, now: float) -> RunProgress:
    connection = connect(ledger.path.parent)
    try:
        return read_progress(connection, now)
    finally:
        connection.close()


def test_a_run_that_has_just_begun_knows_little(ledger: Ledger) -> None:
    progress = at(ledger, 1.0)
    assert (progress.epoch, progress.epochs, progress.credited, progress.vertices, progress.total) == (
        1,
        12,
        0,
        1000,
        12_000,
    )
    assert (progress.staleness, progress.per_second, progress.goodput, progress.seconds_left) == (
        None,
        None,
        None,
        None,
    )


def test_speed_and_time_left_come_from_what_was_credited_lately(ledger: Ledger) -> None:
    with ledger.transaction():
        ledger.worker_submitted("w1", 0.0)
        ledger.worker_event(JobEvent(0.0, "w1", State.RUNNING, "slot-1"), 0.0)
        for second in range(1, 101):
            push(ledger, float(second), second * 10 if second <= 60 else 600 + (second - 60) * 5)
    progress = at(ledger, 100.0)
    assert progress.per_second == pytest.approx(5.0)  # not the initial 10
    assert progress.seconds_left == pytest.approx((12_000 - 800) / 5.0)
    assert at(ledger, 170.0).per_second == pytest.approx(5.0 * 7 / 77)  # no credit for 70 s


def test_workers_on_hold_are_said_by_reason_and_nothing_is_left_to_wait_for(ledger: Ledger) -> None:
    with ledger.transaction():
        for second in (1.0, 2.0):
            push(ledger, second, int(second) * 10)
        for worker, because in (("w1", "lunch"), ("w2", "started 30 times"), ("w3.1", "started 30 times")):
            ledger.worker_submitted(worker, 0.0)
            ledger.worker_event(JobEvent(1.0, worker, State.HELD, detail=because), 1.0)
        ledger.worker_event(JobEvent(3.0, "w1", State.QUEUED, detail="released"), 3.0)
        ledger.worker_event(JobEvent(4.0, "w1", State.HELD, detail="lunch again"), 4.0)
    progress = at(ledger, 5.0)
    assert (progress.held, progress.alive, progress.seconds_left) == (3, 0, None)
    assert [(held.workers, held.because) for held in progress.held_because] == [
        (["w2", "w3.1"], "started 30 times"),
        (["w1"], "lunch again"),
    ]
    assert "0 alive, 3 held, 0 lost" in progress_line(progress)
    assert (without_master(progress).held, without_master(progress).held_because) == (0, [])


def test_the_last_warnings_are_shown_once_each(ledger: Ledger, tmp_path: Path) -> None:
    clock = iter(range(10))
    events = Events(ledger, tmp_path / "events.log", lambda topic, text, facts: None, lambda: float(next(clock)))
    for text in ("no machine", "a full disk", "no machine", "refused", "over a limit"):
        events.record("warning", {}, text, standing=True)
    events.record("warning", {}, "what a worker may send any number of")
    events.record("sizing", {}, "no warning")
    events.close()
    assert [(warned.seconds_ago, warned.text) for warned in at(ledger, 10.0).warnings] == [
        (8.0, "no machine"),
        (7.0, "refused"),
        (6.0, "over a limit"),
    ]
    with ledger.transaction():
        ledger.set("gaps", [[4.5, 5.0]])  # the warning of an earlier master is over
    assert at(ledger, 10.0).warnings == []


def test_the_time_without_a_master_does_not_count_as_slow(ledger: Ledger) -> None:
    with ledger.transaction():
        push(ledger, 5.0, 100)
        ledger.set("gaps", [[5.0, 1000.0]])
        push(ledger, 1001.0, 110)
        push(ledger, 1003.0, 150)
    assert at(ledger, 1003.0).per_second == pytest.approx(20.0)


def test_staleness_is_that_of_the_last_pushes(ledger: Ledger) -> None:
    with ledger.transaction():
        for i in range(1, 2 * PUSHES + 1):
            push(ledger, float(i), i, staleness=9.0 if i <= PUSHES else 3.0)
    assert at(ledger, 200.0).staleness == 3.0


def test_the_oldest_open_epoch_is_shown_and_the_last_one_at_the_end(ledger: Ledger) -> None:
    with ledger.transaction():
        push(ledger, 1.0, 400)
        ledger.open_epoch(1, 1000, 2.0)
    assert at(ledger, 3.0).epoch == 1
    with ledger.transaction():
        push(ledger, 4.0, 1000)
        ledger.set_metrics(0, {"accuracy": 0.5})
    assert (at(ledger, 5.0).epoch, at(ledger, 5.0).evaluated, at(ledger, 5.0).metrics) == (2, 1, {"accuracy": 0.5})
    with ledger.transaction():
        push(ledger, 6.0, 1000)
    assert (at(ledger, 7.0).epoch, at(ledger, 7.0).credited) == (2, 1000)


def test_workers_are_counted_by_what_became_of_them(ledger: Ledger) -> None:
    ends = {"w1": None, "w2": State.EVICTED, "w3": State.LOST, "w4": State.FINISHED}
    with ledger.transaction():
        for worker, end in ends.items():
            ledger.worker_submitted(worker, 0.0)
            ledger.worker_event(JobEvent(0.0, worker, State.RUNNING, "slot-1"), 0.0)
            if end is not None:
                ledger.worker_event(JobEvent(10.0, worker, end, "slot-1"), 10.0)
        ledger.worker_submitted("w5", 0.0)
        push(ledger, 5.0, 200)
        ledger.worker_reported(Sync("w1", trained=400, train_s=2.0), 5.0, 0)
    progress = at(ledger, 20.0)
    assert (progress.alive, progress.queued, progress.lost) == (1, 1, 2)
    assert progress.goodput == pytest.approx(200 * (2.0 / 400) / (20.0 + 3 * 10.0))
    rest = without_master(progress)
    assert (rest.status, rest.alive, rest.queued, rest.seconds_left) == ("stopped", 0, 0, None)


def test_the_plan_of_every_query_stays_small(ledger: Ledger) -> None:
    """No query may scan all credits, versions or events."""
    connection = connect(ledger.path.parent)
    queries: list[str] = []
    connection.set_trace_callback(queries.append)
    read_progress(connection, 1.0)
    connection.set_trace_callback(None)
    assert any("credits" in query for query in queries)
    for query in queries:
        if any(table in query for table in ("credits", "versions", "events")):
            assert re.search(r"ORDER BY (rowid|version) DESC LIMIT", query), query
    connection.close()


SOME = RunProgress(
    RunStatus.RUNNING,
    3,
    12,
    250,
    1000,
    2250,
    12_000,
    4,
    1,
    7,
    2.345,
    1234.5,
    0.71,
    65.0,
    2,
    {"accuracy": 0.98765, "each": [1]},
)


def test_the_panel_shows_all_that_matters() -> None:
    console = Console(file=io.StringIO(), width=110, force_terminal=False)
    console.print(panel("mnist", SOME))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for expected in (
        "epoch 3 of 12",
        "250 of 1,000",
        "25%",
        "4 alive (+1 waiting), 7 lost",
        "2.3",
        "71%",
        "1,234",
        "1:05 min",
        "0.9877",
        "(epoch 2)",
    ):
        assert expected in shown, f"{expected!r} is not in:\n{shown}"


def test_a_line_is_one_line() -> None:
    assert progress_line(SOME).count("\n") == 0 and progress_line(SOME).startswith(
        "epoch 3 of 12: 250 of 1,000, workers 4 alive"
    )


def test_the_screen_keeps_the_panel_below_the_events(ledger: Ledger) -> None:
    out = io.StringIO()
    with Screen(Console(file=out, force_terminal=True, width=110, color_system=None), "mnist") as screen:
        screen.progress(0.0, SOME)
        screen.event(0.0, "evicted", "w3 on slot-1")
        screen.progress(0.5, SOME)
    shown = out.getvalue()
    assert shown.index("w3 on slot-1") < shown.rindex("epoch 3 of 12")


def test_lines_and_json_say_when_and_what(ledger: Ledger) -> None:
    plain, machine = io.StringIO(), io.StringIO()
    for view in (Lines(plain), EventLines(machine)):
        view.event(1e9, "evicted", "w3 on slot-1")
        view.progress(1e9, SOME)
    assert [text.split()[1] for text in plain.getvalue().splitlines()] == ["evicted", "progress"]
    event, progress = map(json.loads, machine.getvalue().splitlines())
    assert event == {"at_s": 1e9, "topic": "evicted", "kind": "evicted", "text": "w3 on slot-1", "facts": {}}
    assert progress["kind"] == "progress" and progress["judged"] == progress["evaluated"] == 2  # the former names
    assert (progress["topic"], progress["credited"], progress["metrics"]["each"]) == ("progress", 250, [1])


def test_a_follower_reads_no_more_often_than_its_view_wants(ledger: Ledger) -> None:
    clock = VirtualClock()
    out = io.StringIO()
    with Follower(ledger.path.parent, EventLines(out), clock=clock) as follower:
        for tenth in range(0, 251):
            clock.now_s = tenth / 10
            follower.tick()
    assert [json.loads(text)["at_s"] for text in out.getvalue().splitlines()] == [1.0, 11.0, 21.0]


def test_a_ledger_that_cannot_be_read_does_not_end_the_run(tmp_path: Path) -> None:
    clock = VirtualClock()
    out = io.StringIO()
    with Follower(tmp_path / "nothing", Lines(out), clock=clock) as follower:
        clock.now_s = 30.0
        follower.tick()
    assert out.getvalue() == ""


def test_workers_that_are_avoided_show_until_they_may_try_again(ledger: Ledger) -> None:
    with ledger.transaction():
        for worker, failures in (("w1", 1), ("w2", 3)):
            ledger.worker_submitted(worker, 0.0)
            ledger.worker_event(JobEvent(1.0, worker, State.RUNNING, "slot-1"), 1.0)
            ledger.worker_failed(worker, failures, 20.0, f"failed {failures} times in a row; no lease for 10 s")
    (avoided,) = at(ledger, 10.0).avoided
    assert (avoided.worker, avoided.machine, avoided.failures, avoided.seconds_left) == ("w2", "slot-1", 3, 10.0)
    assert ", 1 avoided" in progress_line(at(ledger, 10.0))
    assert at(ledger, 10.0).to_json()["avoided"][0]["because"] == "failed 3 times in a row; no lease for 10 s"
    assert at(ledger, 20.0).avoided == [] and "avoided" not in progress_line(at(ledger, 20.0))


def test_who_is_trusted_no_more_shows_with_the_reason_and_until_when(ledger: Ledger) -> None:
    with ledger.transaction():
        ledger.worker_submitted("w1", 0.0)
        ledger.worker_event(JobEvent(1.0, "w1", State.RUNNING, "slot-1"), 1.0)
        ledger.quarantine("w1", "3 of its last 8 pushes are not what others bring", 5.0)
        ledger.machine_failed(MachineRecord("slot-1", 0, 1, 20.0, "w1: it lied; no lease for 10 s"))
        ledger.machine_failed(MachineRecord("slot-2", 0, 4, 12.0, "w7: it lied"))
        ledger.machine_failed(MachineRecord("slot-4", 1, 0, 19.0, "w4: no room"))
        ledger.machine_failed(MachineRecord("slot-3", 1, 0, 10.2, "w3: f failed"))
    shown = at(ledger, 10.0)
    assert [str(worker) for worker in shown.quarantined] == [
        "w1 on slot-1 is in quarantine for the rest of the run: 3 of its last 8 pushes are not what others bring"
    ]
    assert [str(machine) for machine in shown.avoided_machines] == [
        "slot-1 is avoided for 10 s more: w1: it lied; no lease for 10 s",
        "slot-2 is avoided for the rest of the run, while others work elsewhere: w7: it lied",
        "slot-4 is avoided for 9 s more: w4: no room",
    ]
    assert ", 1 in quarantine, avoided slot-1, slot-2, slot-4" in progress_line(shown)
    assert shown.to_json()["quarantined"][0]["because"].startswith("3 of its last 8")
    assert shown.to_json()["avoided_machines"][0] | {"because": ""} == {
        "machine": "slot-1",
        "distrusted": 1,
        "seconds_left": 10.0,
        "for_good": False,
        "because": "",
    }
    assert [machine.machine for machine in at(ledger, 20.0).avoided_machines] == ["slot-2"], "slot-1 has rested"
