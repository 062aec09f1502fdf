"""The vertices of a run are placed, once, before it begins: those that touch the same rows go to one worker.

What a worker needs of the replicated rows is what its vertices touch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from master.decisions.placing import AUTO, NONE, Chosen, PlacingFacts, choose, worth_keeping
from master.placing_graph import Side, bipartite_of, by_chance, facts_of, sides_of
from master.store.event_facts import EventFacts
from master.store.kept_placement import Shared, keep
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


def place(
    spec: RunSpec, directory: RunDirectory, say: Callable[[str, EventFacts], None], *, durable: bool
) -> tuple[RunSpec, Told | None]:
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
    sides: Sequence[Side],
    facts: PlacingFacts,
    chosen: Chosen,
    reason: str,
    *,
    durable: bool,
) -> tuple[RunSpec, Told]:
    """Place the vertices as was chosen for this `reason`, and keep that if it is worth it."""
    from gridml.placement.sections import sections

    begun = time.perf_counter()
    graph, weights = bipartite_of(sides, facts.vertices)
    best, others = _best(graph, weights, chosen, spec.settings.seed)
    chance_bytes, all_bytes = by_chance(graph, weights, chosen.parts, spec.settings.seed), int(weights.sum())
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


def methods_of(chosen: Chosen, graph: Bipartite) -> list[str]:
    """Return the methods that are tried, by name: of auto the best that there is time for, and Parsa.

    What auto takes for the best is not on every graph, and to try Parsa as well costs a tenth of it at most.
    """
    from gridml.placement import auto

    if chosen.method != AUTO:
        return [chosen.method]
    return [*dict.fromkeys((auto.chosen(auto.work(graph), chosen.parts, PLACE_S)[0].name, "parsa"))]


def _best(
    graph: Bipartite, weights: NDArray[np.int64], chosen: Chosen, seed: int
) -> tuple[_Candidate, list[_Candidate]]:
    """Place a graph; return the placement whose parts touch the fewest bytes of rows, and those that touch more."""
    from gridml.placement.base import Options
    from gridml.placement.overlap import overlap
    from gridml.placement.registry import find

    candidates = []
    for method in methods_of(chosen, graph):
        placement = find(method).place(graph, chosen.parts, Options(seed))
        candidates.append(_Candidate(method, placement, overlap(graph, placement.rows, chosen.parts, weights)))
    best, *others = sorted(candidates, key=lambda candidate: candidate.part_bytes)
    return best, others


def _in_chain(placement: Placement, shared: Shared) -> tuple[NDArray[np.int32], Shared]:
    """Return parts and what they share under new numbers, so that those that share much are side by side."""
    from gridml.placement.overlap import chain

    order = chain(shared)
    return np.argsort(order).astype(np.int32)[placement.rows], shared[np.ix_(order, order)]
