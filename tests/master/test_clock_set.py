"""Durations (silence, lives, reports) are measured by a monotonic clock, whatever happens to the wall clock."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from master.launch import resume, start
from master.ports.environment import Environment, SteadyClock
from master.run import MasterRun
from master.state.jobs import Backend, JobEvent, State
from master.store import reader
from master.store.journal import AHEAD, set_by
from master.store.reader import opened, read_now
from master.store.settings import Settings
from master.views.report import report

PROGRAM = Path(__file__).parents[1] / "programs" / "slow_count.py"
BEGAN_S = 1.7e9  # of the wall clock
HOUR_S = 3600.0
SILENT_S = 120.0


class Silent(Backend):
    """A back end whose workers run without any event."""

    name = "silent"

    def __init__(self) -> None:
        self.events: list[JobEvent] = []
        self.cancelled: list[str] = []

    def submit(self, worker: str) -> None:
        self.events += [JobEvent(0.0, worker, State.QUEUED), JobEvent(0.0, worker, State.RUNNING, "slot-1")]

    def poll(self) -> list[JobEvent]:
        events, self.events = self.events, []
        return events

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        self.cancelled.append(worker)

    def close(self) -> None:
        """Do nothing: it has no jobs."""


@dataclass
class Machine:
    """The clocks of a machine: time passes on both, but only the wall clock can be set."""

    passed_s: float = 0.0
    set_s: float = 0.0
    backend: Silent = field(default_factory=Silent)

    def wall(self) -> float:
        return BEGAN_S + self.passed_s + self.set_s

    def monotonic(self) -> float:
        return 77.0 + self.passed_s

    def environment(self) -> Environment:
        clock = SteadyClock(self.wall, self.monotonic)
        return Environment(lambda settings, directory: self.backend, clock=clock, wall=self.wall, durable=False)

    def turns(self, run: MasterRun, seconds: float) -> None:
        """Run turns of the master, one per second."""
        for _ in range(round(seconds)):
            self.passed_s += 1.0
            run.step()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(reader.time, "time", machine.wall)  # what another process sees
    return machine


@pytest.fixture
def begin(tmp_path: Path, machine: Machine) -> Callable[[], MasterRun]:
    program = Path(shutil.copy(PROGRAM, tmp_path / "program.py"))
    settings = Settings(program, workers=1, silent_s=SILENT_S)
    return lambda: start(settings, tmp_path / "run", machine.environment())


@contextmanager
def driven(run: MasterRun) -> Iterator[None]:
    """A run with one worker that has just started."""
    with run:
        run.step()
        run.step()
        yield


def silent(run: MasterRun) -> int:
    """Return the number of workers that were given up."""
    return sum(topic == "silent" for topic in topics(run))


def topics(run: MasterRun) -> list[str]:
    with opened(run.parts.directory.root) as db:
        return [topic for (topic,) in db.execute("SELECT topic FROM events ORDER BY rowid")]


def test_a_clock_that_is_set_changes_no_duration() -> None:
    machine = Machine()
    clock = SteadyClock(machine.wall, machine.monotonic)
    for machine.set_s in (0.0, -HOUR_S, 24 * HOUR_S):
        machine.passed_s += 10.0
        assert clock() == BEGAN_S + machine.passed_s


def test_silence_is_noticed_in_time_by_a_clock_that_was_set_back(
    begin: Callable[[], MasterRun], machine: Machine
) -> None:
    with driven(run := begin()):
        machine.turns(run, 60)
        machine.set_s = -HOUR_S
        machine.turns(run, SILENT_S - 61)
        assert not silent(run)
        machine.turns(run, 2)
        assert silent(run) == 1
        assert machine.backend.cancelled[:1] == ["w1"]


def test_no_worker_is_given_up_by_a_clock_that_was_set_forward(
    begin: Callable[[], MasterRun], machine: Machine
) -> None:
    with driven(run := begin()):
        machine.turns(run, 10)
        machine.set_s = HOUR_S
        machine.turns(run, SILENT_S / 2)
        assert not silent(run)


@pytest.mark.parametrize("set_s", [-HOUR_S, HOUR_S])
def test_a_report_tells_how_long_it_was(begin: Callable[[], MasterRun], machine: Machine, set_s: float) -> None:
    """Another process, which has only the wall clock, reports the same."""
    with driven(run := begin()):
        machine.turns(run, 20)
        machine.set_s = set_s
        machine.turns(run, 30)
        figures = report(run.parts.directory.root)
        assert figures.wall_s == pytest.approx(50.0)
        assert figures.worker_s == pytest.approx(50.0)
        said = [text for text in run.parts.directory.events.read_text().splitlines() if "clock was set" in text]
        assert len(said) == 1 and "3,600 s" in said[0]


def test_the_next_master_goes_on_after_the_last_sign(begin: Callable[[], MasterRun], machine: Machine) -> None:
    with begin() as first:
        root = first.parts.directory.root
    machine.set_s = -HOUR_S
    machine.passed_s += 5.0
    with driven(run := resume(root, machine.environment())):
        machine.turns(run, 30)
        with opened(root) as db:
            ahead_s = json.loads(db.execute("SELECT value FROM run WHERE key = ?", (AHEAD,)).fetchone()[0])
            assert ahead_s == pytest.approx(HOUR_S - 5.0)
            assert read_now(db) == pytest.approx(BEGAN_S + 30.0)
        assert report(root).worker_s == pytest.approx(30.0)
        machine.turns(run, SILENT_S)
        assert silent(run) == 1


@pytest.mark.parametrize(
    ("ahead_s", "before_s", "forward_s", "words"),
    [
        (0.5, 0.0, 0.0, "not set"),
        (HOUR_S, 0.0, -HOUR_S, "set back by 3,600 s"),
        (-HOUR_S, 0.0, HOUR_S, "set forward by 3,600 s"),
        (0.0, HOUR_S, HOUR_S, "or it slept"),
    ],
)
def test_how_far_it_was_set(ahead_s: float, before_s: float, forward_s: float, words: str) -> None:
    got, what = set_by(ahead_s, before_s)
    assert got == forward_s and words in what
