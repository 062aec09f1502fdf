"""Contraction: how strongly pushes pull rows towards their optimum, measured from concurrent pushes.

A touch of a row by a vertex takes a share λ of the row's distance to its optimum v*, so a push of t touches from base b
moves the row by λt(v*−b) and noise. Two pushes from different bases, neither of which has seen the other, differ per
touch by −λ(b−b'). λ is thus the slope of a regression over the rows that both hold, and λ plus two standard errors is a
bound of it.

A row's contraction is λ times the touches of a push, and two factors that bound the joint effect of rows. H is the
curvature that pulls:

- The numbers of one row are pulled unevenly: the strongest pull exceeds the mean as the largest eigenvalue of the
  moves' second moments exceeds their mean one. For gradients of a likelihood these moments are H (Fisher's identity),
  and for a row of n numbers the factor is at most n.
- A vertex couples the k rows that it touches: Σ H_i of positive semi-definite terms, each on k blocks, is at most k
  times its own block diagonal.

Which rows of an embedding table a vertex touches is known only to f. There every row counts as touched by every vertex.
The slope is then that of the rows that moved most, because these are farthest apart, and most other rows are pulled
less. A row whose own slope, less a standard error, is larger gets its own. Pulls also change: a step of Adam is as long
near the optimum as far from it, so λ grows on the way. Where the last few pushes give a larger slope, less two standard
errors, theirs is used.

The drift of workers between pushes uses the same λ per vertex, averaged over rows by how far pushes move them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Contraction, Merge
from gridml.model.graph import Edges, Graph
from gridml.model.vertex import describe
from gridml.protocol.push import ReplicaPart
from master.store.versions import Base

Array = NDArray[Any]
Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

#: Sampled numbers of a field, in the rows that most vertices touch: these are pulled most.
MAX_SAMPLED = 65_536
#: Longest row whose second moments are kept; a longer one counts as maximally uneven.
MAX_ROW_LENGTH = 64
#: Decay per push of a field's sums: a push counts half as much after 346 others.
FADING = 0.998
#: The same for tables, half after 138 others: pulls change as the layers between the tables change.
FADING_OF_TABLES = 0.995
#: The same for the last few pushes that were compared.
FADING_RECENT = 0.5
#: The same for a drift that grows.
FADING_RISING = 0.9
#: The same for a drift that shrinks. It is slower: short push intervals hide a drift that returns with longer ones.
FADING_FALLING = 0.99
#: Standard errors that are added to the slope, and subtracted from the recent slope.
SLOPE_ERRORS = 2.0
#: Standard errors that are subtracted from the slope of a single row.
ROW_SLOPE_ERRORS = 1.0
#: Factor from a table's slope to the pull of a row: the slope is a mean over rows.
ROW_FACTOR = 2.0
#: Numbers that must have been compared before a slope is used.
MIN_COMPARED = 16
#: Factor on the drift of a table: a step that stays long near the optimum goes past it.
OVERSHOOT = 4.0
#: Its multiples modulo 1 are spread evenly.
GOLDEN_RATIO = 0.6180339887498949
#: Edges that are read at once, which bounds memory.
EDGE_BLOCK = 1 << 22


class Contractions:
    """Contraction of the rows of a graph whose `driver` vertices are trained. It is not saved: a new master starts
    empty."""

    def __init__(self, graph: Graph, driver: str) -> None:
        self._graph = graph
        self._driver = driver
        self._fields: dict[tuple[str, str], _Field] = {}
        self._of_tables: dict[str, _Table] = {}

    def add(self, worker: str, part: ReplicaPart, base: Base, merge: Merge) -> None:
        """Record the rows of a push that was trained from `base` and passed the gate unshortened."""
        for type_name, rows in part.rows.items():
            for name, pushed in rows.fields.items():
                if pushed.dtype.kind == "f" and merge.vertices:
                    field = self._field(type_name, name, pushed)
                    at = field.sampled(rows.ids)
                    old = base.rows(type_name, rows.ids[at])[name]
                    field.add(worker, rows.ids[at], pushed[at], old, merge)

    def of(self, type_name: str, name: str, ids: Ids, merge: Merge) -> Contraction | None:
        """Return how strongly a push pulls rows that others changed since its base; None while unknown."""
        field = self._fields.get((type_name, name))
        strength = None if field is None else field.strength
        if strength is None:
            return None
        touches = self._touches[type_name][ids].astype(np.float64)
        push, others = (_at_least_once(touches * n) for n in (merge.vertices, merge.credited_by_others))
        return Contraction(self._coupled * strength * push, self._coupled * strength * (push + others))

    @property
    def drift(self) -> float:
        """The share of its distance that one vertex moves a row, averaged over rows by how far pushes move them, of the
        field or table where it is largest; 0 while unknown."""
        tables = (OVERSHOOT * ROW_FACTOR * table.drift for table in self._of_tables.values())
        return max((*(field.drift for field in self._fields.values()), *tables), default=0.0)

    def add_table(self, worker: str, name: str, pushed: Array, old: Array, merge: Merge) -> None:
        """Record an embedding table (rows, ...) of a push that passed the gate unshortened; `name` is the tensor's."""
        if not merge.vertices:
            return
        if name not in self._of_tables:
            self._of_tables[name] = _Table(len(pushed), math.prod(pushed.shape[1:]))
        field = self._of_tables[name]
        field.add(worker, field.rows, pushed[field.rows], old[field.rows], merge)

    def of_table(self, name: str, merge: Merge) -> Contraction | None:
        """Return how strongly a push pulls the rows of a table that others changed since its base; None while
        unknown."""
        table = self._of_tables.get(name)
        strengths = None if table is None else table.strengths
        if strengths is None:
            return None
        push, others = (ROW_FACTOR * strengths * n for n in (merge.vertices, merge.credited_by_others))
        return Contraction(push, push + others)

    def _field(self, type_name: str, name: str, rows: Array) -> _Field:
        if (type_name, name) not in self._fields:
            self._fields[type_name, name] = _Field(self._touches[type_name], math.prod(rows.shape[1:]))
        return self._fields[type_name, name]

    @cached_property
    def _touches(self) -> dict[str, Array]:
        """Mean touches of each row by a trained vertex: float32 (count,) by type."""
        vertices = max(1, self._graph.tables[self._driver].count)
        counts = {table.type.name: np.zeros(table.count, np.float32) for table in self._graph.replicated}
        for _, type_name, edges in self._row_edges():
            if edges.constant is not None:
                counts[type_name][edges.constant] += edges.count
            else:
                for start in range(0, len(edges.targets), EDGE_BLOCK):
                    targets = np.asarray(edges.targets[start : start + EDGE_BLOCK], np.int64)
                    counts[type_name] += np.bincount(targets, minlength=len(counts[type_name])).astype(np.float32)
        return {type_name: count / vertices for type_name, count in counts.items()}

    @cached_property
    def _coupled(self) -> float:
        """The number k of rows that a vertex touches, in the mean over the touches of rows."""
        of_vertices: dict[str, Floats] = {}
        for source, _, edges in self._row_edges():
            degrees = edges.degree if edges.offsets is None else np.diff(edges.offsets)
            of_vertices[source] = of_vertices.get(source, np.zeros(edges.count)) + degrees
        total = sum(float(degrees.sum()) for degrees in of_vertices.values())
        squares = sum(float((degrees**2).sum()) for degrees in of_vertices.values())
        return max(1.0, squares / total) if total else 1.0

    def _row_edges(self) -> list[tuple[str, str, Edges]]:
        """Return the edges that lead to rows: (source type, type of the rows, edges)."""
        arrows = []
        for table in self._graph.local:
            for name, edges in table.edges.items():
                target = self._graph.tables[describe(table.type.target(name)).name].type
                if target.replicated and target.arrays:
                    arrows.append((table.type.name, target.name, edges))
        return arrows


