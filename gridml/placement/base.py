"""What every method of placement is given and returns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.placement.bipartite import Bipartite

Parts = NDArray[np.int32]
MEMORY, TRAFFIC, TOTAL = OBJECTIVES = ("memory", "traffic", "total")


@dataclass(frozen=True)
class Options:
    """What can be asked of a method; one that has more has options of its own that extend these.

    `seed` decides whatever is left to chance. A part has at most (1 + `slack`) times its even share of the rows, and
    one row more. The `objective` is the largest memory of a part, the largest traffic, or the traffic of all; methods
    that know only one pass it over.
    """

    seed: int = 0
    slack: float = 0.0
    objective: str = MEMORY

    def __post_init__(self) -> None:
        if not self.slack >= 0:
            raise UsageError(
                f"the slack of the parts is {self.slack}; expected a share from 0: 0.05 lets one have 5% more."
            )
        if self.objective not in OBJECTIVES:
            raise UsageError(f"the objective is {self.objective!r}; expected {', '.join(OBJECTIVES)}.")


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
    """A way to place a graph."""

    name: str

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        """Place a graph of at least one row on `parts` ≥ 1 parts. Same graph and options, same placement."""


def check(graph: Bipartite, parts: int) -> None:
    """Raise UsageError where there is nothing to place, or more parts than rows."""
    if not graph.rows:
        raise UsageError("the graph has no rows: there is nothing to place. Give one with data.")
    if not 1 <= parts <= graph.rows:
        raise UsageError(f"{graph.rows:,} rows cannot be placed on {parts:,} parts; expected 1 to {graph.rows:,}.")


def room(rows: int, parts: int, slack: float) -> tuple[int, int]:
    """Return how many rows every part may have, and how many parts may have one more: with no slack none is empty."""
    most = int((1 + slack) * rows / parts)
    return most, max(0, rows - most * parts)
