"""Parsa: rows are dealt out block by block to the part that they bring the fewest new columns (Li, Andersen and Smola,
"Graph Partitioning via Parallel Submodular Approximation to Accelerate Distributed Machine Learning", 2015).

Where the paper and its authors' code differ this follows the code: parts take rows in turn, and not whichever touches
the fewest columns, which as printed leaves parts 1.4 to 1.9 times as many rows as others. Of rows that cost alike the
one with most columns is taken, of these the first. One block without a warm-up is Algorithm 1.

Where shares or work are unequal it is the turn of the part that has the least work for its share. Columns count one
each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.placement.base import ROW_WEIGHTS, SHARES, Options, Placement, check, options_of
from gridml.placement.bipartite import MOST, Bipartite
from gridml.placement.neighbour_sets import Words
from gridml.placement.parsa_order import Dealer
from gridml.placement.serving import serve_sets
from gridml.placement.turns import fill_of

Rows = NDArray[np.int32]
EDGES_A_BLOCK = 1_200_000  # of which not much waits for memory
EDGES_A_READ = 16_000  # that lie side by side in a file
BLOCKS = 3  # at least, for each that is dealt out at once, so that there is something to go by
WARM_UP = 8  # blocks at most


@dataclass(frozen=True)
class ParsaOptions(Options):
    """`blocks` (b in the paper) are dealt out one after the other; None: as many as caches want, and at least three
    times as many as are dealt out at once. Their rows are drawn in runs of `run` that follow on one another; None: one
    by one, or as many as are read at once from a file. The first `warm_up` blocks (a) are dealt out beforehand, each by
    what the one before it left, to begin with neighbour sets that are those of good parts; None: eight at most, or two
    rounds and one. A block is dealt out without what the last `delay` (τ) ones before it touch, so that as many
    `threads` can work; None: one less than those. To warm up 1 + τ blocks at once are dealt out by what as many before
    them left. The delay changes the result, the threads do not."""

    blocks: int | None = None
    run: int | None = None
    warm_up: int | None = None
    delay: int | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"blocks": 1, "run": 1, "warm_up": 0, "delay": 0, "threads": 1}
        for name, value in ((name, getattr(self, name)) for name in least):
            if value is not None and value < least[name]:
                raise UsageError(f"{name} of parsa is {value}; expected at least {least[name]}.")

    @property
    def at_once(self) -> int:
        """Blocks that can be dealt out at once."""
        return 1 + (self.threads - 1 if self.delay is None else self.delay)


class Parsa:
    """Algorithm 3 for one block after the other, Algorithm 4 where several are dealt out at once, and Algorithm 2 for
    the columns."""

    name = "parsa"
    honours = frozenset({SHARES, ROW_WEIGHTS})

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        check(graph, parts, options, self)
        own = options_of(ParsaOptions, options)
        rows, sets, why = deal_out(graph, parts, own)
        if own.slack:
            why += "; as parts take rows in turn the slack is not made use of"
        return Placement(parts, rows, serve_sets(sets, parts, own.seed), why)


def deal_out(graph: Bipartite, parts: int, options: ParsaOptions) -> tuple[Rows, Words, str]:
    """Return the part of each row, the parts that touch each column (`neighbour_sets`), and how they were found."""
    blocks = _blocks(graph, options)
    if options.warm_up is None:  # a first block alone, and then as many at once as the delay lets
        most = min(len(blocks), max(WARM_UP, 1 + 2 * options.at_once))
        warm_up = 1 + (most - 1) // options.at_once * options.at_once
    else:
        warm_up = min(len(blocks), options.warm_up)
    dealer = Dealer(graph, parts, options.threads, options.at_once - 1, fill_of(graph, parts, options))
    dealer.deal_out(blocks, warm_up)
    return dealer.rows, dealer.sets, f"parsa, {len(blocks)} blocks after {warm_up} to warm up"


def _blocks(graph: Bipartite, options: ParsaOptions) -> list[Rows]:
    """The rows of each block, drawn by chance; ascending, as they lie in memory, or in runs, as they lie in a file.

    Raises UsageError where one would be too large.
    """
    wanted = options.blocks or options.at_once * max(BLOCKS, -(-graph.edges // (EDGES_A_BLOCK * options.at_once)))
    run = options.run
    if run is None:
        run = max(1, EDGES_A_READ * graph.rows // max(1, graph.edges)) if graph.mapped else 1
    run = min(run, max(1, graph.rows // wanted))
    drawn = np.random.default_rng(options.seed).permutation(-(-graph.rows // run)).astype(np.int32)
    blocks = []
    for some in np.array_split(drawn, min(wanted, len(drawn))):
        rows = (np.sort(some)[:, None].astype(np.int64) * run + np.arange(run)).ravel()
        rows = rows[: np.searchsorted(rows, graph.rows)].astype(np.int32)
        if (edges := int((graph.offsets[rows + 1] - graph.offsets[rows]).sum())) > MOST:
            raise UsageError(
                f"a block of {len(rows):,} rows has {edges:,} edges; expected at most {MOST:,}: ask for more "
                "blocks, or for none."
            )
        blocks.append(rows)
    return blocks
