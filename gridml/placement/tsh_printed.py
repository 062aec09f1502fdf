"""The two-step heuristic as it is printed: data by Algorithm 1, parameters by Algorithm 2.

Duan, Wang and Wu, "Minimizing Training Time of Distributed Machine Learning by Reducing Data Communication", IEEE
Transactions on Network Science and Engineering, 2021, section 4. Until all data is assigned, the machine with least
data takes the set S of at most α data that minimises f(D_i ∪ S) − β·|D_i ∪ S|, where f(D_i) = |N(D_i)|. If D_i ∪ S
would exceed ⌈n/k⌉, the cheapest datum of S is taken alone. Ties are broken by labels. To save time, S can be searched
in a sample, drawn again for each step, that has each unassigned datum with probability n / (k·|D'|). `tsh` is quicker.

Choices made where the paper leaves something open:

- S is not empty, because Algorithm 1 would not end otherwise. An empty sample is drawn again.
- Of several best sets, the first in lexicographic order of their labels is taken.
- The machine with the smallest cost may have no unassigned parameter in N(D_i) left. In Algorithm 2 the machine with
  the smallest cost among the others takes the next one then. Parameters that no datum needs are dealt out in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.errors import UsageError
from gridml.placement.base import DUAN, Counts, Options, Parts, Placement, check, options_of
from gridml.placement.bipartite import Bipartite, BothSides, Ids
from gridml.placement.serving import deal_unused, sets_of, touching

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class PrintedTshOptions(Options):
    """Options of the two-step heuristic as printed. `slack` is ignored: parts have at most ⌈n/k⌉ rows."""

    alpha: int = 2  #: maximum number of rows of a step; from 3 on, steps take long
    beta: float | None = (
        None  #: weight of |D_i ∪ S|; None: n, as in the paper's example, so that steps are as large as α
    )
    sampled: bool = False  #: search each step's rows in a sample of about n/k; False: among all rows without a part

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 1:
            raise UsageError(f"a step takes at most {self.alpha} rows; expected at least 1.")
        if self.beta is not None and not self.beta > 0:
            raise UsageError(f"the weight β of a step's rows is {self.beta}; expected a number above 0.")


class PrintedTsh:
    """Algorithms 1 and 2. O(n²) time for α = 1, and up to O(n) more for each edge for α = 2; O(parts × (rows +
    columns)) memory."""

    name = "tsh-printed"
    supports = frozenset({f"objective {DUAN}"})

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Place a graph. Raises UsageError for an α above ⌈n/k⌉."""
        check(graph, parts, options, self)
        own = options_of(PrintedTshOptions, options)
        rows = deal(graph, parts, own)
        return Placement(parts, rows, serve_as_printed(graph, rows, parts), f"tsh as printed, α = {own.alpha}")


