"""A graph placed again: it has grown, or there are more or fewer parts than before, and little is to move.

Rows and columns that are new are placed against the parts as they were. Of fewer parts the last ones are gone, and
their rows are as new. Of more parts the last ones are new, and each is cut out of one that was there, those that touch
most columns first, by Parsa; then parts that are too large give rows away, those first that cost least elsewhere. A few
passes move what is worth it.

Tried on ca-condmat, gowalla and 20news, 16 parts that become 17, 20 and 32: new parts that only others' spare rows
fill, instead of cuts, touch columns of everybody (gowalla on 32 parts: total traffic 199% better than by chance, 231%
with cuts); of costs of a move from nothing to twice a mean row's columns, a tenth of them moved hardly more rows than
must move and gained more than the higher ones. What parts touch is evened out in the end, as in refinement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gridml.errors import UsageError
from gridml.placement.again_kernel import sweep
from gridml.placement.again_serving import serve_again
from gridml.placement.base import (
    DUAN,
    EVERYTHING,
    MEMORY,
    SECONDS,
    TOTAL,
    TRAFFIC,
    Options,
    Parts,
    Placement,
    check,
    options_of,
)
from gridml.placement.bipartite import Bipartite
from gridml.placement.dense_counts import DenseCounts, WeighedRows, dense_counts
from gridml.placement.ending import EVENING, LOOSE, bounds_of, ends_of, within_memory
from gridml.placement.neighbour_sets import sets_of
from gridml.placement.parsa import ParsaOptions, deal_out
from gridml.placement.refine import PUSHES, Tally, highest_power, sizes
from gridml.placement.refine_kernel import Aim, Bounds

COST = 0.1  # of a move, in the columns of a mean row
PASSES = 8
RISE = 1.5  # of the loss that is borne, from pass to pass
POWERS = {MEMORY: 6.0, TRAFFIC: 1.0, TOTAL: 0.0}  # to which a part's weight rises, by objective
NEW = -1


@dataclass(frozen=True)
class Before:
    """Where a graph's rows and columns were, on `parts` parts: int32 (rows,) and (columns,), −1 for new ones."""

    parts: int
    rows: Parts
    columns: Parts

    @staticmethod
    def of(placement: Placement, graph: Bipartite) -> Before:
        """Of a graph whose first rows and columns were placed so; what comes after them is new.

        Raises UsageError where the graph has fewer.
        """
        for name, placed, there in (
            ("rows", placement.rows, graph.rows),
            ("columns", placement.columns, graph.columns),
        ):
            if len(placed) > there:
                raise UsageError(
                    f"{len(placed):,} {name} were placed before, and the graph has {there:,}; expected the same graph, "
                    "or what has been added to it after its last row and column."
                )
        rows, columns = np.full(graph.rows, NEW, np.int32), np.full(graph.columns, NEW, np.int32)
        rows[: len(placement.rows)], columns[: len(placement.columns)] = placement.rows, placement.columns
        return Before(placement.parts, rows, columns)

    def with_last(self, lost: Sequence[int]) -> Before:
        """The same with the parts numbered anew: the `lost` are the last, the others keep their order.

        Raises UsageError for a number that no part has, or that stands there twice.
        """
        if not all(0 <= part < self.parts for part in lost) or len(set(lost)) < len(lost):
            raise UsageError(
                f"the lost parts are {', '.join(map(str, lost))}; expected different numbers of 0 to {self.parts - 1}."
            )
        left = [part for part in range(self.parts) if part not in lost]
        number = np.full(self.parts + 1, NEW, np.int32)  # its last one is that of what is new, −1
        number[[*left, *lost]] = np.arange(self.parts)
        return Before(self.parts, number[self.rows], number[self.columns])


@dataclass(frozen=True)
class AgainOptions(Options):
    """A row is moved for more columns, by their weights, than `cost` times those of a mean row. None: on as many parts
    as before no row moves, unless its part is too large, and no column does; on others it is a tenth."""

    cost: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cost is not None and not self.cost >= 0:
            raise UsageError(f"a move costs {self.cost} mean rows' columns; expected a number from 0.")


@dataclass(frozen=True)
class Moved:
    """How many rows and columns there were before, how many of these are on another part now, and how many had to be,
    because theirs is gone."""

    rows_before: int
    rows_moved: int
    rows_lost: int
    columns_before: int
    columns_moved: int

    @staticmethod
    def between(before: Before, after: Placement) -> Moved:
        """Count them. Raises ValueError for placements of two graphs."""
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


