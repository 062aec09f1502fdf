"""The two-step heuristic: rows first, then columns (Duan, Wang and Wu, "Minimizing Training Time of Distributed Machine
Learning by Reducing Data Communication", IEEE Transactions on Network Science and Engineering, 2021).

The paper itself was not at hand when this was written. Known of it: data are partitioned first and parameters after,
each by a sequential greedy; a step takes α = 1 or 2 data vertices (TSH-1, TSH-2) out of β candidates; the training time
to be minimised is max |D_i| · max communication, under a limit θ of what a worker holds; and its improvements over
random. Decided here:

- A step is that of the part with the fewest rows, and of those the one that touches the fewest columns: parts are even,
  which leaves the largest traffic of the product to be minimised.
- The cost of a step is the columns that are new to the part, of two rows together |N(u) ∪ N(w) \\ N(U_i)|.
- TSH-1 takes the cheapest of all the rows that wait. TSH-2 takes the best pair of the β cheapest: of β drawn by chance
  thousands were needed for the same quality. `sample` restricts both to rows drawn by chance.
- Where parts are unequal, the step is that of the part with the least work for its share. Columns count one each.
- Columns that one part touches are its own. The others go, those that most parts touch first, each to the part that
  touches it and has the least traffic so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

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
    check,
    options_of,
    room,
)
from gridml.placement.bipartite import Bipartite
from gridml.placement.compiled import compiled
from gridml.placement.limits import advice, least_memory
from gridml.placement.neighbour_sets import no_sets, sets_of
from gridml.placement.serving import deal_unused, touching
from gridml.placement.tsh_steps import Dealt, Room, deal_by_steps


@dataclass(frozen=True)
class TshOptions(Options):
    """`step` (α in the paper) rows are taken at a step, 1 or 2, two of the `candidates` (β) cheapest. Rows wait in
    samples of `sample` rows drawn by chance, dealt out one after the other; None: all wait at once."""

    step: int = 2
    candidates: int = 32
    sample: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step not in (1, 2):
            raise UsageError(f"a step takes {self.step} rows; expected 1 or 2.")
        if self.candidates < 2:
            raise UsageError(f"two rows are chosen out of {self.candidates} candidates; expected at least 2.")
        if self.sample is not None and self.sample < 1:
            raise UsageError(f"a sample has {self.sample} rows; expected at least 1.")


class Tsh:
    """Time grows with parts × edges, and with the edges of the candidates squared; room with parts × rows."""

    name = "tsh"
    honours = frozenset({SHARES, ROW_WEIGHTS, MEMORY_LIMIT, f"objective {DUAN}"})

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Raises UsageError where no part may touch as many columns as some must."""
        check(graph, parts, options, self)
        own = options_of(TshOptions, options)
        rows, _ = deal(graph, graph.works, parts, own)
        if rows.min() < 0:
            raise infeasible(graph, parts, own, deal(graph, graph.works, parts, replace(own, memory=None))[1])
        return Placement(parts, rows, serve_greedily(graph, rows, parts), f"tsh, {own.step} rows a step")


def deal(graph: Bipartite, weight: Counts, parts: int, options: TshOptions) -> tuple[Parts, Counts]:
    """Return the part of each row, −1 where the memory limit left it none, and the columns that each part touches.

    `weight` int64 (rows,) is the rows that each stands for, or their work: one of more than 1 may be too much for its
    part by all but 1 of it.
    """
    order = np.random.default_rng(options.seed).permutation(graph.rows).astype(np.int32)
    dealt = Dealt(no_sets(graph.columns, parts), np.zeros(parts, np.int64), np.zeros(parts, np.int64))
    weighted = graph.row_weights is not None
    most, extra = room(int(weight.sum()), parts, options.slack, options.fractions, weighted=weighted)
    shares = np.full(parts, 1 / parts) if options.fractions is None else options.fractions
    within = Room(most, shares, UNLIMITED if options.memory is None else options.memory)
    rows = np.empty(graph.rows, np.int32)
    sample = options.sample or graph.rows
    for first in range(0, graph.rows, sample):
        drawn = order[first : first + sample]
        # All rows are a graph that is there already; of others one is made, in the order in which they were drawn.
        whole = len(drawn) == graph.rows
        some, numbers = (graph, np.arange(graph.rows)) if whole else (graph.only(drawn), drawn)
        turns = drawn if whole else np.arange(len(drawn), dtype=np.int32)
        found = np.empty(len(drawn), np.int32)
        step, candidates = options.step, options.candidates
        extra = deal_by_steps(some.both_sides, weight[numbers], turns, step, candidates, within, extra, dealt, found)
        rows[numbers] = found
    return rows, dealt.touched


def infeasible(graph: Bipartite, parts: int, options: TshOptions, reached: Counts) -> UsageError:
    """The error for a memory limit that cannot be kept; `reached` is what the parts touch without one."""
    least, limit = least_memory(graph, parts), options.memory
    assert limit is not None, "there is one to keep"
    return UsageError(
        f"no placement on {parts} parts was found in which none touches more than {limit:,} columns. None has "
        f"fewer than {least:,}; one of {int(reached.max()):,} was found. "
        f"{advice(graph, limit, options.slack)}"
    )


def serve_greedily(graph: Bipartite, rows: Parts, parts: int) -> Parts:
    """Return the part that serves each column, int32 (columns,): a greedy of one pass, after what one part alone
    touches those that most parts touch first. Columns that nobody touches are dealt out in turn."""
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
        load[best] += (last - first - 2) * sizes[column]  # serves the others, and fetches it no more
        home[column] = best