def deal(graph: Bipartite, parts: int, options: PrintedTshOptions) -> Parts:
    """Return the part of each row by Algorithm 1, int32 (rows,)."""
    count = graph.rows
    most = -(-count // parts)
    if options.alpha > max(2, most):  # the default of 2 is no error where parts have a single row
        raise UsageError(f"a step takes at most {options.alpha} rows; expected at most ⌈n/k⌉ = {most}.")
    beta = float(count) if options.beta is None else options.beta
    rng, sides = np.random.default_rng(options.seed), graph.both_sides
    rows, sizes = np.full(count, -1, np.int32), np.zeros(parts, np.int64)
    cost = np.tile(graph.degrees.astype(np.int32), (parts, 1))  # |N(u) \ N(D_i)|, int32 (parts, rows)
    known = np.zeros((parts, graph.columns), np.bool_)  # N(D_i)
    place, cover = np.full(count, -1, np.int32), np.zeros(graph.columns, np.int32)  # scratch of `least_set`
    waiting = np.arange(count, dtype=np.int32)
    while len(waiting):
        part = int(sizes.argmin())
        drawn = waiting
        if options.sampled:
            drawn = waiting[rng.random(len(waiting)) < count / (parts * len(waiting))]
            if not len(drawn):
                continue
        taken = least_set(sides, cost[part], known[part], drawn, options.alpha, beta, place, cover)
        if sizes[part] + len(taken) > most:
            taken = taken[[cost[part, taken].argmin()]]
        rows[taken] = part
        sizes[part] += len(taken)
        assign(sides, taken, cost[part], known[part])
        waiting = waiting[rows[waiting] < 0]
    return rows


@compiled
def least_set(
    graph: BothSides, cost: Ids, known: Flags, drawn: Ids, alpha: int, beta: float, place: Ids, cover: Ids
) -> Ids:
    """Return the set S of 1 to `alpha` of the `drawn` rows that minimises |N(S) \\ N(D_i)| − β·|S|, ascending.

    `cost` int32 (rows,) is |N(u) \\ N(D_i)| of each row, and `known` bool (columns,) is N(D_i). `place` int32 (rows,),
    all −1, and `cover` int32 (columns,), all 0, are scratch; both are left as they were.
    """
    # Depth-first search, with rows in the order of their costs. A set costs at least as much as each of its subsets, so
    # the search returns where even β·α more could not beat the best set. The last row of a set is one that shares new
    # columns with the others, or the cheapest of the rest.
    offsets, neighbours, column_offsets, rows_of = graph
    # The cheapest rows, 1 to α of them, cost at most the sum of their costs; dearer rows cannot be in a best set.
    costs = cost[drawn]
    least, bound = np.sort(np.partition(costs, min(alpha, len(costs)) - 1)[:alpha]), np.inf
    for size in range(1, len(least) + 1):
        bound = min(bound, least[:size].sum() - beta * size)
    drawn = drawn[costs - beta * alpha <= bound]
    order = drawn[np.argsort(cost[drawn], kind="mergesort")]
    marginal = cost[order]  # the columns that a row adds to N(D_i ∪ chosen)
    for at in range(len(order)):
        place[order[at]] = at
    reduced, count = np.empty(len(order), np.int32), 0  # the places whose marginal cost is below the cost
    chosen, added, counts = np.empty(alpha, np.int32), np.empty(alpha, np.int32), np.zeros(alpha, np.int64)
    best, best_rows = np.inf, np.empty(0, np.int32)
    size, new, at = 0, 0, 0
    while True:
        if size + 1 == alpha:
            while at < len(order) and marginal[at] < cost[order[at]]:
                at += 1
            for other in range(-1, count):
                last = reduced[other] if other >= 0 else at
                if last == len(order) or (size and last <= place[chosen[size - 1]]):
                    continue
                value = new + marginal[last] - beta * alpha
                chosen[size] = order[last]
                if value <= best:
                    labels = np.sort(chosen)
                    if value < best or _first(labels, best_rows):
                        best, best_rows = value, labels
            at = len(order)
        if at == len(order) or cost[order[at]] - beta * alpha > best:
            if size == 0:
                break
            size -= 1
            row = chosen[size]
            new -= added[size]
            count = counts[size]
            for edge in range(offsets[row], offsets[row + 1]):
                column = neighbours[edge]
                if cover[column] == size + 1:
                    cover[column] = 0
                    for other in range(column_offsets[column], column_offsets[column + 1]):
                        if place[rows_of[other]] >= 0:
                            marginal[place[rows_of[other]]] += 1
            at = place[row] + 1
            continue
        row = order[at]
        chosen[size], added[size], counts[size] = row, marginal[at], count
        new += marginal[at]
        size += 1
        value = new - beta * size
        if value <= best:
            labels = np.sort(chosen[:size])
            if value < best or _first(labels, best_rows):
                best, best_rows = value, labels
        at += 1
        for edge in range(offsets[row], offsets[row + 1]):
            column = neighbours[edge]
            if not known[column] and not cover[column]:
                cover[column] = size
                for other in range(column_offsets[column], column_offsets[column + 1]):
                    where = place[rows_of[other]]
                    if where >= 0:
                        if marginal[where] == cost[order[where]]:
                            reduced[count] = where
                            count += 1
                        marginal[where] -= 1
    for row in order:
        place[row] = -1
    return best_rows


@compiled
def _first(one: Ids, other: Ids) -> bool:
    """Return True if the labels of `one` come before those of the `other` in lexicographic order."""
    for at in range(min(len(one), len(other))):
        if one[at] != other[at]:
            return bool(one[at] < other[at])
    return len(one) < len(other)


@compiled
def assign(graph: BothSides, taken: Ids, cost: Ids, known: Flags) -> None:
    """Add the columns of these rows to `known`, and lower the `cost` of the rows that touch them; see `least_set`."""
    offsets, neighbours, column_offsets, rows_of = graph
    for row in taken:
        for edge in range(offsets[row], offsets[row + 1]):
            column = neighbours[edge]
            if not known[column]:
                known[column] = True
                for other in range(column_offsets[column], column_offsets[column + 1]):
                    cost[rows_of[other]] -= 1


def serve_as_printed(graph: Bipartite, rows: Parts, parts: int) -> Parts:
    """Choose the part that serves each column by Algorithm 2, int32 (columns,)."""
    offsets, touch = touching(sets_of(graph, rows, parts), parts)
    home = np.full(graph.columns, -1, np.int32)
    order = np.argsort(np.diff(offsets), kind="stable").astype(np.int32)
    _serve(offsets, touch, order, np.bincount(touch, minlength=parts), home)
    deal_unused(home, parts)
    return home


@compiled
def _serve(offsets: Counts, touch: Parts, order: Ids, cost: Counts, home: Parts) -> None:
    """Write the part of each column that is touched into `home`. `order` are the columns by the number of parts that
    touch them, then by label. `cost` int64 (parts,) is the traffic of each part if it serves nothing; it is updated."""
    # Serving a column that d parts touch adds d − 2 to the serving part's cost, whatever was assigned before. So each
    # part takes its columns in the given order.
    parts = len(cost)
    at, ended = np.zeros(parts, np.int64), np.zeros(parts, np.bool_)
    while True:
        part = -1
        for other in range(parts):
            if not ended[other] and (part < 0 or cost[other] < cost[part]):
                part = other
        if part < 0:
            return
        while at[part] < len(order):
            column = order[at[part]]
            at[part] += 1
            first, last = offsets[column], offsets[column + 1]
            if home[column] >= 0 or first == last:
                continue
            among = np.searchsorted(touch[first:last], part)
            if among < last - first and touch[first + among] == part:
                home[column] = part
                cost[part] += last - first - 2
                break
        else:
            ended[part] = True
