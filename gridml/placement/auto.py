"""The automatic choice of a method, and the methods of placement by name.

The largest graphs are placed by the quickest method, all others by the best that the time allows. A new method is a
file and a line here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from gridml.errors import UsageError
from gridml.placement.base import ALL_FEATURES, TOTAL, TRAFFIC, Method, Options, Placement, check, requested
from gridml.placement.bipartite import Bipartite
from gridml.placement.greedy import AtRandom, Greedy
from gridml.placement.mbp import Mbp
from gridml.placement.multilevel import Multilevel
from gridml.placement.parsa import Parsa
from gridml.placement.refined import Refined
from gridml.placement.tsh import Tsh


class Cost(NamedTuple):
    """CPU seconds of a million edges on 16 parts, the slowest of the graphs of up to CACHED edges in
    benchmarks/results/placement.md, and the power of the size by which that grows on larger ones, which do not fit the
    caches (Parsa's blocks do)."""

    seconds: float
    growth: float = 0.0


COSTS: tuple[tuple[Method, Cost], ...] = (  # the best method first
    (Multilevel(), Cost(1.8, 0.25)),
    (Refined(), Cost(0.3, 0.15)),
    (Parsa(), Cost(0.15)),
)
CACHED = 5e6
ROW = 8  # edges that a row costs beside its own: rows of two columns take several times as long by the edge
QUICKEST = COSTS[-1][0]
SLOWER = {f"objective {TOTAL}": 9.0, f"objective {TRAFFIC}": 10.0}  # times as long as usual the best method takes
USUAL_PARTS = 16  # twice as many take twice as long
SECONDS = 60.0


@dataclass(frozen=True)
class AutoOptions(Options):
    """Placing may take about so many `seconds`; the quickest method takes what it takes."""

    seconds: float = SECONDS

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seconds >= 0:
            raise UsageError(f"placing may take {self.seconds} s; expected a time from 0.")


def work(graph: Bipartite) -> int:
    """How many edges a graph costs to place."""
    return graph.edges + ROW * graph.rows


def chosen(edges: int, parts: int, seconds: float, wanted: frozenset[str] = frozenset()) -> tuple[Method, str]:
    """Return the best method that is expected to place so many edges in so many seconds, and why it is that one: of
    those that support what is `wanted` (`base.requested`)."""
    for method, cost in ((method, cost) for method, cost in COSTS if wanted <= method.supports):
        slower = max((SLOWER.get(each, 1.0) for each in wanted), default=1.0) if isinstance(method, Multilevel) else 1.0
        takes_s = slower * _seconds(edges, parts, cost)
        if takes_s <= seconds:
            return method, f"the best method expected to take {seconds:g} s or less ({takes_s:.2g} s)"
    which = f" that takes account of {', '.join(sorted(wanted))}" if wanted else ""
    return method, f"the quickest method{which}, expected to take {takes_s:.2g} s where {seconds:g} s are allowed"


def expected_s(method: str, edges: int, parts: int) -> float | None:
    """Return the CPU seconds that a method is expected to take for a graph of so many edges (`work`), None of one that
    auto does not choose among."""
    return next((_seconds(edges, parts, cost) for each, cost in COSTS if each.name == method), None)


def _seconds(edges: int, parts: int, cost: Cost) -> float:
    larger: float = max(1.0, edges / CACHED) ** cost.growth
    return edges / 1e6 * cost.seconds * larger * max(1.0, parts / USUAL_PARTS)


class Auto:
    """Chooses by the size of the graph, the number of parts and the time allowed."""

    name = "auto"
    supports = ALL_FEATURES

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        check(graph, parts, options, self)
        seconds = options.seconds if isinstance(options, AutoOptions) else SECONDS
        wanted = requested(graph, options)
        if graph.mapped and wanted <= QUICKEST.supports:
            method, reason = QUICKEST, "the method that does not read the graph into memory"
        else:
            method, reason = chosen(work(graph), parts, seconds, wanted)
        placed = method.place(graph, parts, options)
        return replace(placed, why=f"{placed.why}; {reason}")


_ALL: tuple[Method, ...] = (
    AtRandom(),
    AtRandom(served=True),
    Greedy(),
    Parsa(),
    Refined(),
    Multilevel(),
    Tsh(),
    Mbp(),
    Auto(),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}


def find(name: str) -> Method:
    """Return a method. Raises UsageError for a name that none has."""
    if name not in METHODS:
        raise UsageError(f"there is no method of placement {name!r}; expected {', '.join(METHODS)}.")
    return METHODS[name]
