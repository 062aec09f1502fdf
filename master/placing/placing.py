"""Placement of a run's vertices, once, before the run begins: vertices that touch the same rows go to one worker.

A worker needs the rows that its vertices touch (`sides.py`): replicated ones, and in a superstep the vertices that they
are linked with. Pure functions decide whether vertices are placed, by which method, on how many parts, and whether the
result is worth keeping. `plan_placement` applies the same rules to a program without placing anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.model.graph import Graph
from gridml.model.loading import load
from gridml.model.program import Program
from gridml.model.vertex import describe
from master.leases.policy import MIN_CHUNK_BATCHES
from master.placing.sides import Side, at_random, bipartite_of, ghosts, in_order, sides_of
from master.store.rundir import EventFacts, RunDirectory
from master.store.settings import AUTO, NO_PLACEMENT, Settings, check_placement
from master.store.spec import RunSpec, Shared, save, shuffle_of

if TYPE_CHECKING:
    from gridml.placement.base import Placement
    from gridml.placement.bipartite import Bipartite


MAX_PARTS = 64  # choosing a part for a worker takes only microseconds up to this number of parts
MAX_SECTIONS = 4  # per part; more sections would save more bytes if workers push often, but slow the fall of the loss
# Applies to auto only. With fewer chunks in a part, other workers could not help the part's worker at an epoch's end.
MIN_CHUNKS_PER_PART = 4
MIN_ROW_BYTES = 1_000_000  # auto places nothing below it: at 100 Mbit/s, all rows are sent in less than 0.1 s
MAX_READ_EDGES = 10_000_000  # of files that auto reads into memory, as placing does: a few hundred MB
MIN_SAVED_SHARE = 0.05  # auto keeps a placement that saves at least this fraction of the bytes that random parts touch
AT_RANDOM, IN_ORDER = "at random", "in the graph's order"  # what a placement is compared with
MAX_VERTICES = 2**31 - 1  # for vertices and for rows, because placement numbers each of them in int32


@dataclass(frozen=True)
class PlacingFacts:
    """The facts that decide the placement of a run.

    `edges`, `rows` and `row_bytes` leave out a type that has a single row, and a field whose edges all lead to one row.
    """

    requested: str  #: auto, none or the name of a method
    workers: int  #: the number of workers that the run requests
    vertices: int  #: the number of vertices that f runs on
    edges: int  #: the number of edges from these vertices to rows of array fields
    rows: int  #: the number of rows of array fields
    row_bytes: int  #: the bytes of all these rows together
    chunk: int  #: the requested number of vertices per chunk; `fewest` if none was requested
    fewest: int  #: the minimum number of vertices per chunk; a smaller chunk is not worth a message
    shuffled: bool = True  #: False: an epoch visits vertices in the graph's order
    connected: bool = False  #: True: components of linked vertices are never cut
    linked: bool = False  #: True: linked vertices read one another as the last pass left them, wherever they are
    parts: int | None = None  #: the parts of the program, each a lease of its own; None: the run chooses
    drop_last: bool = False  #: True: f skips an epoch's last batch
    modules: bool = False  #: True: f also trains modules
    mapped: bool = False  #: True: edges are in memory-mapped files, as `gridml.graph_from` leaves them

    @property
    def keeps_order(self) -> bool:
        """True if, without a placement, parts are adjacent vertices in the graph's order, as linked ones are."""
        return self.linked and not self.shuffled


@dataclass(frozen=True)
class PlacementChoice:
    """A decision to place the vertices."""

    method: str
    parts: int
    sections: int  #: the number of sections in each part


