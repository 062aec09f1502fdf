"""The user's own g: a method of the vertex class, called with two vertices like those that f sees."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Merge, MergeResult, VertexState
from gridml.aggregates.base import same_bits
from gridml.engine.modules import Modules
from gridml.errors import Interruption, UserCodeError
from gridml.model.batch import Rows
from gridml.model.graph import Table
from gridml.model.program import user_traceback
from gridml.model.vertex import Vertex
from gridml.protocol.foreign import described
from gridml.protocol.push import ReplicaPart, VertexKey
from master.store.replica import Replica
from master.store.versions import Base
from master.sync.contraction import Contractions

Array = NDArray[Any]
Ids = NDArray[np.int64]
Values = Mapping[str, Array]


@dataclass(frozen=True)
class PushMerge:
    """A push that is being merged."""

    #: tensors and rows that were pushed
    part: ReplicaPart
    #: version that the push was trained from
    base: Base
    merge: Merge
    #: factor in (0, 1] for the step
    scale: float = 1.0
    #: how strongly pushes pull rows; None: not measured
    pulls: Contractions | None = None

    def merge_of(self, stale: bool | np.bool_) -> Merge:
        """Return the `Merge` for one vertex, which is `stale` if the master's vertex has changed since the base."""
        return self.merge if stale else self.merge._replace(credited_by_others=0)


class OwnRules:
    """Merges vertices whose type has a method `aggregate`, which is g. If the step is shortened, g receives the replica
    with the shortened step."""

    def __init__(self, tables: Mapping[str, Table], replica: Replica) -> None:
        self._tables = tables
        self._replica = replica
        #: by type: modules to hold (the master's vertex, the replica) for g; dropped if g has broken them
        self._scratch: dict[str, tuple[Modules, Modules]] = {}

    def merge_rows(self, type_name: str, push: PushMerge) -> MergeResult:
        """Merge rows of array fields, one vertex at a time. Raises UserCodeError if g fails."""
        table, rows = self._tables[type_name], push.part.rows[type_name]
        step = _Step.of(rows.fields, push.base.rows(type_name, rows.ids), push.scale)
        if step.not_finite is not None:
            return MergeResult(VertexState(), {}, f"{type_name}/{step.not_finite}")
        arrays = self._replica.state.arrays[type_name]
        masters = _scratch_rows(table, rows.ids, {name: arrays[name][rows.ids] for name in rows.fields})
        replicas = _scratch_rows(table, rows.ids, {name: values.copy() for name, values in step.replica.items()})
        stale = self._replica.state.changed[type_name][rows.ids] > push.merge.base
        for i in range(len(rows.ids)):
            master, replica = (table.type.cls._view(scratch, i) for scratch in (masters, replicas))
            _call(table, master, replica, push.merge_of(stale[i]))
        return self._checked(type_name, f"{type_name}/", step, dict(masters.fields))

    def merge_module(self, key: VertexKey, push: PushMerge) -> MergeResult:
        """Merge one module vertex. Raises UserCodeError if g fails or changes a shape."""
        type_name, index = key
        table = self._tables[type_name]
        step = _Step.of(push.part.modules[key], push.base.modules[key].tensors, push.scale)
        if step.not_finite is not None:
            return MergeResult(VertexState(), {}, step.not_finite)
        pair = self._scratch.setdefault(type_name, (Modules(table.type), Modules(table.type)))
        for scratch, source in zip(pair, (self._replica.state.modules[key].tensors, step.replica), strict=True):
            views = scratch.views(index)
            for name, view in views.items():
                np.copyto(view, source[name])
            scratch.put(index, views)
        stale = self._replica.state.changed[type_name][index] > push.merge.base
        _call(table, pair[0].vertex(index), pair[1].vertex(index), push.merge_of(stale))
        pair[0].pull(index)
        mine = self._replica.state.modules[key].tensors
        merged = {
            name: mine[name] if name in step.constant else view.copy() for name, view in pair[0].views(index).items()
        }
        return self._checked(type_name, "", step, merged)

    def _checked(self, type_name: str, prefix: str, step: _Step, merged: dict[str, Array]) -> MergeResult:
        """Return the result of g if it has the replica's shapes and dtypes. Raises UserCodeError."""
        for name, pushed in step.replica.items():
            if name not in merged or merged[name].shape != pushed.shape or merged[name].dtype != pushed.dtype:
                self._scratch.pop(type_name, None)  # g has broken these modules
                got = "nothing" if name not in merged else f"{merged[name].dtype} {merged[name].shape}"
                raise UserCodeError(
                    f"{type_name}.aggregate made {got} of {prefix}{name}; expected {pushed.dtype} {pushed.shape}. g "
                    f"must keep shape and dtype."
                )
            if name not in step.constant and not np.isfinite(merged[name]).all():
                return MergeResult(VertexState(), {}, f"{prefix}{name}")
        sumsqs = {f"{prefix}{name}": sumsq for name, sumsq in step.sumsqs.items()}
        return MergeResult(VertexState(merged), sumsqs, None)


@dataclass(frozen=True)
class _Step:
    """The pushed values of one vertex, or of rows, after their step was shortened."""

    replica: Values
    #: Σ(p−b)² by tensor, before shortening
    sumsqs: Mapping[str, float]
    not_finite: str | None = None
    #: tensors that hold infinities, as masks do, and did not change
    constant: frozenset[str] = frozenset()

    @classmethod
    def of(cls, replica: Values, base: Values, scale: float) -> _Step:
        """Shorten a step to `scale` times its length. Integers keep their pushed values, because their steps cannot be
        shortened."""
        infinite = [name for name, values in replica.items() if not np.isfinite(values).all()]
        constant = frozenset(name for name in infinite if same_bits(replica[name], base[name]))
        for name in infinite:
            if name not in constant:
                return cls({}, {}, name)
        moving = [name for name, values in replica.items() if values.dtype.kind == "f" and name not in constant]
        sumsqs = {name: _square(replica[name], base[name]) for name in moving}
        if scale < 1.0:
            replica = {**replica, **{name: _shortened(replica[name], base[name], scale) for name in moving}}
        return cls(replica, sumsqs, constant=constant)


def _square(replica: Array, base: Array) -> float:
    """Return Σ(p−b)², saturating at the largest float64."""
    with np.errstate(over="ignore"):
        return min(float(np.square(replica.astype(np.float64) - base).sum()), sys.float_info.max)


def _shortened(replica: Array, base: Array, scale: float) -> Array:
    """Return base + scale·(replica − base), in the replica's dtype."""
    return (base + scale * (replica.astype(np.float64) - base)).astype(replica.dtype)


def _scratch_rows(table: Table, ids: Ids, fields: Values) -> Rows:
    return Rows(table.type, ids, fields, frozenset(fields), torch=False)


def _call(table: Table, master: Vertex, replica: Vertex, merge: Merge) -> None:
    """Run g. Raises UserCodeError with the user's traceback if g fails."""
    try:
        master.aggregate(replica, merge)
    except Interruption:
        raise
    except BaseException as error:
        raise UserCodeError(
            f"{table.type.name}.aggregate failed on {tuple(master.get_id())}: {described(error)}",
            user_traceback(error, Path(inspect.getfile(type(master)))),
        ) from error
