"""Repartitioning: places a graph again with few moves, after it has grown or the number of parts has changed.

Rows and columns start in their former parts; then new ones are added. If there are fewer parts than before, the parts
with the highest numbers are removed, and their rows count as new. If there are more, Parsa cuts each additional part
out of a former part, beginning with the parts that touch most columns. Parts that are too large then give up the rows
that cost least elsewhere. A few passes move rows to parts where they cause fewer touched columns, if the gain exceeds
the cost of a move. If the objective is memory, the last passes even out what parts touch, as in refinement.

A column keeps the part that served it, or moves to even out traffic. The sweeps are those of `serving`, but start from
the former assignment and count the traffic of columns that stay. If columns are not allowed to move, a part can serve a
column that it does not touch. A column that exactly two parts touch stays, because its traffic is the same whichever of
the two serves it.

Alternatives that were tried are listed in docs/notes/placement.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.errors import UsageError
from gridml.placement.base import (
    ALL_FEATURES,
    DUAN,
    MEMORY,
    SECONDS,
    TOTAL,
    TRAFFIC,
    Counts,
    Options,
    Parts,
    Placement,
    check,
    options_of,
)
from gridml.placement.bipartite import Bipartite, Weights
from gridml.placement.parsa import ParsaOptions, deal_out
from gridml.placement.refine import MAX_PUSHES, Touches, max_power, sizes
from gridml.placement.refine_kernel import Aim, Bounds, Rooms, rise
from gridml.placement.refined import EVENING, LOOSE, bounds_of, ends_of, within_memory
from gridml.placement.serving import (
    SWEEPS,
    DenseCounts,
    WeighedRows,
    Words,
    deal_unused,
    dense_counts,
    enter,
    leave,
    sets_of,
    sweep,
    touching,
)


@compiled
def sweep_moves(
    graph: WeighedRows,
    order: Parts,
    home: Parts,
    fee: float,
    counts: DenseCounts,
    rooms: Rooms,
    power: float,
    push: float,
) -> int:
    """Visit each row of `order` once and move it to its best part. Return the number of moves.

    The gain of a move from part a to b is the decrease of Σ N_i·(N_i / mean)^`power` / (`power` + 1), where N_i is
    |N(U_i)|: a loses the columns that only this row touches there, and b gains the columns of the row that it does not
    touch yet. `home` is the former part of each row, −1 for none; a row costs `fee` more in any part but its home. A
    row moves if its gain is positive. A row of a part with more work than `most` moves without the fee, and at a loss
    of up to `push`. A row without a part (−1) always moves to the best part. A move never raises a part's work above
    `most` or lowers it below `least`.
    """
    times, touched, load = counts.times, counts.touched, counts.load
    k, (least, most, _) = len(load), rooms
    new = np.empty(k, np.int64)
    mean = max(1.0, touched.mean())
    moved = 0
    for row in order:
        a, work = counts.rows[row], graph.works[row]
        if a >= 0 and load[a] - work < least[a]:
            continue
        new[:] = 0
        only = 0
        for edge in range(graph.offsets[row], graph.offsets[row + 1]):
            column = graph.neighbours[edge]
            size = graph.sizes[column]
            for b in range(k):
                new[b] += size * (times[column, b] == 0)
            if a >= 0:
                only += size * (times[column, a] == 1)
        crowded = a >= 0 and load[a] > most[a]
        away = fee if home[row] >= 0 and not crowded else 0.0
        best, lowest = -1, np.inf
        for b in range(k):
            cost = rise(new[b], touched[b], b, None, mean, power) + (away if b != home[row] else 0.0)
            if b != a and load[b] + work <= most[b] and (cost < lowest or (cost == lowest and load[b] < load[best])):
                best, lowest = b, cost
        if best < 0:
            continue
        if a >= 0:
            stays = rise(only, touched[a] - only, int(a), None, mean, power) + (away if a != home[row] else 0.0)
            if stays - lowest <= (-push if crowded else 0.0):
                continue
            leave(row, graph, counts)
        enter(row, best, graph, counts)
        moved += 1
    return moved


def keep_serving(
    sets: Words, parts: int, seed: int, before: Parts, weights: Weights | None = None, *, stay: bool
) -> Parts:
    """Return the part that serves each column, int32 (columns,).

    `sets` are the parts that touch each column (`sets_of`), `before` is the part that served each column, −1 for none,
    and `weights` int64 (columns,) are the columns' weights. With `stay` every column that had a part keeps it.
    Otherwise a column starts in its former part if that part still touches it.
    """
    offsets, touch = touching(sets, parts)
    times = np.diff(offsets)
    home = before.astype(np.int32)
    if not stay:
        home[_served_from_outside(offsets, touch, home)] = -1
    free = home < 0 if stay else np.ones(len(home), np.bool_)
    alone = free & (times == 1)
    home[alone] = touch[offsets[:-1][alone]]  # no traffic: the only part that touches it serves it
    order = np.random.default_rng(seed).permutation(np.flatnonzero(free & (times > 1))).astype(np.int32)
    if weights is not None:
        order = order[np.argsort(-weights[order], kind="stable")]
    load, chosen = _load(offsets, touch, home, weights, parts), home[order]
    listed, weighs = touching(sets[order], parts), None if weights is None else weights[order]
    for _ in range(SWEEPS):
        if not sweep(*listed, weighs, None, True, chosen, load):
            break
    home[order] = chosen
    deal_unused(home, parts)
    return home


@compiled
def _served_from_outside(offsets: Counts, touch: Parts, home: Parts) -> NDArray[np.bool_]:
    """Return True for each column that some part touches, but not the part that serves it, bool (columns,)."""
    outside = offsets[1:] > offsets[:-1]
    for column in range(len(home)):
        for at in range(offsets[column], offsets[column + 1]):
            if touch[at] == home[column]:
                outside[column] = False
    return outside


@compiled
def _load(offsets: Counts, touch: Parts, home: Parts, weights: Weights | None, parts: int) -> Counts:
    """Return the traffic of each part for the columns with a home, int64 (parts,)."""
    load = np.zeros(parts, np.int64)
    for column in range(len(home)):
        if home[column] >= 0:
            weight = 1 if weights is None else weights[column]
            for at in range(offsets[column], offsets[column + 1]):
                if touch[at] != home[column]:
                    load[touch[at]] += weight
                    load[home[column]] += weight
    return load


# Default cost of a move, as a fraction of a mean row's columns. A higher cost saves hardly any moves, and the quality
# falls.
COST = 0.1
PASSES = 8  # maximum number of passes that move rows to better parts
RISE = 1.5  # the factor by which the accepted loss grows from pass to pass while parts are too large
POWERS = {MEMORY: 6.0, TRAFFIC: 1.0, TOTAL: 0.0}  # the `power` of `sweep_moves` for each objective
NEW = -1  # the former part of a new row or column


@dataclass(frozen=True)
class Before:
    """The former parts of a graph's rows and columns."""

    parts: int  #: the former number of parts
    rows: Parts  #: the former part of each row, −1 for new rows, int32 (rows,)
    columns: Parts  #: the former part of each column, −1 for new columns, int32 (columns,)

    @staticmethod
    def of(placement: Placement, graph: Bipartite) -> Before:
        """Apply a placement to the first rows and columns of a graph; the others are new.

        Raises UsageError if the graph has fewer rows or columns than were placed.
        """
        for name, placed, there in (
            ("rows", placement.rows, graph.rows),
            ("columns", placement.columns, graph.columns),
        ):
            if len(placed) > there:
                raise UsageError(
                    f"{len(placed):,} {name} were placed before, and the graph has {there:,}; expected the same graph, "
                    "or rows and columns added to it at the end."
                )
        rows, columns = np.full(graph.rows, NEW, np.int32), np.full(graph.columns, NEW, np.int32)
        rows[: len(placement.rows)], columns[: len(placement.columns)] = placement.rows, placement.columns
        return Before(placement.parts, rows, columns)

    def with_last(self, lost: Sequence[int]) -> Before:
        """Renumber the parts: the `lost` ones become the last, and the others keep their order.

        Raises UsageError for a number that is out of range or occurs twice.
        """
        if not all(0 <= part < self.parts for part in lost) or len(set(lost)) < len(lost):
            raise UsageError(
                f"the lost parts are {', '.join(map(str, lost))}; expected different numbers of 0 to {self.parts - 1}."
            )
        left = [part for part in range(self.parts) if part not in lost]
        number = np.full(self.parts + 1, NEW, np.int32)  # index −1, the last entry, maps NEW to itself
        number[[*left, *lost]] = np.arange(self.parts)
        return Before(self.parts, number[self.rows], number[self.columns])


