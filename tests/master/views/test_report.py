"""The report counts from rows: it shows vertices that were credited twice, never, or wasted, in any ledger."""

from __future__ import annotations

import dataclasses
import fcntl
import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from gridml.cli.main import command_line
from gridml.errors import LedgerError
from gridml.protocol.messages import Failure, Sync
from master.state.failures import Alteration, MachineRecord
from master.state.jobs import JobEvent, State
from master.state.lease_records import LeaseState
from master.store.ledger import Ledger
from master.store.reader import opened
from master.store.rundir import RunDirectory
from master.store.settings import Settings, write_settings
from master.views.plot import plot_report
from master.views.progress import read_progress
from master.views.render import duration, render_report
from master.views.report import coverage, report

COUNT = 1000


def begin(root: Path, **facts: object) -> Ledger:
    """A run of two epochs of 1,000 vertices that began at second 100."""
    root.mkdir(exist_ok=True)
    write_settings(RunDirectory(root), Settings(program=root / "digits.py", workers=3))
    ledger = Ledger(root / "ledger.db", shared_disk=False, create=True)
    values = {"started_s": 100.0, "status": "running", "total": 2 * COUNT, "masters": 1, **facts}
    with ledger.transaction():
        for key, value in values.items():
            ledger.set(key, value)
        ledger.add_version(0, None, 0, 100.0)
    return ledger


def credit(ledger: Ledger, at_s: float, *ranges: tuple[int, int], staleness: float = 0.0) -> None:
    """Lease and credit ranges of the newest epoch, each as one push."""
    for start, stop in ranges:
        epoch, _ = ledger.newest_epoch()
        span = next(s for s in ledger.spans if s.epoch == epoch and s.start == start)
        lease = ledger.lease(span, stop, "w1", at_s, "")
        ledger.credit(lease, stop, int(at_s), staleness, at_s)
        ledger.end_lease(lease, at_s, "trained to its end")


def live(ledger: Ledger, worker: str, machine: str, began_s: float, ended_s: float | None, **how: object) -> None:
    """A worker's life; `how` are fields of its last event."""
    ledger.worker_submitted(worker, began_s)
    ledger.worker_event(JobEvent(began_s, worker, State.RUNNING, machine), began_s)
    if ended_s is not None:
        ledger.worker_event(JobEvent(ended_s, worker, machine=machine, **how), ended_s)  # type: ignore[arg-type]


