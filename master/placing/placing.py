"""The placement of a run's vertices, once, before it begins: those that touch the same rows go to one worker.

A worker needs the replicated rows that its vertices touch. The graph that is placed is bipartite: the vertices that
f runs on, and the rows of arrays that they touch; the rows of all types that hold arrays come one type after the
other. Pure functions decide whether vertices are placed, by which method, on how many parts, and whether the result
is worth keeping. `plan_placement` applies the same rules to a program without placing anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.model.graph import Edges, Graph
from gridml.model.loading import load
from gridml.model.program import Program
from gridml.model.vertex import describe
from master.leases.policy import SMALLEST
from master.store.rundir import EventFacts, RunDirectory
from master.store.settings import AUTO, NO_PLACEMENT, Settings, check_placement
from master.store.spec import RunSpec, Shared, keep, shuffle_of
from master.store.versions import row_bytes

if TYPE_CHECKING:
    from gridml.placement.base import Placement
    from gridml.placement.bipartite import Bipartite


MAX_PARTS = 64  # so that choosing one among them for a worker takes microseconds
MAX_SECTIONS = 4  # of a part: more save more bytes where workers push often, and cost more of what is learnt
MIN_CHUNKS_PER_PART = (
    4  # that a part has at least unless a method was asked for: or its worker could not be helped at its end
)
MIN_ROW_BYTES = 1_000_000  # of rows: all of them are sent to a worker in a tenth of a second at 100 Mbit/s
MIN_SAVED_SHARE = 0.05  # of the bytes that parts by chance touch
MAX_VERTICES = 2**31 - 1  # that can be placed, and rows that they can touch


@dataclass(frozen=True)
class PlacingFacts:
    """What the placement of a run is decided by.

    `asked` is auto, none or a method's name. The graph has `vertices` that f runs on, with `edges` to `rows` of array
    fields, which have `row_bytes` together; a type of which there is one vertex, or of which all lead to one, does not
    count. A chunk has `chunk` vertices at least, and `fewest` are worth a message. Vertices are
    `shuffled` where an epoch does not keep the graph's order. They may be `connected` with one another, f may leave out
    an epoch's last batch (`drop_last`), and train `modules` besides.
    """

    asked: str
    workers: int
    vertices: int
    edges: int
    rows: int
    row_bytes: int
    chunk: int
    fewest: int
    shuffled: bool = True
    connected: bool = False
    drop_last: bool = False
    modules: bool = False


@dataclass(frozen=True)
class PlacementChoice:
    """The method that places the vertices, on how many parts, and of how many sections each is."""

    method: str
    parts: int
    sections: int


def choose(facts: PlacingFacts) -> tuple[PlacementChoice | None, str]:
    """Return how vertices are placed, None where they are not, and why.

    There are as many parts as workers are asked for, since a part is what one of them keeps, and fewer where parts
    would have too few chunks. A part is divided into sections, unless an epoch keeps the graph's order. A method that
    was asked for by its name is taken wherever it can be.
    """
    if facts.asked == NO_PLACEMENT:
        return None, "no placement was asked for"
    if not facts.edges:
        return None, "no vertex leads to rows of arrays of its own"
    if facts.connected:
        return None, "vertices that are connected with one another are not placed"
    if facts.drop_last:
        return None, "with drop_last it would always be vertices of the same part that are left out"
    if max(facts.vertices, facts.rows) > MAX_VERTICES:
        return None, f"no more than {MAX_VERTICES:,} vertices can be placed, and no more rows"
    if facts.workers < 2:
        return None, "one worker trains all of them"
    chunks, several = (MIN_CHUNKS_PER_PART, f"{MIN_CHUNKS_PER_PART} chunks") if facts.asked == AUTO else (1, "1 chunk")
    parts, least = min(facts.workers, MAX_PARTS), chunks * facts.chunk
    if facts.vertices < 2 * least:
        return None, f"of {facts.vertices:,} vertices there are no two parts with {least:,}, which is {several}"
    reason = "as many as workers" if parts == facts.workers else "as many as there may be"
    if facts.vertices < parts * least:
        parts, reason = facts.vertices // least, f"each with {several} or more"
    sections = max(1, min(MAX_SECTIONS, facts.vertices // parts // facts.fewest)) if facts.shuffled else 1
    division = f"{parts} parts, {reason}" if sections == 1 else f"{parts} parts, {reason}, of {sections} sections"
    if facts.asked != AUTO:
        return PlacementChoice(facts.asked, parts, sections), f"{facts.asked} was asked for; {division}"
    if facts.modules:
        return None, "modules are trained besides, each worker's by all kinds of vertices"
    if facts.row_bytes < MIN_ROW_BYTES:
        return None, f"all rows together are {facts.row_bytes:,} bytes, which is little to send"
    return PlacementChoice(AUTO, parts, sections), division


def worth_keeping(asked: str, placed_bytes: float, chance_bytes: float) -> tuple[bool, str]:
    """Say whether parts that touch so many bytes of rows are better than parts by chance, and how much."""
    saved = 1 - placed_bytes / chance_bytes if chance_bytes else 0.0
    if asked == AUTO and saved < MIN_SAVED_SHARE:
        return False, f"parts would touch only {saved:.0%} fewer bytes of rows than by chance"
    return True, f"{saved:.0%} fewer bytes of rows than by chance"


@dataclass(frozen=True)
class Side:
    """Edges of the driving vertices to a type that has `count` rows of so many bytes each."""

    type: str
    edges: Edges
    count: int
    row_bytes: int


def sides_of(graph: Graph, driver: str) -> Iterator[Side]:
    """The edges that decide which rows a vertex needs. Those that lead all to one row decide nothing."""
    table = graph.tables[driver]
    for name, edges in table.edges.items():
        to = graph.tables[describe(table.type.target(name)).name]
        rows = to.type.replicated and to.type.arrays and not to.type.modules
        if rows and to.count > 1 and edges.constant is None:
            yield Side(to.type.name, edges, to.count, row_bytes(to.columns))


def facts_of(
    program: Program, graph: Graph, sides: Sequence[Side], *, asked: str, workers: int, chunk: int | None = None
) -> PlacingFacts:
    """What is to be known before a placement that was `asked` for. `chunk` is the size of chunks, None: chosen."""
    types = {side.type: side for side in sides}.values()
    connected = (not describe(table.type.target(name)).replicated for table in graph.local for name in table.edges)
    fewest = max(SMALLEST * (program.update.batch or 1), program.fewest)
    return PlacingFacts(
        asked=asked,
        workers=workers,
        vertices=graph.tables[program.driving(graph)].count,
        edges=sum(len(side.edges.targets) for side in sides),
        rows=sum(side.count for side in types),
        row_bytes=sum(side.count * side.row_bytes for side in types),
        chunk=chunk or fewest,
        fewest=fewest,
        shuffled=shuffle_of(program, graph) != "none",
        connected=any(connected),
        drop_last=program.update.drop_last,
        modules=any(table.type.modules for table in graph.replicated),
    )


def bipartite_of(sides: Sequence[Side], vertices: int) -> tuple[Bipartite, NDArray[np.int64]]:
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


def random_part_bytes(graph: Bipartite, weights: NDArray[np.int64], parts: int, seed: int) -> float:
    """Bytes of rows that a part touches on average where vertices are dealt out by chance."""
    from gridml.placement.sections import overlap

    dealt = (np.random.default_rng(seed).permutation(graph.rows) % parts).astype(np.int32)
    return float(np.diag(overlap(graph, dealt, parts, weights)).mean())


MAX_PLACE_S = 10.0  # that auto may take before a run begins
LONG_EDGES = 5_000_000  # edges that take some seconds to place
NOT_PLACED: EventFacts = dict.fromkeys(
    ("method", "parts", "sections", "edges", "place_s", "bytes", "placed_bytes", "chance_bytes")
)


class PlacementReport(NamedTuple):
    """What there is to say of a placement, or of why there is none: a text, and the facts of the event. Where nobody
    has asked, and nothing was done, the event `is_quiet`."""

    text: str
    facts: EventFacts
    is_quiet: bool = False


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


def place(
    spec: RunSpec, directory: RunDirectory, say: Callable[[str, EventFacts], None], *, durable: bool
) -> tuple[RunSpec, PlacementReport | None]:
    """Place the vertices of a run that is to begin, if that pays, and keep the placement in its directory.

    Return the run as it is to be trained, and what there is to tell: nothing where it was not wanted, or no vertex
    leads to rows of arrays and nobody has asked. `say` is told before it takes long. Raises OSError.
    """
    directory.placement.unlink(missing_ok=True)  # of a start that failed
    driver = spec.program.driving(spec.graph)
    asked, sides = spec.settings.placement or spec.program.placement, [*sides_of(spec.graph, driver)]
    facts = facts_of(
        spec.program, spec.graph, sides, asked=asked, workers=spec.settings.workers, chunk=spec.settings.chunk
    )
    chosen, reason = choose(facts)
    if chosen is None:
        if asked == NO_PLACEMENT or (asked == AUTO and not sides):
            return spec, None
        return spec, PlacementReport(f"vertices are not placed: {reason}", NOT_PLACED, is_quiet=asked == AUTO)
    if facts.edges >= LONG_EDGES:
        size = {"vertices": facts.vertices, "edges": facts.edges, "parts": chosen.parts}
        say(f"{facts.vertices:,} vertices with {facts.edges:,} edges on {chosen.parts} parts", size)
    return _placed(spec, directory, sides, facts, chosen, reason, durable=durable)


def _placed(
    spec: RunSpec,
    directory: RunDirectory,
    sides: Sequence[Side],
    facts: PlacingFacts,
    chosen: PlacementChoice,
    reason: str,
    *,
    durable: bool,
) -> tuple[RunSpec, PlacementReport]:
    """Place the vertices as was chosen for this `reason`, and keep that if it is worth it."""
    from gridml.placement.sections import sections

    begun = time.perf_counter()
    graph, weights = bipartite_of(sides, facts.vertices)
    best, others = _best(graph, weights, chosen, spec.settings.seed)
    chance_bytes, all_bytes = random_part_bytes(graph, weights, chosen.parts, spec.settings.seed), int(weights.sum())
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
        return spec, PlacementReport(f"vertices are not placed: {why}", measured)
    compared = f", which touches less than {others[0].method}" if others else ""
    text = (
        f"{reason}; {best.placement.why}{compared}; in {measured['place_s']:.2g} s. A part touches "
        f"{best.part_bytes / 1e6:.3g} of {all_bytes / 1e6:.3g} MB in rows, {why}"
    )
    kept = keep(directory.placement, labels, within, shared, durable=durable)
    return replace(spec, placement=kept), PlacementReport(text, measured)


def methods_of(chosen: PlacementChoice, graph: Bipartite) -> list[str]:
    """Return the methods that are tried, by name: of auto the best that there is time for, and Parsa.

    What auto takes for the best is not on every graph, and to try Parsa as well costs a tenth of it at most.
    """
    from gridml.placement import auto

    if chosen.method != AUTO:
        return [chosen.method]
    return [*dict.fromkeys((auto.chosen(auto.work(graph), chosen.parts, MAX_PLACE_S)[0].name, "parsa"))]


def _best(
    graph: Bipartite, weights: NDArray[np.int64], chosen: PlacementChoice, seed: int
) -> tuple[_Candidate, list[_Candidate]]:
    """Place a graph; return the placement whose parts touch the fewest bytes of rows, and those that touch more."""
    from gridml.placement.auto import find
    from gridml.placement.base import Options
    from gridml.placement.sections import overlap

    candidates = []
    for method in methods_of(chosen, graph):
        placement = find(method).place(graph, chosen.parts, Options(seed))
        candidates.append(_Candidate(method, placement, overlap(graph, placement.rows, chosen.parts, weights)))
    best, *others = sorted(candidates, key=lambda candidate: candidate.part_bytes)
    return best, others


def _in_chain(placement: Placement, shared: Shared) -> tuple[NDArray[np.int32], Shared]:
    """Return parts and what they share under new numbers, so that those that share much are side by side."""
    from gridml.placement.sections import chain

    order = chain(shared)
    return np.argsort(order).astype(np.int32)[placement.rows], shared[np.ix_(order, order)]


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
    if asked == NO_PLACEMENT or (asked == AUTO and not sides):
        return Planned(facts.vertices, None)
    chosen, reason = choose(facts)
    if chosen is None:
        return Planned(facts.vertices, PlannedPlacement(workers, reason, row_bytes=facts.row_bytes))
    from gridml.placement import auto

    bipartite, weights = bipartite_of(sides, facts.vertices)
    methods = methods_of(chosen, bipartite)
    seconds = [auto.expected_s(method, auto.work(bipartite), chosen.parts) for method in methods]
    chance_bytes = random_part_bytes(bipartite, weights, chosen.parts, SEED)
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