@dataclass(frozen=True)
class _Seen:
    """The sampled rows of a push."""

    worker: str
    #: version that the push made
    version: int
    ids: Ids
    #: values that it was trained from
    base: Floats
    #: per touch
    moves: Floats
    #: expected touches of each row
    touched: Floats


class _Slopes:
    """Decaying sums of one regression through the origin, or of several with a `shape`: each `add` multiplies the
    earlier sums by `fading`."""

    def __init__(self, fading: float, shape: tuple[int, ...] = ()) -> None:
        self._fading = fading
        self._sums = np.zeros((4, *shape))

    def add(self, sums: Floats) -> None:
        """Add Σxy, Σx², Σy² and the number of values."""
        self._sums = self._fading * self._sums + sums

    @property
    def suffices(self) -> bool:
        """Enough was compared for a slope."""
        _, squares, _, count = self._sums
        return bool((count >= MIN_COMPARED).all() and (squares > 0).all())

    def bounds(self, errors: float) -> Floats:
        """Return the slopes, at least 0, plus `errors` standard errors; 0 where unknown."""
        products, squares, noises, count = self._sums
        with np.errstate(all="ignore"):
            bounds = np.maximum(0.0, products / squares) + errors * np.sqrt(noises / count / squares)
        return np.where(np.isfinite(bounds), bounds, 0.0)