def choose(facts: PlacingFacts) -> tuple[PlacementChoice | None, str]:
    """Decide how vertices are placed, and why; None: they are not placed.

    There are as many parts as the program has, if it has any and its vertices are linked: the result then depends on no
    number of workers. Otherwise there is one for each requested worker, because a worker keeps one part. The number of
    parts is lower if parts would have too few chunks, or if more than MAX_PARTS workers are requested. A part is
    divided into sections unless an epoch visits vertices in the graph's order. A method requested by name is used
    unless placement is impossible.
    """
    if facts.requested == NO_PLACEMENT:
        return None, "no placement was requested"
    if not facts.edges:
        return None, "no vertex leads to rows of arrays of its own"
    if facts.connected:
        return None, "connected vertices are not placed"
    if facts.drop_last:
        return None, "drop_last would always skip vertices of the same part"
    if max(facts.vertices, facts.rows) > MAX_VERTICES:
        return None, f"at most {MAX_VERTICES:,} vertices and rows can be placed"
    if facts.parts is not None:
        parts, sections, division = facts.parts, 1, f"{facts.parts} parts, as many as the program has"
        if parts < 2:
            return None, "the program has one part"
    else:
        if facts.workers < 2:
            return None, "one worker trains all vertices"
        parts, reason = _as_workers(facts)
        if parts < 2:
            return None, reason
        sections = max(1, min(MAX_SECTIONS, facts.vertices // parts // facts.fewest)) if facts.shuffled else 1
        division = f"{parts} parts, {reason}" if sections == 1 else f"{parts} parts, {reason}, of {sections} sections"
    if facts.requested != AUTO:
        return PlacementChoice(facts.requested, parts, sections), f"{facts.requested} was requested; {division}"
    if facts.modules:
        return None, "modules are trained too, and every worker should train them on all kinds of vertices"
    if facts.mapped and facts.edges > MAX_READ_EDGES:
        return None, (
            f"placing would read {facts.edges:,} edges from files into memory; if that is large enough, name a method, "
            f"such as --placement parsa"
        )
    if facts.row_bytes < MIN_ROW_BYTES:
        return None, f"all rows together are {facts.row_bytes:,} bytes, which is cheap to send"
    return PlacementChoice(AUTO, parts, sections), division


def _as_workers(facts: PlacingFacts) -> tuple[int, str]:
    """Return (the number of parts for the workers of a run, reason); fewer than two if there are too few vertices."""
    chunks, several = (
        (MIN_CHUNKS_PER_PART, f"{MIN_CHUNKS_PER_PART} chunks") if facts.requested == AUTO else (1, "1 chunk")
    )
    parts, least = min(facts.workers, MAX_PARTS), chunks * facts.chunk
    if facts.vertices < 2 * least:
        return 1, f"{facts.vertices:,} vertices do not fill two parts of {least:,} ({several})"
    if facts.vertices < parts * least:
        return facts.vertices // least, f"each with {several} or more"
    return parts, "as many as workers" if parts == facts.workers else "the maximum"


def worth_keeping(requested: str, placed_bytes: float, else_bytes: float, than: str = AT_RANDOM) -> tuple[bool, str]:
    """Decide whether a placement is worth keeping, and why. `placed_bytes` is the mean bytes of rows that a part of the
    placement touches, `else_bytes` the mean of what it is compared with, which `than` names."""
    saved = 1 - placed_bytes / else_bytes if else_bytes else 0.0
    if requested == AUTO and saved < MIN_SAVED_SHARE:
        return False, f"parts would touch only {saved:.0%} fewer bytes of rows than {than}"
    return True, f"{abs(saved):.0%} {'more' if saved < 0 else 'fewer'} bytes of rows than {than}"


def facts_of(
    program: Program, graph: Graph, sides: Sequence[Side], *, requested: str, workers: int, chunk: int | None = None
) -> PlacingFacts:
    """Collect the facts that `choose` needs. `chunk` is the requested number of vertices per chunk; None: it is chosen
    later."""
    types = {side.type: side for side in sides}.values()
    connected = (not describe(table.type.target(name)).replicated for table in graph.local for name in table.edges)
    division = program.division(graph)
    fewest = max(MIN_CHUNK_BATCHES * (program.shape.batch or 1), program.min_actual_batch)
    return PlacingFacts(
        requested=requested,
        workers=workers,
        vertices=graph.tables[program.driving(graph)].count,
        edges=sum(len(side.edges.targets) for side in sides),
        rows=sum(side.count for side in types),
        row_bytes=sum(side.count * side.row_bytes for side in types),
        chunk=chunk or fewest,
        fewest=fewest,
        shuffled=shuffle_of(program, graph) != "none",
        connected=any(connected) and not program.consistency.is_bsp,
        linked=any(side.is_own for side in sides),
        parts=division.parts if division is not None and program.consistency.is_bsp else None,
        drop_last=program.shape.drop_last,
        modules=any(table.type.modules for table in graph.replicated),
        mapped=any(isinstance(side.edges.targets, np.memmap) for side in sides),
    )


def _sides(program: Program, graph: Graph) -> list[Side]:
    """Return the sides of a program's graph."""
    return [*sides_of(graph, program.driving(graph), linked=program.consistency.is_bsp)]


def part_bytes(graph: Bipartite, labels: NDArray[np.int32], parts: int, weights: NDArray[np.int64]) -> float:
    """Return the mean bytes of rows that a part touches."""
    from gridml.placement.sections import overlap

    return float(np.diag(overlap(graph, labels, parts, weights)).mean())


MAX_PLACE_S = 10.0  # the time that auto may spend on a placement, during which the run does not start
LONG_WORK = 2_000_000  # edges (`auto.work_of`): to place so many takes some seconds, and is announced
#: The facts of the event if vertices are not placed. Their keys are those of a placement, so readers need no special
#: case.
NOT_PLACED: EventFacts = dict.fromkeys(
    (
        *("method", "parts", "sections", "edges", "place_s", "bytes", "placed_bytes", "chance_bytes", "order_bytes"),
        *("ghosts", "chance_ghosts", "order_ghosts"),
    )
)


class PlacementReport(NamedTuple):
    """The outcome of a placement, for the event and the ledger."""

    text: str
    facts: EventFacts
    is_quiet: bool = False  #: True: nothing was requested and nothing was done, so the event is recorded but not shown


@dataclass(frozen=True)
class _Candidate:
    """A placement by one of the methods that are tried."""

    method: str
    placement: Placement
    shared: (
        Shared  #: bytes of rows that parts i and j both touch, int64 (parts, parts); [i, i]: all that part i touches
    )

    @property
    def part_bytes(self) -> float:
        """The mean bytes of rows that a part touches."""
        return float(np.diag(self.shared).mean())


def place(
    spec: RunSpec,
    chunk: int | None,
    directory: RunDirectory,
    notify: Callable[[str, EventFacts], None],
    *,
    durable: bool,
) -> tuple[RunSpec, PlacementReport | None]:
    """Place the vertices of a run before it begins, if that pays, and save the placement in the run's directory.

    Return the spec with the placement, and a report. The report is None if placement is off, or if it is auto and no
    vertex leads to rows of arrays. `chunk` is the number of vertices per chunk that the user requested, if any.
    `notify` is called before a placement that takes long. Raises OSError.
    """
    directory.placement.unlink(missing_ok=True)  # left by a failed start
    requested, sides = spec.settings.placement or spec.program.placement, _sides(spec.program, spec.graph)
    facts = facts_of(spec.program, spec.graph, sides, requested=requested, workers=spec.settings.workers, chunk=chunk)
    chosen, reason = choose(facts)
    if chosen is None:
        if requested == NO_PLACEMENT or (requested == AUTO and not sides):
            return spec, None
        return spec, PlacementReport(f"vertices are not placed: {reason}", NOT_PLACED, is_quiet=requested == AUTO)
    from gridml.placement import auto

    if auto.work_of(facts.edges, facts.vertices) >= LONG_WORK:
        size = {"vertices": facts.vertices, "edges": facts.edges, "parts": chosen.parts}
        text = f"{facts.vertices:,} vertices with {facts.edges:,} edges on {chosen.parts} parts"
        notify(f"{text}; --placement none does without", size)
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
    """Place the vertices as chosen, and keep the placement if it is worth it."""
    from gridml.placement.sections import overlap, sections

    begun = time.perf_counter()
    graph, weights = bipartite_of(sides, facts.vertices)
    division, parts = spec.program.division(spec.graph), chosen.parts
    works = None if division is None or facts.parts is None else division.work
    best, others = _best(graph if works is None else graph.weighted(works), weights, chosen, spec.settings.seed)
    labels, shared = _in_chain(best.placement, best.shared)
    if facts.parts is not None:  # parts end where those of the program do
        labels = in_order(np.argsort(labels, kind="stable"), parts, division)
        shared = overlap(graph, labels, parts, weights)
    placed_bytes, all_bytes = float(np.diag(shared).mean()), int(weights.sum())
    chance = at_random(facts.vertices, parts, spec.settings.seed)
    ordered = in_order(np.arange(facts.vertices), parts, division) if facts.keeps_order else None
    bytes_of = partial(part_bytes, graph, parts=parts, weights=weights)
    chance_bytes, order_bytes = bytes_of(chance), None if ordered is None else bytes_of(ordered)
    compared_with = (chance_bytes, AT_RANDOM) if order_bytes is None else (order_bytes, IN_ORDER)
    worth, why = worth_keeping(facts.requested, placed_bytes, *compared_with)
    within = sections(graph, labels, parts, chosen.sections if worth else 1, spec.settings.seed)
    measured: EventFacts = {
        "method": best.method if worth else None,
        "parts": parts if worth else None,
        "sections": chosen.sections if worth else None,
        "edges": graph.edges,
        "place_s": time.perf_counter() - begun,
        "bytes": all_bytes,
        "placed_bytes": placed_bytes,
        "chance_bytes": chance_bytes,
        "order_bytes": order_bytes,
        "ghosts": ghosts(graph, sides, labels, parts),
        "chance_ghosts": ghosts(graph, sides, chance, parts),
        "order_ghosts": None if ordered is None else ghosts(graph, sides, ordered, parts),
    }
    if not worth:
        return spec, PlacementReport(f"vertices are not placed: {why}", measured)
    compared = f", which touches less than {others[0].method}" if others else ""
    text = (
        f"{reason}; {best.placement.why}{compared}; in {measured['place_s']:.2g} s. A part touches "
        f"{placed_bytes / 1e6:.3g} of {all_bytes / 1e6:.3g} MB in rows, {why}{_ghosts_in_words(measured)}"
    )
    kept = save(directory.placement, labels, within, shared, durable=durable)
    return replace(spec, placement=kept), PlacementReport(text, measured)


def _ghosts_in_words(measured: EventFacts) -> str:
    """Return what is said of ghosts; nothing if vertices are not linked."""
    if measured["ghosts"] is None:
        return ""
    order = measured["order_ghosts"]
    than = f"{measured['chance_ghosts']:,.0f} {AT_RANDOM}" + ("" if order is None else f", {order:,.0f} {IN_ORDER}")
    return f". It reads {measured['ghosts']:,.0f} vertices of other parts ({than})"


def methods_of(chosen: PlacementChoice, graph: Bipartite) -> list[str]:
    """Return the names of the methods to try: the requested one; for auto the best one that MAX_PLACE_S allows, and
    Parsa.

    Auto tries Parsa too, because the other method is not better on every graph and Parsa adds at most a tenth to the
    time.
    """
    from gridml.placement import auto

    if chosen.method != AUTO:
        return [chosen.method]
    return [*dict.fromkeys((auto.chosen(auto.work(graph), chosen.parts, MAX_PLACE_S)[0].name, "parsa"))]


def _best(
    graph: Bipartite, weights: NDArray[np.int64], chosen: PlacementChoice, seed: int
) -> tuple[_Candidate, list[_Candidate]]:
    """Place a graph by each of the methods. Return the placement whose parts touch the fewest bytes of rows, and the
    others."""
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
    """Renumber the parts so that consecutive parts share many rows. Return the new part of each vertex, and the
    reordered `shared`."""
    from gridml.placement.sections import chain

    order = chain(shared)
    return np.argsort(order).astype(np.int32)[placement.rows], shared[np.ix_(order, order)]


SEED = 0  # the default seed of a run


@dataclass(frozen=True)
class PlannedPlacement:
    """The placement that a run would make."""

    workers: int  #: the number of workers of the run
    reason: str
    methods: tuple[str, ...] = ()  #: the methods that would be tried; empty: vertices are not placed
    parts: int = 0
    place_s: float | None = None  #: expected CPU seconds of all methods; None: unknown, or vertices are not placed
    row_bytes: int = 0  #: the bytes of all rows together
    else_bytes: float = 0.0  #: mean bytes that a part touches without a placement; 0: not computed
    least_bytes: float = 0.0  #: lower bound of the mean bytes that a part touches in any placement; 0: not computed
    than: str = AT_RANDOM  #: how vertices come to parts without a placement

    @property
    def most_saved(self) -> float | None:
        """The upper bound of the share of `else_bytes` that a placement can save; None: not computed."""
        return 1 - self.least_bytes / self.else_bytes if self.else_bytes else None


@dataclass(frozen=True)
class Planned:
    """A program's vertices, and their placement."""

    vertices: int  #: the number of vertices that f runs on
    placement: PlannedPlacement | None  #: None: placement is off, or it is auto and no vertex leads to rows of arrays


def plan_placement(file: Path, workers: int | None) -> Planned:
    """Load a program, build its graph, and plan the placement of a run with `workers`; None: the default number.

    Raises GridmlError for a program that cannot be run.
    """
    program = load(file)
    requested = program.placement
    check_placement(f"the placement of {file}", requested, ProgramError)
    graph = program.build(file)
    sides = _sides(program, graph)
    workers = Settings.workers if workers is None else workers
    facts = facts_of(program, graph, sides, requested=requested, workers=workers)
    if requested == NO_PLACEMENT or (requested == AUTO and not sides):
        return Planned(facts.vertices, None)
    chosen, reason = choose(facts)
    if chosen is None:
        return Planned(facts.vertices, PlannedPlacement(workers, reason, row_bytes=facts.row_bytes))
    from gridml.placement import auto

    bipartite, weights = bipartite_of(sides, facts.vertices)
    methods = methods_of(chosen, bipartite)
    seconds = [auto.expected_s(method, auto.work(bipartite), chosen.parts) for method in methods]
    labels, than = at_random(facts.vertices, chosen.parts, SEED), AT_RANDOM
    if facts.keeps_order:
        labels, than = in_order(np.arange(facts.vertices), chosen.parts, program.division(graph)), IN_ORDER
    else_bytes = part_bytes(bipartite, labels, chosen.parts, weights)
    # At least one part touches each row that has edges.
    least_bytes = float(weights[bipartite.transposed.degrees > 0].sum()) / chosen.parts
    worth, why = worth_keeping(requested, least_bytes, else_bytes, than)
    return Planned(
        facts.vertices,
        PlannedPlacement(
            workers,
            reason if worth else f"{why}, at best",
            tuple(methods) if worth else (),
            chosen.parts if worth else 0,
            sum(each for each in seconds if each is not None) if worth and None not in seconds else None,
            facts.row_bytes,
            else_bytes,
            least_bytes,
            than,
        ),
    )
