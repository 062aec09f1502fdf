"""The contract of a placement method: its input and its result, rates, limits, and the turns of parts.

The speeds of the parts' machines and networks predict the seconds of a round. The limits are what no placement can
go below. Turns decide which part takes a row next, where parts have unequal shares or rows unequal work.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.placement.bipartite import Bipartite
from gridml.placement.compiled import compiled

Floats = NDArray[np.float64]


class PartRates(NamedTuple):
    """The costs of parts, relative to a mean part's cost of one column."""

    cost: Floats  #: of each column that a part carries, float64 (parts,), with mean 1
    fixed: Floats  #: of the part's work, however many columns it carries, float64 (parts,)


@dataclass(frozen=True)
class Rates:
    """`bandwidth` in bytes/s, `speed` in work/s: one number for all parts, or one for each. Without a speed work takes
    no time. `master` is the bandwidth of a master that all parts share (star); None: it is never what one waits for.

    Bytes are the weights of columns, work is the weights of rows; where these have none, a column is one, and so is a
    row.
    """

    bandwidth: tuple[float, ...]
    speed: tuple[float, ...] | None = None
    master: float | None = None

    def __post_init__(self) -> None:
        master = None if self.master is None else (self.master,)
        for name, values in (("bandwidth", self.bandwidth), ("speed", self.speed), ("master's bandwidth", master)):
            if values is not None and not (values and all(0 < value < np.inf for value in values)):
                raise UsageError(f"the {name} is {listed(values)}; expected numbers above 0.")

    def check(self, parts: int) -> None:
        """Raise UsageError where there are numbers for another number of parts."""
        for name, values in (("bandwidth", self.bandwidth), ("speed", self.speed)):
            if values is not None and len(values) not in (1, parts):
                raise UsageError(
                    f"got {len(values):,} numbers of the {name} for {parts:,} parts; expected 1 or {parts:,}."
                )

    def seconds(self, moved: NDArray[np.int64], work: NDArray[np.int64]) -> Floats:
        """Predict the seconds of a round of each part, float64 (parts,), that has `moved` bytes to take and to give
        back, int64 (parts,), and so much `work`: 2·max(moved_i / bandwidth_i, Σ moved / master) + work_i / speed_i."""
        on_the_way = moved / np.array(self.bandwidth)
        if self.master is not None:
            on_the_way = np.maximum(on_the_way, moved.sum() / self.master)
        at_work = np.zeros(len(work)) if self.speed is None else work / np.array(self.speed)
        return np.asarray(2 * on_the_way + at_work)

    def pace(self, work: Floats) -> PartRates:
        """Return what a column costs each part, the mean being 1, and what its `work`, float64 (parts,), costs it."""
        cost = np.broadcast_to(1 / np.array(self.bandwidth), work.shape)
        fixed = np.zeros(len(work)) if self.speed is None else work / (2 * np.array(self.speed))
        return PartRates(cost / cost.mean(), fixed / cost.mean())


def listed(values: tuple[float, ...]) -> str:
    """Return numbers as a message shows them."""
    return ", ".join(f"{value:g}" for value in values[:6]) + (", ..." if len(values) > 6 else "") or "empty"


Parts = NDArray[np.int32]
Counts = NDArray[np.int64]
Shares = NDArray[np.float64]
MEMORY, TRAFFIC, TOTAL, DUAN, SECONDS = OBJECTIVES = ("memory", "traffic", "total", "duan", "seconds")
UNLIMITED = 2**62  # columns that a part may touch, where no limit is set
MESH, STAR = TOPOLOGIES = ("mesh", "star")
# What a graph and options can ask of a method besides the seed, the slack and the least memory.
SHARES, ROW_WEIGHTS, COLUMN_WEIGHTS, MEMORY_LIMIT = ("shares", "row weights", "column weights", "a memory limit")
ALL_FEATURES = frozenset(
    {SHARES, ROW_WEIGHTS, COLUMN_WEIGHTS, MEMORY_LIMIT, *(f"objective {name}" for name in OBJECTIVES if name != MEMORY)}
)


@dataclass(frozen=True)
class Options:
    """What can be asked of a method; one that has more has options of its own that extend these.

    `seed` decides whatever is left to chance. A part has at most (1 + `slack`) times its share of the work of all rows,
    and one row more. `shares` are how much of it each part gets, in any unit; None: the same.

    The `objective` is the largest memory of a part, the largest traffic, the traffic of all, the largest work times the
    largest traffic (Duan, Wang and Wu), or the seconds of a round as `rates` predict them. No part may touch more than
    `memory` (θ in theirs), in weights of columns; None: as much as it likes. In a `mesh` part i serves V_i, in a `star`
    a master serves all columns.
    """

    seed: int = 0
    slack: float = 0.0
    objective: str = MEMORY
    shares: tuple[float, ...] | None = None
    memory: int | None = None
    topology: str = MESH
    rates: Rates | None = None

    def __post_init__(self) -> None:
        if not self.slack >= 0:
            raise UsageError(
                f"the slack of the parts is {self.slack}; expected a share from 0: 0.05 lets one have 5% more."
            )
        if self.objective not in OBJECTIVES:
            raise UsageError(f"the objective is {self.objective!r}; expected {', '.join(OBJECTIVES)}.")
        if self.topology not in TOPOLOGIES:
            raise UsageError(f"the topology is {self.topology!r}; expected {', '.join(TOPOLOGIES)}.")
        if self.shares is not None and not (self.shares and all(0 < share < np.inf for share in self.shares)):
            raise UsageError(f"the shares of the parts are {listed(self.shares)}; expected numbers above 0: 2,1,1.")
        if self.memory is not None and self.memory < 1:
            raise UsageError(f"the memory limit is {self.memory:,}; expected at least 1.")
        if self.objective == SECONDS and self.rates is None:
            raise UsageError("seconds cannot be predicted: the bandwidth of the parts is not known. Give --bandwidth.")

    @property
    def fractions(self) -> Shares | None:
        """The shares as fractions of one, float64 (parts,); None where all are the same."""
        if self.shares is None or len(set(self.shares)) == 1:
            return None
        return np.array(self.shares) / sum(self.shares)


