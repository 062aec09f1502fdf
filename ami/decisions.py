"""The decisions of the boot daemon as pure functions, and the queue of the daemon's events.

The events are a request to leave and the exit of the worker.
"""

from __future__ import annotations

import argparse
import queue
from collections.abc import Sequence
from dataclasses import dataclass

from gridml.errors import RunError
from gridml.protocol.outbox import SAVED

SHORT_RUN_S = 60.0  # a worker that ends within this time counts as a short run, which has done no work
MAX_SHORT_RUNS = 3  # after this number of short runs in a row no worker is started, because it would fail as well
MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0


@dataclass(frozen=True)
class WorkerEnd:
    """The end of a worker process, as the daemon saw it."""

    status: int
    lived_s: float
    last_line: str = ""  # the last line that the worker wrote
    stop_reason: str | None = None  # why the daemon stopped the worker; None if it ended by itself
    short_runs: int = 0  # number of workers in a row, just before this one, that ended within `SHORT_RUN_S`


def is_followed(end: WorkerEnd) -> tuple[bool, str]:
    """Return (whether another worker follows in the same folder after enrolling again, the reason)."""
    last_line = f": {end.last_line}" if end.last_line else ""
    if end.stop_reason is not None:
        return False, end.stop_reason
    if end.status not in (SAVED, RunError.exit_status):
        return False, f"the worker ended with status {end.status}{last_line}"
    if end.lived_s < SHORT_RUN_S and end.short_runs + 1 >= MAX_SHORT_RUNS:
        return False, f"{MAX_SHORT_RUNS} workers ended within {SHORT_RUN_S:.0f} s, the last with status {end.status}"
    if end.status == SAVED:
        return True, "the worker had no answer for long, and kept its push"
    return True, f"the worker could not reach the master{last_line}"


def last_contact_s(end: WorkerEnd, ended_s: float, arguments: Sequence[str], before_s: float) -> float:
    """Return the time of the last contact with the master, after a worker ended at `ended_s`. `before_s` is the time
    of the last contact before this worker.

    A worker that saved its push had waited for a reply for its --patience, so its last contact was that long ago. A
    worker that could not reach the master had no contact. Any other worker had contact until its end.
    """
    if end.status == RunError.exit_status:
        return before_s
    silent_s = patience_s(arguments) if end.status == SAVED else 0.0
    return max(before_s, ended_s - silent_s)


def patience_s(arguments: Sequence[str]) -> float:
    """Return the worker's --patience in seconds; 0 without one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--patience", type=float, default=0.0)
    try:
        return max(0.0, float(parser.parse_known_args(arguments)[0].patience))
    except argparse.ArgumentError:
        return 0.0


def orphan_reason(silent_s: float, orphan_s: float) -> str | None:
    """Return the reason to end an instance whose master has been silent for `silent_s`; None to continue."""
    if silent_s < orphan_s:
        return None
    return f"nothing was heard from the master for {silent_s:.0f} s, and {orphan_s:.0f} s are allowed"


def pause_s(attempt: int, draw: float) -> float:
    """Return the back-off in seconds after failed attempt `attempt` (from 1): exponential up to `MAX_PAUSE_S`, with
    jitter by `draw`, uniform in [0, 1), so that the instances of a fleet do not retry all at once."""
    longest = min(MAX_PAUSE_S, MIN_PAUSE_S * 2.0 ** min(attempt - 1, 30))
    return longest * (0.5 + 0.5 * draw)


@dataclass(frozen=True)
class LeaveInstance:
    """A request to stop working."""

    why: str
    evicted: bool = False  # True: EC2 gave notice that it reclaims the instance; False: the system shuts down


@dataclass(frozen=True)
class WorkerExited:
    """The exit of the worker process."""

    status: int
    output: str  # the last lines that it wrote

    @property
    def last_line(self) -> str:
        """The last line of the output."""
        return self.output.rpartition("\n")[2]


class EventQueue:
    """Passes events from signal handlers and threads to the daemon's loop. A request to leave is never forgotten."""

    def __init__(self) -> None:
        # SimpleQueue is reentrant: a signal handler can call put() while put() or get() runs. Event.set() is not.
        self._queue: queue.SimpleQueue[LeaveInstance | WorkerExited] = queue.SimpleQueue()
        self._leave: LeaveInstance | None = None
        self._going_down = False

    @property
    def going_down(self) -> bool:
        """True if a signal announced that the system shuts down; a notice of EC2 alone does not count."""
        return self.leave is not None and self._going_down

    @property
    def leave(self) -> LeaveInstance | None:
        """The request to leave, None without one. Do not read this while a worker runs, because reading empties the
        queue and so discards `WorkerExited`."""
        while True:
            try:
                self._keep(self._queue.get_nowait())
            except queue.Empty:
                return self._leave

    def put(self, event: LeaveInstance | WorkerExited) -> None:
        self._queue.put(event)

    def get(self, within_s: float | None = None) -> LeaveInstance | WorkerExited | None:
        """Return the next event; None if none comes within `within_s` seconds."""
        try:
            event = self._queue.get(timeout=within_s)
        except queue.Empty:
            return None
        self._keep(event)
        return event

    def pause(self, seconds: float) -> LeaveInstance | None:
        """Sleep for `seconds`, or until a request to leave, which is returned."""
        return self.leave or (self._leave if self.get(seconds) else None)

    def _keep(self, event: LeaveInstance | WorkerExited) -> None:
        if not isinstance(event, LeaveInstance):
            return
        self._going_down = self._going_down or not event.evicted
        if self._leave is None or event.evicted:  # a notice of EC2 has priority over a signal
            self._leave = event
