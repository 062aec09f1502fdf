"""The plug-in of the local back end: `gridml run`, its options, and the command line of its workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gridml.engine.devices import NoDeviceError, find_device
from gridml.errors import UsageError
from gridml.model.device_memory import CUDA
from gridml.model.device_memory import parse as parse_device
from master.ports.plugin import BackendPlugin, Command
from master.state.jobs import Backend, BackendOptions
from master.state.options import FAILURES, FIRST, option
from master.store.rundir import RunDirectory
from master.store.settings import Settings

if TYPE_CHECKING:
    from master.backends.script import Script

DEFAULT_GRACE_S = 120.0
MIN_GRACE_S = 2.0  # of real time
MIN_LIFE_S = 1.0  # mean, of real time: a worker takes half of that to start
MAX_PROCESSES = 4096  # workers of one machine
MAX_SPEEDUP = 10**6
# -P, and gridml first: a user's own remote.py in the working directory or on PYTHONPATH must not shadow gridml's.
_BEGIN = "import sys, gridml; sys.argv[0] = 'gridml-worker'; from remote.worker import main; sys.exit(main())"
WORKER = ("-P", "-c", _BEGIN)


@dataclass(frozen=True)
class LocalOptions(BackendOptions):
    """The options of the local back end."""

    lifetime: str | None = option(
        None, "How long workers live before they are killed: normal(45m,10m), exponential(1h).", FIRST
    )
    trace: Path | None = option(
        None, "A file of lines milliseconds,add|remove,node: when machines come and go.", FAILURES
    )
    speedup: float = option(1.0, "Let the times of --lifetime or --trace pass so much faster.", FAILURES)
    threads: int = 1  # per worker

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise UsageError(f"--threads is {self.threads}; expected at least 1.")
        if not self.speedup > 0:
            raise UsageError(f"--speedup is {self.speedup}; expected a number above 0.")
        if self.speedup > MAX_SPEEDUP:
            raise UsageError(
                f"--speedup is {self.speedup:g}; expected at most {MAX_SPEEDUP:,}: 60 lets an hour pass in a minute."
            )
        if self.lifetime is not None and self.trace is not None:
            raise UsageError(
                "got both --lifetime and --trace; expected one of them, or neither for workers that live on."
            )
        if self.trace is not None:
            object.__setattr__(self, "trace", self.trace.absolute())


class LocalPlugin(BackendPlugin):
    """Workers as processes of this machine."""

    name = "local"
    options = LocalOptions
    command = Command(
        verb="run",
        help="Train a program on workers of this machine, and show how it goes.",
        example='gridml run examples/mnist.py --workers 4 --lifetime "normal(45m,10m)" --speedup 300',
        workers=None,
        workers_help="Worker processes at once; 2, or with --trace what the trace has.",
        seed_help="Decides the order of vertices, first values and who is killed when.",
    )

    def make(self, settings: Settings, directory: RunDirectory) -> Backend:
        from master.backends.local import Local

        threads = LocalOptions.among(settings.options).threads
        return Local(worker_command(settings, directory), script(settings), directory.logs, threads=threads)

    def workers(self, options: BackendOptions) -> int:
        from master.backends.simulated_plugin import max_at_once, read_trace

        trace = LocalOptions.among(options).trace
        return 2 if trace is None else max_at_once(read_trace(trace))

    def check(self, settings: Settings) -> None:
        if settings.workers > MAX_PROCESSES:
            raise UsageError(
                f"--workers is {settings.workers:,}; expected at most {MAX_PROCESSES:,}: each is a process of this "
                "machine. Give as many as it has cores."
            )
        script(settings)
        if (asked := parse_device(settings.device)).kind == CUDA:  # others are known once the program is loaded
            try:
                find_device(asked)
            except NoDeviceError as error:  # here the user's mistake; in a worker it is one of its machine
                raise UsageError(str(error)) from None


def script(settings: Settings) -> Script:
    """Create the script of the workers' machines. Raises UsageError for an invalid lifetime or trace."""
    from chunk_model.lifetime import LifetimeError
    from chunk_model.parse import parse
    from master.backends.script import Replay, ScriptedLives, Steady
    from master.backends.simulated_plugin import read_trace

    options = LocalOptions.among(settings.options)
    # A worker's last push takes real time, which the speed-up does not shorten.
    grace_s = max(DEFAULT_GRACE_S, MIN_GRACE_S * options.speedup)
    if options.trace is not None:
        return Replay(read_trace(options.trace), settings.seed, grace_s=grace_s, speedup=options.speedup)
    if options.lifetime is None:
        return Steady(settings.workers)
    try:
        lifetime = parse(options.lifetime)
    except LifetimeError as error:
        raise UsageError(f"--lifetime: {error}") from error
    life_s = lifetime.mean() / options.speedup
    if life_s < MIN_LIFE_S:
        raise UsageError(
            f"--lifetime {options.lifetime} lasts {life_s:.3g} s on average with --speedup {options.speedup:g}; "
            f"expected at least {MIN_LIFE_S:g} s, or no worker trains before it is killed. Give longer lives, or a "
            "smaller --speedup."
        )
    return ScriptedLives(settings.workers, lifetime, settings.seed, grace_s=grace_s, speedup=options.speedup)


def worker_command(settings: Settings, directory: RunDirectory) -> Callable[[str], list[str]]:
    """Return a function from a worker's name to its argument list."""
    fixed = [
        sys.executable,
        *WORKER,
        f"--program={directory.saved_program(settings.program).program.absolute()}",
        f"--original={settings.program}",
        f"--carrier={settings.carrier}",
        f"--directory={directory.root.absolute()}",
        f"--parent={os.getpid()}",
        f"--seed={settings.seed}",
        f"--device={settings.device}",
    ]
    return lambda worker: [*fixed, f"--name={worker}"]
