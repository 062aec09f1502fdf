"""The contract of a placement method: options, results, rates, lower bounds, and turns.

Rates are the speeds of the parts' machines and networks, from which the seconds of a round are predicted. Turns decide
which part takes the next row if parts have unequal shares or rows have unequal work.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.errors import UsageError
from gridml.placement.bipartite import Bipartite

Floats = NDArray[np.float64]


class PartRates(NamedTuple):
    """The costs of parts. The unit is the cost of one column, averaged over the parts."""

    cost: Floats  #: each part's cost per column, float64 (parts,), with mean 1
    fixed: Floats  #: the cost of each part's work, which does not depend on its columns, float64 (parts,)


@dataclass(frozen=True)
class Rates:
    """The speeds of networks and machines: one number for all parts, or one number for each part.

    The weight of a column is its size in bytes, and the weight of a row is its work. Without weights, both are 1.
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
        """Raise UsageError unless there is one number for all parts, or one number for each of `parts`."""
        for name, values in (("bandwidth", self.bandwidth), ("speed", self.speed)):
            if values is not None and len(values) not in (1, parts):
                raise UsageError(
                    f"got {len(values):,} numbers of the {name} for {parts:,} parts; expected 1 or {parts:,}."
                )

    def seconds(self, moved: NDArray[np.int64], work: NDArray[np.int64]) -> Floats:
        """Predict the seconds that each part takes for a round, float64 (parts,):
        2·max(moved_i / bandwidth_i, Σ moved / master) + work_i / speed_i.

        `moved` int64 (parts,) has the bytes that each part fetches, and later sends back. `work` int64 (parts,) has
        each part's work.
        """
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
# Features that a graph or its options can require of a method. A seed, slack and the objective MEMORY are not among
# them, because every method supports these.
SHARES, ROW_WEIGHTS, COLUMN_WEIGHTS, MEMORY_LIMIT = ("shares", "row weights", "column weights", "a memory limit")
ALL_FEATURES = frozenset(
    {SHARES, ROW_WEIGHTS, COLUMN_WEIGHTS, MEMORY_LIMIT, *(f"objective {name}" for name in OBJECTIVES if name != MEMORY)}
)


@dataclass(frozen=True)
class Options:
    """The options of all methods. A method with more options extends this class."""

    seed: int = 0  #: seed of all random choices: the same seed gives the same placement
    slack: float = 0.0
    """A part has at most (1 + slack) times its share of the rows, rounded up: |U_i| ≤ ⌈n/k⌉ without slack. With row
    weights it has at most (1 + slack) times its share of all work, plus the heaviest row."""
    objective: str = MEMORY
    """The figure to minimise: the largest memory of a part ("memory"), the largest traffic ("traffic"), the total
    traffic ("total"), the largest work times the largest traffic ("duan": Duan, Wang and Wu), or the seconds of a round
    as `rates` predict them ("seconds")."""
    shares: tuple[float, ...] | None = None  #: each part's share of all work, in any unit; None: equal shares
    memory: int | None = None  #: maximum weight of the columns that a part touches (Duan's θ); None: no limit
    topology: str = MESH  #: mesh: part i serves its columns V_i to the others; star: a master serves all columns
    rates: Rates | None = None

    def __post_init__(self) -> None:
        if not self.slack >= 0:
            raise UsageError(
                f"the slack of the parts is {self.slack}; expected 0 or more: 0.05 lets a part have 5% more work."
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
    """Return `options` as an instance of `kind`, a method's class of options. Fields that only `kind` has get their
    defaults."""
    if isinstance(options, kind):
        return options
    return kind(**{field.name: getattr(options, field.name) for field in fields(Options)})


@dataclass(frozen=True)
class Placement:
    """An assignment of rows and columns to parts. Part i trains its rows, and serves its columns to the others."""

    parts: int
    rows: Parts  #: the part of each row, int32 (rows,)
    columns: Parts  #: the part of each column, int32 (columns,)
    why: str  #: a description of how the rows and columns were placed


class Method(Protocol):
    """A placement method."""

    name: str
    supports: frozenset[str]  #: the subset of `ALL_FEATURES` that the method supports; `check` rejects the rest

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Place a graph of at least one row on `parts` ≥ 1 parts. Equal graphs and options give equal placements."""


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
    """Return (the maximum work of each part, int64 (parts,); the number of parts that may have one row more than that).

    Without slack no part is empty. With `weighted` rows, which can be heavy or weightless, a part takes another row
    while its work is below the maximum.
    """
    most = np.full(parts, (1 + slack) * total / parts) if shares is None else (1 + slack) * total * shares
    if weighted:
        return np.floor(most).astype(np.int64) + 1, 0
    most = most.astype(np.int64)
    return most, max(0, total - int(most.sum()))


def least_memory(graph: Bipartite, parts: int) -> int:
    """Return a lower bound of the largest part's memory, as a sum of column weights: the largest row's memory, or an
    even share of all used columns if that is larger."""
    ends = np.concatenate([[0], np.cumsum(graph.sizes[graph.neighbours])])[graph.offsets]
    return max(int(np.diff(ends).max()), -(-graph.used // parts))


def advice(graph: Bipartite, limit: int, slack: float) -> str:
    """Return a hint for a memory `limit` that no placement was found to keep. "That" in it is the limit that the
    message before the hint names."""
    largest = least_memory(graph, graph.rows)  # with one row per part: the number of columns of the largest row
    if limit < largest:
        return f"Ask for that: one row alone touches {largest:,} columns, however many parts there are."
    return f"Ask for that, for more parts, or for more slack than {slack}."


class Fill(NamedTuple):
    """The progress of parts towards their shares while rows are dealt out."""

    load: Shares  #: the work of each part, float64 (parts,); changes in place
    shares: Shares  #: the target fractions, float64 (parts,)
    weights: NDArray[np.int64]  #: the work of each row, int64 (rows,); empty: the load is what parts touch (`parsa`)


def fill_of(graph: Bipartite, parts: int, options: Options) -> Fill | None:
    """Return a `Fill` of empty parts if shares or works are unequal. Return None if they are equal: no `Fill` is needed
    then, because the parts get rows in turn."""
    shares = options.fractions
    if shares is None and graph.row_weights is None:
        return None
    return Fill(np.zeros(parts), np.full(parts, 1 / parts) if shares is None else shares, graph.works)


@compiled
def next_part(load: Shares, shares: Shares) -> int:
    """Return the part with the least load relative to its share, or the first of several such parts. If each row goes
    to this part, no load exceeds the part's share of the work dealt out so far by more than one row."""
    best = 0
    for part in range(1, len(load)):
        if load[part] * shares[best] < load[best] * shares[part]:  # compares load / share without a division
            best = part
    return best


@compiled
def in_turn(order: NDArray[np.int32], fill: Fill, parts: Parts) -> None:
    """Deal out the rows in this order, each to the part whose turn it is. Writes `parts`, int32 (rows,)."""
    for row in order:
        part = next_part(fill.load, fill.shares)
        parts[row] = part
        fill.load[part] += fill.weights[row]
