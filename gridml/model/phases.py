"""The shape of a program of stages: a pass is a sequence of mini-batches, and each of them a sequence of phases."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.model.graph import Table
from gridml.model.stages import ApplyStage, ExchangeStage, GlobalSync, MiniBatch, Part
from gridml.model.ticks import Ticks
from gridml.model.update import Shape
from gridml.model.vertex import Vertex, VertexType, describe, reachable


class Stages(Shape):
    """A program's list of stages: one MiniBatch. Its shape is that of an f that takes batches."""

    min_batch, drop_last, accumulate, keeps_rate = 1, False, 1, True

    def __init__(self, mini_batch: MiniBatch) -> None:
        self.mini_batch = mini_batch
        self.stages = mini_batch.compiled
        self.drawn = next((each.over for each in self.exchanges if each.is_backward), None)
        #: vertices of the driving type; where `size` is not these, those of a typical mini-batch after `measure`
        self.batch = None if self.drawn is not None else mini_batch.size
        self.edges, self.follows_ends = mini_batch.edges, self.batch is None
        self.phases = mini_batch.phases
        self.has_phases = len(self.phases) > 1
        self.function = self.stages[0].function
        # A tick is one mini-batch of each part, so that its bits depend on no number of workers.
        self.shares_batch = math.isinf(mini_batch.lag) and self.edges is None

    @property
    def exchanges(self) -> list[ExchangeStage]:
        return [each for each in self.stages if isinstance(each, ExchangeStage)]

    @cached_property
    def is_linked(self) -> bool:
        """True if edges between local vertices are walked: a pass, or each of its phases, is a superstep, in which
        these read one another as the last one left them."""
        return any(each.is_linked for each in self.exchanges)

    def numbers(self, phase: int | None) -> range:
        """Return the numbers of a phase's stages among all those of workers; None: of all."""
        counts = [len(each.on_workers) for each in self.phases]
        return range(sum(counts)) if phase is None else range(sum(counts[:phase]), sum(counts[: phase + 1]))

    @cached_property
    def driver(self) -> type[Vertex]:
        """The local type whose edges the stages look at. Raises ProgramError unless there is exactly one."""
        over = list(dict.fromkeys(each.over for each in self.exchanges))
        if len(over) != 1:
            raise ProgramError(
                f"the exchanges of a MiniBatch look at {', '.join(each.__name__ for each in over) or 'nothing'}; "
                f"expected one type, over= of them all."
            )
        sources = list(dict.fromkeys(each.source.cls for each in self.exchanges))
        if len(sources) != 1:
            raise ProgramError(
                f"the exchanges of a MiniBatch look at edges from {', '.join(each.__name__ for each in sources)}; "
                f"expected one local type at which they start."
            )
        return sources[0]

    def edges_of(self, table: Table) -> NDArray[np.int64]:
        """Return how many edges of each vertex of the driving type exchanges look at, int64 (vertices,)."""
        names = {each.edge if self.drawn else each.walked for each in self.exchanges}
        edges: NDArray[np.int64] = np.sum([table.edges[name].lengths for name in names], axis=0, dtype=np.int64)
        return edges

    def measure(self, table: Table) -> None:
        """Set `batch` to the vertices of a typical mini-batch, if it has no `size`. A worker, which has no graph, does
        without: a chunk says where its mini-batches end."""
        if self.edges is not None and table.count:
            ticks = Ticks.by_edges(self.edges_of(table), 1, self.edges)
            self.batch = -(-table.count // ticks.count)
        elif self.follows_ends and table.count:
            self.batch = Ticks.of(table.count, self.mini_batch.parts, None).largest

    @cached_property
    def types(self) -> dict[str, VertexType]:
        """Every type that the stages can reach, by name: along edges, and the contexts."""
        types = reachable(self.driver)
        for of in self.contexts:
            if types.setdefault(of.name, of).cls is not of.cls:
                raise ProgramError(f"two vertex types are called {of.name}; give one of them another name.")
        return types

    @cached_property
    def contexts(self) -> list[VertexType]:
        """The types of contexts, in the order of their first use."""
        found = [a.type for each in self.stages for a in each.arguments if a.part is Part.CONTEXT]
        return list({of.name: of for of in found if of is not None}.values())

    @property
    def trained_by_edge(self) -> frozenset[str]:
        """As `Shape.trained_by_edge`: the types that a single stage takes, as the end of each edge. Where another stage
        takes them too, the sums over a vertex's edges may be what moves its rows."""
        seen = [a for each in self.stages for a in each.arguments if a.type is not None]
        return frozenset(
            a.type.name
            for a in seen
            if a.type is not None and a.part is Part.END and sum(other.type == a.type for other in seen) == 1
        )

    def check(self) -> None:
        """Raise ProgramError for stages that do not fit together."""
        self._check_owner()
        if self.drawn is not None and math.isinf(self.mini_batch.lag):
            raise ProgramError(
                f"MiniBatch got slack={self.mini_batch.slack!r}, and {self.exchanges[0].name} looks at "
                f"{self.drawn.__name__}, of which all parts take the same ones; expected a whole number, or no slack."
            )
        if self.drawn is not None and self.edges is not None:
            raise ProgramError(
                f"MiniBatch got edges={self.edges}, and {self.exchanges[0].name} looks at {self.drawn.__name__}, which "
                f"is replicated; expected size=, how many of them make a mini-batch."
            )
        scanned = describe(self.driver)
        changing = [f"{scanned.name}.{name}" for name in scanned.edges if scanned.mutable_of_edge(name)]
        if self.drawn is not None and changing:
            raise ProgramError(
                f"{self.exchanges[0].name} looks at {self.drawn.__name__}, and {changing[0]} has fields that change; "
                f"expected edges with fixed fields, or over={scanned.name}."
            )
        ends = {name: describe(scanned.target(name)) for name in scanned.edges}
        for each in self.stages:
            if isinstance(each, ExchangeStage):
                if each.is_linked and ends[each.edge].name != scanned.name:
                    raise ProgramError(
                        f"{each.name} looks at edges from {scanned.name} to {ends[each.edge].name}, which is local, "
                        f"too; expected edges to a replicated type, or to other {scanned.name} vertices. Give "
                        f"{ends[each.edge].name} an aggregate, or make one type of both."
                    )
            elif describe(each.over).name not in {scanned.name, *(of.name for of in ends.values())}:
                raise ProgramError(
                    f"{each.name} is applied to {each.over.__name__}, to which no edge of {scanned.name} leads."
                )
        if self.is_linked and self.mini_batch.lag:
            raise ProgramError(
                f"MiniBatch got slack={self.mini_batch.slack!r}, and {scanned.name} vertices are linked with one "
                f"another: they read what the last pass left. Leave slack out, which is 0 then."
            )
        if self.is_linked and self.has_phases:
            self._check_linked_phases(scanned)
        for name, of in self.types.items():
            for field in of.edges:
                other = describe(of.target(field))
                if other.name != name and name in reachable(other.cls):
                    raise ProgramError(
                        f"{name} and {other.name} lead to each other ({name}.{field}, and back from {other.name}), a "
                        f"cycle of types; stages look at edges from one local type to replicated ones. Leave one of "
                        f"these edges out, or copy what is read along it into fields of {name}."
                    )

    def _check_linked_phases(self, scanned: VertexType) -> None:
        """Raise ProgramError if a phase is no superstep over all vertices."""
        batch, first = self.mini_batch, self.phases[0].at_owner[0].name
        for name, number in (("size", batch.size), ("edges", batch.edges)):
            if number is not None:
                raise ProgramError(
                    f"MiniBatch got {name}={number!r}, and {first}, at which all parts wait, with {scanned.name} "
                    f"vertices that are linked with one another: what follows {first} sees what all of them have "
                    f"become. Leave {name} out: each part is one mini-batch then."
                )

    def _check_owner(self) -> None:
        """Raise ProgramError if sums are not complete where they are read, or are read nowhere."""
        batch = self.mini_batch
        for each in batch.at_owner:
            if math.isinf(batch.lag):
                does = (
                    "is a global_sync"
                    if isinstance(each, GlobalSync)
                    else f"is applied at the owner of {each.over.__name__}"
                )
                raise ProgramError(
                    f"{each.name} {does}, when all parts' mini-batches are merged, and workers do not wait for one "
                    f"another; give MiniBatch a slack, such as slack=0."
                )
        if not self.phases[0].on_workers:
            raise ProgramError(
                f"{self.phases[0].at_owner[0].name} is the first stage of a MiniBatch, and the master runs it when "
                f"workers have done something; expected an exchange first."
            )
        applied = [each for each in self.stages if isinstance(each, ApplyStage) and each.at == "owner"]
        read = {describe(each.over).name for each in applied} | {of.name for of in self.contexts}
        for of in self.types.values():
            summed = [name for name, each in {**of.arrays, **of.workspace}.items() if each.own_rule is not None]
            if summed and of.name not in read:
                raise ProgramError(
                    f"{of.name}.{summed[0]} is an accumulator that nothing reads; expected a stage under "
                    f"@gridml.apply({of.name}), or a context, whose accumulators a gridml.global_sync reads."
                )
