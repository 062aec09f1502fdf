"""A two-step heuristic: places rows first, then columns.

After Duan, Wang and Wu, "Minimizing Training Time of Distributed Machine Learning by Reducing Data Communication", IEEE
Transactions on Network Science and Engineering, 2021. `tsh_printed` is their heuristic as it is printed. This one is
quicker and finds better parts; it differs in these points:

- All waiting rows are considered, not a sample: a pair is the best one of the cheapest `candidates`. `sample` limits a
  step to a random sample of rows, which is dealt out before the next one.
- Of the parts with the fewest rows, the one that touches the fewest columns takes the next step. If shares are unequal,
  the part with the least work relative to its share takes it.
- A pair is taken only if it brings fewer new columns than the cheapest row and the best row beside it. Otherwise one
  row is taken, because other parts can then take rows that are as cheap. When pairs were always taken, the last rows,
  which are the dearest, were dealt out unevenly: memory was worse than with single rows.
- Columns count 1 each. A column that a single part touches is served by that part. Every other column is served by the
  part with the least traffic so far among the parts that touch it; columns that most parts touch come first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.errors import UsageError
from gridml.placement.base import (
    DUAN,
    MEMORY_LIMIT,
    ROW_WEIGHTS,
    SHARES,
    UNLIMITED,
    Counts,
    Options,
    Parts,
    Placement,
    Shares,
    advice,
    check,
    least_memory,
    options_of,
    room,
)
from gridml.placement.bipartite import Bipartite, BothSides, Ids
from gridml.placement.serving import Words, deal_unused, no_sets, sets_of, touching

COST, BEFORE, AFTER = 0, 1, 2  # fields of an entry, see `_all_waiting`
NO_ROW = -1  # no row; as a part: no part


class PartRoom(NamedTuple):
    """The bounds of parts."""

    most: Counts  #: maximum work of each part, int64 (parts,)
    shares: Shares  #: target fractions of all work, float64 (parts,)
    limit: int  #: maximum number of columns that any part touches


class Dealt(NamedTuple):
    """The state of parts. All arrays change in place, only by `deal_by_steps`."""

    sets: Words  #: the parts that touch each column (`neighbours.sets_of`)
    touched: Counts  #: the number of columns that each part touches, int64 (parts,)
    load: Counts  #: the work of each part's rows, int64 (parts,)


@compiled
def deal_by_steps(
    graph: BothSides,
    works: Counts,
    order: Ids,
    step: int,
    candidates: int,
    room: PartRoom,
    extra: int,
    dealt: Dealt,
    parts: Parts,
) -> int:
    """Write the part of each row, int32 (rows,), into `parts`; −1 if it fits nowhere. Return what is left of `extra`.

    A `step` of 1 takes the row with the fewest new columns for the part, a `step` of 2 the best pair of the
    `candidates` cheapest rows, unless a pair with the cheapest row is as good; then it takes that row alone. A part
    takes rows until their `works`, int64 (rows,), reach the maximum of its `room`; `extra` parts are allowed 1 more.
    `dealt` is the state of the parts from earlier calls. While costs are unchanged, rows of equal cost are taken in the
    given order.
    """
    offsets, neighbours, column_offsets, rows_of = graph
    most, shares, limit = room
    sets, touched, load = dealt
    count, k = len(offsets) - 1, len(load)
    entry, head = _all_waiting(graph, order, sets, k)
    deepest = head.shape[1] - 1
    lowest = np.zeros(k, np.int64)
    parts[:] = NO_ROW
    mark = np.full(len(column_offsets) - 1, NO_ROW, np.int32)
    cheapest = np.empty(candidates, np.int32)
    taken = np.empty(2, np.int32)
    # Parts that the limit closes stay closed, because a part's costs fall only when it takes a row.
    closed = np.zeros(k, np.bool_)
    left = count
    while left:
        part, least_filled = NO_ROW, 0.0
        for other in range(k):
            if closed[other] or load[other] > most[other] or (load[other] == most[other] and not extra):
                continue
            filled = load[other] / shares[other]
            if part == NO_ROW or (filled, touched[other]) < (least_filled, touched[part]):
                part, least_filled = other, filled
        if part == NO_ROW:
            break
        word, bit = part >> 6, np.uint64(1) << np.uint64(part & 63)
        level = lowest[part]
        while head[part, level] == NO_ROW:
            level += 1
        lowest[part] = level
        if touched[part] + level > limit:
            closed[part] = True
            continue
        taken[0], taken[1] = head[part, level], NO_ROW
        if step > 1 and left > 1:
            found, row = 0, taken[0]
            while found < candidates:
                if row == NO_ROW:
                    level += 1
                    if level > deepest:
                        break
                    row = head[part, level]
                else:
                    cheapest[found] = row
                    found += 1
                    row = entry[part, row, AFTER]
            space = most[part] - load[part] + (extra > 0)
            best = limit - touched[part] + 1
            with_cheapest = best
            for i in range(found - 1):
                row = cheapest[i]
                # A pair costs at least as much as its dearer row, and candidates are sorted by cost.
                if entry[part, cheapest[i + 1], COST] >= best:
                    break
                if works[row] >= space:
                    continue
                for edge in range(offsets[row], offsets[row + 1]):
                    if not sets[neighbours[edge], word] & bit:
                        mark[neighbours[edge]] = row
                for j in range(i + 1, found):
                    second = cheapest[j]
                    if entry[part, second, COST] >= best:
                        break
                    both = int(entry[part, row, COST]) + int(entry[part, second, COST])
                    for edge in range(offsets[second], offsets[second + 1]):
                        both -= mark[neighbours[edge]] == row
                    if both < best:
                        best, taken[0], taken[1] = both, row, second
                if i == 0:
                    with_cheapest = best
            if best == with_cheapest:
                taken[0], taken[1] = cheapest[0], NO_ROW
        for i in range(2):
            row = int(taken[i])
            if row == NO_ROW:
                continue
            left -= 1
            parts[row] = part
            extra -= load[part] <= most[part] < load[part] + works[row]
            load[part] += works[row]
            for other in range(k):
                before, after = entry[other, row, BEFORE], entry[other, row, AFTER]
                if before == NO_ROW:
                    head[other, entry[other, row, COST]] = after
                else:
                    entry[other, before, AFTER] = after
                if after != NO_ROW:
                    entry[other, after, BEFORE] = before
            for edge in range(offsets[row], offsets[row + 1]):
                column = neighbours[edge]
                if sets[column, word] & bit:
                    continue
                sets[column, word] |= bit
                touched[part] += 1
                for at in range(column_offsets[column], column_offsets[column + 1]):
                    sharing = rows_of[at]
                    if parts[sharing] != NO_ROW:
                        continue
                    cost = entry[part, sharing, COST]
                    before, after = entry[part, sharing, BEFORE], entry[part, sharing, AFTER]
                    if before == NO_ROW:
                        head[part, cost] = after
                    else:
                        entry[part, before, AFTER] = after
                    if after != NO_ROW:
                        entry[part, after, BEFORE] = before
                    cost -= 1
                    first = head[part, cost]
                    if first != NO_ROW:
                        entry[part, first, BEFORE] = sharing
                    entry[part, sharing, COST], entry[part, sharing, BEFORE], entry[part, sharing, AFTER] = (
                        cost,
                        NO_ROW,
                        first,
                    )
                    head[part, cost] = sharing
                    lowest[part] = min(lowest[part], cost)
    return max(0, extra)


@compiled
def _all_waiting(graph: BothSides, order: Ids, sets: Words, parts: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the lists of waiting rows: the entries of rows, int32 (parts, rows, 3), with the cost of a row, the row
    before it and the row after it in its list; and the first row of each list, int32 (parts, costs)."""
    # Each part has a list of rows for each cost. Lists are doubly linked, so a row changes its list in constant time.
    # The memory is O(parts × rows), independent of the number of edges.
    offsets, neighbours, _, _ = graph
    count, deepest = len(offsets) - 1, 0
    for row in range(count):
        deepest = max(deepest, offsets[row + 1] - offsets[row])
    entry, head = np.empty((parts, count, 3), np.int32), np.full((parts, deepest + 1), NO_ROW, np.int32)
    for part in range(parts):
        word, bit = part >> 6, np.uint64(1) << np.uint64(part & 63)
        for i in range(count - 1, -1, -1):
            row = order[i]
            cost = 0
            for edge in range(offsets[row], offsets[row + 1]):
                cost += not sets[neighbours[edge], word] & bit
            first = head[part, cost]
            entry[part, row, COST], entry[part, row, BEFORE], entry[part, row, AFTER] = cost, NO_ROW, first
            if first != NO_ROW:
                entry[part, first, BEFORE] = row
            head[part, cost] = row
    return entry, head


