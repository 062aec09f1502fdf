"""Points of the repeated figures: a placement made by several seeds, and its figures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.table import Cell
from gridml.placement.auto import find
from gridml.placement.base import Method, Options, Placement
from gridml.placement.bipartite import Bipartite
from gridml.placement.quality import Traffic, improvement, traffic


@dataclass(frozen=True)
class Scale:
    """The extent of the measurements."""

    parts: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    blocks: tuple[int, ...] = (1, 4, 16, 64, 256)
    warm_ups: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
    shares: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0)
    delays: tuple[int, ...] = (0, 1, 3, 7, 15)
    degrees: tuple[int, ...] = (5, 10, 20, 30, 50, 100)
    ratios: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    methods: tuple[str, ...] = ("parsa", "refined", "multilevel", "tsh-1", "tsh", "mbp")  #: of Duan's figures
    trials: int = 2  #: seeds of each point
    vertices: int = 10_000


@dataclass(frozen=True)
class Point:
    """A measurement of a method on a graph."""

    figure: str
    graph: str
    method: str
    x: float  #: the position on the figure's x-axis
    values: dict[str, float]

    def cells(self) -> dict[str, Cell]:
        return {"figure": self.figure, "graph": self.graph, "method": self.method, "x": self.x, **self.values}

    @staticmethod
    def of(cells: Mapping[str, Any]) -> Point:
        """Return the point that `cells` wrote."""
        own = {name: cells[name] for name in ("figure", "graph", "method", "x")}
        return Point(**own, values={name: value for name, value in cells.items() if name not in own})


Figure = Callable[[dict[str, Bipartite], Scale], Iterator[Point]]


@dataclass(frozen=True)
class Panel:
    """A plot of one value of one figure."""

    figure: str
    title: str
    along: str  #: the name of the x-axis
    value: str
    of: str = (
        "graph"  #: the lines are graphs, "method"s, graphs with and without Parsa ("share"), or "cost"s of methods
    )
    graph: str | None = None  #: None: all graphs
    logarithmic: bool = True


@dataclass(frozen=True)
class Made:
    """Placements by several seeds."""

    costs: list[Traffic]  #: of each placement
    chance: list[Traffic]  #: of a random placement for each seed
    cpu_s: list[float]
    clock_s: list[float]
    edges: list[int]  #: of the part with most

    @property
    def values(self) -> dict[str, float]:
        """Improvements over random in percent, and CPU seconds."""
        return {
            "M": self._better("largest_memory"),
            "T": self._better("largest_traffic"),
            "S": self._better("total_traffic"),
            "s": statistics.mean(self.cpu_s),
        }

    def _better(self, name: str) -> float:
        pairs = zip(self.costs, self.chance, strict=True)
        return statistics.mean(improvement(getattr(chance, name), getattr(cost, name)) for cost, chance in pairs)


def made(given: Bipartite, method: Method, parts: int, options: Callable[[int], Options], trials: int) -> Made:
    """Place a graph with seeds 0, 1 ...; `options` makes the options of a seed."""
    found = Made([], [], [], [], [])
    for seed in range(trials):
        cpu, clock = time.process_time(), time.perf_counter()
        placed: Placement = method.place(given, parts, options(seed))
        found.clock_s.append(time.perf_counter() - clock)
        found.cpu_s.append(time.process_time() - cpu)
        found.costs.append(traffic(given, placed))
        found.edges.append(int(np.bincount(placed.rows, given.degrees, parts).max()))
        found.chance.append(traffic(given, find("random").place(given, parts, Options(seed=seed))))
    return found
