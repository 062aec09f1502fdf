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
from master.state.options import FAILURES, FIRST, check_bounds, option
from master.store.rundir import RunDirectory
from master.store.settings import Settings

if TYPE_CHECKING:
    from master.backends.script import Script

DEFAULT_GRACE_S = 120.0
MIN_GRACE_S = 2.0  # in real time
MIN_LIFE_S = 1.0  # minimum mean life, in real time; fetching and training one chunk takes half of this
MAX_PROCESSES = 4096  # workers on this machine
MAX_THREADS = 1024  # of a worker
MAX_SPEEDUP = 10**6
# With `-P` and gridml imported first, no remote.py in the working directory or on PYTHONPATH shadows gridml's package.
_BEGIN = "import sys, gridml; sys.argv[0] = 'gridml-worker'; from remote.worker import main; sys.exit(main())"
WORKER = ("-P", "-c", _BEGIN)


@dataclass(frozen=True)
class LocalOptions(BackendOptions):
    """The options of the local back end."""

    lifetime: str | None = option(
        None,
        "Lifetime of workers from their first message, after which they are killed: normal(45m,10m), exponential(1h).",
        FIRST,
    )
    trace: Path | None = option(None, "Trace file of machines, with lines milliseconds,add|remove,node.", FAILURES)
    speedup: float = option(1.0, "Factor by which the times of --lifetime or --trace pass faster.", FAILURES)
    threads: int = option(1, "Threads of each worker, for stages, torch and numpy.", bounds=(1, MAX_THREADS))

    def __post_init__(self) -> None:
        check_bounds(self)
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
        help="Train a program on workers of this machine, and show the progress.",
        example='gridml run examples/mnist.py --workers 4 --lifetime "normal(45m,10m)" --speedup 300',
        workers=None,
        workers_help="Number of concurrent worker processes. Default: 2; with --trace, as in the trace.",
        seed_help="Random seed of the vertices' order, initial values and kills.",
    )

    def make(self, settings: Settings, directory: RunDirectory) -> Backend:
        from master.backends.local import Local

        threads, command = LocalOptions.among(settings.options).threads, worker_command(settings, directory)
        return Local(command, script(settings), directory.logs, threads=threads, from_message=True)

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
        # Other devices than CUDA are checked once the program is loaded.
        if (asked := parse_device(settings.device)).kind == CUDA:
            try:
                find_device(asked)
            except NoDeviceError as error:  # here it is the user's mistake; in a worker, a fault of the machine
                raise UsageError(str(error)) from None


def script(settings: Settings) -> Script:
    """Create the script of the workers' machines. Raises UsageError for an invalid lifetime or trace."""
    from master.backends.script import ScriptedLives
    from master.backends.simulated_plugin import script_of

    options = LocalOptions.among(settings.options)
    # A worker's start and its last push take real time, which the speed-up does not shorten.
    grace_s = max(DEFAULT_GRACE_S, MIN_GRACE_S * options.speedup)
    made = script_of(options.lifetime, options.trace, settings, grace_s=grace_s, speedup=options.speedup)
    if isinstance(made, ScriptedLives) and (life_s := made.lifetime.mean() / options.speedup) < MIN_LIFE_S:
        raise UsageError(
            f"--lifetime {options.lifetime} lasts {life_s:.3g} s on average with --speedup {options.speedup:g}; "
            f"expected at least {MIN_LIFE_S:g} s, or no worker trains before it is killed. Give longer lives, or a "
            "smaller --speedup."
        )
    return made


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
