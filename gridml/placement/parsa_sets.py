"""Parsa's Algorithm 1: the smallest part takes the best set of rows of a random sample.

Li, Andersen and Smola, "Graph Partitioning via Parallel Submodular Approximation to Accelerate Distributed Machine
Learning", 2015, section 3.1. In each iteration the part with the fewest rows draws R: each of the rows left, with
probability n / (|U|·k). It takes the T ⊆ R that minimises g_i(T) = f(T ∪ U_i) − α·|T ∪ U_i|, where f(U) = |N(U)|, if
g_i(T) ≤ 0. When at most k·θ rows are left, these are dealt out evenly. Proposition 1: with θ = √(n / log n) < k and
α = B·k / √(n·log n), where some partitioning has max f ≤ B, no part touches more than 4·B·√(n / log n) columns.

The paper calls the minimisation infeasible in practice, O(n⁶) by a general algorithm for submodular functions. Here it
is a minimum cut: a row earns α if all its new columns are paid for, 1 each. It serves for comparison, on small graphs.
With an α as large as the proposition's, a part takes nearly all of R, good or bad.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from gridml.errors import UsageError
from gridml.placement.base import Options, Parts, Placement, check, options_of
from gridml.placement.bipartite import Bipartite, Ids
from gridml.placement.parsa import ParsaOptions, deal_out
from gridml.placement.serving import serve

MAX_CAPACITY = 2**30  # of the cut; scipy's flows are int32
PRECISION = 1000  # α is rounded to a multiple of 1 / PRECISION, if the capacities allow
MIN_ITERATIONS = 1000


@dataclass(frozen=True)
class ParsaSetsOptions(Options):
    """Options of Algorithm 1. `slack` is ignored: a part can have up to 3·n/k rows, and its share of the last k·θ."""

    alpha: float | None = None  #: the improvement α; None: that of Proposition 1, with B of Parsa's Algorithm 3
    theta: float | None = None  #: the residue θ; None: √(n / log n)
    iterations: int | None = None  #: maximum number of iterations; None: as many as rows, and at least 1,000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("alpha", "theta", "iterations"):
            if (value := getattr(self, name)) is not None and not value >= 0:
                raise UsageError(f"{name} of Algorithm 1 is {value}; expected a number from 0.")


class Taken(NamedTuple):
    """The result of the iterations."""

    rows: Parts  #: the part of each row, −1 if it is left, int32 (rows,)
    alpha: float
    theta: float


class ParsaSets:
    """Algorithm 1 for the rows, and Algorithm 2 for the columns."""

    name = "parsa-sets"
    supports: frozenset[str] = frozenset()

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Place a graph. Raises UsageError where Algorithm 1 returns "fail": too many rows are left."""
        check(graph, parts, options, self)
        own = options_of(ParsaSetsOptions, options)
        rows, alpha, theta = take(graph, parts, own)
        left = np.flatnonzero(rows < 0)
        if len(left) > parts * theta:
            raise UsageError(
                f"Algorithm 1 failed: {len(left):,} of {graph.rows:,} rows are left; expected at most k·θ = "
                f"{parts * theta:.1f}. Ask for more iterations, or a larger α than {alpha:.3g}."
            )
        sizes = np.bincount(rows[rows >= 0], minlength=parts)
        rows[left] = np.argsort(sizes, kind="stable")[np.arange(len(left)) % parts]
        why = f"parsa's Algorithm 1, α = {alpha:.3g}, {len(left):,} rows dealt out at the end"
        return Placement(parts, rows, serve(graph, rows, parts, own.seed), why)


def take(graph: Bipartite, parts: int, options: ParsaSetsOptions) -> Taken:
    """Run the iterations of Algorithm 1, lines 1 to 12."""
    count = graph.rows
    log = np.log(max(2, count))
    theta = float(np.sqrt(count / log)) if options.theta is None else options.theta
    alpha = options.alpha
    if alpha is None:
        bound = _largest_memory(graph, deal_out(graph, parts, ParsaOptions(options.seed))[0], parts)
        alpha = float(bound * parts / np.sqrt(count * log))
    rng = np.random.default_rng(options.seed)
    rows, known = np.full(count, -1, np.int32), np.zeros((parts, graph.columns), np.bool_)
    touched, sizes = np.zeros(parts, np.int64), np.zeros(parts, np.int64)
    for _ in range(max(count, MIN_ITERATIONS) if options.iterations is None else options.iterations):
        left = np.flatnonzero(rows < 0).astype(np.int32)
        if len(left) <= parts * theta:
            break
        part = int(sizes.argmin())
        drawn = left[rng.random(len(left)) < count / (len(left) * parts)]
        if len(drawn) > 2 * count / parts:
            continue
        best = best_set(graph, drawn, known[part], alpha)
        columns = np.unique(graph.only(best).neighbours)
        new = columns[~known[part, columns]]
        if touched[part] + len(new) - alpha * (sizes[part] + len(best)) <= 0:
            rows[best] = part
            known[part, new] = True
            touched[part] += len(new)
            sizes[part] += len(best)
    return Taken(rows, alpha, theta)


def best_set(graph: Bipartite, drawn: Ids, known: NDArray[np.bool_], alpha: float) -> Ids:
    """Return the subset of the `drawn` rows that minimises the number of its columns that are not `known`, bool
    (columns,), minus `alpha` for each row; of several the largest, which is the union of all."""
    if not len(drawn):
        return drawn
    some = graph.only(drawn)
    new = ~known[some.neighbours]
    columns, column_of = np.unique(some.neighbours[new], return_inverse=True)
    row_of = np.repeat(np.arange(len(drawn)), some.degrees)[new]
    rows, count = len(drawn), len(drawn) + len(columns)
    # source → row: α; row → column: unlimited; column → sink: 1. Rows on the source's side of a minimum cut are taken.
    precision = max(1, min(PRECISION, int(MAX_CAPACITY // max(1.0, rows * alpha, len(columns)))))
    source, sink, unlimited = count, count + 1, MAX_CAPACITY
    edges = (
        (np.full(rows, source), np.arange(rows), np.full(rows, min(round(alpha * precision), MAX_CAPACITY))),
        (row_of, rows + column_of, np.full(len(row_of), unlimited)),
        (rows + np.arange(len(columns)), np.full(len(columns), sink), np.full(len(columns), precision)),
    )
    from_, to, capacity = (np.concatenate(each) for each in zip(*edges, strict=True))
    network = csr_array((capacity.astype(np.int32), (from_, to)), shape=(count + 2, count + 2))
    residual = network - maximum_flow(network, source, sink).flow
    residual.eliminate_zeros()
    # The largest set: the rows from which no more can flow to the sink.
    to_sink = breadth_first_order(residual.T.tocsr(), sink, return_predecessors=False)
    short = np.zeros(count + 2, np.bool_)
    short[to_sink] = True
    return drawn[~short[:rows]]


def _largest_memory(graph: Bipartite, rows: Parts, parts: int) -> int:
    return max(len(np.unique(graph.only(np.flatnonzero(rows == part)).neighbours)) for part in range(parts))
