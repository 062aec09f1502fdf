"""Parsa: assigns rows block by block to the part to which they bring the fewest new columns.

Li, Andersen and Smola, "Graph Partitioning via Parallel Submodular Approximation to Accelerate Distributed Machine
Learning", 2015. Where the paper and its authors' code differ, this module follows the code: parts take rows in turn. In
the paper the part that touches the fewest columns takes the next row (Algorithm 3, line 6; an option), which gives some
parts 1.4 to 1.9 times as many rows as others. If shares or works are unequal, the part with the least work relative to
its share takes the next row.
The cost of a row is the number of columns that it brings to the part. Of rows with equal cost the one with the most
columns is taken; of several, the first. Columns count 1 each.

A single block is assigned by Algorithm 3, several blocks in parallel by Algorithm 4; for Algorithm 1, whose steps take
sets of rows, see `parsa_sets`. Threads read the next blocks while earlier ones are assigned. Neighbour sets are updated
only by the main thread, between blocks and in the order of blocks, so the number of threads does not affect the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.errors import UsageError
from gridml.placement.base import (
    ROW_WEIGHTS,
    SHARES,
    Fill,
    Options,
    Placement,
    Shares,
    check,
    fill_of,
    next_part,
    options_of,
)
from gridml.placement.bipartite import MAX_COUNT, Bipartite, Ids
from gridml.placement.parsa_numbering import Block, forget, gather, keep, numbered
from gridml.placement.serving import Words, no_sets, served, touched_by

Costs = NDArray[np.signedinteger[Any]]
# Entry b spreads the bits of b over eight bytes: byte j in memory is bit j of b. Added to a word of eight one-byte
# counters, the entry increments the counters whose bit in b is set.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
SPREAD: Words = _BITS.view(np.uint64).ravel()
_FULL = 255  # the columns that a counter of one byte can count before it must be read and cleared


def room_for_costs(parts: int, degrees: NDArray[np.int64]) -> Costs:
    """Return an array (parts, rows) for costs, of the smallest type that works. The cost of an assigned row is set to
    the largest number of the type, and decremented later like others; it must stay above all costs of free rows."""
    small = int(degrees.max(initial=0)) <= np.iinfo(np.int16).max // 2
    return np.empty((parts, len(degrees)), np.int16 if small else np.int32)


@compiled
def deal(
    rows: Ids,
    block: Block,
    first_part: int,
    touched: Words,
    spread: Words,
    cost: Costs,
    gone: int,
    parts: Ids,
    fill: Fill | None = None,
) -> None:
    """Assign the `rows` of a block, int32 (n,): write their parts into `parts`, which has an entry for each row of the
    graph.

    Parts take turns from `first_part` on, or in the order of a `fill`. Of rows with equal cost a part takes the first.
    The load of a `fill` without weights is the number of columns that each part touches (line 6 of Algorithm 3).
    `touched` (m, words) are the parts that touch each of the block's columns, as bits; it is updated. `cost` (parts, n)
    is scratch, and `gone` the largest number that it can hold.
    """
    # Costs are kept in an array, with a lower bound for each group of about √n rows. The group with the least bound is
    # searched for a row of this cost; if that row was assigned before, the bound is corrected. Two linear searches over
    # √n numbers are faster than the paper's list sorted by cost, in which a row moves whenever its cost falls.
    n, k = len(rows), len(cost)
    _first_costs(block, touched, spread, cost)
    shift = 4  # 2^shift rows per group, and about as many groups
    while n >> 2 * shift:
        shift += 1
    groups = (n + (1 << shift) - 1) >> shift
    bound = np.empty((k, groups), cost.dtype)
    for part in range(k):
        for group in range(groups):
            bound[part, group] = _least(cost[part, group << shift : (group + 1) << shift])
    for turn in range(n):
        part = (first_part + turn) % k if fill is None else next_part(fill.load, fill.shares)
        of_part, bound_of_part = cost[part], bound[part]
        i = -1
        while i < 0:
            least = _least(bound_of_part)
            group = _where(bound_of_part, least)
            members = of_part[group << shift : (group + 1) << shift]
            i = _where(members, least)
            if i < 0:
                bound_of_part[group] = _least(members)  # the row of the bound was assigned: correct it and retry
            else:
                i += group << shift
        if fill is not None:
            fill.load[part] += fill.weights[rows[i]] if len(fill.weights) else of_part[i]
        for other in range(k):
            cost[other, i] = gone
        parts[rows[i]] = part
        word, bit = part >> 6, np.uint64(1) << np.uint64(part & 63)
        for here in range(block.alone[i], block.alone[i + 1]):
            touched[here, word] |= bit
        for edge in range(block.begins[i], block.begins[i + 1]):
            here = block.inside[edge]
            if touched[here, word] & bit:
                continue
            touched[here, word] |= bit
            for at in range(block.first[here], block.first[here + 1]):
                j = block.sharing[at]
                less = of_part[j] - 1
                of_part[j] = less
                if less < bound_of_part[j >> shift]:
                    bound_of_part[j >> shift] = less


@compiled
def _least(numbers: Costs) -> Any:
    least = numbers[0]
    for at in range(len(numbers)):
        if numbers[at] < least:
            least = numbers[at]
    return least


@compiled
def _where(numbers: Costs, wanted: int) -> int:
    """Return the first index of a number, or −1."""
    for at in range(len(numbers)):
        if numbers[at] == wanted:
            return at
    return -1


@compiled
def _first_costs(block: Block, touched: Words, spread: Words, cost: Costs) -> None:
    """Write the cost of each row for each part: the number of columns that the part does not touch yet."""
    k = len(cost)
    counters = np.zeros((k + 7) // 8, np.uint64)
    counted = counters.view(np.uint8)
    for i in range(len(block.begins) - 1):
        edge, after = block.begins[i], block.begins[i + 1]
        here, after_here = block.alone[i], block.alone[i + 1]
        for part in range(k):
            cost[part, i] = after - edge + after_here - here
        while edge < after or here < after_here:
            shared = min(_FULL, after - edge)
            alone = min(_FULL - shared, after_here - here)
            counters[:] = np.uint64(0)
            for at in range(edge, edge + shared):
                _count(touched, block.inside[at], spread, counters)
            for at in range(here, here + alone):
                _count(touched, at, spread, counters)
            for part in range(k):
                cost[part, i] -= counted[part]
            edge += shared
            here += alone


@compiled
def _count(touched: Words, column: int, spread: Words, counters: Words) -> None:
    for group in range(len(counters)):
        bits = (touched[column, group >> 3] >> np.uint64(8 * (group & 7))) & np.uint64(255)
        counters[group] += spread[bits]


@dataclass(frozen=True)
class _Read:
    """A block that was read."""

    rows: Ids  #: the rows of the block, in descending order of their degrees
    degrees: NDArray[np.int64]  #: the number of columns that each of these rows touches
    block: Block


@dataclass(frozen=True)
class _Dealt:
    """A block that was dealt out."""

    block: Block
    touched: Words  #: the parts that touch each of the block's columns now, (m, words)
    added: Shares | None  #: the work that the block added to each part, float64 (parts,); None: work is not counted


class Dealer:
    """Deals out blocks of rows. The result is in `rows` int32 (rows,), and in `sets`, the parts that touch each column.

    A block is dealt out without knowing what the `delay` blocks before it touch. Without a `fill` parts take turns.
    With a `fill`, each of the 1 + `delay` blocks in flight corrects an equal fraction of a part's deviation from its
    share.
    """

    def __init__(self, graph: Bipartite, parts: int, threads: int, delay: int, fill: Fill | None = None) -> None:
        self.rows, self.sets = np.full(graph.rows, -1, np.int32), no_sets(graph.columns, parts)
        self._graph, self._parts = graph, parts
        self._threads, self._delay, self._fill = threads, delay, fill
        self._load = np.zeros((2, parts))  # the work of each part: that of warm-up blocks, and that of real blocks
        self._ahead = threads if threads > 1 else 0
        self._scratch: Queue[Words] = Queue()
        self._again: dict[int, _Read] = {}  # warm-up blocks by index, kept until they are dealt out again

    def deal_out(self, blocks: Sequence[Ids], warm_up: int) -> None:
        """Deal out the first `warm_up` blocks as a warm-up, then all blocks. The rows of a block must ascend."""
        steps = [*range(warm_up), *range(len(blocks))]
        dropped = min(warm_up + self._delay, len(steps) - 1)  # after this step the warm-up is removed from the sets
        only = dropped + self._delay  # the last step that can start while the warm-up is still in the sets
        reading: deque[Future[_Read]] = deque()
        dealing: deque[Future[_Dealt]] = deque()
        group: list[_Dealt] = []  # the warm-up blocks of one round, which are dealt out in parallel
        begun: list[_Dealt] = []  # the real blocks so far, kept until the warm-up is removed from the sets
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
                # Wait for the first block: two blocks that start from nothing would each form parts of their own.
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
                if fill is not None and not len(fill.weights):
                    fill = fill._replace(load=touched_by(self.sets, self._parts).astype(np.float64))
                elif fill is not None:
                    fill = fill._replace(load=self._load[int(step >= warm_up)] / (1 + self._delay))
                dealing.append(threads.submit(self._deal, read, touched, first_part, fill, only=step <= only))
                first_part = (first_part + len(read.rows)) % self._parts
                read_until(step + 1 + self._ahead)
            finish_all_but(0)

    def _keep_only(self, dealt: Iterable[_Dealt]) -> None:
        """Reset the neighbour sets to what these blocks touch."""
        self.sets.fill(0)
        for each in dealt:
            keep(each.block, each.touched, self.sets)

    def _read(self, blocks: Sequence[Ids], index: int, warm_up: int) -> _Read:
        """Read a block and number its columns. A warm-up block is kept until it is dealt out again."""
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
        """Deal out a block. With `only`, the result's `touched` covers only the block's own rows; otherwise also what
        was touched before."""
        cost = room_for_costs(self._parts, read.degrees)
        gone = np.iinfo(cost.dtype).max
        before = None if fill is None else fill.load.copy()
        deal(read.rows, read.block, first_part, touched, SPREAD, cost, gone, self.rows, fill)
        if only:
            forget(read.block, read.rows, self.rows, touched)
        return _Dealt(read.block, touched, None if fill is None or before is None else fill.load - before)


Rows = NDArray[np.int32]
EDGES_PER_BLOCK = 1_200_000  # by default a block has at most about this many edges, so that it fits into the caches
EDGES_PER_READ = 16_000  # edges that are contiguous in a mapped file and read together
MIN_BLOCKS = 3  # default minimum per block in flight: the first blocks, without neighbour sets, are placed worse
MAX_WARM_UP = 8  # default maximum of warm-up blocks, or one block and two rounds of blocks in flight if that is more


@dataclass(frozen=True)
class ParsaOptions(Options):
    """Options of Parsa."""

    blocks: int | None = None
    """Number of blocks of rows (b in the paper). None: so many that a block fits into the caches, and at least three
    for each block in flight."""
    run: int | None = None
    """Number of consecutive rows that are drawn together for a block. None: 1; for a mapped graph as many as one read
    returns."""
    warm_up: int | None = None
    """Number of blocks that are dealt out in advance (a in the paper), so that the real blocks start with the neighbour
    sets of good parts. The first block is dealt out alone, then rounds of 1 + τ blocks; a round sees only what the
    round before it touched. None: up to eight, or one block and two rounds if that is more."""
    delay: int | None = None
    """Number of preceding blocks whose result a block does not see (τ in the paper), so that all can run in parallel.
    The delay changes the result. None: the number of threads minus 1."""
    threads: int = 1  #: number of threads; for a given `delay` it does not change the result
    least_touched: bool = False
    """The part that touches the fewest columns takes the next row, as printed (Algorithm 3, line 6). Parts then differ
    in their numbers of rows. It excludes shares and row weights. False: parts take rows in turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"blocks": 1, "run": 1, "warm_up": 0, "delay": 0, "threads": 1}
        for name, value in ((name, getattr(self, name)) for name in least):
            if value is not None and value < least[name]:
                raise UsageError(f"{name} of parsa is {value}; expected at least {least[name]}.")

    @property
    def at_once(self) -> int:
        """The number of blocks that can be in flight at once."""
        return 1 + (self.threads - 1 if self.delay is None else self.delay)


