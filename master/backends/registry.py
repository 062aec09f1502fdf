"""Which back end a run gets, from its settings alone; the one place that knows the back ends by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from chunk_model import trace
from chunk_model.lifetime import LifetimeError
from chunk_model.parse import parse
from chunk_model.trace import TraceError, TraceEvent
from gridml.errors import UsageError
from master.backends.base import Backend
from master.backends.local import Local
from master.backends.script import Lives, Replay, Script, Steady
from master.store.rundir import RunDirectory
from master.store.settings import Settings

USUAL_GRACE_S = 120.0
LEAST_GRACE_S = 2.0  # of real time
WORKER = "gridml-worker"  # the console script of workers
# -P: a user's own remote.py in the working directory must not be taken for ours.
WITHOUT_SCRIPT = ("-P", "-c", "import sys; from remote.worker import main; sys.exit(main())")


def make(settings: Settings, directory: RunDirectory) -> Backend:
    """The back end that `settings` names. Raises UsageError where they make no sense."""
    if settings.backend == "condor":
        from master.backends.condor.backend import Condor  # which needs bindings that others do without

        return Condor(settings, directory)
    if settings.backend != "local":
        raise UsageError(f"there is no back end {settings.backend!r}; expected local or condor.")
    return Local(worker_command(settings, directory), script(settings), directory.logs, threads=settings.threads)


def script(settings: Settings) -> Script:
    """What happens to the local workers' machines. Raises UsageError for a lifetime or a trace that cannot be read."""
    if settings.trace is not None:
        return Replay(read_trace(settings.trace), settings.seed, grace_s=_grace_s(settings), speedup=settings.speedup)
    if settings.lifetime is None:
        return Steady(settings.workers)
    try:
        lives = parse(settings.lifetime)
    except LifetimeError as error:
        raise UsageError(f"--lifetime: {error}") from error
    return Lives(settings.workers, lives, settings.seed, grace_s=_grace_s(settings), speedup=settings.speedup)


def _grace_s(settings: Settings) -> float:
    """Grace as the script counts it. Saying goodbye takes a worker real time, which no speed-up shortens."""
    return max(USUAL_GRACE_S, LEAST_GRACE_S * settings.speedup)


def read_trace(path: Path) -> tuple[TraceEvent, ...]:
    """The events of a trace file. Raises UsageError when it cannot be read."""
    try:
        return trace.read(path)
    except OSError as error:
        raise UsageError(f"--trace: {path} cannot be read: {error.strerror}. Name a file that is there.") from error
    except TraceError as error:
        raise UsageError(f"--trace: {error}") from error


def most_at_once(events: tuple[TraceEvent, ...]) -> int:
    """How many nodes of a trace are there at once, at most."""
    there = most = 0
    for event in events:
        there += 1 if event.joined else -1
        most = max(most, there)
    return most


def worker_command(settings: Settings, directory: RunDirectory) -> Callable[[str], list[str]]:
    """Makes a worker's argument list from its name: the console script beside this Python, or the same without it."""
    beside = Path(sys.executable).parent / WORKER
    begin = [str(beside)] if os.access(beside, os.X_OK) else [sys.executable, *WITHOUT_SCRIPT]
    fixed = [
        f"--program={settings.program}",
        f"--directory={directory.root.absolute()}",
        f"--parent={os.getpid()}",
        f"--seed={settings.seed}",
    ]
    return lambda worker: [*begin, f"--name={worker}", *fixed]
