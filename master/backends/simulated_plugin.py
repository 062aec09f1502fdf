"""The plug-in and options of the simulated back end, which only `gridml simulate` runs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunk_model import traces
from chunk_model.traces import TraceError, TraceEvent
from gridml.errors import UsageError
from master.ports.plugin import BackendPlugin
from master.state.jobs import Backend, BackendOptions
from master.state.options import FAILURES, FIRST, SIMULATE, WORKERS, Described, described, option
from master.store.rundir import RunDirectory
from master.store.settings import CommandOptions, Settings

if TYPE_CHECKING:
    from master.backends.script import Script

MACHINES = 100  # default number of simulated machines


@dataclass(frozen=True)
class SimulatedOptions(BackendOptions):
    """The source of machine lifetimes, stored in the settings for reference; a scenario has more parameters."""

    lifetime: str | None = None
    trace: Path | None = None


@dataclass(frozen=True)
class SimulationOptions:
    """Options that only `gridml simulate` has; texts are durations, or lists such as `t_x=0.1,t_s=5`."""

    cost: str = option(
        "t_x=0.01,t_s=5,push=0.1",
        "Seconds: t_x to train a vertex, t_c to copy one, t_s, t_e to start and end a chunk; push; boot; wait.",
        FIRST,
        metavar="t_x=S,...",
    )
    vertices: int | None = option(None, "Vertices of an epoch, without a program. Default: 100,000.", FIRST)
    lifetime: str | None = option(
        None, "Lifetime of machines: normal(45m,10m), weibull(0.7,2h). Default: unlimited.", FIRST
    )
    trace: Path | None = option(None, "Trace file of machines (Bamboo's format).", FAILURES)
    chunks_per_job: int = option(0, "Chunks after which a worker leaves; 0: never.", WORKERS)
    fast: float = option(0.0, "Share of faster machines, such as those with AVX.", WORKERS)
    fast_factor: float = option(4.0, "Speed of the faster machines, relative to the others.", WORKERS)
    spread: float = option(0.0, "Standard deviation of the logarithm of all speeds.", WORKERS)
    late: int = option(0, "Machines that start later, within half a mean life.", WORKERS)
    grace_share: float = option(0.5, "Share of evictions with a warning.", FAILURES)
    storm_every: str | None = option(None, "Mean time between storms, which take many machines at once: 20m.", FAILURES)
    storm_share: float = option(0.3, "Share of the machines that a storm takes.", FAILURES)
    faults: str | None = option(
        None, "Faults of messages: probabilities lose, repeat, tear, flip, and the longest delay in seconds.", FAILURES
    )
    travel: str = option("0", "Travel time of a message to the master, and of an answer back: 0.5s.", FAILURES)
    crash_every: str | None = option(None, "Mean time between kills of the master: 30m.", FAILURES)
    turn: str = option("0.05", "Polling interval of the master for messages, in seconds.", FAILURES)


def simulate_options() -> list[Described]:
    """Return all options of `gridml simulate`: its own, and the shared ones that apply."""
    common = [*described(Settings, SIMULATE), *described(CommandOptions, SIMULATE)]
    own: dict[str, dict[str, Any]] = {"workers": {"default": MACHINES}, "as_json": {"help": "Print JSON."}}
    return [*described(SimulationOptions), *(each.changed(**own.get(each.name, {})) for each in common)]


class SimulatedPlugin(BackendPlugin):
    """Simulated machines."""

    name = "simulated"
    options = SimulatedOptions

    def make(self, settings: Settings, directory: RunDirectory) -> Backend:
        raise UsageError(f"{directory.root} was simulated and cannot be resumed. Simulate it again: gridml simulate.")


def read_trace(path: Path) -> tuple[TraceEvent, ...]:
    """Read the events of a trace file. Raises UsageError if it cannot be read."""
    try:
        return traces.read_trace(path)
    except OSError as error:
        raise UsageError(f"--trace: {path} cannot be read: {error.strerror}. Name an existing file.") from error
    except TraceError as error:
        raise UsageError(f"--trace: {error}") from error


def max_at_once(events: tuple[TraceEvent, ...]) -> int:
    """Return the maximum number of nodes present at once in a trace."""
    return max(accumulate((1 if event.joined else -1 for event in events), initial=0))


def script_of(
    lifetime: str | None, trace: Path | None, settings: Settings, late: int | None = None, **how: float
) -> Script:
    """Return the script of a run's machines; `how` are arguments of `Replay` and `ScriptedLives`. Raises UsageError for
    an invalid lifetime or trace."""
    from chunk_model.lifetime import LifetimeError
    from chunk_model.parse import parse
    from master.backends.script import Replay, ScriptedLives, Steady

    if trace is not None:
        return Replay(read_trace(trace), settings.seed, **how)
    if lifetime is None:
        return Steady(settings.workers)
    try:
        lives = parse(lifetime)
    except LifetimeError as error:
        raise UsageError(f"--lifetime: {error}") from error
    return ScriptedLives(settings.workers, lives, settings.seed, late=late, **how)