@dataclass(frozen=True)
class RepartitionOptions(Options):
    """Options of repartitioning."""

    cost: float | None = None
    """The gain that the move of a row must exceed, as a multiple of the weight of a mean row's columns. None: COST if
    the number of parts has changed; otherwise rows only move out of parts that are too large, and columns stay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cost is not None and not self.cost >= 0:
            raise UsageError(f"a move costs {self.cost} mean rows' columns; expected a number from 0.")


@dataclass(frozen=True)
class Moved:
    """Counts of moves between two placements."""

    rows_before: int  #: rows that had a part before
    rows_moved: int  #: rows that had a part before and are now on another
    rows_lost: int  #: rows that had to move because their part no longer exists
    columns_before: int  #: columns that had a part before
    columns_moved: int  #: columns that had a part before and are now served by another

    @staticmethod
    def between(before: Before, after: Placement) -> Moved:
        """Count the moves. Raises ValueError for placements of different graphs."""
        if before.rows.shape != after.rows.shape or before.columns.shape != after.columns.shape:
            raise ValueError(f"{len(before.rows):,} rows before, {len(after.rows):,} after: these are two graphs")
        was = before.rows >= 0, before.columns >= 0
        return Moved(
            rows_before=int(was[0].sum()),
            rows_moved=int((was[0] & (before.rows != after.rows)).sum()),
            rows_lost=int((before.rows >= after.parts).sum()),
            columns_before=int(was[1].sum()),
            columns_moved=int((was[1] & (before.columns != after.columns)).sum()),
        )


class Repartition:
    """Places new rows and columns, and moves few others. O(parts × edges) time, O(columns × parts) memory."""

    name = "again"
    supports = ALL_FEATURES - {f"objective {DUAN}", f"objective {SECONDS}"}

    def __init__(self, before: Before) -> None:
        self._before = before

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Place a graph again. Rows move without a cost out of parts that exceed the memory limit.

        Raises UsageError if the former placement is of another graph, or if the limit cannot be kept.
        """
        check(graph, parts, options, self)
        before, own = self._before, options_of(RepartitionOptions, options)
        if before.rows.shape != (graph.rows,) or before.columns.shape != (graph.columns,):
            raise UsageError(
                f"{len(before.rows):,} rows and {len(before.columns):,} columns were placed before, and the graph has "
                f"{graph.rows:,} and {graph.columns:,}; expected equal numbers, −1 for new ones."
            )
        stay = own.cost is None and parts == before.parts
        weight = _weight(graph)
        cost = np.inf if stay else (COST if own.cost is None else own.cost) * weight / graph.rows
        unit = max(1.0, weight / max(1, graph.edges))
        rows = _Rows.of(graph, before, parts, own, unit).placed(cost)
        if own.memory is not None:
            tally = Touches.of(graph, rows, parts, shares=own.fractions)
            rows = within_memory(tally, graph, own, Aim(int(POWERS[own.objective]))).rows
        sets = sets_of(graph, rows, parts)
        columns = np.where(before.columns < parts, before.columns, NEW)
        served = keep_serving(sets, parts, own.seed, columns, graph.column_weights, stay=stay)
        placement = Placement(parts, rows, served, "")
        moved = Moved.between(before, placement)
        why = (
            f"as it was on {before.parts:,} parts, but for {moved.rows_moved:,} of {moved.rows_before:,} rows and "
            f"{moved.columns_moved:,} of {moved.columns_before:,} columns, which moved, and "
            f"{graph.rows - moved.rows_before:,} and {graph.columns - moved.columns_before:,} new ones"
        )
        return Placement(parts, rows, placement.columns, why)


