"""What a run trains, and how it is to be done: as given, before anything has happened."""

from __future__ import annotations

from dataclasses import dataclass

from gridml.model.graph import Graph
from gridml.model.program import Program
from master.store.settings import Settings


@dataclass(frozen=True)
class RunSpec:
    """The user's program, the graph it made, and the settings of the run."""

    settings: Settings
    program: Program
    graph: Graph
