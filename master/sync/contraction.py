"""Contraction: how strongly pushes pull rows towards their optimum, measured from concurrent pushes.

Each time that a vertex touches a row, the row moves by a share λ of its distance to its optimum v*. A push that starts
from base b and touches the row t times therefore moves it by λt(v*−b), plus noise. The moves per touch of two
concurrent pushes, from bases b and b', differ by −λ(b−b'). So −λ is the slope of a regression of these differences on
b−b', over the rows that both pushes contain. The estimate of λ plus two standard errors is used as the upper bound of
λ.

Where many workers begin a pass together, most concurrent pushes have one base. So rows that are trained edge by edge
are also compared with an earlier push of the pass that is in the later base. Its noise is then in b−b', and would look
like a pull. So b−b' is replaced by its projection on the moves that others pushed since (an instrument, whose noise is
in neither push). Pushes of different passes are not compared: their local vertices differ, and with them the optima.

A row's contraction is λ times its touches in a push, times two factors that bound the joint effect of numbers and rows.
H is the curvature of the loss:

- The numbers of one row are pulled unevenly. The factor is the largest eigenvalue of the moves' second moments, divided
  by the mean eigenvalue. For gradients of a likelihood these moments are H (Fisher's identity). For a row of n numbers
  the factor is at most n.
- A vertex couples the k rows that it touches. The factor is k: a sum Σ H_i of positive semi-definite terms, each on k
  blocks, is at most k times its own block diagonal. Rows that are trained edge by edge are coupled only by the local
  vertex at which their edges start. It is trained along with them, and its optimum follows them, which leaves less
  than the block diagonal (a Schur complement). Their factor is the number of the row's fields, each of which is a
  block.

Only f knows which rows of an embedding table a vertex touches, so every row counts as touched by every vertex. The
estimate over all rows is then dominated by the rows that moved most, because their bases are farthest apart; most other
rows are pulled less. If a row's own estimate minus one standard error is above the upper bound, it is used for this
row. λ also grows during training, because a step of Adam is as long near the optimum as far from it. If the estimate
from the last few pushes minus two standard errors is above the upper bound, it replaces the bound.

The drift of workers between pushes is λ per vertex, averaged over rows with the squares of their moves as weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
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

#: Maximum sampled numbers of a field. The rows that most vertices touch are sampled, because they are pulled most.
MAX_SAMPLED = 65_536
#: Maximum numbers in a row whose second moments are kept; a longer row counts as maximally uneven.
MAX_ROW_LENGTH = 64
#: Decay per push of a field's sums: a push counts half as much after 346 others.
FADING = 0.998
#: Decay for embedding tables: half after 138 other pushes, because pulls change as the layers between tables change.
FADING_OF_TABLES = 0.995
#: Decay for the recent slope of a table, in which only the last few pushes count.
FADING_RECENT = 0.5
#: Decay per push of a drift that grows.
FADING_RISING = 0.9
#: Decay per push of a drift that shrinks. It is slower, because short push intervals hide a drift that returns with
#: longer intervals.
FADING_FALLING = 0.99
#: Standard errors that are added to the slope, and subtracted from the recent slope.
SLOPE_ERRORS = 2.0
#: Standard errors that are subtracted from the slope of a single row.
ROW_SLOPE_ERRORS = 1.0
#: Factor from a table's slope to the pull of a row, because the slope is only a mean over rows.
ROW_FACTOR = 2.0
#: Minimum numbers that must have been compared before a slope is used.
MIN_COMPARED = 16
#: Factor on the drift of a table, because steps stay long near the optimum and so go past it.
OVERSHOOT = 4.0
#: Multiples of this, modulo 1, are spread evenly over [0, 1).
GOLDEN_RATIO = 0.6180339887498949
#: Edges that are read at once; bounds memory.
EDGE_BLOCK = 1 << 19


class Contractions:
    """Contraction of the rows of a graph, whose vertices of type `driver` are trained. It is saved only where the
    result may depend on no master's death (`state`); otherwise a new master measures again."""

    def __init__(self, graph: Graph, driver: str, by_edge: Collection[str] = ()) -> None:
        """`by_edge`: the types whose rows are trained edge by edge (`Shape.trained_by_edge`)."""
        self._graph = graph
        self._driver = driver
        self._by_edge = frozenset(by_edge)
        self._fields: dict[tuple[str, str], _Field] = {}
        self._of_tables: dict[str, _Table] = {}

    def add(self, worker: str, part: ReplicaPart, base: Base, merge: Merge) -> None:
        """Record the rows of a push that was trained from `base` and passed the gate unshortened."""
        for type_name, rows in part.rows.items():
            for name, pushed in rows.fields.items():
                if pushed.dtype.kind == "f" and merge.vertices:
                    field = self._field(type_name, name)
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
        coupled = self._coupled
        if type_name in self._by_edge:
            coupled = float(sum(column.dtype.kind == "f" for column in self._graph.tables[type_name].columns.values()))
        return Contraction(coupled * strength * push, coupled * strength * (push + others))

    def end_pass(self) -> None:
        """Stop comparing with pushes of this pass: until the next one the optima of rows that are trained edge by edge
        move with all local vertices."""
        for (type_name, _), field in self._fields.items():
            if type_name in self._by_edge:
                field.end_pass()

    @property
    def drift(self) -> float:
        """Share of the distance to its optimum that a row moves per trained vertex: the mean over the rows of a field
        or table, for the field or table with the largest mean; 0 while unknown."""
        tables = (OVERSHOOT * ROW_FACTOR * table.drift for table in self._of_tables.values())
        return max((*(field.drift for field in self._fields.values()), *tables), default=0.0)

    def add_table(self, worker: str, name: str, pushed: Array, old: Array, merge: Merge) -> None:
        """Record an embedding table (rows, ...) of a push that passed the gate unshortened. `name` is its tensor's
        name."""
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

    def state(self) -> dict[str, Array]:
        """Return what was measured of array fields, by name; `restore` takes it."""
        return {
            f"{type_name}/{name}/{key}": values
            for (type_name, name), field in self._fields.items()
            for key, values in field.state().items()
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Replace what was measured of array fields."""
        self._fields.clear()
        fields: dict[tuple[str, str], dict[str, Array]] = {}
        for whole, values in state.items():
            type_name, name, key = whole.split("/")
            fields.setdefault((type_name, name), {})[key] = values
        for place, each in fields.items():
            self._field(*place).restore(each)

    def _field(self, type_name: str, name: str) -> _Field:
        if (type_name, name) not in self._fields:
            length = math.prod(self._graph.tables[type_name].columns[name].shape[1:])
            by_edge = type_name in self._by_edge
            self._fields[type_name, name] = _Field(self._touches[type_name], length, by_edge=by_edge)
        return self._fields[type_name, name]

    @cached_property
    def _touches(self) -> dict[str, Array]:
        """Mean number of times that a trained vertex touches each row: float32 (count,) by type."""
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
        """Mean number k of rows that a vertex touches, weighted by touches: Σk²/Σk."""
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
    #: values that the push was trained from
    base: Floats
    #: moves per touch
    moves: Floats
    #: expected touches of each row
    touched: Floats


class _Slopes:
    """Decaying sums of regressions through the origin, one for each element of `shape`; with shape (), only one. Each
    `add` multiplies the earlier sums by `fading`."""

    def __init__(self, fading: float, shape: tuple[int, ...] = ()) -> None:
        self._fading = fading
        #: decaying sums, (4, *shape)
        self.sums = np.zeros((4, *shape))

    def add(self, sums: Floats) -> None:
        """Add Σxy, Σx², Σy² and the number of values."""
        self.sums = self._fading * self.sums + sums

    @property
    def suffices(self) -> bool:
        """True if enough numbers were compared for a slope."""
        _, squares, _, count = self.sums
        return bool((count >= MIN_COMPARED).all() and (squares > 0).all())

    def bounds(self, errors: float) -> Floats:
        """Return max(0, slope) + `errors` standard errors for each slope; 0 for an unknown slope."""
        products, squares, noises, count = self.sums
        with np.errstate(all="ignore"):
            bounds = np.maximum(0.0, products / squares) + errors * np.sqrt(noises / count / squares)
        return np.where(np.isfinite(bounds), bounds, 0.0)


class _Field:
    """Decaying sums of one array field."""

    def __init__(self, touches: Array, length: int, fading: float = FADING, *, by_edge: bool = False) -> None:
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
        #: sums of the moves of each of `rows` since `_last`; None: pushes are only compared with concurrent ones
        self._since = np.zeros((len(self.rows), length)) if by_edge else None
        self._lasting = _Slopes(fading)
        self._second = np.zeros((self._length, self._length)) if 1 < self._length <= MAX_ROW_LENGTH else None
        self._unevenness = float(length)  # upper bound of (strongest pull in a row) / (mean pull in the row)

    def sampled(self, ids: Ids) -> Ids:
        """Return the positions in `ids` of the sampled rows."""
        return np.flatnonzero(self._sampled[ids])

    def add(self, worker: str, ids: Ids, pushed: Array, old: Array, merge: Merge) -> None:
        """Record the sampled rows of a push that was trained from `old`, and compare them with an earlier push."""
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
        seen, last = _Seen(worker, merge.version, ids, base, moves / touched, touched), self._last
        if last is None or merge.base >= last.version:
            if last is not None and self._since is not None:
                self._compare(seen, last, self._since)
            self._last = seen
            if self._since is not None:
                self._since[:] = 0.0
        else:
            if last.worker != worker:
                self._compare(seen, last)
            if self._since is not None:
                self._since[np.searchsorted(self.rows, ids)] += moves
        self._weigh(ids, moves)

    def end_pass(self) -> None:
        """As `Contractions.end_pass`."""
        self._last = None

    def state(self) -> dict[str, Array]:
        """As `Contractions.state`, of one field."""
        found = {"sums": self._lasting.sums, "numbers": np.array([self.drift, self._unevenness])}
        if self._second is not None:
            found["second"] = self._second
        if self._since is not None:
            found["since"] = self._since
        if (last := self._last) is not None:
            found |= {"ids": last.ids, "base": last.base, "moves": last.moves, "touched": last.touched}
            found |= {"version": np.array(last.version), "worker": np.frombuffer(last.worker.encode(), np.uint8)}
        return found

    def restore(self, state: Mapping[str, Array]) -> None:
        """As `Contractions.restore`, of one field."""
        self._lasting.sums, (self.drift, self._unevenness) = state["sums"], state["numbers"].tolist()
        self._second, self._since, self._last = state.get("second"), state.get("since"), None
        if "ids" in state:
            rows = (state[key] for key in ("ids", "base", "moves", "touched"))
            self._last = _Seen(state["worker"].tobytes().decode(), int(state["version"]), *rows)

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

    def _compare(self, one: _Seen, other: _Seen, moved: Floats | None = None) -> None:
        """Add the slope of two pushes. Their bases differ by nothing that holds the noise of either; otherwise `moved`
        are moves of others between them, of each of `rows`."""
        _, ours, theirs = np.intersect1d(one.ids, other.ids, assume_unique=True, return_indices=True)
        gap = one.base[ours] - other.base[theirs]
        differ = one.moves[ours] - other.moves[theirs]
        weight = 1 / (1 / one.touched[ours] + 1 / other.touched[theirs])  # proportional to 1/variance
        if not gap.any():
            return
        with np.errstate(all="ignore"):
            if moved is not None:  # project the gap on them
                along = moved[np.searchsorted(self.rows, one.ids[ours])]
                gap = along * ((weight * along * gap).sum() / (weight * along**2).sum())
            products, squares, noises = -weight * gap * differ, weight * gap**2, weight * differ**2 * (gap != 0)
            sums = np.stack([each.sum(1) for each in (products, squares, noises, gap != 0)])
        if not np.isfinite(sums).all():  # an overflow would stay in the sums forever
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
        """Upper bound of the share of its distance to the optimum that a row moves per touch, in the direction of the
        strongest pull; None until enough was compared."""
        return self._bound * self._unevenness if self._lasting.suffices else None

    def pulls(self, ids: Ids) -> Floats | None:
        """Return upper bounds of the share of its distance to the optimum that each of these rows moves per vertex, in
        the direction of the strongest pull; None until enough was compared."""
        strength = self.strength
        return None if strength is None else strength * self._touches[ids].astype(np.float64)


class _Table(_Field):
    """Decaying sums of an embedding table and of each of its rows. Every push contains all sampled rows."""

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
        """The pull of each row: the table's `strength`, or the row's own if it is larger; None until enough was
        compared."""
        pulls, strength = self.pulls(self.rows), self.strength
        if pulls is None or strength is None:
            return None
        strengths = np.full(len(self._touches), strength)
        strengths[self.rows] = pulls
        return strengths

    def pulls(self, ids: Ids) -> Floats | None:
        """As `_Field.pulls`, but with a row's own slope if it is larger. `ids` must be all sampled rows."""
        if not self._lasting.suffices:
            return None
        return np.maximum(self._bound, self._of_rows.bounds(-ROW_SLOPE_ERRORS)) * self._unevenness


def _at_least_once(touches: Floats) -> Floats:
    """Return the expected number of touches of a row that was touched at least once, given its mean number. Vertices
    come in random order, so the number follows a Poisson law."""
    return np.maximum(1.0, touches / -np.expm1(-np.maximum(touches, np.finfo(np.float64).tiny)))
