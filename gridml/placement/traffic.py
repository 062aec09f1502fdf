"""What a placement costs, counted plainly: every method is held to these figures, and none of them uses this code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Parts, Placement
from gridml.placement.bipartite import Bipartite

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """Of each part, int64 (parts,): its rows |U_i|, the columns it touches |N(U_i)|, and the columns that travel to and
    from it in a round, |N(U_i) \\ V_i| + Σ_{j≠i} |V_i ∩ N(U_j)| (Li, Andersen and Smola, equation 3)."""

    rows: Counts
    touched: Counts
    travelling: Counts

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
    def balance(self) -> float:
        """The rows of the largest part over the mean."""
        return float(self.rows.max() / self.rows.mean())


def traffic(graph: Bipartite, placement: Placement) -> Traffic:
    """Count what a placement costs. Raises ValueError for one of another graph."""
    k = placement.parts
    for name, given, count in (("rows", placement.rows, graph.rows), ("columns", placement.columns, graph.columns)):
        if given.shape != (count,) or (count and not (given.min() >= 0 and given.max() < k)):
            raise ValueError(f"{name} must be {count:,} numbers of {k} parts, got an array {given.shape}")
    touched, travelling = np.zeros((2, k), np.int64)
    for part, touches in enumerate(_touches(graph, placement.rows, k)):
        home = placement.columns[touches]
        away = home[home != part]
        touched[part] = len(home)
        travelling[part] += len(away)
        travelling += np.bincount(away, minlength=k)
    return Traffic(np.bincount(placement.rows, minlength=k), touched, travelling)


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
