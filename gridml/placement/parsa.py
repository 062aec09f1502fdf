"""Parsa: rows are dealt out block by block to the part that they bring the fewest new columns (Li, Andersen and Smola,
"Graph Partitioning via Parallel Submodular Approximation to Accelerate Distributed Machine Learning", 2015).

Where the paper and its authors' code differ this follows the code: parts take rows in turn, and not whichever touches
the fewest columns, which as printed leaves parts 1.4 to 1.9 times as many rows as others; of rows that cost alike, the
one whose cost fell last is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import Empty, Queue

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.placement.base import Options, Placement, check, options_of
from gridml.placement.bipartite import Bipartite
from gridml.placement.neighbour_sets import Words, add, no_sets
from gridml.placement.parsa_block import SPREAD, Block, deal, numbered
from gridml.placement.serving import serve_sets

Rows = NDArray[np.int32]
EDGES_A_BLOCK = 400_000  # whose working set a processor's caches hold
WARM_UP = 8  # blocks at most


@dataclass(frozen=True)
class ParsaOptions(Options):
    """`blocks` (b in the paper) are dealt out one after the other; None: as many as caches want. The first `warm_up`
    blocks (a) are dealt out beforehand, each by what the one before it left, to begin with neighbour sets that are
    those of good parts; None: eight at most. `delay` (τ) more blocks are dealt out beside each, none of which sees
    what the others do: by as many `threads`; None: one less than those. The delay changes the result, the threads do
    not."""

    blocks: int | None = None
    warm_up: int | None = None
    delay: int | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"blocks": 1, "warm_up": 0, "delay": 0, "threads": 1}
        for name, value in ((name, getattr(self, name)) for name in least):
            if value is not None and value < least[name]:
                raise UsageError(f"{name} of parsa is {value}; expected at least {least[name]}.")


class Parsa:
    """Algorithm 3 for one block after the other, Algorithm 4 where several are dealt out at once, and Algorithm 2 for
    the columns."""

    name = "parsa"

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        check(graph, parts)
        own = options_of(ParsaOptions, options)
        rows, sets, why = deal_out(graph, parts, own)
        return Placement(parts, rows, serve_sets(sets, parts, own.seed), why)


def deal_out(graph: Bipartite, parts: int, options: ParsaOptions) -> tuple[Rows, Words, str]:
    """Return the part of each row, the parts that touch each column (`neighbour_sets`), and how they were found."""
    blocks = _blocks(graph, options)
    warm_up = min(len(blocks), WARM_UP if options.warm_up is None else options.warm_up)
    together = 1 + (options.threads - 1 if options.delay is None else options.delay)
    sets, rows = no_sets(graph.columns, parts), np.full(graph.rows, -1, np.int32)
    with ThreadPoolExecutor(options.threads) as threads:
        dealer = _Dealer(graph, parts, sets, rows, threads)
        for group in _groups(blocks[:warm_up], together, first_alone=True):
            dealer.deal(group, again=True)
            dealer.keep_only(group)
        for number, group in enumerate(_groups(blocks, together, first_alone=not warm_up)):
            dealer.deal(group, again=False)
            if number or not warm_up:
                dealer.keep(group)
            else:  # what was dealt out to warm up is no part's any more
                dealer.keep_only(group)
    return rows, sets, f"parsa, {len(blocks)} blocks after {warm_up} to warm up"


@dataclass
class _Rows:
    """The rows of a block, and what it is when its columns are numbered, while it will be dealt out again."""

    rows: Rows
    numbered: Block | None = None


class _Dealer:
    """Deals out groups of blocks, each block of a group by itself, from the same neighbour sets."""

    def __init__(self, graph: Bipartite, parts: int, sets: Words, rows: Rows, threads: ThreadPoolExecutor) -> None:
        self._graph, self._parts = graph, parts
        self._sets, self._rows = sets, rows
        self._threads = threads
        self._holds = np.int16 if graph.degrees.max() <= np.iinfo(np.int16).max else np.int32  # every cost
        self._scratch: Queue[Rows] = Queue()
        self._turn = 0  # of the parts

    def deal(self, group: Sequence[_Rows], *, again: bool) -> None:
        """Deal out blocks; their numbers are kept if that will be done `again`."""
        turns = self._turn + np.concatenate([[0], np.cumsum([len(block.rows) for block in group])])
        self._turn = int(turns[-1]) % self._parts
        list(self._threads.map(partial(self._deal, again=again), group, turns[:-1].tolist()))

    def keep(self, group: Sequence[_Rows]) -> None:
        """Add what a group touches to the neighbour sets."""
        for block in group:
            add(self._graph.offsets, self._graph.neighbours, block.rows, self._rows, self._sets)

    def keep_only(self, group: Sequence[_Rows]) -> None:
        """Leave in the neighbour sets what a group touches, and nothing else."""
        self._sets.fill(0)
        self.keep(group)

    def _deal(self, block: _Rows, turn: int, *, again: bool) -> None:
        found = block.numbered
        if found is None:
            found = self._numbered(block.rows)
        block.numbered = found if again else None
        order = ((turn + np.arange(len(block.rows))) % self._parts).astype(np.int32)
        cost = np.empty((self._parts, len(block.rows)), self._holds)
        deal(block.rows, found, order, self._sets, SPREAD, cost, self._rows)

    def _numbered(self, rows: Rows) -> Block:
        try:
            scratch = self._scratch.get_nowait()
        except Empty:
            scratch = np.full(self._graph.columns, -1, np.int32)
        found = numbered(self._graph.offsets, self._graph.neighbours, rows, scratch, self._sets.shape[1])
        self._scratch.put(scratch)
        return found


def _groups(blocks: Sequence[_Rows], together: int, *, first_alone: bool) -> Iterator[Sequence[_Rows]]:
    """Blocks that are dealt out at once. The first has nothing to begin with, unless others warmed up: of two such each
    would have parts of its own."""
    if first_alone and blocks:
        yield blocks[:1]
        blocks = blocks[1:]
    for first in range(0, len(blocks), together):
        yield blocks[first : first + together]


def _blocks(graph: Bipartite, options: ParsaOptions) -> list[_Rows]:
    """The rows of each block, drawn by chance; ascending, as they lie in memory."""
    wanted = options.blocks or max(1, -(-graph.edges // EDGES_A_BLOCK))
    drawn = np.random.default_rng(options.seed).permutation(graph.rows).astype(np.int32)
    return [_Rows(np.sort(block)) for block in np.array_split(drawn, min(wanted, graph.rows))]