class _Field:
    """Decaying sums of one array field."""

    def __init__(self, touches: Array, length: int, fading: float = FADING) -> None:
        #: decaying mean of `pulls`, weighted by how far rows move; 0 while unknown
        self.drift = 0.0
        self._touches = touches
        #: numbers in a row
        self._length = length
        self._fading = fading
        rows = max(1, MAX_SAMPLED // max(1, self._length))
        self._sampled = np.zeros(len(touches), np.bool_)
        spread = np.argsort(np.arange(len(touches)) * GOLDEN_RATIO % 1.0)  # breaks ties evenly over all rows
        self._sampled[spread[np.argsort(-touches[spread], kind="stable")[:rows]]] = True
        self._sampled &= touches > 0
        self.rows = np.flatnonzero(self._sampled)
        self._last: _Seen | None = None
        self._lasting = _Slopes(fading)
        self._second = np.zeros((self._length, self._length)) if 1 < self._length <= MAX_ROW_LENGTH else None
        self._unevenness = float(length)  # bound of the strongest pull in a row over its mean pull

    def sampled(self, ids: Ids) -> Ids:
        """Return the positions in `ids` of the sampled rows."""
        return np.flatnonzero(self._sampled[ids])

    def add(self, worker: str, ids: Ids, pushed: Array, old: Array, merge: Merge) -> None:
        """Record the sampled rows of a push trained from `old`, compared with those of a concurrent push."""
        base = old.astype(np.float64).reshape(len(ids), self._length)
        moves = pushed.reshape(len(ids), self._length) - base
        touched = _at_least_once(self._touches[ids].astype(np.float64)[:, None] * merge.vertices)
        if self._second is not None:
            with np.errstate(all="ignore"):
                second = np.einsum("ri,rj->ij", moves / np.sqrt(touched), moves / np.sqrt(touched))
                if np.isfinite(second).all():
                    self._second = self._fading * self._second + second
                    mean = float(np.trace(self._second)) / self._length
                    strongest = float(np.linalg.eigvalsh(self._second)[-1])
                    self._unevenness = strongest / mean if mean > 0 else float(self._length)
        seen = _Seen(worker, merge.version, ids, base, moves / touched, touched)
        if self._last is None or merge.base >= self._last.version:
            self._last = seen
        elif self._last.worker != worker:
            self._compare(seen, self._last)
        self._weigh(ids, moves)

    def _weigh(self, ids: Ids, moves: Floats) -> None:
        """Update the drift with the rows that a push moved."""
        pulls = self.pulls(ids)
        if pulls is None:
            return
        with np.errstate(all="ignore"):
            squares = (moves**2).sum(1)
            drift = float(pulls @ squares / squares.sum())
        if math.isfinite(drift):
            fading = FADING_RISING if drift > self.drift else FADING_FALLING
            self.drift = fading * self.drift + (1 - fading) * drift if self.drift else drift

    def _compare(self, one: _Seen, other: _Seen) -> None:
        _, ours, theirs = np.intersect1d(one.ids, other.ids, assume_unique=True, return_indices=True)
        gap = one.base[ours] - other.base[theirs]
        differ = one.moves[ours] - other.moves[theirs]
        weight = 1 / (1 / one.touched[ours] + 1 / other.touched[theirs])  # of 1/variance
        if not gap.any():
            return
        with np.errstate(all="ignore"):
            products, squares, noises = -weight * gap * differ, weight * gap**2, weight * differ**2 * (gap != 0)
            sums = np.stack([each.sum(1) for each in (products, squares, noises, gap != 0)])
        if not np.isfinite(sums).all():  # one overflow would stay in the sums for good
            return
        self._note(sums)

    def _note(self, sums: Floats) -> None:
        """Add the sums (4, rows) of the rows that two pushes share."""
        self._lasting.add(sums.sum(1))

    @property
    def _bound(self) -> float:
        """Upper bound of the slope over all rows."""
        return float(self._lasting.bounds(SLOPE_ERRORS))

    @property
    def strength(self) -> float | None:
        """Upper bound of the share of its distance that a touch moves a row, where it is pulled most; None while too
        little was compared."""
        return self._bound * self._unevenness if self._lasting.suffices else None

    def pulls(self, ids: Ids) -> Floats | None:
        """Return upper bounds of the share of its distance that a vertex moves each of these rows, where it is pulled
        most; None while too little was compared."""
        strength = self.strength
        return None if strength is None else strength * self._touches[ids].astype(np.float64)


class _Table(_Field):
    """Decaying sums of an embedding table and of each of its rows. Every push brings all sampled rows."""

    def __init__(self, rows: int, length: int) -> None:
        super().__init__(np.ones(rows, np.float32), length, FADING_OF_TABLES)
        self._recent, self._of_rows = _Slopes(FADING_RECENT), _Slopes(FADING_OF_TABLES, self.rows.shape)

    def _note(self, sums: Floats) -> None:
        super()._note(sums)
        self._recent.add(sums.sum(1))
        self._of_rows.add(sums)

    @property
    def _bound(self) -> float:
        return max(super()._bound, float(self._recent.bounds(-SLOPE_ERRORS)) if self._recent.suffices else 0.0)

    @property
    def strengths(self) -> Floats | None:
        """The `strength` of each row, or its own slope where that is larger; None while too little was compared."""
        pulls, strength = self.pulls(self.rows), self.strength
        if pulls is None or strength is None:
            return None
        strengths = np.full(len(self._touches), strength)
        strengths[self.rows] = pulls
        return strengths

    def pulls(self, ids: Ids) -> Floats | None:
        """As of any field; `ids` are those of all sampled rows."""
        if not self._lasting.suffices:
            return None
        return np.maximum(self._bound, self._of_rows.bounds(-ROW_SLOPE_ERRORS)) * self._unevenness


def _at_least_once(touches: Floats) -> Floats:
    """Return the expected touches of a row given that it was touched, from its mean touches: vertices come in any
    order."""
    return np.maximum(1.0, touches / -np.expm1(-np.maximum(touches, np.finfo(np.float64).tiny)))
