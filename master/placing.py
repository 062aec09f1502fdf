"""The vertices of a run are placed, once, before it begins: those that touch the same rows go to one worker.

What a worker needs of the replicated rows is what its vertices touch. Their graph is bipartite: the vertices that f
runs on, and the rows of all types that hold arrays, one type after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.model.graph import Edges, Graph
from gridml.model.vertex import describe
from master.decisions.leasing import SMALLEST
from master.decisions.placing import AUTO, NONE, Chosen, PlacingFacts, choose, worth_keeping
from master.store.event_facts import EventFacts
from master.store.kept_placement import Shared, keep
from master.store.rows import row_bytes
from master.store.rundir import RunDirectory
from master.store.spec import RunSpec

if TYPE_CHECKING:  # scipy and numba, which a run without a placement does without
    from gridml.placement.base import Placement
    from gridml.placement.bipartite import Bipartite

PLACE_S = 10.0  # that auto may take before a run begins
LONG = 5_000_000  # edges that take some seconds to place
NOT_PLACED: EventFacts = dict.fromkeys(
    ("method", "parts", "sections", "edges", "place_s", "bytes", "placed_bytes", "chance_bytes")
)


class Told(NamedTuple):
    """What there is to say of a placement, or of why there is none: a text, and the facts of the event. Where nobody
    has asked, and nothing was done, it is written down and not said `aloud`."""

    text: str
    facts: EventFacts
    aloud: bool = True


@dataclass(frozen=True)
class _Candidate:
    """A placement by a method; `shared` int64 (parts, parts) are the bytes of rows that each two parts both touch."""

    method: str
    placement: Placement
    shared: Shared

    @property
    def part_bytes(self) -> float:
        """Bytes of rows that a part touches on average."""
        return float(np.diag(self.shared).mean())


@dataclass(frozen=True)
class _Side:
    """Edges of the driving vertices to a type that has `count` rows of so many bytes each."""

    type: str
    edges: Edges
    count: int
    row_bytes: int


def place(
    spec: RunSpec, directory: RunDirectory, say: Callable[[str, EventFacts], None], *, durable: bool
) -> tuple[RunSpec, Told | None]:
    """Place the vertices of a run that is to begin, if that pays, and keep the placement in its directory.

    Return the run as it is to be trained, and what there is to tell: nothing where it was not wanted, or no vertex
    leads to rows of arrays and nobody has asked. `say` is told before it takes long. Raises OSError.
    """
    directory.placement.unlink(missing_ok=True)  # of a start that failed
    driver = spec.program.driving(spec.graph)
    asked, sides = spec.settings.placement or spec.program.placement, [*_sides(spec.graph, driver)]
    facts = _facts(spec, driver, sides, asked)
    chosen, reason = choose(facts)
    if chosen is None:
        if asked == NONE or (asked == AUTO and not sides):
            return spec, None
        return spec, Told(f"vertices are not placed: {reason}", NOT_PLACED, aloud=asked != AUTO)
    if facts.edges >= LONG:
        size = {"vertices": facts.vertices, "edges": facts.edges, "parts": chosen.parts}
        say(f"{facts.vertices:,} vertices with {facts.edges:,} edges on {chosen.parts} parts", size)
    return _placed(spec, directory, sides, facts, chosen, reason, durable=durable)


def _placed(
    spec: RunSpec,
    directory: RunDirectory,
    sides: list[_Side],
    facts: PlacingFacts,
    chosen: Chosen,
    reason: str,
    *,
    durable: bool,
) -> tuple[RunSpec, Told]:
    """Place the vertices as was chosen for this `reason`, and keep that if it is worth it."""
    from gridml.placement.sections import sections

    begun = time.perf_counter()
    graph, weights = _bipartite(sides, facts.vertices)
    best, others = _best(graph, weights, chosen, spec.settings.seed)
    chance_bytes, all_bytes = _by_chance(graph, weights, chosen.parts, spec.settings.seed), int(weights.sum())
    worth, why = worth_keeping(facts.asked, best.part_bytes, chance_bytes)
    labels, shared = _in_chain(best.placement, best.shared)
    within = sections(graph, labels, chosen.parts, chosen.sections if worth else 1, spec.settings.seed)
    measured: EventFacts = {
        "method": best.method if worth else None,
        "parts": chosen.parts if worth else None,
        "sections": chosen.sections if worth else None,
        "edges": graph.edges,
        "place_s": time.perf_counter() - begun,
        "bytes": all_bytes,
        "placed_bytes": best.part_bytes,
        "chance_bytes": chance_bytes,
    }
    if not worth:
        return spec, Told(f"vertices are not placed: {why}", measured)
    compared = f", which touches less than {others[0].method}" if others else ""
    text = (
        f"{reason}; {best.placement.why}{compared}; in {measured['place_s']:.2g} s. A part touches "
        f"{best.part_bytes / 1e6:.3g} of {all_bytes / 1e6:.3g} MB in rows, {why}"
    )
    kept = keep(directory.placement, labels, within, shared, durable=durable)
    return replace(spec, placement=kept), Told(text, measured)


def _sides(graph: Graph, driver: str) -> Iterator[_Side]:
    """The edges that decide which rows a vertex needs. Those that lead all to one row decide nothing."""
    table = graph.tables[driver]
    for name, edges in table.edges.items():
        to = graph.tables[describe(table.type.target(name)).name]
        rows = to.type.replicated and to.type.arrays and not to.type.modules
        if rows and to.count > 1 and edges.constant is None:
            yield _Side(to.type.name, edges, to.count, row_bytes(to.columns))


def _facts(spec: RunSpec, driver: str, sides: list[_Side], asked: str) -> PlacingFacts:
    program, graph = spec.program, spec.graph
    types = {side.type: side for side in sides}.values()
    connected = (not describe(table.type.target(name)).replicated for table in graph.local for name in table.edges)
    fewest = max(SMALLEST * (program.update.batch or 1), program.fewest)
    return PlacingFacts(
        asked=asked,
        workers=spec.settings.workers,
        vertices=graph.tables[driver].count,
        edges=sum(len(side.edges.targets) for side in sides),
        rows=sum(side.count for side in types),
        row_bytes=sum(side.count * side.row_bytes for side in types),
        chunk=spec.settings.chunk or fewest,
        fewest=fewest,
        shuffled=spec.shuffle != "none",
        connected=any(connected),
        drop_last=program.update.drop_last,
        modules=any(table.type.modules for table in graph.replicated),
    )


def _bipartite(sides: list[_Side], vertices: int) -> tuple[Bipartite, NDArray[np.int64]]:
    """Return the graph of vertices and rows, and the bytes of each row, int64 (rows,)."""
    from gridml.placement.bipartite import Bipartite

    types = {side.type: side for side in sides}
    counts = [side.count for side in types.values()]
    first = dict(zip(types, np.cumsum([0, *counts]).tolist(), strict=False))  # column of a type's rows
    weights = np.repeat(np.array([side.row_bytes for side in types.values()], np.int64), counts)
    if len(sides) == 1:
        edges = sides[0].edges
        offsets = np.arange(vertices + 1) * edges.degree if edges.offsets is None else edges.offsets
        return Bipartite.from_rows(offsets, edges.targets, len(weights)), weights
    rows, columns = [], []
    for side in sides:
        degrees = side.edges.degree if side.edges.offsets is None else np.diff(side.edges.offsets)
        rows.append(np.repeat(np.arange(vertices, dtype=np.int32), degrees))
        columns.append((np.asarray(side.edges.targets) + first[side.type]).astype(np.int32))
    shape = vertices, len(weights)
    return Bipartite.from_edges(np.concatenate(rows), np.concatenate(columns), shape), weights


def _best(
    graph: Bipartite, weights: NDArray[np.int64], chosen: Chosen, seed: int
) -> tuple[_Candidate, list[_Candidate]]:
    """Place a graph; return the placement whose parts touch the fewest bytes of rows, and those that touch more.

    What auto takes for the best method is not on every graph, and to try Parsa as well costs a tenth of it at most.
    """
    from gridml.placement import auto
    from gridml.placement.base import Options
    from gridml.placement.overlap import overlap
    from gridml.placement.registry import find

    methods = [chosen.method]
    if chosen.method == AUTO:
        methods = [*dict.fromkeys((auto.chosen(auto.work(graph), chosen.parts, PLACE_S)[0].name, "parsa"))]
    candidates = []
    for method in methods:
        placement = find(method).place(graph, chosen.parts, Options(seed))
        candidates.append(_Candidate(method, placement, overlap(graph, placement.rows, chosen.parts, weights)))
    best, *others = sorted(candidates, key=lambda candidate: candidate.part_bytes)
    return best, others


def _by_chance(graph: Bipartite, weights: NDArray[np.int64], parts: int, seed: int) -> float:
    """Bytes of rows that a part touches on average where vertices are dealt out by chance."""
    from gridml.placement.overlap import overlap

    dealt = (np.random.default_rng(seed).permutation(graph.rows) % parts).astype(np.int32)
    return float(np.diag(overlap(graph, dealt, parts, weights)).mean())


def _in_chain(placement: Placement, shared: Shared) -> tuple[NDArray[np.int32], Shared]:
    """Return parts and what they share under new numbers, so that those that share much are side by side."""
    from gridml.placement.overlap import chain

    order = chain(shared)
    return np.argsort(order).astype(np.int32)[placement.rows], shared[np.ix_(order, order)]