@contextmanager
def driven(root: Path) -> Iterator[None]:
    """Act as if a master held the run."""
    with (root / "master.lock").open("a+") as file:
        file.write("pid 12 on host\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run of two epochs: nothing twice, nothing lost, five kinds of ends of workers."""
    ledger = begin(tmp_path / "run")
    with ledger.transaction():
        ledger.open_epoch(0, COUNT, 100.0)
        credit(ledger, 110.0, (0, 400), (400, 1000), staleness=2.0)
        ledger.add_version(1, None, 2, 110.0)
        ledger.close_epoch(0, 1, 110.0)
        ledger.set_metrics(0, {"accuracy": 0.9, "accuracy_per_digit": [0.8, 1.0]})
        ledger.open_epoch(1, COUNT, 110.0)
        lost = ledger.lease(ledger.spans[0], 500, "w2", 111.0, "")
        ledger.credit(lost, 100, 2, 0.0, 112.0)
        lost.trained = 350
        ledger.end_lease(lost, 113.0, "worker evicted")
        credit(ledger, 118.0, (100, 1000))
        ledger.add_version(2, None, 2, 118.0)
        ledger.close_epoch(1, 2, 118.0)
        ledger.set_metrics(1, {"accuracy": 0.99, "accuracy_per_digit": [0.98, 1.0]})
        live(ledger, "w1", "slot-1", 100.0, 120.0, state=State.FINISHED)
        live(ledger, "w2", "slot-2", 100.0, 113.0, state=State.EVICTED, graceful=False)
        live(ledger, "w3", "slot-2", 113.0, 117.0, state=State.EVICTED, graceful=True)
        live(ledger, "w4", "slot-10", 100.0, 101.0, state=State.LOST)
        live(ledger, "w5", "slot-10", 101.0, 102.0, state=State.EVICTED, cancelled=True)
        ledger.worker_submitted("w6", 119.0)  # never started
        ledger.worker_reported(Sync("w1", trained=1800, train_s=9.0), 118.0, 5000)
        ledger.worker_reported(Sync("w2", trained=450, train_s=2.25), 112.0, 700)
        ledger.worker_sent("w1", 9000, 118.0)
        lease = LeaseState(1, 1, 0, 0, 9, 2, "w4")
        ledger.add_failure(lease, "slot-4", Failure(1, 1, "ValueError: no", "", 3, 7), "another worker will try", 100.5)
        ledger.set("status", "finished")
        ledger.set("ended_s", 120.0)
        ledger.set("flops_per_vertex", 1e6)
    ledger.close()
    return tmp_path / "run"


def test_it_is_exact_on_a_run_that_lost_nothing(finished: Path) -> None:
    shown = report(finished)
    assert [(e.epoch, e.credited, e.duplicated, e.lost, e.left, e.wasted) for e in shown.epochs] == [
        (1, 1000, 0, 0, 0, 0),
        (2, 1000, 0, 0, 0, 250),
    ]
    assert (shown.status, shown.vertices, shown.epochs_wanted, shown.credited) == ("finished", COUNT, 2, 2000)
    assert (shown.pushes, shown.versions, shown.staleness) == (4, 3, 1.0)
    assert [e.staleness for e in shown.epochs] == [2.0, 0.0]
    assert [e.closed_s for e in shown.epochs] == [10.0, 18.0]


def test_kills_are_distinguished_from_crashes_and_cancellations(finished: Path) -> None:
    shown = report(finished)
    assert (shown.workers, shown.lives, shown.kills, shown.sigterm, shown.sigkill, shown.crashed) == (3, 5, 2, 1, 1, 1)
    assert [(m.machine, m.workers, m.sigterm, m.sigkill) for m in shown.machines] == [
        ("slot-1", 1, 0, 0),
        ("slot-2", 2, 1, 1),
        ("slot-10", 2, 0, 0),
    ]


def test_who_failed_and_was_avoided_is_in_the_report(finished: Path) -> None:
    ledger = Ledger(finished / "ledger.db", shared_disk=False)
    with ledger.transaction():
        ledger.worker_failed("w4", 4, 130.0, "failed 4 times in a row; no lease for 2 s")
    ledger.close()
    shown = report(finished).to_json()
    assert [(f["worker"], f["machine"], f["reason"]) for f in shown["failures"]] == [
        ("w4", "slot-4", "another worker will try")
    ]
    because = "failed 4 times in a row; no lease for 2 s"
    assert shown["avoided"] == [{"worker": "w4", "machine": "slot-10", "failures": 4, "because": because}]


def test_who_is_trusted_no_more_is_in_the_report_and_in_the_status(finished: Path) -> None:
    ledger = Ledger(finished / "ledger.db", shared_disk=False)
    with ledger.transaction():
        ledger.quarantine("w4", "it pushed [red]zeros", 112.0)
        ledger.machine_failed(MachineRecord("slot-10", 0, 4, 115.0, "w4: it pushed zeros"))
    ledger.close()
    shown = report(finished)
    assert [(each.worker, each.machine) for each in shown.quarantined] == [("w4", "slot-10")]
    assert [(each.machine, each.for_good) for each in shown.avoided_machines] == [("slot-10", True)]
    quarantine = "w4 on slot-10 is in quarantine for the rest of the run: it pushed [red]zeros"
    avoided = "slot-10 is avoided for the rest of the run, while others work elsewhere: w4: it pushed zeros"
    for verb in ("report", "status", "watch"):
        text = " ".join(CliRunner().invoke(command_line(), [verb, str(finished)]).output.split())
        assert quarantine in text and avoided in text
        answer = CliRunner().invoke(command_line(), [verb, str(finished), "--json"]).output
        assert '"quarantined"' in answer and '"avoided_machines"' in answer and "it pushed zeros" in answer


def test_pushes_that_were_not_taken_as_they_came_are_counted_by_worker(finished: Path) -> None:
    ledger = Ledger(finished / "ledger.db", shared_disk=False)
    with ledger.transaction():
        for how, at_s in ((Alteration.SHORTENED, 101.0), (Alteration.SHORTENED, 103.0), (Alteration.LEFT_OUT, 104.0)):
            ledger.add_altered("w4", how, 50, f"{how} [red]once", at_s)
        ledger.add_altered("w1", Alteration.CLIPPED, 200, "the rule clipped it", 102.0)
        assert ledger.add_altered("w1", Alteration.REFUSED, 7, "its lease has ended", 105.0) == 1
    ledger.close()
    shown = report(finished)
    assert [dataclasses.astuple(each) for each in shown.altered_pushes] == [
        ("w1", "slot-1", 0, 1, 0, 0, 1, 207, "its lease has ended"),
        ("w4", "slot-10", 2, 0, 1, 0, 0, 150, "left out [red]once"),
    ]
    lines = CliRunner().invoke(command_line(), ["report", str(finished)]).output.splitlines()
    assert "altered  2 shortened, 1 clipped, 1 partly left out, 1 refused" in lines
    assert ["w4", "slot-10", "2", "0", "1", "0", "0", "150", "left", "out", "[red]once"] in [
        line.split() for line in lines
    ]
    answer = json.loads(CliRunner().invoke(command_line(), ["report", str(finished), "--json"]).output)
    assert answer["altered_pushes"][1]["left_out"] == 1


def test_a_run_whose_pushes_were_all_taken_says_nothing_of_it(finished: Path) -> None:
    assert report(finished).altered_pushes == []
    assert "altered" not in CliRunner().invoke(command_line(), ["report", str(finished)]).output


@pytest.mark.parametrize(("trained", "train_s"), [(1, 1e9), (1, 1.0), (2**53 - 1, 1e9), (2**53 - 1, 1e-320)])
def test_a_liar_has_been_busy_for_no_longer_than_it_lived(finished: Path, trained: int, train_s: float) -> None:
    """Regression: a worker that reported years of training made a goodput of millions out of 0.26."""
    before = report(finished).goodput
    assert before is not None
    ledger = Ledger(finished / "ledger.db", shared_disk=False)
    with ledger.transaction():
        ledger._db.execute("UPDATE workers SET trained = ?, train_s = ? WHERE worker = 'w2'", (trained, train_s))
    ledger.close()
    honest_s, lived_s = 1900 * 9.0 / 1800, 13.0
    shown = report(finished).goodput
    assert shown is not None and honest_s / 39.0 <= shown <= (honest_s + lived_s) / 39.0
    with opened(finished) as db:
        assert read_progress(db, 120.0).goodput == pytest.approx(shown), "both views say the same"


def test_speed_is_counted_from_credited_work(finished: Path) -> None:
    shown = report(finished)
    assert (shown.wall_s, shown.worker_s) == (20.0, 20.0 + 13.0 + 4.0 + 1.0 + 1.0)
    assert shown.goodput == pytest.approx(2000 * (11.25 / 2250) / 39.0)
    assert shown.flops == pytest.approx(1e6 * 2000 / 20.0)
    assert (shown.bytes_up, shown.bytes_down) == (5700, 9000)


def test_what_is_credited_twice_or_never_shows(finished: Path) -> None:
    ledger = Ledger(finished / "ledger.db", shared_disk=False)
    with ledger.transaction():
        twice = "INSERT INTO credits VALUES (?, ?, ?, 9, 9, 'w9', 0, 119)"
        ledger._db.execute(twice, (0, 300, 500))  # across the border of two credits
        ledger._db.execute(twice, (0, 300, 500))
        ledger._db.execute("DELETE FROM credits WHERE epoch = 1 AND start = 0")
    ledger.close()
    first, second = report(finished).epochs
    assert (first.credited, first.duplicated, first.lost) == (1400, 400, 0)
    assert (second.credited, second.duplicated, second.lost) == (900, 0, 100)


def test_what_is_missing_in_an_open_epoch_is_left_not_lost(tmp_path: Path) -> None:
    ledger = begin(tmp_path)
    with ledger.transaction():
        ledger.open_epoch(0, COUNT, 100.0)
        credit(ledger, 110.0, (0, 250))
        live(ledger, "w1", "slot-1", 101.0, None)
    with driven(tmp_path):
        shown = report(tmp_path, now=121.0)  # while the ledger is open for writing
    ledger.close()
    assert (shown.status, shown.wall_s, shown.worker_s) == ("running", 21.0, 20.0)
    assert (shown.epochs[0].credited, shown.epochs[0].lost, shown.epochs[0].left) == (250, 0, 750)
    assert shown.flops is None and shown.goodput is None


def test_a_run_without_a_master_stands_at_its_last_sign(tmp_path: Path) -> None:
    ledger = begin(tmp_path)
    with ledger.transaction():
        ledger.open_epoch(0, COUNT, 100.0)
        live(ledger, "w1", "slot-1", 101.0, None)
        ledger.event(140.0, "warning", "the last thing it wrote")
    ledger.close()
    shown = report(tmp_path, now=10_000.0)
    assert (shown.status, shown.wall_s, shown.worker_s) == ("stopped", 40.0, 39.0)


def test_time_without_a_master_is_not_time_of_the_run(tmp_path: Path) -> None:
    ledger = begin(tmp_path, gaps=[[110.0, 1110.0], [1120.0, 1150.0]], status="finished", ended_s=1160.0)
    with ledger.transaction():
        ledger.open_epoch(0, COUNT, 100.0)
        credit(ledger, 1155.0, (0, COUNT))
        ledger.close_epoch(0, 1, 1155.0)
    ledger.close()
    shown = report(tmp_path)
    assert (shown.wall_s, shown.epochs[0].closed_s) == (30.0, 25.0)


def test_the_reason_of_a_failure_is_shown_until_the_run_is_resumed(tmp_path: Path) -> None:
    ledger = begin(tmp_path, status="failed", stopped_because="train failed 3 times")
    with ledger.transaction():
        ledger.open_epoch(0, COUNT, 100.0)
    assert report(tmp_path).stopped_because == "train failed 3 times"
    with ledger.transaction():
        ledger.set("status", "finished")
    ledger.close()
    assert report(tmp_path).stopped_because is None


def test_json_has_the_promised_keys(finished: Path) -> None:
    shown = json.loads(json.dumps(report(finished).to_json()))
    assert {"program", "backend", "vertices", "workers", "kills", "wall_s", "worker_s", "goodput", "flops"} < {*shown}
    for epoch in shown["epochs"]:
        assert {"epoch", "credited", "duplicated", "lost", "wasted", "metrics"} < {*epoch}
    assert shown["program"] == "digits.py" and shown["backend"] == "local" and shown["kills"] == 2


def test_a_person_sees_kills_epochs_and_each_digit_in_80_columns(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(finished / "ledger.db", shared_disk=False)
    with ledger.transaction():
        ledger.set_metrics(1, {"accuracy": 0.99, "accuracy_per_digit": [0.98 + digit / 1234 for digit in range(10)]})
    ledger.close()
    monkeypatch.chdir(finished.parent)  # the long path of the test would take the columns
    out = io.StringIO()
    Console(file=out, width=80).print(render_report(report(Path(finished.name))))
    shown = out.getvalue()
    kills = "2: 1 by SIGTERM, 1 by SIGKILL, and 1 crashed"
    for expected in ("digits.py", kills, "0.99", "250", "slot-10", "accuracy_per_digit after epoch 2", "0.9873"):
        assert expected in shown, f"{expected!r} is not in:\n{shown}"
    assert "…" not in shown  # nothing was cut off


def test_reading_leaves_no_trace(finished: Path) -> None:
    before = {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in finished.iterdir()}
    report(finished)
    assert {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in finished.iterdir()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_run_in_a_folder_that_cannot_be_written_is_readable(finished: Path) -> None:
    finished.chmod(0o500)
    try:
        assert report(finished).credited == 2000
    finally:
        finished.chmod(0o700)


def test_what_is_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is not a run"):
        report(tmp_path)


def test_a_damaged_ledger_is_named(finished: Path) -> None:
    (finished / "ledger.db").write_bytes(b"not a database, and long enough to be looked at as one " * 100)
    with pytest.raises(LedgerError, match=r"ledger\.db cannot be read"):
        report(finished)


def test_figures_are_drawn(finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_report(report(finished), finished, tmp_path / "run.svg")
    drawn = (tmp_path / "run.svg").read_text()
    assert "<svg" in drawn and drawn.count("<path") > 20


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 12)).map(lambda t: (t[0], t[1], t[1] + t[2]))
    )
)
def test_coverage_is_that_of_counting_each_vertex(intervals: list[tuple[int, int, int]]) -> None:
    counts = np.zeros((3, 50), np.int64)
    for epoch, start, stop in intervals:
        counts[epoch, start:stop] += 1
    lengths, unions = coverage(np.array(intervals, np.int64).reshape(-1, 3), 3)
    assert lengths.tolist() == counts.sum(1).tolist()
    assert unions.tolist() == (counts > 0).sum(1).tolist()


def test_a_million_credits_are_counted_fast() -> None:
    start = np.random.default_rng(0).permutation(1_000_000) * 10
    credits = np.stack([np.zeros_like(start), start, start + 10], axis=1)
    began = time.process_time()
    lengths, unions = coverage(credits, 1)
    assert time.process_time() - began < 5.0
    assert lengths[0] == unions[0] == 10_000_000


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.34, "7.3 s"), (125, "2:05 min"), (3599.6, "1:00:00 h"), (3723, "1:02:03 h")]
)
def test_durations_are_for_reading(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_starting_run_is_distinguished_from_none(tmp_path: Path) -> None:
    with driven(tmp_path), pytest.raises(LedgerError, match="has not begun yet: pid 12 on host"):
        report(tmp_path)
