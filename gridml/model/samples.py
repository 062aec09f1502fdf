"""Samples of vertices for evaluate, so that the evaluation of a large graph takes no pass over it.

The vertices are drawn uniformly without replacement by the seed alone: every epoch, and every run with the same graph,
evaluates the same ones, so that its metrics can be compared.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.model.batch import Neighbours, Rows
from gridml.model.graph import Edges


@dataclass(frozen=True)
class Sample:
    """What `sample` returns."""

    count: int
    seed: int

    def rows(self, total: int) -> NDArray[np.int64] | None:
        """Return the numbers of the drawn ones of `total` vertices, int64 (count,), ascending; None: all of them."""
        if self.count >= total:
            return None
        return np.sort(np.random.default_rng(self.seed).choice(total, self.count, replace=False, shuffle=False))


def sample(count: int, *, seed: int = 0) -> Any:
    """Let evaluate take `count` vertices of a type, drawn by `seed`, in place of all.

        def evaluate(pages: Annotated[gridml.Batch[Page], gridml.sample(10_000)]) -> dict[str, float]:

    The Batch has the drawn vertices in ascending order of their numbers, `pages.ids`; the same ones in each epoch. It
    has all vertices if there are no more than `count`. Events, the report and `gridml check` say of how many vertices
    metrics are. An edge field of the Batch reads as `Neighbours` of the drawn vertices.

    Raises ProgramError for a count that is no whole number from 1 on, or a seed that is none from 0 on.
    """
    for name, number, least in (("count", count, 1), ("seed", seed, 0)):
        if type(number) is not int or number < least:
            raise ProgramError(f"gridml.sample got {name}={number!r}; expected a whole number from {least} on.")
    return Sample(count, seed)


def samples_of(function: Any) -> dict[str, Sample]:
    """Return the samples that a function takes, by argument."""
    if function is None:
        return {}
    hints = typing.get_type_hints(function, include_extras=True)
    found = {name: _sample_in(hint) for name, hint in hints.items()}
    return {name: each for name, each in found.items() if each is not None}


def _sample_in(hint: Any) -> Sample | None:
    if typing.get_origin(hint) is not Annotated:
        return None
    return next((each for each in typing.get_args(hint)[1:] if isinstance(each, Sample)), None)


@dataclass(frozen=True)
class GraphEdges(Mapping[str, Neighbours]):
    """The edges of some vertices by edge field, made when they are read. Ends have their numbers in the graph."""

    rows: Rows
    edges: Mapping[str, Edges]
    at: NDArray[np.int64] | None  #: the numbers of the vertices; None: all

    def __getitem__(self, name: str) -> Neighbours:
        edges = self.edges[name]
        count = edges.count if self.at is None else len(self.at)
        if self.at is not None or edges.constant is not None:
            edges = edges.take(np.arange(count) if self.at is None else self.at)
        offsets = np.arange(count + 1) * edges.degree if edges.offsets is None else edges.offsets
        weight = None if edges.weight is None else self.rows.present(edges.weight)
        index, offsets = np.asarray(edges.targets, np.int64), np.asarray(offsets, np.int64)
        return Neighbours(self.rows.present(index), self.rows.present(offsets), weight)

    def __iter__(self) -> Iterator[str]:
        return iter(self.edges)

    def __len__(self) -> int:
        return len(self.edges)
