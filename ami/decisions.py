"""The next step of an instance's daemon, as pure functions of what it knows, and the events it waits for.

The events: the instance is to leave, and its worker has ended.
"""

from __future__ import annotations

import argparse
import queue
from collections.abc import Sequence
from dataclasses import dataclass

from gridml.errors import RunError
from gridml.protocol.outbox import SAVED

SHORT_RUN_S = 60.0  # a worker that ends sooner did not get to work
MAX_SHORT_RUNS = 3  # as many in a row, and another will not do better
MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0


@dataclass(frozen=True)
class WorkerEnd:
    """The end of a worker process, as the daemon saw it."""

    status: int
    lived_s: float
    last_line: str = ""  # the last line that the worker wrote
    stop_reason: str | None = None  # why the daemon stopped it; None where it ended by itself
    short_runs: int = 0  # consecutive workers before it that ended within `SHORT_RUN_S`


def is_followed(end: WorkerEnd) -> tuple[bool, str]:
    """Whether the master is asked again after the end of a worker, and another starts in the same folder; and why."""
    last_line = f": {end.last_line}" if end.last_line else ""
    if end.stop_reason is not None:
        return False, end.stop_reason
    if end.status not in (SAVED, RunError.exit_status):
        return False, f"the worker ended with status {end.status}{last_line}"
    if end.lived_s < SHORT_RUN_S and end.short_runs + 1 >= MAX_SHORT_RUNS:
        return False, f"{MAX_SHORT_RUNS} workers ended within {SHORT_RUN_S:.0f} s, with status {end.status} at last"
    if end.status == SAVED:
        return True, "the worker had no answer for long, and kept its push"
    return True, f"the worker could not reach the master{last_line}"


def last_contact_s(end: WorkerEnd, ended_s: float, arguments: Sequence[str], before_s: float) -> float:
    """When the master was last heard, as far as the end of a worker at `ended_s` tells; `before_s` is what was known
    before. A worker that saved its push had no answer for its --patience; one that never reached the master tells
    nothing."""
    if end.status == RunError.exit_status:
        return before_s
    silent_s = patience_s(arguments) if end.status == SAVED else 0.0
    return max(before_s, ended_s - silent_s)


def patience_s(arguments: Sequence[str]) -> float:
    """The worker's --patience in seconds, 0 where it has none."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--patience", type=float, default=0.0)
    try:
        return max(0.0, float(parser.parse_known_args(arguments)[0].patience))
    except argparse.ArgumentError:
        return 0.0


def orphan_reason(silent_s: float, orphan_s: float) -> str | None:
    """Why an instance whose master has been silent for `silent_s` is to end itself; None while it may go on."""
    if silent_s < orphan_s:
        return None
    return f"nothing was heard from the master for {silent_s:.0f} s, and {orphan_s:.0f} s are allowed"


def pause_s(attempt: int, draw: float) -> float:
    """Seconds after attempt `attempt` (from 1) has failed: doubled each time up to a limit, and spread by `draw`,
    uniform in [0, 1), so that a fleet does not knock all at once."""
    longest = min(MAX_PAUSE_S, MIN_PAUSE_S * 2.0 ** min(attempt - 1, 30))
    return longest * (0.5 + 0.5 * draw)


@dataclass(frozen=True)
class LeaveInstance:
    """The instance is to stop working; `evicted` where EC2 takes it, whatever it does."""

    why: str
    evicted: bool = False


@dataclass(frozen=True)
class WorkerExited:
    """The worker's process has ended, with its exit status and the last lines that it wrote."""

    status: int
    output: str

    @property
    def last_line(self) -> str:
        """The last of the lines."""
        return self.output.rpartition("\n")[2]


class EventQueue:
    """Said by signal handlers and threads, heard by the daemon's one loop. That it is to leave stays said."""

    def __init__(self) -> None:
        # Its put() may interrupt itself and get(), which an Event's set() in a signal handler may not.
        self._queue: queue.SimpleQueue[LeaveInstance | WorkerExited] = queue.SimpleQueue()
        self._leave: LeaveInstance | None = None
        self._going_down = False

    @property
    def going_down(self) -> bool:
        """Whether the system is: somebody said so who is not EC2's notice."""
        return self.leave is not None and self._going_down

    @property
    def leave(self) -> LeaveInstance | None:
        """That the instance is to leave, None as long as nobody has said so. Not for while a worker runs: it would not
        be heard to end."""
        while True:
            try:
                self._keep(self._queue.get_nowait())
            except queue.Empty:
                return self._leave

    def put(self, event: LeaveInstance | WorkerExited) -> None:
        self._queue.put(event)

    def get(self, within_s: float | None = None) -> LeaveInstance | WorkerExited | None:
        """The next word; None when none comes within so many seconds."""
        try:
            event = self._queue.get(timeout=within_s)
        except queue.Empty:
            return None
        self._keep(event)
        return event

    def pause(self, seconds: float) -> LeaveInstance | None:
        """Let so much time pass, or less where the instance is to leave: then return that."""
        return self.leave or (self._leave if self.get(seconds) else None)

    def _keep(self, event: LeaveInstance | WorkerExited) -> None:
        if not isinstance(event, LeaveInstance):
            return
        self._going_down = self._going_down or not event.evicted
        if self._leave is None or event.evicted:  # a notice tells more than a signal
            self._leave = event
