"""A run for pages: two epochs on three workers, one of which was lost, with metrics, logged values and odd events."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridml.protocol.messages import Failure, Logged, Sync
from master.state.failures import Alteration
from master.state.jobs import JobEvent, State
from master.store.ledger import Ledger
from master.store.rundir import RunDirectory
from master.store.settings import Settings, write_settings

COUNT = 1000
ODD = '</script><img src=x onerror="document.title=1"> {{data}} \u2028'


def begin(root: Path, program: str = "digits.py") -> Ledger:
    """A run of two epochs of 1,000 vertices that began at second 100."""
    root.mkdir()
    write_settings(RunDirectory(root), Settings(program=root / program, workers=3))
    ledger = Ledger(root / "ledger.db", shared_disk=False, create=True)
    with ledger.transaction():
        for key, value in {"started_s": 100.0, "status": "running", "total": 2 * COUNT, "masters": 1}.items():
            ledger.set(key, value)
        ledger.add_version(0, None, 0, 100.0)
    return ledger


def train_epoch(ledger: Ledger, epoch: int, at_s: float, accuracy: float, chunk: int = 250) -> None:
    """Credit an epoch in chunks, one a second from `at_s` on, by two workers in turn."""
    ledger.open_epoch(epoch, COUNT, at_s)
    version = ledger.newest_version()[0]
    for i, start in enumerate(range(0, COUNT, chunk)):
        span = next(s for s in ledger.spans if s.epoch == epoch and s.start == start)
        reason = "sized for its life" if i else "the first chunk"
        lease = ledger.lease(span, start + chunk, f"w{1 + i % 2}", at_s + i, reason)
        version += 1
        ledger.credit(lease, start + chunk, version, float(i), at_s + i + 1, [Logged("loss", 0.5 * chunk, chunk)])
        ledger.add_version(version, None, 1, at_s + i + 1)
        ledger.end_lease(lease, at_s + i + 1, "trained to its end")
    ledger.close_epoch(epoch, version, at_s + COUNT / chunk)
    ledger.set_metrics(epoch, {"accuracy": accuracy, "accuracy_per_digit": [0.5, accuracy]})


def live(ledger: Ledger, worker: str, began_s: float, ended_s: float, state: State) -> None:
    ledger.worker_submitted(worker, began_s)
    ledger.worker_event(JobEvent(began_s, worker, State.RUNNING, "slot-1"), began_s)
    ledger.worker_event(JobEvent(ended_s, worker, state, "slot-1"), ended_s)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run from second 100 to second 110."""
    root = tmp_path / "run"
    ledger = begin(root)
    with ledger.transaction():
        live(ledger, "w1", 100.0, 110.0, State.FINISHED)
        live(ledger, "w2", 100.0, 109.0, State.FINISHED)
        live(ledger, "w3", 101.0, 103.0, State.EVICTED)
        train_epoch(ledger, 0, 100.0, 0.9)
        train_epoch(ledger, 1, 104.0, 0.99)
        ledger.worker_reported(Sync("w1", trained=1000, train_s=4.0), 108.0, 5000)
        ledger.worker_reported(Sync("w3", trained=100, train_s=1.0), 102.0, 300)
        ledger.worker_sent("w1", 9000, 108.0)
        ledger.event(100.0, "submitted", "w1 to w3")
        ledger.event(103.0, "evicted", ODD)
        ledger.set("status", "finished")
        ledger.set("ended_s", 110.0)
    ledger.close()
    return root


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A failed run whose folder, program, metrics, vertex type, machine, worker and exception would each run a script
    if they were taken as HTML."""
    bad = "<img src=x onerror=document.title=1>"
    root = tmp_path / f"run {bad}"
    ledger = begin(root, f"{bad}.py")
    with ledger.transaction():
        live(ledger, f"w1{bad}", 100.0, 109.0, State.EVICTED)
        train_epoch(ledger, 0, 100.0, 0.9)
        metrics = {f"loss{bad}": 0.5, f"list{bad}": [0.5, 0.6], "__proto__": 0.1, f"words{bad}": bad}
        ledger.set_metrics(0, metrics)
        ledger.quarantine(f"w1{bad}", bad, 106.0)
        ledger.add_altered(f"w1{bad}", Alteration.SHORTENED, 5, bad, 106.0)
        failure = Failure(1, 1, f"Image{bad}: ValueError: {bad}", f"Traceback: {bad}", 3, 4)
        ledger.open_epoch(1, COUNT, 104.0)
        lease = ledger.lease(ledger.spans[-1], 250, f"w1{bad}", 104.0, f"sized {bad}")
        ledger.add_failure(lease, f"slot{bad}", failure, f"left out {bad}", 105.0)
        ledger.event(101.0, f"failed{bad}", bad)
        ledger.event(102.0, "sizing", f"{bad}. {bad}")
        for key, value in {"status": "failed", "stopped_because": f"f failed: {bad}", "ended_s": 110.0}.items():
            ledger.set(key, value)
    ledger.close()
    return root
