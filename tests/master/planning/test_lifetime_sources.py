"""Lives from every source: values, censoring, and rejected input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chunk_model.families import Exponential, Normal
from gridml.errors import LedgerError, UsageError
from gridml.protocol.messages import Sync
from master.backends.condor.options import CondorOptions
from master.planning.lifetime_sources import estimate_lifetime, run_lives
from master.planning.options import LifetimeSource
from master.state.jobs import JobEvent, State
from master.store.ledger import Ledger
from master.store.rundir import ORPHANED, RunDirectory
from master.store.settings import Settings, write_settings

BEGAN = 1000.0


def begin(root: Path, *, settings: Settings | None = None, **facts: object) -> Ledger:
    """A run with a ledger that began at second 1000."""
    root.mkdir(exist_ok=True)
    settings = settings or Settings(program=root / "digits.py", workers=3)
    write_settings(RunDirectory(root), settings)
    ledger = Ledger(root / "ledger.db", shared_disk=False, create=True, durable=False)
    with ledger.transaction():
        for key, value in {"started_s": BEGAN, "status": "finished", "ended_s": BEGAN + 100, **facts}.items():
            ledger.set(key, value)
    return ledger


def live(ledger: Ledger, worker: str, began_s: float, ended_s: float | None, state: State, **how: object) -> None:
    """A worker's life from `began_s` to `ended_s` of the run; `how` are fields of its last event."""
    with ledger.transaction():
        ledger.worker_submitted(worker, BEGAN + began_s)
        ledger.worker_event(JobEvent(0.0, worker, State.RUNNING), BEGAN + began_s)
        if ended_s is not None:
            event = JobEvent(0.0, worker, state, **how)  # type: ignore[arg-type]
            ledger.worker_event(event, BEGAN + ended_s)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A finished run with a worker for each kind of end."""
    ledger = begin(tmp_path / "run")
    live(ledger, "killed", 0, 10, State.EVICTED, graceful=False)
    live(ledger, "warned", 0, 20, State.EVICTED, graceful=True)
    live(ledger, "crashed", 5, 35, State.LOST, exit_code=1)
    live(ledger, "done", 0, 40, State.FINISHED)
    live(ledger, "cancelled", 0, 50, State.EVICTED, cancelled=True)
    live(ledger, "orphan", 0, 60, State.LOST, detail=ORPHANED)
    live(ledger, "living", 30, None, State.RUNNING)
    with ledger.transaction():
        ledger.worker_submitted("queued", BEGAN)
        ledger.open_epoch(0, 5000, BEGAN)
        ledger.worker_reported(Sync("killed", trained=300, train_s=6.0), BEGAN + 9, 0)
        ledger.worker_reported(Sync("done", trained=100, train_s=6.0), BEGAN + 39, 0)
    ledger.close()
    return tmp_path / "run"


def test_a_life_ends_with_its_machine_and_is_censored_by_its_master(root: Path) -> None:
    estimate = run_lives(root)
    assert sorted(zip(estimate.observations.duration_s, estimate.observations.ended, strict=True)) == [
        (10.0, True),
        (20.0, True),
        (30.0, True),
        (40.0, False),
        (50.0, False),
        (60.0, False),
        (70.0, False),
    ]
    assert estimate.observations.end_at_s is not None and 35.0 in estimate.observations.end_at_s
    assert (estimate.exec_s, estimate.vertices, estimate.workers, estimate.many) == (0.03, 5000, 3, True)


def test_a_silent_worker_died_at_its_last_message(tmp_path: Path) -> None:
    ledger = begin(tmp_path / "run")
    for worker in ("w1", "w2", "w3"):
        live(ledger, worker, 0, 80, State.EVICTED, cancelled=True)
    with ledger.transaction():
        ledger.open_epoch(0, 100, BEGAN)
        lease = ledger.lease(ledger.spans[0], 50, "w1", BEGAN, "")
        ledger.credit(lease, 20, 1, 0.0, BEGAN + 30)
        ledger.end_lease(lease, BEGAN + 79, "nothing heard for 49 s")
        ledger.worker_reported(Sync("w2", trained=0, train_s=0.0), BEGAN + 2, 0)
        ledger.event(BEGAN + 79, "silent", "w1: nothing heard for 49 s (limit 40 s); its leases go to others")
        ledger.event(BEGAN + 79, "silent", "w2: nothing heard for 77 s (limit 40 s); its leases go to others")
    ledger.close()
    estimate = run_lives(tmp_path / "run").observations
    assert sorted(zip(estimate.duration_s, estimate.ended, strict=True)) == [(2.0, True), (30.0, True), (80.0, False)]


def test_a_run_that_goes_on_is_read_as_of_now(tmp_path: Path) -> None:
    ledger = begin(tmp_path / "run", status="running")
    live(ledger, "w1", 0, None, State.RUNNING)
    ledger.close()
    with (tmp_path / "run" / "master.lock").open("a+") as file:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
        estimate = run_lives(tmp_path / "run", now=BEGAN + 25)
    assert estimate.observations.duration_s.tolist() == [25.0] and not estimate.observations.ended.any()
    assert estimate.exec_s is None and estimate.vertices is None


@pytest.mark.parametrize(("chunks", "many"), [(0, True), (1, False), (5, True)])
def test_a_job_of_one_chunk_is_a_life_of_one_chunk(tmp_path: Path, chunks: int, many: bool) -> None:
    settings = Settings(tmp_path / "a.py", backend="condor", options=CondorOptions(chunks_per_job=chunks))
    ledger = begin(tmp_path / "run", settings=settings)
    live(ledger, "w1", 0, 9, State.EVICTED)
    ledger.close()
    assert run_lives(tmp_path / "run").many is many


def test_a_run_without_workers_and_what_is_no_run(tmp_path: Path) -> None:
    begin(tmp_path / "run").close()
    with pytest.raises(UsageError, match=r"no worker of .* has started yet"):
        run_lives(tmp_path / "run")
    with pytest.raises(LedgerError, match="is not a run"):
        estimate_lifetime(LifetimeSource(run=tmp_path))


def test_a_distribution_is_taken_as_given() -> None:
    estimate = estimate_lifetime(LifetimeSource(lifetime="normal(45m,10m)"))
    assert estimate.lifetime == Normal(2700.0, 600.0) and estimate.observations is None and estimate.selected is None


def test_lives_seen_are_fitted(tmp_path: Path) -> None:
    path = tmp_path / "lives.csv"
    path.write_text("duration_s,ended\n" + "".join(f"{60 * i},{int(i % 4 > 0)}\n" for i in range(1, 9)))
    estimate = estimate_lifetime(LifetimeSource(lifetimes=path))
    assert isinstance(estimate.lifetime, Exponential) and estimate.lifetime.mean_s == pytest.approx(36 * 60 / 6)
    assert estimate.selected is not None and estimate.selected.family == "exponential"
    assert estimate.origin == f"8 lives in {path}" and "2 went on" in estimate.selected.reason


def test_a_trace_says_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "zone.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 60}, "data": [2, 2, 0, 0, 3, 1, 1, 1, 1]}))
    estimate = estimate_lifetime(LifetimeSource(trace=path))
    assert estimate.observations is not None
    assert (estimate.observations.deaths, len(estimate.observations)) == (4, 5)
    assert estimate.origin.startswith("5 lives in ") and estimate.origin.endswith(
        "2 of them may be older than the record"
    )
    assert estimate.observations.independent_deaths == 2


def test_what_still_lives_is_censored_at_the_end_of_the_record_not_at_the_last_event(tmp_path: Path) -> None:
    path = tmp_path / "zone.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 60}, "data": [0, 1, 0, 1, *[1] * 100]}))
    estimate = estimate_lifetime(LifetimeSource(trace=path)).observations
    assert estimate is not None and estimate.ended.tolist() == [True, False]
    assert estimate.duration_s[0] < 120 and 6000 <= estimate.duration_s[1] <= 6060


@pytest.mark.parametrize(
    ("source", "got"),
    [
        (LifetimeSource(), "got none of them"),
        (LifetimeSource(lifetime="normal(1,1)", run=Path("run")), "got --lifetime and --run"),
        (LifetimeSource(lifetimes=Path("a.csv"), trace=Path("b.csv")), "got --lifetimes and --trace"),
    ],
)
def test_there_must_be_one_source(source: LifetimeSource, got: str) -> None:
    with pytest.raises(UsageError) as caught:
        estimate_lifetime(source)
    assert str(caught.value).startswith(got) and "expected exactly one source of lifetimes" in str(caught.value)


@pytest.mark.parametrize(
    ("option", "content", "says"),
    [
        ("lifetimes", "duration_s,ended\n", "lives.csv"),
        ("lifetimes", "", "lives.csv"),
        ("lifetimes", "length,dead\n5,1\n", "duration_s,ended"),
        ("lifetimes", "duration_s,ended\n5,1\n-3,1\n", "line 3"),
        ("lifetimes", "duration_s,ended\nnan,1\n", "line 2"),
        ("lifetimes", "duration_s,ended\n5,maybe\n", "line 2"),
        ("lifetimes", None, "cannot be read: No such file or directory"),
        ("trace", None, "cannot be read: No such file or directory"),
        ("trace", "", "is empty"),
        ("trace", "what is this\n", "no known format"),
        ("trace", '{"metadata": {"gap_seconds": 60}, "data": [0, 0]}', "has no lives"),
    ],
)
def test_a_file_that_makes_no_sense(tmp_path: Path, option: str, content: str | None, says: str) -> None:
    path = tmp_path / "lives.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError) as caught:
        estimate_lifetime(LifetimeSource(**{option: path}))
    assert str(caught.value).startswith(f"--{option}: ") and says in str(caught.value)


def test_a_distribution_that_makes_no_sense() -> None:
    with pytest.raises(UsageError, match=r'^--lifetime: cannot read the lifetime "soon"'):
        estimate_lifetime(LifetimeSource(lifetime="soon"))