class Parsa:
    """Parsa: Algorithm 3 for single blocks, Algorithm 4 for several in parallel, and Algorithm 2 for the columns."""

    name = "parsa"
    supports = frozenset({SHARES, ROW_WEIGHTS})

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        check(graph, parts, options, self)
        own = options_of(ParsaOptions, options)
        rows, sets, why = deal_out(graph, parts, own)
        if own.slack:
            why += "; the slack is not used, because parts take rows in turn"
        return Placement(parts, rows, served(sets, parts, own.seed)[0], why)


def deal_out(graph: Bipartite, parts: int, options: ParsaOptions) -> tuple[Rows, Words, str]:
    """Return the part of each row, the parts that touch each column (`sets_of`), and a description."""
    blocks = _blocks(graph, options)
    if options.warm_up is None:  # the first block alone, then rounds of as many as the delay allows
        most = min(len(blocks), max(MAX_WARM_UP, 1 + 2 * options.at_once))
        warm_up = 1 + (most - 1) // options.at_once * options.at_once
    else:
        warm_up = min(len(blocks), options.warm_up)
    fill = fill_of(graph, parts, options)
    if options.least_touched:
        if fill is not None:
            raise UsageError("got shares or row weights with least_touched; expected equal rows, which it counts.")
        fill = Fill(np.zeros(parts), np.full(parts, 1 / parts), np.empty(0, np.int64))
    dealer = Dealer(graph, parts, options.threads, options.at_once - 1, fill)
    dealer.deal_out(blocks, warm_up)
    return dealer.rows, dealer.sets, f"parsa, {len(blocks)} blocks after {warm_up} to warm up"


