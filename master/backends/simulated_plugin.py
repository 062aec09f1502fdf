"""The plug-in and options of the simulated back end, which only `gridml simulate` runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chunk_model import traces
from chunk_model.traces import TraceError, TraceEvent
from gridml.errors import UsageError
from master.ports.plugin import BackendPlugin
from master.state.jobs import Backend, BackendOptions
from master.state.options import FAILURES, FIRST, SIMULATE, WORKERS, Described, described, option
from master.store.rundir import RunDirectory
from master.store.settings import CommandOptions, Settings

MACHINES = 100  # the default


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
        "Seconds: t_x trains a vertex; t_c copies one; t_s, t_e start and end a chunk; push; boot; wait.",
        FIRST,
        metavar="t_x=S,...",
    )
    vertices: int | None = option(None, "Vertices of an epoch, without a program; otherwise 100,000.", FIRST)
    lifetime: str | None = option(
        None, "How long machines live: normal(45m,10m), weibull(0.7,2h); otherwise for ever.", FIRST
    )
    trace: Path | None = option(None, "Machines that came and went (Bamboo's format).", FAILURES)
    chunks_per_job: int = option(0, "Chunks after which a worker leaves; 0: never.", WORKERS)
    fast: float = option(0.0, "Share of the machines that are faster, those with AVX say.", WORKERS)
    fast_factor: float = option(4.0, "How many times as fast they are.", WORKERS)
    spread: float = option(0.0, "Standard deviation of the logarithm of all speeds.", WORKERS)
    late: int = option(0, "Machines that come later, within half a mean life.", WORKERS)
    grace_share: float = option(0.5, "Share of the evictions that come with a warning.", FAILURES)
    storm_every: str | None = option(None, "Take many machines at one instant, so often on average: 20m.", FAILURES)
    storm_share: float = option(0.3, "Share of the machines that a storm takes.", FAILURES)
    faults: str | None = option(
        None, "Faults of messages: chances lose, repeat, tear, flip, and the longest delay in seconds.", FAILURES
    )
    travel: str = option("0", "How long a message takes to the master, and an answer back: 0.5s.", FAILURES)
    crash_every: str | None = option(None, "Kill the master so often on average: 30m.", FAILURES)
    turn: str = option("0.05", "How often the master looks for messages, in seconds.", FAILURES)


def simulate_options() -> list[Described]:
    """Return all options of `gridml simulate`: its own, and the shared ones that apply."""
    common = [*described(Settings, SIMULATE), *described(CommandOptions, SIMULATE)]
    return [*described(SimulationOptions), *(e.changed(default=MACHINES) if e.name == "workers" else e for e in common)]


class SimulatedPlugin(BackendPlugin):
    """Simulated machines."""

    name = "simulated"
    options = SimulatedOptions

    def make(self, settings: Settings, directory: RunDirectory) -> Backend:
        raise UsageError(f"{directory.root} was simulated, and cannot go on. Play it again with gridml simulate.")


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
    present = most = 0
    for event in events:
        present += 1 if event.joined else -1
        most = max(most, present)
    return most