_Own = TypeVar("_Own", bound=Options)


def options_of(kind: type[_Own], options: Options) -> _Own:
    """Return options as those of a method: as they are, or with its defaults for what only it has."""
    if isinstance(options, kind):
        return options
    return kind(**{field.name: getattr(options, field.name) for field in fields(Options)})


@dataclass(frozen=True)
class Placement:
    """Where everything is: `rows` int32 (rows,) and `columns` int32 (columns,), each the number of a part.

    Part i trains its rows, and serves its columns to the others. `why` says in words how they were placed.
    """

    parts: int
    rows: Parts
    columns: Parts
    why: str


class Method(Protocol):
    """A way to place a graph. What of `ALL_FEATURES` it can be asked for is in `supports`; it refuses the rest."""

    name: str
    supports: frozenset[str]

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Place a graph of at least one row on `parts` ≥ 1 parts. Same graph and options, same placement."""


def requested(graph: Bipartite, options: Options) -> frozenset[str]:
    """Return what of `ALL_FEATURES` is asked for."""
    given = {
        SHARES: options.fractions is not None,
        ROW_WEIGHTS: graph.row_weights is not None,
        COLUMN_WEIGHTS: graph.column_weights is not None,
        MEMORY_LIMIT: options.memory is not None,
        f"objective {options.objective}": options.objective != MEMORY,
    }
    return frozenset(name for name, is_given in given.items() if is_given)


def check(graph: Bipartite, parts: int, options: Options | None = None, method: Method | None = None) -> None:
    """Raise UsageError where there is nothing to place, more parts than rows, shares or rates for another number of
    parts, or anything is asked for that the method has no way to honour."""
    if not graph.rows:
        raise UsageError("the graph has no rows: there is nothing to place. Give one with data.")
    if not 1 <= parts <= graph.rows:
        raise UsageError(
            f"{graph.rows:,} rows cannot be placed on {parts:,} parts; expected 1 to {graph.rows:,}. "
            "Ask for no more parts than rows."
        )
    if options is None:
        return
    if options.shares is not None and len(options.shares) != parts:
        raise UsageError(f"got {len(options.shares):,} shares for {parts:,} parts; expected {parts:,}.")
    if options.rates is not None:
        options.rates.check(parts)
    if method is not None and (beyond := sorted(requested(graph, options) - method.supports)):
        raise UsageError(
            f"{method.name} takes no account of {', '.join(beyond)}; expected refined, multilevel or auto, which do."
        )


def room(
    total: int, parts: int, slack: float, shares: Shares | None = None, *, weighted: bool = False
) -> tuple[Counts, int]:
    """Return how many rows every part may have, int64 (parts,), and how many parts may have one more: with no slack
    none is empty. Of `weighted` rows, some of which may be no work, a part takes another while it has less than that.
    """
    most = np.full(parts, (1 + slack) * total / parts) if shares is None else (1 + slack) * total * shares
    if weighted:
        return np.floor(most).astype(np.int64) + 1, 0
    most = most.astype(np.int64)
    return most, max(0, total - int(most.sum()))


def least_memory(graph: Bipartite, parts: int) -> int:
    """Return what the largest part touches at least, in weights of columns: the largest row, or an even share."""
    ends = np.concatenate([[0], np.cumsum(graph.sizes[graph.neighbours])])[graph.offsets]
    return max(int(np.diff(ends).max()), -(-graph.used // parts))


def advice(graph: Bipartite, limit: int, slack: float) -> str:
    """Return what to ask for where a `limit` of memory is kept by no placement, but a larger one is."""
    largest = least_memory(graph, graph.rows)  # the largest row: no even share of so many parts is more
    if limit < largest:
        return f"Ask for that: one row alone touches {largest:,}, on however many parts."
    return f"Ask for that, for more parts, or for more slack than {slack}."


class Fill(NamedTuple):
    """How far parts are with what they are to have: the `load` of each, float64 (parts,), which changes in place, their
    `shares`, float64 (parts,), and the work of each row of the graph, int64 (rows,)."""

    load: Shares
    shares: Shares
    weights: NDArray[np.int64]


def fill_of(graph: Bipartite, parts: int, options: Options) -> Fill | None:
    """Return empty parts where shares or work are unequal, or None: parts take one row each in turn."""
    shares = options.fractions
    if shares is None and graph.row_weights is None:
        return None
    return Fill(np.zeros(parts), np.full(parts, 1 / parts) if shares is None else shares, graph.works)


@compiled
def next_part(load: Shares, shares: Shares) -> int:
    """Return the part with the least load for its share, the first of several. So none ever has more than its share of
    what is dealt out, and one row more."""
    best = 0
    for part in range(1, len(load)):
        if load[part] * shares[best] < load[best] * shares[part]:
            best = part
    return best


@compiled
def in_turn(order: NDArray[np.int32], fill: Fill, parts: Parts) -> None:
    """Deal out the rows in this order, each to the part whose turn it is, into `parts`, int32 (rows,)."""
    for row in order:
        part = next_part(fill.load, fill.shares)
        parts[row] = part
        fill.load[part] += fill.weights[row]
