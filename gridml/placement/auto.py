"""The automatic choice of a method, and the methods of placement by name.

A graph is placed by the best method that the time allows; the largest graphs are placed by the fastest method. To add a
method, add a module for it, and an entry in this module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from gridml.errors import UsageError
from gridml.placement.base import ALL_FEATURES, TOTAL, TRAFFIC, Method, Options, Placement, check, requested
from gridml.placement.bipartite import Bipartite
from gridml.placement.greedy import AtRandom, Greedy
from gridml.placement.mbp import Mbp
from gridml.placement.mbp_printed import PrintedMbp
from gridml.placement.multilevel import Multilevel
from gridml.placement.parsa import Parsa
from gridml.placement.parsa_sets import ParsaSets
from gridml.placement.refined import Refined
from gridml.placement.tsh import Tsh
from gridml.placement.tsh_printed import PrintedTsh


class Cost(NamedTuple):
    """A model of a method's CPU time, fitted to benchmarks/results/placement.md."""

    seconds: float  #: CPU time per million edges on 16 parts, measured on the slowest graph of up to CACHED edges
    #: On larger graphs the time per edge grows with this power of edges / CACHED; 0 for Parsa, which works in blocks.
    growth: float = 0.0


COSTS: tuple[tuple[Method, Cost], ...] = (  # the best method first
    (Multilevel(), Cost(1.8, 0.25)),
    (Refined(), Cost(0.3, 0.15)),
    (Parsa(), Cost(0.15)),
)
CACHED = 5e6  # a graph of up to this many edges fits into the processor's caches
# The cost of a row, in edges: in graphs whose rows have few columns, the time per edge is several times as long.
ROW = 8
FASTEST = COSTS[-1][0]
SLOWER = {f"objective {TOTAL}": 9.0, f"objective {TRAFFIC}": 10.0}  # factor on the time of multilevel, by feature
USUAL_PARTS = 16  # the time is the same for up to this many parts, and proportional to their number beyond
SECONDS = 60.0  # the default of `AutoOptions.seconds`


@dataclass(frozen=True)
class AutoOptions(Options):
    """Options of the automatic choice."""

    seconds: float = SECONDS  #: approximate limit of the time to place a graph; the fastest method can take longer

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seconds >= 0:
            raise UsageError(f"placing may take {self.seconds} s; expected a time from 0.")


def work(graph: Bipartite) -> int:
    """Return the cost of placing a graph, in edges."""
    return work_of(graph.edges, graph.rows)


def work_of(edges: int, rows: int) -> int:
    """Return the cost of placing a graph of this size, in edges."""
    return edges + ROW * rows


def chosen(edges: int, parts: int, seconds: float, wanted: frozenset[str] = frozenset()) -> tuple[Method, str]:
    """Return (the best method that supports the `wanted` features of `base.requested` and is expected to place `edges`
    in `seconds`, reason). If no method is expected to, return the fastest that supports the features."""
    for method, cost in ((method, cost) for method, cost in COSTS if wanted <= method.supports):
        slower = max((SLOWER.get(each, 1.0) for each in wanted), default=1.0) if isinstance(method, Multilevel) else 1.0
        takes_s = slower * _seconds(edges, parts, cost)
        if takes_s <= seconds:
            return method, f"the best method expected to take {seconds:g} s or less ({takes_s:.2g} s)"
    which = f" that supports {', '.join(sorted(wanted))}" if wanted else ""
    return method, f"the fastest method{which}, expected to take {takes_s:.2g} s where {seconds:g} s are allowed"


def expected_s(method: str, edges: int, parts: int) -> float | None:
    """Return the CPU seconds that a method is expected to take for a graph of `edges` (see `work`); None for a method
    that auto never chooses."""
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
    ParsaSets(),
    PrintedTsh(),
    PrintedMbp(),
    Auto(),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}


def find(name: str) -> Method:
    """Return a method by name. Raises UsageError for an unknown name."""
    if name not in METHODS:
        raise UsageError(f"there is no method of placement {name!r}; expected {', '.join(METHODS)}.")
    return METHODS[name]
