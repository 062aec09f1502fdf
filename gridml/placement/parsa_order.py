"""Blocks dealt out one after the other, and several at once by threads: Li, Andersen and Smola, Algorithm 4.

The blocks that come next are read while others are dealt out. Neighbour sets change only here, between blocks and in
their order, so the threads decide nothing about the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, Queue

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Shares
from gridml.placement.bipartite import Bipartite, Ids
from gridml.placement.neighbour_sets import Words, no_sets
from gridml.placement.parsa_block import SPREAD, deal, room_for_costs
from gridml.placement.parsa_numbering import Block, forget, gather, keep, numbered
from gridml.placement.turns import Fill


@dataclass(frozen=True)
class _Read:
    """The rows of a block, those with most columns first, how many each has, and the block."""

    rows: Ids
    degrees: NDArray[np.int64]
    block: Block


@dataclass(frozen=True)
class _Dealt:
    """A block that is dealt out, the parts that touch its columns by now, (m, words), and what it added to their load,
    float64 (parts,), where that is counted."""

    block: Block
    touched: Words
    added: Shares | None


class Dealer:
    """Writes the part of each row into `rows` int32 (rows,), and what the parts touch into `sets`.

    A block is dealt out from what those before it left, the last `delay` of them left out. Without a `fill` parts take
    rows in turn; with one, what a part has beyond its share each of the blocks at work makes up for its part of.
    """

    def __init__(self, graph: Bipartite, parts: int, threads: int, delay: int, fill: Fill | None = None) -> None:
        self.rows, self.sets = np.full(graph.rows, -1, np.int32), no_sets(graph.columns, parts)
        self._graph, self._parts = graph, parts
        self._threads, self._delay, self._fill = threads, delay, fill
        self._load = np.zeros((2, parts))  # of the parts, by blocks of the warm-up and by real ones
        self._ahead = threads if threads > 1 else 0
        self._scratch: Queue[Words] = Queue()
        self._again: dict[int, _Read] = {}  # blocks of the warm-up, which are dealt out once more

    def deal_out(self, blocks: Sequence[Ids], warm_up: int) -> None:
        """Deal out so many of the blocks to warm up, then all of them. Rows of a block ascend."""
        steps = [*range(warm_up), *range(len(blocks))]
        dropped = min(warm_up + self._delay, len(steps) - 1)  # step at whose end nothing is left of the warm-up
        only = dropped + self._delay  # the last that begins before that end
        reading: deque[Future[_Read]] = deque()
        dealing: deque[Future[_Dealt]] = deque()
        group: list[_Dealt] = []  # of the warm-up, whose blocks are dealt out at once
        begun: list[_Dealt] = []  # real blocks that are kept while something of the warm-up is left
        asked = finished = first_part = 0
        with ThreadPoolExecutor(self._threads) as threads:

            def read_until(step: int) -> None:
                nonlocal asked
                while asked < min(len(steps), step):
                    reading.append(threads.submit(self._read, blocks, steps[asked], warm_up))
                    asked += 1

            def finish_all_but(count: int) -> None:
                nonlocal finished
                while len(dealing) > count:
                    done = dealing.popleft().result()
                    if done.added is not None:
                        self._load[int(finished >= warm_up)] += done.added
                    if finished < warm_up:
                        group.append(done)
                    else:
                        keep(done.block, done.touched, self.sets)
                    if warm_up <= finished <= dropped:
                        begun.append(done)
                        if finished == dropped:
                            self._keep_only(begun)
                            begun.clear()
                    finished += 1

            for step in range(len(steps)):
                # A first block is waited for: of two that begin with nothing each would have parts of its own.
                if step > max(1, warm_up):
                    finish_all_but(self._delay)
                elif step >= warm_up or (step - 1) % (1 + self._delay) == 0:
                    finish_all_but(0)
                    if group:
                        self._keep_only(group)
                        group.clear()
                read_until(step + 1)
                read = reading.popleft().result()
                touched = gather(read.block, self.sets)
                fill = self._fill
                if fill is not None:
                    fill = fill._replace(load=self._load[int(step >= warm_up)] / (1 + self._delay))
                dealing.append(threads.submit(self._deal, read, touched, first_part, fill, only=step <= only))
                first_part = (first_part + len(read.rows)) % self._parts
                read_until(step + 1 + self._ahead)
            finish_all_but(0)

    def _keep_only(self, dealt: Iterable[_Dealt]) -> None:
        """Leave in the neighbour sets what these touch, and nothing else."""
        self.sets.fill(0)
        for each in dealt:
            keep(each.block, each.touched, self.sets)

    def _read(self, blocks: Sequence[Ids], index: int, warm_up: int) -> _Read:
        """Number a block's columns; one that is dealt out again is kept until then."""
        if (again := self._again.pop(index, None)) is not None:
            return again
        rows = blocks[index]
        offsets, neighbours, places = self._graph.lists(rows)
        degrees = offsets[places + 1] - offsets[places]
        order = np.argsort(-degrees, kind="stable")
        edges = int(degrees.sum())
        try:
            scratch = self._scratch.get_nowait()
        except Empty:
            scratch = np.empty((2, 0), np.uint64)
        if scratch.shape[1] < edges:
            scratch = np.empty((2, edges), np.uint64)
        block = numbered(offsets, neighbours, places[order], self._graph.columns, scratch)
        self._scratch.put(scratch)
        read = _Read(rows[order], degrees[order], block)
        if index < warm_up and not self._graph.mapped:
            self._again[index] = read
        return read

    def _deal(self, read: _Read, touched: Words, first_part: int, fill: Fill | None, *, only: bool) -> _Dealt:
        """Deal out a block; what it touches is then `only` its own, or with what was touched before."""
        cost = room_for_costs(self._parts, read.degrees)
        gone = np.iinfo(cost.dtype).max
        before = None if fill is None else fill.load.copy()
        deal(read.rows, read.block, first_part, touched, SPREAD, cost, gone, self.rows, fill)
        if only:
            forget(read.block, read.rows, self.rows, touched)
        return _Dealt(read.block, touched, None if fill is None or before is None else fill.load - before)
