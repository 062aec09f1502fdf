"""Merging one push into the master replica: every vertex by its rule, the push as a whole or not at all."""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Aggregate, Merge, MergePlan, kernels, rule_for
from gridml.engine.modules import Modules
from gridml.errors import ProgramError, UserCodeError
from gridml.model.batch import Rows
from gridml.model.graph import Graph, Table
from gridml.model.program import user_traceback
from gridml.model.vertex import Vertex
from master.decisions.gate import REMEMBERED, gate, step_size
from master.store.replica import Replica, piece

Array = NDArray[Any]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Merged:
    """What a push makes of the replica, not yet put there: `tensors` by name, `rows[type]` for array fields."""

    tensors: dict[str, Array]
    rows: dict[str, Ids]
    fast_forward: bool
    note: str


class Merger:
    """The rules of a graph's replicated vertices, and the memory of the gate."""

    def __init__(self, graph: Graph, replica: Replica) -> None:
        self._tables = {t.type.name: t for t in graph.replicated}
        self._replica = replica
        self._plans: dict[tuple[str, int], MergePlan] = {}
        self._row_rules: dict[str, Aggregate] = {}
        self._homes: dict[str, tuple[Modules, Modules]] = {}  # master and replica, as a user's own g sees them
        self._steps: deque[float] = deque(maxlen=REMEMBERED)
        for table in graph.replicated:
            if table.type.arrays:
                self._row_rules.update(_row_rules(table))

    def prepare(self) -> None:
        """Compile the kernels that the first push would otherwise wait for."""
        for dtype in {t.dtype for t in self._replica.tensors.values() if t.dtype.kind == "f"}:
            one = np.zeros(1, dtype)
            kernels.blend(np.empty_like(one), one, one.copy(), one.copy(), 0.5, 0.5)
            kernels.fast_forward(np.empty_like(one), one, one.copy(), 1.0)

    def buffers(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Initial buffers of every vertex whose rule remembers something."""
        found: dict[str, Array] = {}
        for name in tensors:
            kind, index = piece(name)
            if index is not None and not self._tables[kind].type.own_rule:
                found.update(self._plan(kind, index, tensors).buffers(tensors))
        return found

    def check(self, pushed: Mapping[str, Array]) -> str | None:
        """Why tensors of a push cannot be of this program, by name, shape and dtype; None if they can."""
        if not pushed:
            return None
        mine = self._replica.tensors
        for name, values in pushed.items():
            if name.startswith("@rows/"):
                kind = name.removeprefix("@rows/")
                count = self._tables[kind].count if kind in self._tables else 0
                if (
                    values.dtype != np.int64
                    or values.ndim != 1
                    or (len(values) and not 0 <= values.min() <= values.max() < count)
                ):
                    return f"{name} names vertices that are not among the {count} of {kind}"
                continue
            if name not in mine or "#" in name:
                return f"the replica has no tensor {name}"
            kind, index = piece(name)
            rows = pushed.get(f"@rows/{kind}")
            if index is None and rows is None:
                return f"{name} came without the ids of its rows"
            expected = mine[name].shape if index is not None or rows is None else (len(rows), *mine[name].shape[1:])
            if values.shape != expected or values.dtype != mine[name].dtype:
                return f"{name} has {values.dtype} {values.shape}, expected {mine[name].dtype} {expected}"
        found = {name for name in pushed if not name.startswith("@rows/")}
        there = {piece(name) for name in found} | {(n.removeprefix("@rows/"), None) for n in pushed.keys() - found}
        missing = [name for name in mine if "#" not in name and name not in found and piece(name) in there]
        return f"{missing[0]} is missing beside the other tensors of its vertex" if missing else None

    def merge(self, pushed: Mapping[str, Array], base: Mapping[str, Array], merge: Merge) -> tuple[Merged | None, str]:
        """(what the push makes of the replica, reason); None when the gate refuses it. Nothing is changed yet.

        Raises UserCodeError when the user's own g fails or changes a shape.
        """
        if not pushed:
            return Merged({}, {}, merge.fast_forward, ""), "it changed nothing that is replicated"
        merged, sumsq, bad = self._apply(pushed, base, merge, 1.0)
        size = step_size(min(sumsq, sys.float_info.max), merge.vertices)
        scale, reason = gate(bad, size, list(self._steps), fast_forward=merge.fast_forward)
        if scale is None:
            return None, reason
        if scale < 1.0:
            merged, _, bad = self._apply(pushed, base, merge, scale)
            if bad is not None:
                return None, f"{bad} is not finite after merging"
        self._steps.append(size * scale)
        return replace(merged, note=reason), reason

    def flush(self, live: int) -> dict[str, Array]:
        """New values of the tensors whose rules held something back, at the end of an epoch."""
        found: dict[str, Array] = {}
        held = {piece(name) for name in self._replica.tensors if "#" in name}  # some perhaps by an earlier master
        for kind, index in held:
            if index is not None:
                found.update(self._plan(kind, index, self._replica.tensors).flush(self._replica.tensors, live) or {})
        return found

    def _apply(
        self, pushed: Mapping[str, Array], base: Mapping[str, Array], merge: Merge, scale: float
    ) -> tuple[Merged, float, str | None]:
        """(merged, sum of squares of the step, first tensor that is not finite)."""
        tensors: dict[str, Array] = {}
        rows: dict[str, Ids] = {}
        total = 0.0
        vertices: dict[tuple[str, int | None], dict[str, Array]] = {}
        for name, tensor in pushed.items():
            if name.startswith("@rows/"):
                rows[name.removeprefix("@rows/")] = tensor
            else:
                vertices.setdefault(piece(name), {})[name] = tensor
        for (kind, index), values in vertices.items():
            if self._tables[kind].type.own_rule:
                new, sumsq, bad = self._own(kind, index, values, rows, base, merge, scale)
            elif index is None:
                new, sumsq, bad = self._rows(kind, values, rows[kind], base, merge, scale)
            else:
                told = self._told(kind, np.array([index]), merge)[0]
                plan = self._plan(kind, index, self._replica.tensors)
                result = plan.merge(self._replica.tensors, values, base, told, scale=scale)
                new, sumsq, bad = result.tensors, result.sumsq, result.not_finite
            if bad is not None:
                return Merged({}, {}, False, ""), sumsq, bad
            tensors.update(new)
            total += sumsq
        same = merge.fast_forward and all(np.array_equal(tensors[n], v) for n, v in pushed.items() if n in tensors)
        return Merged(tensors, rows, same, ""), total, None

    def _told(self, kind: str, at: Ids, merge: Merge) -> list[Merge]:
        """For each vertex, what g is told: one that did not change since the base is not stale."""
        fresh = merge._replace(credited_by_others=0)
        return [merge if v > merge.base else fresh for v in self._replica.changed[kind][at]]

    def _rows(
        self, kind: str, values: Mapping[str, Array], at: Ids, base: Mapping[str, Array], merge: Merge, scale: float
    ) -> tuple[dict[str, Array], float, str | None]:
        """Rows of array fields: those that others changed since the base as stale, the rest as fresh."""
        found: dict[str, Array] = {}
        total = 0.0
        stale = self._replica.changed[kind][at] > merge.base
        for name, pushed in values.items():
            rule = self._row_rules[name]
            out = np.empty_like(pushed)
            for group, told in ((stale, merge), (~stale, merge._replace(credited_by_others=0))):
                if not group.any():
                    continue
                mine, part = (
                    np.ascontiguousarray(self._replica.tensors[name][at[group]]),
                    np.ascontiguousarray(pushed[group]),
                )
                before, into = np.ascontiguousarray(base[name][at[group]]), np.empty_like(part)
                sumsq = rule.merge(mine, part, before, told.of(name), {}, into, {}, scale)
                if not np.isfinite(sumsq):
                    return {}, sumsq, name
                out[group] = into
                total += sumsq
            found[name] = out
        return found, total, None

    def _own(
        self,
        kind: str,
        index: int | None,
        values: Mapping[str, Array],
        rows: Mapping[str, Ids],
        base: Mapping[str, Array],
        merge: Merge,
        scale: float,
    ) -> tuple[dict[str, Array], float, str | None]:
        """The user's own g, on two vertices such as f has seen; a shortened step shows in the replica."""
        table = self._tables[kind]
        for name, pushed in values.items():
            if not np.isfinite(pushed).all():
                return {}, float("inf"), name
        before = {name: base[name] if index is not None else base[name][rows[kind]] for name in values}
        total = sum(
            float(np.square(values[n].astype(np.float64) - before[n]).sum())
            for n in values
            if values[n].dtype.kind == "f"
        )
        if scale < 1.0:
            values = {n: _shortened(v, before[n], scale) if v.dtype.kind == "f" else v for n, v in values.items()}
        if index is None:
            at = rows[kind]
            mine = {name: self._replica.tensors[name][at] for name in values}
            theirs = {name: pushed.copy() for name, pushed in values.items()}  # g may write to the replica too
            masters, replicas = _rows_home(table, at, mine), _rows_home(table, at, theirs)
            for i, told in enumerate(self._told(kind, at, merge)):
                _call_own(table, table.type.cls._view(masters, i), table.type.cls._view(replicas, i), told)
            new = {name: masters.fields[name.split("/", 1)[1]] for name in values}
        else:
            homes = self._homes.setdefault(kind, (Modules(table.type), Modules(table.type)))
            for home, source in zip(homes, (self._replica.tensors, values), strict=True):
                for name, view in home.views(index).items():
                    np.copyto(view, source[name])
            told = self._told(kind, np.array([index]), merge)[0]
            _call_own(table, homes[0].vertex(index), homes[1].vertex(index), told)
            new = {name: view.copy() for name, view in homes[0].views(index).items()}
        for name, pushed in values.items():
            if name not in new or new[name].shape != pushed.shape or new[name].dtype != pushed.dtype:
                self._homes.pop(kind, None)  # they no longer look like what f has seen
                got = "nothing" if name not in new else f"{new[name].dtype} {new[name].shape}"
                raise UserCodeError(
                    f"{kind}.aggregate made {got} of {name}; expected {pushed.dtype} {pushed.shape}. g must keep "
                    f"shape and dtype."
                )
            if not np.isfinite(new[name]).all():
                return {}, float("inf"), name
        return new, total, None

    def _plan(self, kind: str, index: int, tensors: Mapping[str, Array]) -> MergePlan:
        if (kind, index) not in self._plans:
            mine = {n: t for n, t in tensors.items() if piece(n) == (kind, index) and "#" not in n}
            declared = self._tables[kind].type.rule
            self._plans[kind, index] = MergePlan({n: rule_for(n, t, declared) for n, t in mine.items()})
        return self._plans[kind, index]


def _row_rules(table: Table) -> dict[str, Aggregate]:
    found = {}
    for name, column in table.columns.items():
        rule = rule_for(f"{table.type.name}/{name}", column[:0], table.type.rule)
        if rule.buffers(np.empty(0, column.dtype)):
            raise ProgramError(
                f"{table.type.name}.{name} is merged by row with {type(rule).__name__}, which buffers whole pushes; "
                f"use stale_mean, mean, add or easgd for array fields."
            )
        found[f"{table.type.name}/{name}"] = rule
    return found


def _shortened(replica: Array, base: Array, scale: float) -> Array:
    """base + scale·(replica − base), in the replica's dtype."""
    return (base + scale * (replica.astype(np.float64) - base)).astype(replica.dtype)


def _rows_home(table: Table, at: Ids, values: Mapping[str, Array]) -> Rows:
    fields = {name.split("/", 1)[1]: array for name, array in values.items()}
    return Rows(table.type, at, fields, frozenset(fields), torch=False)


def _call_own(table: Table, master: Vertex, replica: Vertex, merge: Merge) -> None:
    """Run g. Raises UserCodeError with the user's traceback when it fails."""
    try:
        master.aggregate(replica, merge)
    except Exception as error:
        raise UserCodeError(
            f"{table.type.name}.aggregate failed on {tuple(master.get_id())}: {type(error).__name__}: {error}",
            user_traceback(error, Path(inspect.getfile(type(master)))),
        ) from error
