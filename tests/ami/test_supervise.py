"""A real process that the daemon supervises."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from ami.daemon import supervise
from ami.decisions import EventQueue, LeaveInstance, WorkerExited

pytestmark = pytest.mark.real


def run(source: str, tmp_path: Path, events: EventQueue, lines: list[str], grace_s: float = 20.0) -> WorkerExited:
    environment = {"PATH": os.environ["PATH"]}
    return supervise([sys.executable, "-uc", source], tmp_path, environment, events, grace_s, lines.append)


class Lines(list[str]):
    """The output of a worker; queues an event after a given line."""

    def __init__(self, events: EventQueue, line: str, event: LeaveInstance) -> None:
        super().__init__()
        self._events, self._line, self._event = events, line, event

    def append(self, line: str) -> None:
        super().append(line)
        if line == self._line:
            self._events.put(self._event)


def test_a_worker_that_ends_by_itself(tmp_path: Path) -> None:
    lines: list[str] = []
    source = "import sys; print('one'); print('Unfit: no\\x1b torch', file=sys.stderr); sys.exit(69)"
    assert run(source, tmp_path, EventQueue(), lines) == WorkerExited(69, "one\nUnfit: no\\x1b torch")
    assert lines == ["one", "Unfit: no\\x1b torch"]


def test_a_notice_lets_it_end_in_order(tmp_path: Path) -> None:
    events = EventQueue()
    notice = LeaveInstance("spot interruption", evicted=True)
    source = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('pushed'), sys.exit(0)))\n"
        "print('trains')\n"
        "while True: signal.pause()"
    )
    assert run(source, tmp_path, events, Lines(events, "trains", notice)) == WorkerExited(0, "trains\npushed")
    assert events.leave == notice


def test_one_that_does_not_heed_it_is_killed(tmp_path: Path) -> None:
    events = EventQueue()
    source = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); signal.pause()"
    lines = Lines(events, "deaf", LeaveInstance("the instance is shutting down"))
    assert run(source, tmp_path, events, lines, grace_s=0.1).status == -9
    assert "it is killed" in lines[-1]


def test_a_second_notice_gives_no_more_time(tmp_path: Path) -> None:
    """After a notice and a later system shutdown, the worker is killed when the first grace period is over."""

    class Timed(EventQueue):
        """Shut the system down again after each wait for the rest of the grace period, half a minute later."""

        now_s = 0.0

        def get(self, within_s: float | None = None) -> LeaveInstance | WorkerExited | None:
            if within_s is None:
                return super().get()
            rests.append(within_s)
            self.now_s += min(30.0, within_s)
            return LeaveInstance("the instance is shutting down")

    events, rests = Timed(), list[float]()
    source = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); signal.pause()"
    lines = Lines(events, "deaf", LeaveInstance("spot interruption", evicted=True))
    command, environment = [sys.executable, "-uc", source], {"PATH": os.environ["PATH"]}
    ended = supervise(command, tmp_path, environment, events, 75.0, lines.append, lambda: events.now_s)
    assert ended.status == -9 and rests == [75.0, 45.0, 15.0]


def test_what_was_said_before_it_began_counts(tmp_path: Path) -> None:
    events = EventQueue()
    events.put(LeaveInstance("the instance is shutting down"))
    assert run("import signal; signal.pause()", tmp_path, events, []).status == -15


def test_its_environment_is_what_it_is_given(tmp_path: Path) -> None:
    source = "import os; print(sorted(name for name in os.environ if name not in ('LC_CTYPE', 'PATH')))"
    assert run(source, tmp_path, EventQueue(), []) == WorkerExited(0, "[]")


def test_no_such_program(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(OSError):
        supervise([str(tmp_path / "none")], tmp_path, {}, EventQueue(), 1.0, print)
    assert threading.active_count() == before
