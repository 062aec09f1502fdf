"""The simulated back end: the machines of a script under a virtual clock, and workers that are stepped.

The pool outlives every master, as a real one does: its workers train on while no master is there, and the next one
inherits them. Everything in it happens at planned instants of one clock, in the order of the planning, so the same
seed gives the same run.

Only `gridml simulate` plays such runs. Traces that a user names on the command line say when machines came and
went.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from chunk_model import traces
from chunk_model.traces import TraceError, TraceEvent
from gridml.errors import UsageError
from master.ports.plugin import BackendPlugin
from master.state.jobs import Backend, BackendOptions
from master.state.options import FAILURES, FIRST, SIMULATE, WORKERS, Described, Option, described
from master.store.rundir import RunDirectory
from master.store.settings import CommandOptions, Settings

MACHINES = 100  # of a simulation, unless a person says


@dataclass(frozen=True)
class SimulatedOptions(BackendOptions):
    """Where the lives of machines come from, for the record: the scenario is made of more than that."""

    lifetime: str | None = None
    trace: Path | None = None


@dataclass(frozen=True)
class SimulationOptions:
    """The options of `gridml simulate` that no run has; texts are times, or lists such as `t_x=0.1,t_s=5`."""

    cost: Annotated[
        str,
        Option(
            "Seconds: t_x trains a vertex; t_c copies one; t_s, t_e start and end a chunk; push; boot; wait.",
            FIRST,
            metavar="t_x=S,...",
        ),
    ] = "t_x=0.01,t_s=5,push=0.1"
    vertices: Annotated[int | None, Option("Vertices of an epoch, without a program; otherwise 100,000.", FIRST)] = None
    lifetime: Annotated[
        str | None, Option("How long machines live: normal(45m,10m), weibull(0.7,2h); otherwise for ever.", FIRST)
    ] = None
    trace: Annotated[Path | None, Option("Machines that came and went (Bamboo's format).", FAILURES)] = None
    chunks_per_job: Annotated[int, Option("A worker leaves after so many chunks; 0: never.", WORKERS)] = 0
    fast: Annotated[float, Option("Share of the machines that are faster, those with AVX say.", WORKERS)] = 0.0
    fast_factor: Annotated[float, Option("How many times as fast they are.", WORKERS)] = 4.0
    spread: Annotated[float, Option("Standard deviation of the logarithm of all speeds.", WORKERS)] = 0.0
    late: Annotated[int, Option("Machines that come later, within half a mean life.", WORKERS)] = 0
    grace_share: Annotated[float, Option("Share of the evictions that come with a warning.", FAILURES)] = 0.5
    storm_every: Annotated[
        str | None, Option("Take many machines at one instant, so often on average: 20m.", FAILURES)
    ] = None
    storm_share: Annotated[float, Option("Share of the machines that a storm takes.", FAILURES)] = 0.3
    faults: Annotated[
        str | None,
        Option("What befalls messages: chances lose, repeat, tear, flip, and the longest delay in seconds.", FAILURES),
    ] = None
    travel: Annotated[str, Option("How long a message takes to the master, and an answer back: 0.5s.", FAILURES)] = "0"
    crash_every: Annotated[str | None, Option("Kill the master so often on average: 30m.", FAILURES)] = None
    turn: Annotated[str, Option("How often the master looks for messages, in seconds.", FAILURES)] = "0.05"


def simulate_options() -> list[Described]:
    """Return all options of `gridml simulate`: its own, and those of every run that make sense there."""
    common = [*described(Settings, SIMULATE), *described(CommandOptions, SIMULATE)]
    return [*described(SimulationOptions), *(e.changed(default=MACHINES) if e.name == "workers" else e for e in common)]


class SimulatedPlugin(BackendPlugin):
    """Machines that are only imagined."""

    name = "simulated"
    options = SimulatedOptions

    def make(self, settings: Settings, directory: RunDirectory) -> Backend:
        raise UsageError(f"{directory.root} was simulated, and cannot go on. Play it again with gridml simulate.")


def read_trace(path: Path) -> tuple[TraceEvent, ...]:
    """Return the events of a trace file. Raises UsageError when it cannot be read."""
    try:
        return traces.read_trace(path)
    except OSError as error:
        raise UsageError(f"--trace: {path} cannot be read: {error.strerror}. Name a file that is there.") from error
    except TraceError as error:
        raise UsageError(f"--trace: {error}") from error


def most_at_once(events: tuple[TraceEvent, ...]) -> int:
    """Return how many nodes of a trace are there at once, at most."""
    present = most = 0
    for event in events:
        present += 1 if event.joined else -1
        most = max(most, present)
    return most
