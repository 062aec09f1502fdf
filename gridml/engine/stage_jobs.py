"""Jobs: parts of a stage's work on a mini-batch that threads do at the same time, without locks.

A stage that writes no row which two vertices share is cut into *runs* of vertices. One that goes over edges and writes
both ends in place is cut into *blocks*: the sources into `SIDE` groups, the ends into as many, and a block has the
edges from one group to another. Blocks on a diagonal share no row, so they are done at the same time, one diagonal
after the other (Gemulla et al., "Large-scale matrix factorization with distributed stochastic gradient descent", KDD
2011, section 4). Logs, sums and working memory belong to one job each, and are added up in the order of jobs.

The jobs and their order follow from the mini-batch, and never from the number of threads. So the result is the same,
bit for bit, for any number of threads, and for plain Python.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.kernel import Kernel
from gridml.codegen.stage_code import Access
from gridml.model.stage_fields import accumulator, scratch
from gridml.model.stages import ApplyStage, ExchangeStage, Part

Array = NDArray[Any]
Ids = NDArray[np.int64]
# Groups of sources, and of ends: as many threads as work on blocks at the same time. With 4, blocks cost one thread 11%
# of a factorisation at 2M edges and 4% at 9M; with 2, 4% and nothing.
SIDE = 2
MAX_RUNS = 16
# To begin a job takes 12 µs, to wake a thread 50. An edge takes 5 ns or more, 18 in a factorisation of rank 32 and 120
# in a model of 100 topics; an element of an apply 1 to 2.
MIN_RUN_EDGES = 1 << 15
MIN_RUN_ELEMENTS = 1 << 16
MIN_ROWS = 1 << 18  # that a thread copies or compares
# From the sources' side, threads but the first have accumulators of their own for all rows, which takes 1.5 ns a row.
MIN_PUSHED_EDGES_PER_ROW = 1
# With fewer, blocks cost one thread more than 5% of a factorisation of rank 32.
MIN_BLOCKED_EDGES = 1 << 20
MIN_BLOCKED_DEGREE = 64
MAX_SAMPLE = 1 << 9  # ends of edges that say where the groups of ends part


class Division(Enum):
    """The way in which a stage's work may be cut into jobs."""

    WHOLE = "whole"
    RUNS = "runs"
    BLOCKS = "blocks"


@dataclass(frozen=True)
class StageJob:
    """A part of a stage's work."""

    span: Sequence[Any]  #: the first arguments of its kernel
    memory: int  #: number of the working memory that it uses, unlike those of jobs done at the same time


Waves = Sequence[Sequence[StageJob]]  # jobs of a wave may be done at the same time; waves follow one another


def threads_of(told: str | None) -> tuple[int, str]:
    """Return (the number of threads of a worker that computes stages, reason). `told` is OMP_NUM_THREADS, by which
    back ends say how many cores a worker has, None if it is not set."""
    if told is None:
        return 1, "OMP_NUM_THREADS is not set"
    first = told.split(",")[0].strip()  # OpenMP takes a number for each level of nesting
    if not first.isdecimal() or int(first) < 1:
        return 1, f"OMP_NUM_THREADS is {told!r}, which is no number of threads"
    return min(int(first), MAX_RUNS), f"OMP_NUM_THREADS is {told}"


def divisions(stages: Sequence[tuple[ExchangeStage | ApplyStage, Kernel]]) -> list[tuple[Division, str]]:
    """Return (how the work of each stage may be cut, reason), for all stages of a mini-batch with their kernels."""
    kept = [
        {_named(c.access) for c in kernel.columns if isinstance(c.access.declared, scratch)} for _, kernel in stages
    ]
    users = Counter(name for names in kept for name in names)
    shared = {name for name, count in users.items() if count > 1}
    return [_division(stage, kernel, shared) for stage, kernel in stages]


def _division(stage: ExchangeStage | ApplyStage, kernel: Kernel, shared: Collection[str]) -> tuple[Division, str]:
    """`shared` are the fields of working memory that several stages use."""
    written = [column.access for column in kernel.columns if column.is_written]
    for access in written:
        if access.argument.part is not Part.CONTEXT or access.is_summed:
            continue
        if not isinstance(access.declared, scratch):
            return Division.WHOLE, f"{access} is written in place, and every vertex reads it"
        if _named(access) in shared:
            return Division.WHOLE, f"{access} is working memory of several stages"
    turned = isinstance(stage, ExchangeStage) and stage.is_turned  # then ends are what is cut
    both = [access for access in written if not turned and (access.argument.part is Part.END or access.of_end)]
    if not both:
        return Division.RUNS, "it writes no row that two vertices share"
    assert isinstance(stage, ExchangeStage), "an apply has no edges"
    if any(each.part is Part.LINKS for each in stage.arguments):
        return Division.WHOLE, f"{both[0]} is written in place, and a vertex is one call with all its edges"
    if kernel.draws:
        return Division.WHOLE, "a vertex draws its numbers in the order of its edges"
    if any(access.argument.part is Part.SCANNED and access.name == stage.when for access in written):
        return Division.WHOLE, f"it writes {stage.when}, by which vertices are left out"
    return Division.BLOCKS, f"{both[0]} is written in place"


