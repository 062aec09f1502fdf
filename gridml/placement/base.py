"""The contract of a placement method: options, results, rates, lower bounds, and turns.

Rates are the speeds of the parts' machines and networks; they predict the seconds of a round. Turns decide which part
takes the next row, where parts have unequal shares or rows unequal work.
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
    """The speeds of networks and machines: one number for all parts, or one for each.

    Bytes are the weights of columns, and work is the weights of rows. Without weights each column, and each row, is 1.
    """

    bandwidth: tuple[float, ...]  #: bytes/s
    speed: tuple[float, ...] | None = None  #: work/s; None: work takes no time
    master: float | None = None  #: bandwidth of the master that all parts share (star), bytes/s; None: unlimited

    def __post_init__(self) -> None:
        master = None if self.master is None else (self.master,)
        for name, values in (("bandwidth", self.bandwidth), ("speed", self.speed), ("master's bandwidth", master)):
            if values is not None and not (values and all(0 < value < np.inf for value in values)):
                raise UsageError(f"the {name} is {listed(values)}; expected numbers above 0.")

    def check(self, parts: int) -> None:
        """Raise UsageError if there are numbers for a different number of parts."""
        for name, values in (("bandwidth", self.bandwidth), ("speed", self.speed)):
            if values is not None and len(values) not in (1, parts):
                raise UsageError(
                    f"got {len(values):,} numbers of the {name} for {parts:,} parts; expected 1 or {parts:,}."
                )

    def seconds(self, moved: NDArray[np.int64], work: NDArray[np.int64]) -> Floats:
        """Predict the seconds of a round of each part, float64 (parts,): 2·max(moved_i / bandwidth_i, Σ moved / master)
        + work_i / speed_i. `moved` int64 (parts,) are the bytes that a part fetches and sends back, `work` int64
        (parts,) its work."""
        transfer_s = moved / np.array(self.bandwidth)
        if self.master is not None:
            transfer_s = np.maximum(transfer_s, moved.sum() / self.master)
        work_s = np.zeros(len(work)) if self.speed is None else work / np.array(self.speed)
        return np.asarray(2 * transfer_s + work_s)

    def pace(self, work: Floats) -> PartRates:
        """Return the relative costs of parts with this `work`, float64 (parts,)."""
        cost = np.broadcast_to(1 / np.array(self.bandwidth), work.shape)
        fixed = np.zeros(len(work)) if self.speed is None else work / (2 * np.array(self.speed))
        return PartRates(cost / cost.mean(), fixed / cost.mean())


def listed(values: tuple[float, ...]) -> str:
    """Format numbers for an error message."""
    return ", ".join(f"{value:g}" for value in values[:6]) + (", ..." if len(values) > 6 else "") or "empty"


Parts = NDArray[np.int32]
Counts = NDArray[np.int64]
Shares = NDArray[np.float64]
MEMORY, TRAFFIC, TOTAL, DUAN, SECONDS = OBJECTIVES = ("memory", "traffic", "total", "duan", "seconds")
UNLIMITED = 2**62  # the memory limit if none is set
MESH, STAR = TOPOLOGIES = ("mesh", "star")
# Features that a graph or its options can require of a method. Every method supports a seed, slack, and the objective
# of the least memory.
SHARES, ROW_WEIGHTS, COLUMN_WEIGHTS, MEMORY_LIMIT = ("shares", "row weights", "column weights", "a memory limit")
ALL_FEATURES = frozenset(
    {SHARES, ROW_WEIGHTS, COLUMN_WEIGHTS, MEMORY_LIMIT, *(f"objective {name}" for name in OBJECTIVES if name != MEMORY)}
)


@dataclass(frozen=True)
class Options:
    """The options of all methods. A method with more options extends this class."""

    seed: int = 0  #: of all random choices: the same seed gives the same placement
    slack: float = 0.0  #: a part has at most (1 + slack) times its share of all work, and one row more
    objective: str = MEMORY
    """The figure to minimise: the largest memory of a part, the largest traffic, the total traffic, the largest work
    times the largest traffic (Duan, Wang and Wu), or the seconds of a round as `rates` predict them."""
    shares: tuple[float, ...] | None = None  #: of all work, for each part, in any unit; None: equal shares
    memory: int | None = None  #: the limit of what a part touches, in weights of columns (Duan's θ); None: no limit
    topology: str = MESH  #: mesh: part i serves V_i; star: a master serves all columns
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
        """The shares as fractions of one, float64 (parts,); None: they are equal."""
        if self.shares is None or len(set(self.shares)) == 1:
            return None
        return np.array(self.shares) / sum(self.shares)


_Own = TypeVar("_Own", bound=Options)


def options_of(kind: type[_Own], options: Options) -> _Own:
    """Return options of the type of a method; options that only it has get their defaults."""
    if isinstance(options, kind):
        return options
    return kind(**{field.name: getattr(options, field.name) for field in fields(Options)})


@dataclass(frozen=True)
class Placement:
    """An assignment of rows and columns to parts. Part i trains its rows, and serves its columns to the others."""

    parts: int
    rows: Parts  #: the part of each row, int32 (rows,)
    columns: Parts  #: the part of each column, int32 (columns,)
    why: str  #: a description of how they were placed


class Method(Protocol):
    """A placement method."""

    name: str
    supports: frozenset[str]  #: the subset of `ALL_FEATURES` that the method supports; `check` rejects the rest

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Place a graph of at least one row on `parts` ≥ 1 parts. Same graph and options, same placement."""