@dataclass(frozen=True)
class _Rows:
    """The state of rows while they are placed."""

    given: Bipartite  #: the graph to place
    options: RepartitionOptions
    unit: float  #: the mean weight of a column, averaged over all edges
    home: Parts  #: the former part of each row, −1 for new rows
    graph: WeighedRows  #: `given` in the form that kernels take
    counts: DenseCounts  #: the present part of each row; the arrays change in place

    @staticmethod
    def of(graph: Bipartite, before: Before, parts: int, options: RepartitionOptions, unit: float) -> _Rows:
        """Start from the former parts; additional parts are cut out of them."""
        home = np.where(before.rows < parts, before.rows, NEW).astype(np.int32)
        rows = home if parts <= before.parts else _cut(graph, home, before.parts, parts, options)
        return _Rows(graph, options, unit, home, *dense_counts(graph, graph.works, rows.copy(), parts))

    def placed(self, cost: float) -> Parts:
        """Return the part of each row. A row outside its home costs `cost`, in weights of columns."""
        given, options, rows, parts = self.given, self.options, self.counts.rows, len(self.counts.load)
        rng = np.random.default_rng([options.seed, 3])
        # With these bounds some part always has room for a row, even for the heaviest.
        roomy = sizes(given.work, parts, options.slack, LOOSE, options.fractions, given.heaviest)._replace(least=0)
        on_the_way, (tight, final) = bounds_of(given, parts, options, LOOSE), ends_of(given, options, parts)
        waiting = np.flatnonzero(rows < 0).astype(np.int32)
        power = POWERS[options.objective]
        self._sweep(rng.permutation(waiting), roomy, cost, power)
        self._fit(rng, roomy, cost, power)
        everyone = waiting if cost == np.inf else np.arange(len(rows), dtype=np.int32)
        for _ in range(PASSES):
            if not self._sweep(rng.permutation(everyone), on_the_way, cost, power):
                break
        for steep in EVENING if options.objective == MEMORY else ():
            power = min(steep, max_power(parts))  # no part touches more than `parts` times the mean
            self._sweep(rng.permutation(everyone), on_the_way, cost, power)
        weighted = given.row_weights is not None
        self._fit(rng, tight, cost, power, MAX_PUSHES if weighted else None)
        if weighted:
            self._fit(rng, final, cost, power)
        for _ in range(2):
            self._sweep(rng.permutation(everyone), tight, cost, power)
        return rows

    def _fit(
        self, rng: np.random.Generator, bounds: Bounds, cost: float, power: float, pushes: int | None = None
    ) -> None:
        """Move rows out of parts with more work than `most`; rows that cost least elsewhere move first.

        If `cost` is infinite, rows at home move only when no overfull part has other rows left. If rows differ in
        work, it can be impossible to fit them: after `pushes` rounds the parts stay as they are.
        """
        push, done, guests_first = self.unit, 0, cost == np.inf
        rows, load = self.counts.rows, self.counts.load
        while (load > bounds.most).any() and done != pushes:
            crowded = np.flatnonzero((load > bounds.most)[rows]).astype(np.int32)
            movable = crowded[self.home[crowded] != rows[crowded]] if guests_first else crowded
            if guests_first and not len(movable):
                push, guests_first = self.unit, False
                continue
            self._sweep(rng.permutation(movable), bounds._replace(least=0), cost, power, push)
            push *= RISE
            done += 1

    def _sweep(self, order: Parts, bounds: Bounds, cost: float, power: float, push: float = 0.0) -> int:
        rooms = bounds.of(len(self.counts.load))
        return sweep_moves(self.graph, order, self.home, cost, self.counts, rooms, power, push)


