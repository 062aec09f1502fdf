"""What a run of a program would decide of placing its vertices, by the run's own rules; nothing is placed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gridml.errors import ProgramError
from gridml.model.loading import load
from master.decisions.placing import AUTO, NONE, choose, worth_keeping
from master.placing import methods_of
from master.placing_graph import bipartite_of, by_chance, facts_of, sides_of
from master.store.settings import Settings, check_placement

SEED = 0  # of a run, by default


@dataclass(frozen=True)
class PlannedPlacement:
    """`methods` that a run with so many `workers` would try (none: its vertices are not placed), on how many `parts`,
    and why. `place_s` is CPU seconds that they are expected to take, None where a method's were not measured.

    All rows together are `row_bytes`. A part touches `chance_bytes` on average where vertices are dealt out by chance,
    and `least_bytes` at least however they are placed; 0 where that was not worked out.
    """

    workers: int
    reason: str
    methods: tuple[str, ...] = ()
    parts: int = 0
    place_s: float | None = None
    row_bytes: int = 0
    chance_bytes: float = 0.0
    least_bytes: float = 0.0

    @property
    def most_saved(self) -> float | None:
        """The share of the bytes touched by chance that no placement can save more than."""
        return 1 - self.least_bytes / self.chance_bytes if self.chance_bytes else None


@dataclass(frozen=True)
class Planned:
    """A program's `vertices`, which f runs on, and what would become of them: None where nobody asked for a placement
    and no vertex leads to rows of arrays."""

    vertices: int
    placement: PlannedPlacement | None


def plan_placement(file: Path, workers: int | None) -> Planned:
    """Load a program, build its graph, and decide as a run with so many workers would, None: as many as is usual.

    Raises GridmlError for a program that cannot be run.
    """
    program = load(file)
    asked = program.placement
    check_placement(f"the placement of {file}", asked, ProgramError)
    graph = program.build(file)
    sides = [*sides_of(graph, program.driving(graph))]
    workers = Settings.workers if workers is None else workers
    facts = facts_of(program, graph, sides, asked=asked, workers=workers)
    if asked == NONE or (asked == AUTO and not sides):
        return Planned(facts.vertices, None)
    chosen, reason = choose(facts)
    if chosen is None:
        return Planned(facts.vertices, PlannedPlacement(workers, reason, row_bytes=facts.row_bytes))
    from gridml.placement import auto

    bipartite, weights = bipartite_of(sides, facts.vertices)
    methods = methods_of(chosen, bipartite)
    seconds = [auto.expected_s(method, auto.work(bipartite), chosen.parts) for method in methods]
    chance_bytes = by_chance(bipartite, weights, chosen.parts, SEED)
    # Each row that is touched at all is touched by one part at least.
    least_bytes = float(weights[bipartite.transposed.degrees > 0].sum()) / chosen.parts
    worth, why = worth_keeping(asked, least_bytes, chance_bytes)
    return Planned(
        facts.vertices,
        PlannedPlacement(
            workers,
            reason if worth else f"{why}, at best",
            tuple(methods) if worth else (),
            chosen.parts if worth else 0,
            sum(each for each in seconds if each is not None) if worth and None not in seconds else None,
            facts.row_bytes,
            chance_bytes,
            least_bytes,
        ),
    )