def requested(graph: Bipartite, options: Options) -> frozenset[str]:
    """Return the subset of `ALL_FEATURES` that a graph and its options require."""
    given = {
        SHARES: options.fractions is not None,
        ROW_WEIGHTS: graph.row_weights is not None,
        COLUMN_WEIGHTS: graph.column_weights is not None,
        MEMORY_LIMIT: options.memory is not None,
        f"objective {options.objective}": options.objective != MEMORY,
    }
    return frozenset(name for name, is_given in given.items() if is_given)


def check(graph: Bipartite, parts: int, options: Options | None = None, method: Method | None = None) -> None:
    """Raise UsageError for a graph without rows, more parts than rows, shares or rates for a different number of parts,
    or a required feature that the method does not support."""
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
    """Return the maximum work of each part, int64 (parts,), and the number of parts that may have one row more.

    Without slack no part is empty. With `weighted` rows the maximum is exclusive: a part takes another row while it has
    less work than that, because rows may be heavy or weightless.
    """
    most = np.full(parts, (1 + slack) * total / parts) if shares is None else (1 + slack) * total * shares
    if weighted:
        return np.floor(most).astype(np.int64) + 1, 0
    most = most.astype(np.int64)
    return most, max(0, total - int(most.sum()))


def least_memory(graph: Bipartite, parts: int) -> int:
    """Return a lower bound of the largest part's memory, in weights of columns: the largest row, or an even share."""
    ends = np.concatenate([[0], np.cumsum(graph.sizes[graph.neighbours])])[graph.offsets]
    return max(int(np.diff(ends).max()), -(-graph.used // parts))


def advice(graph: Bipartite, limit: int, slack: float) -> str:
    """Return a hint for a memory `limit` that no placement keeps."""
    largest = least_memory(graph, graph.rows)  # the largest row: with a part for each row no even share is larger
    if limit < largest:
        return f"Ask for that: one row alone touches {largest:,}, on however many parts."
    return f"Ask for that, for more parts, or for more slack than {slack}."


class Fill(NamedTuple):
    """The progress of parts towards their shares while rows are dealt out."""

    load: Shares  #: the work of each part, float64 (parts,); changes in place
    shares: Shares  #: the target fractions, float64 (parts,)
    weights: NDArray[np.int64]  #: the work of each row of the graph, int64 (rows,)


def fill_of(graph: Bipartite, parts: int, options: Options) -> Fill | None:
    """Return empty parts if shares or works are unequal; None: parts simply take turns."""
    shares = options.fractions
    if shares is None and graph.row_weights is None:
        return None
    return Fill(np.zeros(parts), np.full(parts, 1 / parts) if shares is None else shares, graph.works)


@compiled
def next_part(load: Shares, shares: Shares) -> int:
    """Return the part with the least load for its share, the first of several. A part never exceeds its share of the
    work that was dealt out by more than one row."""
    best = 0
    for part in range(1, len(load)):
        if load[part] * shares[best] < load[best] * shares[part]:  # the quotients, without a division
            best = part
    return best


@compiled
def in_turn(order: NDArray[np.int32], fill: Fill, parts: Parts) -> None:
    """Deal out the rows in this order, each to the part whose turn it is. Writes `parts`, int32 (rows,)."""
    for row in order:
        part = next_part(fill.load, fill.shares)
        parts[row] = part
        fill.load[part] += fill.weights[row]
