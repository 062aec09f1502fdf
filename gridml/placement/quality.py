"""The quality of a placement compared with a random one: the content of `quality.json`.

The costs are counted in the simplest way, and without code of the methods, because they judge every method.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.placement.auto import find
from gridml.placement.base import (
    COLUMN_WEIGHTS,
    DUAN,
    MESH,
    ROW_WEIGHTS,
    STAR,
    Floats,
    Method,
    Options,
    Parts,
    Placement,
    Rates,
    Shares,
    requested,
)
from gridml.placement.bipartite import Bipartite

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """The costs of each part, int64 (parts,). Columns count by weight."""

    rows: Counts  #: |U_i|, the number of rows
    work: Counts  #: the work of these rows
    touched: Counts  #: |N(U_i)|, the weight of the columns that these rows touch
    travelling: Counts
    """The traffic to and from the part in a round: |N(U_i) \\ V_i| + Σ_{j≠i} |V_i ∩ N(U_j)| in a mesh (Li, Andersen and
    Smola, equation 7; Duan, Wang and Wu, equation 3), |N(U_i)| in a star."""
    shares: Shares  #: the target fractions of all work, float64 (parts,)

    @property
    def largest_memory(self) -> int:
        """max |N(U_i)|: the largest memory of a part."""
        return int(self.touched.max())

    @property
    def largest_traffic(self) -> int:
        return int(self.travelling.max())

    @property
    def total_traffic(self) -> int:
        return int(self.travelling.sum())

    @property
    def duan(self) -> int:
        """max |D_i| · max communication: Duan, Wang and Wu's training time, in work times columns."""
        return int(self.work.max()) * self.largest_traffic

    def seconds(self, rates: Rates) -> Floats:
        """Predict the seconds that each part takes for a round, float64 (parts,)."""
        return rates.seconds(self.travelling, self.work)

    @property
    def balance(self) -> float:
        """The largest ratio of a part's work to its share of all work."""
        return float((self.work / (self.shares * self.work.sum())).max()) if self.work.any() else 1.0


def traffic(graph: Bipartite, placement: Placement, topology: str = MESH, shares: Shares | None = None) -> Traffic:
    """Count the costs of a placement. `shares` are the target fractions of all work; None: equal. Raises ValueError for
    a placement of another graph."""
    k = placement.parts
    for name, given, count in (("rows", placement.rows, graph.rows), ("columns", placement.columns, graph.columns)):
        if given.shape != (count,) or (count and not (given.min() >= 0 and given.max() < k)):
            raise ValueError(f"{name} must be {count:,} numbers of {k} parts, got an array {given.shape}")
    sizes = graph.column_weights
    touched, travelling = np.zeros((2, k), np.int64)
    for part, touches in enumerate(_touches(graph, placement.rows, k)):
        home = placement.columns[touches]
        away = home != part
        if sizes is None:
            touched[part], to = len(home), np.bincount(home[away], minlength=k)
        else:
            size = sizes[touches]
            touched[part], to = size.sum(), np.bincount(home[away], size[away], k).astype(np.int64)
        travelling[part] += to.sum()
        travelling += to
    rows = np.bincount(placement.rows, minlength=k)
    work = rows if graph.row_weights is None else np.bincount(placement.rows, graph.row_weights, k).astype(np.int64)
    even = np.full(k, 1 / k) if shares is None else shares
    return Traffic(rows, work, touched, touched.copy() if topology == STAR else travelling, even)


