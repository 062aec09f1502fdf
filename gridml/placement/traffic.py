"""What a placement costs, counted plainly: every method is held to these figures, and none of them uses this code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import MESH, STAR, Parts, Placement, Shares
from gridml.placement.bipartite import Bipartite
from gridml.placement.rates import Floats, Rates

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """Of each part, int64 (parts,): its rows |U_i| and their work, the columns it touches |N(U_i)|, and those that
    travel to and from it in a round: |N(U_i) \\ V_i| + Σ_{j≠i} |V_i ∩ N(U_j)| in a mesh (Li, Andersen and Smola,
    equation 3), |N(U_i)| in a star. Columns count as much as they weigh. `shares` are the fractions of all work that
    parts are to have, float64 (parts,)."""

    rows: Counts
    work: Counts
    touched: Counts
    travelling: Counts
    shares: Shares

    @property
    def largest_memory(self) -> int:
        """max |N(U_i)|: what the largest chunk must carry."""
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
        """Predict the seconds of a round of each part, float64 (parts,)."""
        return rates.seconds(self.travelling, self.work)

    @property
    def balance(self) -> float:
        """The most work of a part over its share."""
        return float((self.work / (self.shares * self.work.sum())).max()) if self.work.any() else 1.0


def traffic(graph: Bipartite, placement: Placement, topology: str = MESH, shares: Shares | None = None) -> Traffic:
    """Count what a placement costs. Without `shares` parts are to be even. Raises ValueError for a placement of another
    graph."""
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
    """Whether a part touches each column, bool (columns,), for one part after the other."""
    width = -(-graph.columns // 8)
    bits = np.zeros(parts * width, np.uint8)  # of a part after the other, a bit a column
    for first, piece in graph.pieces():
        owners = np.repeat(rows[first : first + piece.rows].astype(np.int64), piece.degrees)
        bit = np.uint8(1) << (piece.neighbours & 7).astype(np.uint8)
        np.bitwise_or.at(bits, owners * width + (piece.neighbours >> 3), bit)
    for part in range(parts):
        yield np.unpackbits(bits[part * width : (part + 1) * width], count=graph.columns, bitorder="little") > 0


def improvement(before: float, after: float) -> float:
    """How much better `after` is than a random placement's figure, in percent: 100·(before − after)/after."""
    return 100.0 * (before - after) / after if after else float("inf") if before else 0.0
