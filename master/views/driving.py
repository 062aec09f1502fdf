"""Drive a run from this process, and show it meanwhile: whatever shows it, and whoever asked."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from gridml.errors import Interruption
from master.views.live import Follower, View

if TYPE_CHECKING:
    from master.environment import Environment
    from master.run import Run

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # what ends a command: Ctrl-C, a kill, a terminal that closes


class Stopped(Interruption):
    """This process was sent signal `number`, to end it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Signals that end this process: while the run's loop turns, they end it between two turns; at any other time, or
    when they come again, at once."""

    def __init__(self) -> None:
        self._turning = False
        self._pending = 0

    @contextmanager
    def caught(self, numbers: Collection[signal.Signals] = ENDING) -> Iterator[None]:
        """Only Python's main thread may catch any."""
        before = {number: signal.signal(number, self._hear) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def turn(self) -> None:
        """Called once a turn of the loop. Raises Stopped."""
        self._turning = True
        if self._pending:
            raise Stopped(self._pending)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._turning and not self._pending:
            self._pending = number
        else:
            raise Stopped(number)


def drive_shown(
    root: Path,
    begin: Callable[[Environment], Run],
    view: View,
    turn: Callable[[], None],
    *,
    resumed: bool,
    leaves: Callable[[Stopped], bool] = lambda stopped: False,
) -> None:
    """Begin a run, or take one up that is to be `resumed`, and drive it to its end. `turn` is called once a turn, and
    may raise to end the run between two of them; `leaves` says whether workers live on for another master when this one
    is stopped. Raises as a run does."""
    from master.backends.registry import make
    from master.environment import Environment
    from master.restarts import counted

    follower = Follower(root, view)

    def tick() -> None:
        turn()
        follower.tick()

    environment = Environment(make, wall=time.time, report=follower.report, tick=tick)
    life = counted(root, environment) if resumed else contextlib.nullcontext()
    with life, begin(environment) as run, follower:
        workers = run.parts.workers.asked
        facts = {"run_dir": str(root), "workers": workers, "vertices": run.total}
        follower.report("started", f"{root}: {workers} workers, {run.total:,} vertices", facts)
        try:
            run.finish()
        except Stopped as stopped:
            if leaves(stopped):
                run.leave()
            raise
