"""The simulated back end as gridml knows it: `gridml simulate` plays such runs, and nothing else can."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gridml.errors import UsageError
from master.backends.base import Backend, BackendOptions
from master.backends.plugin import BackendPlugin
from master.store.rundir import RunDirectory
from master.store.settings import Settings


@dataclass(frozen=True)
class SimulatedOptions(BackendOptions):
    """Where the lives of machines come from, for the record: the scenario is made of more than that."""

    lifetime: str | None = None
    trace: Path | None = None


class SimulatedPlugin(BackendPlugin):
    """Machines that are only imagined."""

    name = "simulated"
    options = SimulatedOptions

    def make(self, settings: Settings, directory: RunDirectory) -> Backend:
        raise UsageError(f"{directory.root} was simulated, and cannot go on. Play it again with gridml simulate.")
