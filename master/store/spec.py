"""What a run trains, and how it is to be done: as given, before anything has happened."""

from __future__ import annotations

from dataclasses import dataclass

from gridml.model.graph import Graph
from gridml.model.order import Shuffle
from gridml.model.program import Program
from master.store.kept_placement import KeptPlacement
from master.store.settings import Settings


@dataclass(frozen=True)
class RunSpec:
    """The user's program, the graph it made, the settings of the run, and the placement that it was begun with, if
    any."""

    settings: Settings
    program: Program
    graph: Graph
    placement: KeptPlacement | None = None

    @property
    def shuffle(self) -> Shuffle:
        """In which order an epoch goes through the vertices."""
        return shuffle_of(self.program, self.graph)


def shuffle_of(program: Program, graph: Graph) -> Shuffle:
    """In which order an epoch goes through the vertices: as the program says, or as suits its graph."""
    if program.shuffle is not None:
        return program.shuffle
    if program.bsp:
        return "none"
    return "all" if all(table.type.modules for table in graph.replicated) else "block"
