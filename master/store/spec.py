"""What a run trains, and how it is to be done: as given, before anything has happened."""

from __future__ import annotations

from dataclasses import dataclass

from gridml.model.graph import Graph
from gridml.model.order import Shuffle
from gridml.model.program import Program
from master.store.settings import Settings


@dataclass(frozen=True)
class RunSpec:
    """The user's program, the graph it made, and the settings of the run."""

    settings: Settings
    program: Program
    graph: Graph

    @property
    def shuffle(self) -> Shuffle:
        """In which order an epoch goes through the vertices: as the program says, or as suits its graph."""
        if self.program.shuffle is not None:
            return self.program.shuffle
        if self.program.bsp:
            return "none"
        return "all" if all(table.type.modules for table in self.graph.replicated) else "block"
