"""Parsa: rows are dealt out block by block to the part that they bring the fewest new columns (Li, Andersen and Smola,
"Graph Partitioning via Parallel Submodular Approximation to Accelerate Distributed Machine Learning", 2015).

Where the paper and its authors' code differ this follows the code: parts take rows in turn, and not whichever touches
the fewest columns, which as printed leaves parts 1.4 to 1.9 times as many rows as others; of rows that cost alike, the
one whose cost fell last is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.placement.base import Options, Placement, check
from gridml.placement.bipartite import Bipartite
from gridml.placement.neighbour_sets import add, no_sets
from gridml.placement.parsa_block import SPREAD, deal
from gridml.placement.serving import serve_sets

Rows = NDArray[np.int32]
EDGES_A_BLOCK = 500_000  # whose working set a processor's caches hold
LEAST_BLOCKS = 4


@dataclass(frozen=True)
class ParsaOptions(Options):
    """`blocks` (b in the paper) are dealt out one after the other; None: as many as caches want. The first `warm_up`
    blocks (a) are dealt out beforehand, each by what the one before it left, to begin with neighbour sets that are
    those of good parts; None: four."""

    blocks: int | None = None
    warm_up: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blocks is not None and self.blocks < 1:
            raise UsageError(f"parsa deals out {self.blocks} blocks; expected at least 1.")
        if self.warm_up is not None and self.warm_up < 0:
            raise UsageError(f"parsa warms up with {self.warm_up} blocks; expected at least 0.")


class Parsa:
    """Algorithm 3 for one block after the other, Algorithm 4's initialisation, and Algorithm 2 for the columns."""

    name = "parsa"

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        check(graph, parts)
        own = options if isinstance(options, ParsaOptions) else ParsaOptions(options.seed, options.slack)
        blocks = _blocks(graph, own)
        warm_up = min(len(blocks), LEAST_BLOCKS if own.warm_up is None else own.warm_up)
        sets = no_sets(graph.columns, parts)
        rows = np.full(graph.rows, -1, np.int32)
        touched = np.zeros(parts, np.int64)
        scratch = np.full(graph.columns, -1, np.int32)
        graph_of = graph.offsets, graph.neighbours
        holds = np.int16 if graph.degrees.max() <= np.iinfo(np.int16).max else np.int32  # every cost

        def run(block: Rows, first: int) -> None:
            order = ((first + np.arange(len(block))) % parts).astype(np.int32)
            cost = np.empty((parts, len(block)), holds)
            deal(*graph_of, block, order, sets, scratch, SPREAD, cost, rows, touched)

        def keep_only(block: Rows) -> None:
            sets.fill(0)
            add(*graph_of, block, rows, sets)

        for block in blocks[:warm_up]:
            run(block, 0)
            keep_only(block)
        first = 0
        for block in blocks:
            run(block, first)
            if not first and warm_up:  # what was dealt out to warm up is no part's any more
                keep_only(block)
            first += len(block)
        columns = serve_sets(sets, parts, own.seed)
        return Placement(parts, rows, columns, f"parsa, {len(blocks)} blocks after {warm_up} to warm up")


def _blocks(graph: Bipartite, options: ParsaOptions) -> list[Rows]:
    """The rows of each block, drawn by chance; ascending, as they lie in memory."""
    wanted = options.blocks or max(LEAST_BLOCKS, graph.edges // EDGES_A_BLOCK)
    drawn = np.random.default_rng(options.seed).permutation(graph.rows).astype(np.int32)
    return [np.sort(block) for block in np.array_split(drawn, min(wanted, graph.rows))]