class Again:
    """Places what is new, and moves little. Time grows with parts × edges; room for columns × parts counts."""

    name = "again"
    honours = EVERYTHING - {f"objective {DUAN}", f"objective {SECONDS}"}

    def __init__(self, before: Before) -> None:
        self._before = before

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Rows move freely where a part touches more than the memory limit.

        Raises UsageError where what was placed before is not this graph, or where that limit cannot be kept.
        """
        check(graph, parts, options, self)
        before, own = self._before, options_of(AgainOptions, options)
        if before.rows.shape != (graph.rows,) or before.columns.shape != (graph.columns,):
            raise UsageError(
                f"{len(before.rows):,} rows and {len(before.columns):,} columns were placed before, and the graph has "
                f"{graph.rows:,} and {graph.columns:,}; expected as many, −1 for those that are new."
            )
        stay = own.cost is None and parts == before.parts
        weight = _weight(graph)
        cost = np.inf if stay else (COST if own.cost is None else own.cost) * weight / graph.rows
        unit = max(1.0, weight / max(1, graph.edges))
        rows = _Rows.of(graph, before, parts, own, unit).placed(cost)
        if own.memory is not None:
            tally = Tally.of(graph, rows, parts, shares=own.fractions)
            rows = within_memory(tally, graph, own, Aim(int(POWERS[own.objective]))).rows
        sets = sets_of(graph, rows, parts)
        columns = np.where(before.columns < parts, before.columns, NEW)
        served = serve_again(sets, parts, own.seed, columns, graph.column_weights, stay=stay)
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
    """Rows while they are placed: the counts change in place. `home` is where a row has its place, or −1, and `unit`
    what a column of a row weighs in the mean."""

    given: Bipartite
    options: AgainOptions
    unit: float
    home: Parts
    graph: WeighedRows
    counts: DenseCounts

    @staticmethod
    def of(graph: Bipartite, before: Before, parts: int, options: AgainOptions, unit: float) -> _Rows:
        """The rows of parts that are still there, some of them in parts that were cut off."""
        home = np.where(before.rows < parts, before.rows, NEW).astype(np.int32)
        rows = home if parts <= before.parts else _cut(graph, home, before.parts, parts, options)
        return _Rows(graph, options, unit, home, *dense_counts(graph, graph.works, rows.copy(), parts))

    def placed(self, cost: float) -> Parts:
        """Return the part of each row, where a row that leaves its home costs so many columns."""
        given, options, rows, parts = self.given, self.options, self.counts.rows, len(self.counts.load)
        rng = np.random.default_rng([options.seed, 3])
        # In these there is always one that has room for a row, whatever it weighs.
        roomy = sizes(given.work, parts, options.slack, LOOSE, options.fractions, given.heaviest)._replace(least=0)
        on_the_way, (tight, at_worst) = bounds_of(given, parts, options, LOOSE), ends_of(given, options, parts)
        waiting = np.flatnonzero(rows < 0).astype(np.int32)
        power = POWERS[options.objective]
        self._sweep(rng.permutation(waiting), roomy, cost, power)
        self._fit(rng, roomy, cost, power)
        everyone = waiting if cost == np.inf else np.arange(len(rows), dtype=np.int32)
        for _ in range(PASSES):
            if not self._sweep(rng.permutation(everyone), on_the_way, cost, power):
                break
        for steep in EVENING if options.objective == MEMORY else ():
            power = min(steep, highest_power(parts))  # no part touches more than `parts` times the mean
            self._sweep(rng.permutation(everyone), on_the_way, cost, power)
        self._fit(rng, tight, cost, power, None if at_worst is None else PUSHES)
        if at_worst is not None:
            self._fit(rng, at_worst, cost, power)
        for _ in range(2):
            self._sweep(rng.permutation(everyone), tight, cost, power)
        return rows

    def _fit(
        self, rng: np.random.Generator, bounds: Bounds, cost: float, power: float, pushes: int | None = None
    ) -> None:
        """Bring every part to at most its `most`, those rows first that cost least elsewhere. If rows are to stay where
        they were, only what is elsewhere moves, as long as that is enough. Rows of several works need not fit: give a
        number of `pushes` after which what is too large stays so."""
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
        return sweep(self.graph, order, self.home, cost, self.counts, rooms, power, push)


def _weight(graph: Bipartite) -> int:
    """Return what the columns of all rows weigh, each as often as it is touched."""
    return graph.edges if graph.column_weights is None else int(graph.column_weights[graph.neighbours].sum())


def _cut(graph: Bipartite, rows: Parts, before: int, parts: int, options: AgainOptions) -> Parts:
    """Cut the last of the `parts` out of those that were there before, each into as many pieces as another, or one more
    where it touches most for its share. The first piece keeps its number."""
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