def _blocks(graph: Bipartite, options: ParsaOptions) -> list[Rows]:
    """Draw the rows of each block at random. The rows of a block ascend, so that they are read in order. Raises
    UsageError if a block would be too large."""
    wanted = options.blocks or options.at_once * max(MIN_BLOCKS, -(-graph.edges // (EDGES_PER_BLOCK * options.at_once)))
    run = options.run
    if run is None:
        run = max(1, EDGES_PER_READ * graph.rows // max(1, graph.edges)) if graph.mapped else 1
    run = min(run, max(1, graph.rows // wanted))
    drawn = np.random.default_rng(options.seed).permutation(-(-graph.rows // run)).astype(np.int32)
    blocks = []
    for some in np.array_split(drawn, min(wanted, len(drawn))):
        rows = (np.sort(some)[:, None].astype(np.int64) * run + np.arange(run)).ravel()
        rows = rows[: np.searchsorted(rows, graph.rows)].astype(np.int32)
        if (edges := int((graph.offsets[rows + 1] - graph.offsets[rows]).sum())) > MAX_COUNT:
            raise UsageError(
                f"a block of {len(rows):,} rows has {edges:,} edges; expected at most {MAX_COUNT:,}: ask for more "
                "blocks, or set no number of blocks."
            )
        blocks.append(rows)
    return blocks