def _touches(graph: Bipartite, rows: Parts, parts: int) -> Iterator[NDArray[np.bool_]]:
    """Yield the columns that each part touches, bool (columns,), part by part."""
    width = -(-graph.columns // 8)
    bits = np.zeros(parts * width, np.uint8)  # one bit per part and column
    for first, piece in graph.pieces():
        owners = np.repeat(rows[first : first + piece.rows].astype(np.int64), piece.degrees)
        bit = np.uint8(1) << (piece.neighbours & 7).astype(np.uint8)
        np.bitwise_or.at(bits, owners * width + (piece.neighbours >> 3), bit)
    for part in range(parts):
        yield np.unpackbits(bits[part * width : (part + 1) * width], count=graph.columns, bitorder="little") > 0


@dataclass(frozen=True)
class Ghosts:
    """Of a graph whose rows are vertices with their neighbours: the vertices that each part reads and does not have,
    int64 (parts,), by weight. Their values travel to the part in each pass."""

    placed: Counts
    at_random: Counts
    in_order: Counts  #: parts of adjacent rows, as many each, in the order of the file's numbers


def ghosts(graph: Bipartite, rows: Parts, parts: int, first: int = 0) -> Counts:
    """Return the ghosts of each part, int64 (parts,), by weight. The vertex of row i is column `first` + i, which the
    row touches."""
    own = np.bincount(rows, graph.sizes[first : first + len(rows)], parts).astype(np.int64)
    return np.array([graph.sizes[touches].sum() for touches in _touches(graph, rows, parts)]) - own


def improvement(before: float, after: float) -> float:
    """Return the improvement in percent, 100·(before − after)/after; `before` is the figure of a random placement."""
    return 100.0 * (before - after) / after if after else float("inf") if before else 0.0


@dataclass(frozen=True)
class Quality:
    """The costs of a placement, compared with those of a random one."""

    method: str
    why: str
    parts: int
    options: Options
    rows: int
    columns: int
    edges: int
    weighted: frozenset[str]  #: ROW_WEIGHTS and COLUMN_WEIGHTS, if the graph has them
    placed: Traffic
    at_random: Traffic
    seconds: float  #: the wall time of placing the graph
    peak_mb: float  #: the peak memory of the process until the graph is placed, including reading it, in 10⁶ bytes
    ghosts: Ghosts | None = None  #: None: rows and columns are not the same vertices

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """Each figure of this placement, and of a random one. As in the publications: the largest memory of a part, the
        largest traffic of a part, and the total traffic, in weights of columns. If rows and columns are the same
        vertices, also the most ghosts of a part, and those of all parts. For the objective duan also the product
        of work and traffic, and if rates are known, the seconds of a round."""
        both = self.placed, self.at_random
        found: dict[str, tuple[float, float]] = {
            "M_max": (both[0].largest_memory, both[1].largest_memory),
            "T_max": (both[0].largest_traffic, both[1].largest_traffic),
            "T_sum": (both[0].total_traffic, both[1].total_traffic),
        }
        if self.ghosts is not None:
            of = self.ghosts.placed, self.ghosts.at_random
            found["G_max"], found["G_sum"] = (int(of[0].max()), int(of[1].max())), (int(of[0].sum()), int(of[1].sum()))
        if self.options.objective == DUAN:
            found["duan"] = both[0].duan, both[1].duan
        if self.options.rates is not None:
            placed, chance = (float(each.seconds(self.options.rates).max()) for each in both)
            found["round_s"] = placed, chance
        return found

    def to_json(self) -> dict[str, Any]:
        """Return each figure, its improvement over a random placement in percent, and the figure of the random one."""
        figures, options = self.figures, self.options
        return {
            "method": self.method,
            "why": self.why,
            "parts": self.parts,
            "seed": options.seed,
            "slack": options.slack,
            "objective": options.objective,
            "topology": options.topology,
            "shares": options.shares,
            "memory_limit": options.memory,
            "row_weights": ROW_WEIGHTS in self.weighted,
            "column_weights": COLUMN_WEIGHTS in self.weighted,
            "rates": None if options.rates is None else asdict(options.rates),
            "rows": self.rows,
            "columns": self.columns,
            "edges": self.edges,
            **{name: placed for name, (placed, _) in figures.items()},
            **{f"{name}_improvement": improvement(chance, placed) for name, (placed, chance) in figures.items()},
            **{f"{name}_random": chance for name, (_, chance) in figures.items()},
            **({} if self.ghosts is None else {"G_max_order": int(self.ghosts.in_order.max())}),
            **({} if self.ghosts is None else {"G_sum_order": int(self.ghosts.in_order.sum())}),
            "balance": self.placed.balance,
            "seconds": self.seconds,
            "peak_mb": self.peak_mb,
        }


def measure(
    method: Method, graph: Bipartite, parts: int, options: Options, *, is_of_one_type: bool = False
) -> tuple[Placement, Quality]:
    """Place a graph and count the costs; those of ghosts, too, if `is_of_one_type`: row i is vertex i, which it touches
    with its neighbours. Raises UsageError if the method cannot place the graph with these options."""
    begun = time.perf_counter()
    placement = method.place(graph, parts, options)
    seconds = time.perf_counter() - begun
    peak_mb = _peak_mb()
    chance = find("random").place(graph, parts, replace(options, memory=None))
    quality = Quality(
        method=method.name,
        why=placement.why,
        parts=parts,
        options=options,
        rows=graph.rows,
        columns=graph.columns,
        edges=graph.edges,
        weighted=requested(graph, options) & {ROW_WEIGHTS, COLUMN_WEIGHTS},
        placed=traffic(graph, placement, options.topology, options.fractions),
        at_random=traffic(graph, chance, options.topology, options.fractions),
        seconds=seconds,
        peak_mb=peak_mb,
        ghosts=_ghosts(graph, placement, chance) if is_of_one_type else None,
    )
    return placement, quality


def _ghosts(graph: Bipartite, placement: Placement, chance: Placement) -> Ghosts:
    k, ordered = placement.parts, (np.arange(graph.rows) * placement.parts // graph.rows).astype(np.int32)
    return Ghosts(*(ghosts(graph, rows, k) for rows in (placement.rows, chance.rows, ordered)))


def _peak_mb() -> float:
    """Return the peak memory of this process in 10⁶ bytes."""
    # macOS counts in bytes, other systems in units of 1,024 bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