@dataclass(frozen=True)
class TshOptions(Options):
    """Options of the two-step heuristic."""

    step: int = 2  #: maximum number of rows that a step takes, 1 or 2 (α)
    candidates: int = 32  #: number of cheapest rows from which a pair is chosen
    sample: int | None = None  #: number of rows that are drawn at random and dealt out at a time; None: all rows

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step not in (1, 2):
            raise UsageError(f"a step takes {self.step} rows; expected 1 or 2.")
        if self.candidates < 2:
            raise UsageError(f"two rows are chosen out of {self.candidates} candidates; expected at least 2.")
        if self.sample is not None and self.sample < 1:
            raise UsageError(f"a sample has {self.sample} rows; expected at least 1.")


class Tsh:
    """gridml's two-step heuristic. O(parts × edges) time, plus the square of the candidates' edges; O(parts × rows)
    memory."""

    name = "tsh"
    supports = frozenset({SHARES, ROW_WEIGHTS, MEMORY_LIMIT, f"objective {DUAN}"})

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Place a graph. Raises UsageError if the memory limit cannot be kept."""
        check(graph, parts, options, self)
        own = options_of(TshOptions, options)
        rows, _ = deal(graph, graph.works, parts, own)
        if rows.min() < 0:
            raise infeasible(graph, parts, own, deal(graph, graph.works, parts, replace(own, memory=None))[1])
        return Placement(parts, rows, serve_greedily(graph, rows, parts), f"tsh, up to {own.step} rows a step")


def deal(graph: Bipartite, weight: Counts, parts: int, options: TshOptions) -> tuple[Parts, Counts]:
    """Return the part of each row, −1 if no part had room within the memory limit, and the number of columns that each
    part touches.

    `weight` int64 (rows,) is the number of rows that each row stands for, or their work. A part can exceed its bound by
    up to the weight of its last row minus 1.
    """
    order = np.random.default_rng(options.seed).permutation(graph.rows).astype(np.int32)
    dealt = Dealt(no_sets(graph.columns, parts), np.zeros(parts, np.int64), np.zeros(parts, np.int64))
    weighted = graph.row_weights is not None
    most, extra = room(int(weight.sum()), parts, options.slack, options.fractions, weighted=weighted)
    shares = np.full(parts, 1 / parts) if options.fractions is None else options.fractions
    within = PartRoom(most, shares, UNLIMITED if options.memory is None else options.memory)
    rows = np.empty(graph.rows, np.int32)
    sample = options.sample or graph.rows
    for first in range(0, graph.rows, sample):
        drawn = order[first : first + sample]
        # For a sample, a subgraph is made whose rows are in the order in which they were drawn.
        whole = len(drawn) == graph.rows
        some, numbers = (graph, np.arange(graph.rows)) if whole else (graph.only(drawn), drawn)
        turns = drawn if whole else np.arange(len(drawn), dtype=np.int32)
        found = np.empty(len(drawn), np.int32)
        step, candidates = options.step, options.candidates
        extra = deal_by_steps(some.both_sides, weight[numbers], turns, step, candidates, within, extra, dealt, found)
        rows[numbers] = found
    return rows, dealt.touched


def infeasible(graph: Bipartite, parts: int, options: TshOptions, reached: Counts) -> UsageError:
    """Return the error for a memory limit that cannot be kept; `reached` is what each part touches without a limit."""
    least, limit = least_memory(graph, parts), options.memory
    assert limit is not None, "there is one to keep"
    return UsageError(
        f"no placement on {parts} parts was found in which none touches more than {limit:,} columns. None has "
        f"fewer than {least:,}; one of {int(reached.max()):,} was found. "
        f"{advice(graph, limit, options.slack)}"
    )


def serve_greedily(graph: Bipartite, rows: Parts, parts: int) -> Parts:
    """Choose the part that serves each column, int32 (columns,), in one greedy pass. Columns that a single part touches
    come first, then those that most parts touch. Columns that no row touches are dealt out in turn."""
    offsets, touch = touching(sets_of(graph, rows, parts), parts)
    sizes = graph.sizes
    load = np.bincount(touch, np.repeat(sizes, np.diff(offsets)), parts).astype(np.int64)
    home = np.full(graph.columns, -1, np.int32)
    touching_it = np.diff(offsets)
    carried = -touching_it * sizes
    order = np.argsort(np.where(touching_it == 1, carried.min(initial=0) - 1, carried), kind="stable").astype(np.int32)
    _serve(offsets, touch, order, sizes, load, home)
    deal_unused(home, parts)
    return home


@compiled
def _serve(offsets: Counts, touch: Parts, order: Parts, sizes: Counts, load: Counts, home: Parts) -> None:
    for column in order:
        first, last = offsets[column], offsets[column + 1]
        if first == last:
            continue
        best = touch[first]
        for at in range(first + 1, last):
            if load[touch[at]] < load[best]:
                best = touch[at]
        load[best] += (last - first - 2) * sizes[column]  # `best` serves the other parts, and need not fetch the column
        home[column] = best
