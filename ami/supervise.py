"""Supervises the worker process: starts it, stops it, and keeps its last output."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ami.decisions import EventQueue, WorkerExited
from gridml.protocol.foreign import printable

_MAX_LINE_CHARS = 2_000
_MAX_LINES = 200  # lines of output in the goodbye message
_REST_S = 2.0  # time after the worker's exit to read the rest of its output


def supervise(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    events: EventQueue,
    grace_s: float,
    log: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> WorkerExited:
    """Run a worker to its end. On a request to leave, the worker gets SIGTERM at once and SIGKILL after `grace_s`
    seconds; further requests do not extend this grace. The worker's output is passed to `log` line by line. Raises
    OSError if the worker cannot be started."""
    process = subprocess.Popen(
        [*command],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    kept: deque[str] = deque(maxlen=_MAX_LINES)

    def listen() -> None:
        assert process.stdout is not None
        with process.stdout:
            while line := process.stdout.readline(_MAX_LINE_CHARS):
                if line := printable(line.rstrip(), _MAX_LINE_CHARS):
                    kept.append(line)
                    log(line)

    def wait() -> None:
        status = process.wait()
        listener.join(_REST_S)  # a child of the worker may keep the pipe open forever
        events.put(WorkerExited(status, "\n".join(kept)))

    listener = threading.Thread(target=listen, daemon=True, name="worker's output")
    listener.start()
    threading.Thread(target=wait, daemon=True, name="worker's end").start()
    leaving = False
    kill_s: float | None = None  # time of SIGKILL
    while not isinstance(event := events.get(None if kill_s is None else max(0.0, kill_s - clock())), WorkerExited):
        if kill_s is not None and clock() >= kill_s:
            log(f"the worker did not end within {grace_s:.0f} s of SIGTERM: it is killed")
            process.kill()
            kill_s = None  # the next event is the worker's exit
        elif not leaving:
            leaving, kill_s = True, clock() + grace_s
            process.terminate()
    return event