def _weight(graph: Bipartite) -> int:
    """Return the total weight of all edges: a column's weight counts once for each row that touches it."""
    return graph.edges if graph.column_weights is None else int(graph.column_weights[graph.neighbours].sum())


def _cut(graph: Bipartite, rows: Parts, before: int, parts: int, options: RepartitionOptions) -> Parts:
    """Cut the additional parts out of the former ones.

    Every former part is cut into `parts` // `before` pieces. The parts that touch most columns, relative to their
    shares, are cut into one more piece each, until there are `parts` pieces. The first piece keeps the number of its
    part.
    """
    shares = np.ones(parts) if options.fractions is None else options.fractions
    touched = np.zeros(before)
    for part in range(before):
        touches = np.zeros(graph.columns, np.bool_)
        touches[graph.only(np.flatnonzero(rows == part)).neighbours] = True
        touched[part] = graph.sizes[touches].sum() / shares[part]
    pieces = np.full(before, parts // before)
    pieces[np.argsort(-touched, kind="stable")[: parts % before]] += 1
    found, number = rows.copy(), before
    for part in np.flatnonzero(pieces > 1).tolist():
        mine = np.flatnonzero(rows == part)
        count = int(min(pieces[part], len(mine)))
        if count > 1:
            works = None if graph.row_weights is None else graph.row_weights[mine]
            cut = replace(graph.only(mine), row_weights=works)
            of_pieces = tuple(shares[[part, *range(number, number + count - 1)]].tolist())
            dealt, _, _ = deal_out(cut, count, ParsaOptions(options.seed, shares=of_pieces))
            found[mine[dealt > 0]] = number - 1 + dealt[dealt > 0]
        number += int(pieces[part]) - 1
    return found