def may_push(stage: ExchangeStage | ApplyStage, kernel: Kernel) -> tuple[bool, str]:
    """Return (whether a stage that is computed at the ends of edges may be computed at their sources, reason). Then
    sums are added in another order, which must not matter."""
    if not (isinstance(stage, ExchangeStage) and stage.is_turned and stage.when is not None):
        return False, "it looks at all edges"
    for column in kernel.columns:
        declared = column.access.declared
        if column.logs or (column.is_written and not isinstance(declared, accumulator)):
            return False, f"{column.access} is no accumulator"
        if isinstance(declared, accumulator) and declared.by == "add" and declared.dtype.kind == "f":
            return False, f"{column.access} is a sum that would be rounded otherwise"
    return True, f"only vertices whose {stage.when} is not 0 are looked at"


def _named(access: Access) -> str:
    assert access.type is not None, "an edge has no working memory"
    return f"{access.type.name}.{access.name}"


def least_run(stage: ExchangeStage | ApplyStage) -> int:
    """Return the least work of a run: edges, or elements of an apply."""
    return MIN_RUN_ELEMENTS if isinstance(stage, ApplyStage) else MIN_RUN_EDGES


def least_work(stage: ExchangeStage | ApplyStage, division: Division) -> float:
    """Return the least work of a stage that is cut into jobs."""
    if division is Division.WHOLE:
        return math.inf
    return MIN_BLOCKED_EDGES if division is Division.BLOCKS else 2 * least_run(stage)


def runs_of(work: int, least: int) -> tuple[int, str]:
    """Return (the number of runs, reason). `work`: edges, or elements of an apply."""
    runs = max(1, min(MAX_RUNS, work // least))
    runs = 1 << (runs.bit_length() - 1)
    return runs, f"{work:,} make {work // least} runs of {least:,}: {runs}, which 2, 4 or 8 threads share evenly"


def pushing_runs(edges: int, rows: int, least: int, threads: int) -> tuple[int, str]:
    """Return (the number of runs of a stage that is computed at the sources of `edges`, reason)."""
    runs, reason = runs_of(edges, least)
    worth = 1 + edges // (MIN_PUSHED_EDGES_PER_ROW * max(1, rows))
    return min(threads, runs, worth), f"{reason}; {edges:,} edges to {rows:,} vertices are worth {worth}"


def is_blocked(edges: int, vertices: int) -> tuple[bool, str]:
    """Return (whether edges are cut into blocks, reason)."""
    if edges < MIN_BLOCKED_EDGES:
        return False, f"{edges:,} edges are fewer than {MIN_BLOCKED_EDGES:,}"
    if edges < MIN_BLOCKED_DEGREE * vertices:
        return False, f"{edges / vertices:.1f} edges a vertex are fewer than {MIN_BLOCKED_DEGREE}"
    return True, f"{edges:,} edges, {edges / vertices:.0f} a vertex"


def groups(offsets: Ids, start: int, stop: int, count: int) -> list[int]:
    """Return the `count + 1` borders of groups of the rows [start, stop) that have about as many edges each."""
    low, high = int(offsets[start]), int(offsets[stop])
    wanted = [low + (high - low) * number // count for number in range(1, count)]
    return [start, *(start + int(at) for at in np.searchsorted(offsets[start : stop + 1], wanted)), stop]


def limits_of(ends: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the rows, int32 (SIDE-1,), at which the groups of ends part, so that each is the end of about as many
    edges."""
    if not len(ends):
        return np.zeros(SIDE - 1, np.int32)
    # Golden-ratio steps, so that no period of the edges, such as a fixed number a vertex, is met.
    sample = np.sort(ends[np.arange(MAX_SAMPLE) * 2_654_435_761 % len(ends)])
    return sample[[MAX_SAMPLE * number // SIDE for number in range(1, SIDE)]]


def diagonals(start: int, stop: int, offsets: Ids, ends: Array, borders: Ids) -> Iterator[list[StageJob]]:
    """Yield the blocks of the rows [start, stop), a diagonal at a time. `borders` (SIDE+1, n) are those of
    `gridml.codegen.blocks.border_finder`."""
    rows = groups(offsets, start, stop, SIDE)
    for diagonal in range(SIDE):
        pairs = [(i, (i + diagonal) % SIDE) for i in range(SIDE)]
        yield [StageJob([rows[i], rows[i + 1], borders[j], borders[j + 1], ends], i) for i, j in pairs]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "stages")


def do_all(calls: Sequence[Callable[[], None]], threads: int) -> None:
    """Make calls, in order if there is one thread; this thread is one of `threads`."""
    waiting = iter(calls)

    def work() -> None:
        for call in waiting:  # `next` of a list's iterator is atomic
            call()

    others = min(threads, len(calls)) - 1
    begun = [_pool(threads - 1).submit(work) for _ in range(others)]
    try:
        work()
    finally:
        for each in begun:
            each.result()


def over_rows(call: Callable[[slice], None], rows: int, threads: int) -> None:
    """Call a function with ranges that cover all `rows`, as many as are worth having, at the same time."""
    count = max(1, min(threads, rows // MIN_ROWS))
    borders = pairwise(rows * number // count for number in range(count + 1))
    do_all([partial(call, slice(first, last)) for first, last in borders], threads)
