"""The automatic choice of a method, and the methods of placement by name.

The largest graphs are placed by the fastest method, all others by the best method that the time allows. A new method
is a file and a line here.
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
    """A model of a method's CPU time, fitted to benchmarks/results/placement.md."""

    seconds: float  #: of a million edges on 16 parts: the slowest graph of up to CACHED edges
    growth: float = 0.0  #: the power of edges / CACHED by which that grows on larger graphs; 0 for Parsa's blocks


COSTS: tuple[tuple[Method, Cost], ...] = (  # the best method first
    (Multilevel(), Cost(1.8, 0.25)),
    (Refined(), Cost(0.3, 0.15)),
    (Parsa(), Cost(0.15)),
)
CACHED = 5e6  # edges of a graph that fits into the processor's caches
ROW = 8  # a row costs as much as 8 edges: rows of two columns take several times as long per edge
FASTEST = COSTS[-1][0]
SLOWER = {f"objective {TOTAL}": 9.0, f"objective {TRAFFIC}": 10.0}  # factors on the time of multilevel
USUAL_PARTS = 16  # the time grows in proportion to the parts beyond these
SECONDS = 60.0  # the default of `AutoOptions.seconds`


@dataclass(frozen=True)
class AutoOptions(Options):
    """Options of the automatic choice."""

    seconds: float = SECONDS  #: that placing may take, approximately; the fastest method is not limited

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seconds >= 0:
            raise UsageError(f"placing may take {self.seconds} s; expected a time from 0.")


def work(graph: Bipartite) -> int:
    """Return the cost of placing a graph, in edges."""
    return graph.edges + ROW * graph.rows


def chosen(edges: int, parts: int, seconds: float, wanted: frozenset[str] = frozenset()) -> tuple[Method, str]:
    """Return the best method that supports the `wanted` features (`base.requested`) and is expected to place `edges` in
    `seconds`, and the reason."""
    for method, cost in ((method, cost) for method, cost in COSTS if wanted <= method.supports):
        slower = max((SLOWER.get(each, 1.0) for each in wanted), default=1.0) if isinstance(method, Multilevel) else 1.0
        takes_s = slower * _seconds(edges, parts, cost)
        if takes_s <= seconds:
            return method, f"the best method expected to take {seconds:g} s or less ({takes_s:.2g} s)"
    which = f" that supports {', '.join(sorted(wanted))}" if wanted else ""
    return method, f"the fastest method{which}, expected to take {takes_s:.2g} s where {seconds:g} s are allowed"


def expected_s(method: str, edges: int, parts: int) -> float | None:
    """Return the expected CPU seconds of a method for a graph of `edges` (see `work`); None: auto never chooses it."""
    return next((_seconds(edges, parts, cost) for each, cost in COSTS if each.name == method), None)


def _seconds(edges: int, parts: int, cost: Cost) -> float:
    larger: float = max(1.0, edges / CACHED) ** cost.growth
    return edges / 1e6 * cost.seconds * larger * max(1.0, parts / USUAL_PARTS)


class Auto:
    """Chooses a method by the size of the graph, the number of parts and the time allowed."""

    name = "auto"
    supports = ALL_FEATURES

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        check(graph, parts, options, self)
        seconds = options.seconds if isinstance(options, AutoOptions) else SECONDS
        wanted = requested(graph, options)
        if graph.mapped and wanted <= FASTEST.supports:
            method, reason = FASTEST, "the method that does not read the graph into memory"
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
    """Return a method by name. Raises UsageError for an unknown name."""
    if name not in METHODS:
        raise UsageError(f"there is no method of placement {name!r}; expected {', '.join(METHODS)}.")
    return METHODS[name]
