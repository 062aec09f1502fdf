"""Merger: merges a push into the master replica, as a whole or not at all. Each vertex is merged by its rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Aggregate, Merge, MergeResult, RuleSet, TensorMerge, VertexState, kernels, rule_for
from gridml.aggregates.base import same_bits
from gridml.aggregates.sums import Add
from gridml.errors import ProgramError
from gridml.model.graph import Graph, Table
from gridml.model.layers import tables_of
from gridml.protocol.push import Changes, ReplicaPart, RowValues, VertexKey
from master.store.replica import Replica
from master.store.versions import Base, ReplicaState
from master.sync.buffers import UntrainedTensors
from master.sync.contraction import Contractions
from master.sync.gate import (
    FREE_SHARE,
    GateResult,
    Group,
    Step,
    StepHistory,
    check_movement,
    gate,
    group_tensors,
    needs_replica_length,
    norm,
    pushed_tensors,
    step_size,
)
from master.sync.own_rules import OwnRules, PushMerge
from master.sync.owner_work import OwnerChanges, OwnerWork

Array = NDArray[Any]


@dataclass(frozen=True)
class Merged:
    """The replica's tensors and rows after a push, not yet stored. Empty if the push is refused."""

    #: tensors that change; others are left out
    modules: dict[VertexKey, VertexState] = field(default_factory=dict)
    rows: dict[str, RowValues] = field(default_factory=dict)
    #: Σ(p−b)² by group of tensors, before the step was shortened
    sumsqs: dict[str, float] = field(default_factory=dict)
    #: name of a tensor that is not finite
    not_finite: str | None = None
    #: True: the replica becomes exactly what was pushed
    fast_forward: bool = False
    #: True: steps were gathered, and are merged when their round ends
    gathered: bool = False
    #: tensors whose steps were clipped by their rules
    clipped: frozenset[str] = frozenset()
    #: a rule's reason for refusing the push
    objection: str | None = None


class Merger:
    """The rules of a graph's replicated vertices, and the state of the gate.

    `workers` is the number of workers that may push at the same time. `driver` is the type of the trained vertices; if
    it is given, the merge of rows depends on how strongly pushes pull them (`Contractions`). `by_edge`: the types whose
    rows are trained edge by edge.
    """

    def __init__(
        self,
        graph: Graph,
        replica: Replica,
        workers: int = 1,
        driver: str | None = None,
        work: OwnerWork | None = None,
        by_edge: Collection[str] = (),
    ) -> None:
        self._tables = {t.type.name: t for t in graph.replicated}
        self._replica = replica
        self._work = work or OwnerWork()
        self._own_rules = OwnRules(self._tables, replica)
        # Caches: rules and embedding tables of a vertex never change during a run.
        self._rule_sets: dict[VertexKey, RuleSet] = {}
        self._embeddings: dict[VertexKey, tuple[str, ...]] = {}
        self._row_rules = {t.type.name: _row_rules(t) for t in graph.replicated if t.type.arrays}
        #: the types whose fields all have the rule `add`
        self.added = frozenset(n for n, rules in self._row_rules.items() if rules and all(map(_is_add, rules.values())))
        self._contractions = None if driver is None else Contractions(graph, driver, by_edge)
        self.step_history = StepHistory()
        self.untrained = UntrainedTensors(graph)
        self.workers = workers
        #: time of the first of the latest pushes that changed nothing; infinity if the last push moved the replica
        self._still_since_s = math.inf

    @property
    def drift(self) -> float:
        """Share of the distance to its optimum that a row moves per trained vertex: the mean over the rows of a field
        or table, for the field or table with the largest mean; 0 while unknown."""
        return 0.0 if self._contractions is None else self._contractions.drift

    def scale(self, workers: int) -> None:
        """Set the number of workers that may push at the same time."""
        self.workers = workers

    def forget(self, worker: str) -> list[str]:
        """Drop an ended worker from the histories. Return the tensors whose changes were not merged. Idempotent."""
        self.step_history.forget(worker)  # otherwise a machine would have a vote for each worker that it has run
        return self.untrained.forget(worker)

    def prepare(self) -> None:
        """Compile the kernels, so that the first push does not have to wait for them."""
        for dtype in {tensor.dtype for _, tensor in self._replica.state.tensors() if tensor.dtype.kind == "f"}:
            one = np.zeros(1, dtype)
            kernels.blend(np.empty_like(one), one, one.copy(), one.copy(), 0.5, 0.5)
            kernels.fast_forward(np.empty_like(one), one, one.copy(), 1.0)
            if self._row_rules:
                kernels.blend_rows(np.empty_like(one), one, one.copy(), one.copy(), np.ones(1), np.ones(1))

    def add_buffers(self, state: ReplicaState) -> None:
        """Add the buffers of merge rules to every vertex of a run's first version. Raises ProgramError if a rule does
        not fit its tensor."""
        for key, vertex in state.modules.items():
            if not self._tables[key[0]].type.has_own_rule:
                vertex.buffers.update(self._rule_set(key, vertex).buffers(vertex.tensors))

    def check(self, part: ReplicaPart, changes: Changes = MappingProxyType({})) -> str | None:
        """Return the reason why the names, shapes or dtypes of a push do not fit the program; None if they fit."""
        state = self._replica.state
        for type_name, rows in part.rows.items():
            columns = state.arrays.get(type_name, {})
            count = self._tables[type_name].count if type_name in self._tables else 0
            if len(rows.ids) and not 0 <= rows.ids.min() <= rows.ids.max() < count:
                return f"rows of {type_name} name vertices that are not among the {count} of {type_name}"
            changed = changes.get(type_name, {})
            for name, each in changed.items():
                if name not in columns:
                    return f"the replica has no tensor {type_name}/{name}"
                if problem := each.problem(len(rows.ids), columns[name].shape[1:], columns[name].dtype):
                    return f"{type_name}/{name} {problem}"
            expected = {
                name: ((len(rows.ids), *column.shape[1:]), column.dtype)
                for name, column in columns.items()
                if name not in changed
            }
            if problem := _mismatch(f"{type_name}/", rows.fields, expected):
                return problem
        for key, tensors in part.modules.items():
            mine = state.modules[key].tensors if key in state.modules else {}
            expected = {name: (tensor.shape, tensor.dtype) for name, tensor in mine.items()}
            if problem := _mismatch("", tensors, expected, partly=True):
                return problem
        return None

    def merge(
        self, part: ReplicaPart, base: Base, merge: Merge, worker: str = "", now: float = 0.0
    ) -> tuple[Merged | None, GateResult]:
        """Return (the merged replica, or None if the push is refused; decision). The master's replica is unchanged.

        `part` has all tensors of its vertices; a tensor that is the same object as in `base` was not trained.

        Raises UserCodeError if the user's own g fails or changes a shape.
        """
        part = ReplicaPart(part.modules, {name: rows for name, rows in part.rows.items() if rows.fields})
        if not part and not self._all_groups:
            return Merged(fast_forward=merge.fast_forward), GateResult(1.0, "nothing is replicated that has a length")
        push = PushMerge(part, base, merge, pulls=self._contractions)
        merged = self._apply(push)
        if merged.objection is not None:
            return None, GateResult(None, merged.objection, failed=True)
        alone = self.workers == 1 and self.step_history.alone(worker)
        steps = [] if alone else [self._step(group, merged, push, worker) for group in self._all_groups]
        decision = gate(merged.not_finite, steps, merge.vertices, alone=alone)
        if (scale := decision.scale) is None:
            return None, decision
        sizes = {group: step_size(sumsq, merge.vertices) for group, sumsq in merged.sumsqs.items()}
        waited_s = self._waited(now, stands=not any(sizes.values()))
        movement = check_movement(steps, merge.vertices, waited_s, is_settled=self.step_history.is_settled(worker))
        self.step_history.add(worker, sizes, merge.vertices)
        if movement.scale is None:
            return None, movement
        if movement.flagged and scale == 1.0:
            decision = movement
        if scale < 1.0:
            sumsqs = merged.sumsqs
            del merged  # frees memory of the replica's size before it is needed again
            merged = replace(self._apply(replace(push, scale=scale)), sumsqs=sumsqs)
            if merged.not_finite is not None:
                return None, GateResult(None, f"{merged.not_finite} is not finite after merging", failed=True)
        if self._contractions is not None and scale == 1.0:  # a shortened push does not show the real pull
            self._contractions.add(worker, self._minding(part), base, merge)
            for name, pushed, old in self._trained_tables(part, base):
                self._contractions.add_table(worker, name, pushed, old, merge)
        exact = merge.fast_forward and not merged.gathered and self._holds(merged, part)
        return replace(merged, fast_forward=exact), decision

    def take_judged(self, push: PushMerge, pusher: str) -> Merged:
        """Return the replica with a push that was judged before, up to the first tensor that is not finite. The
        master's replica is unchanged. How strongly `pusher` pulls rows is measured by `push.pulls`."""
        merged = self._apply(push)
        if merged.not_finite is not None:
            return merged
        if push.pulls is not None and push.scale == 1.0:  # a shortened push does not show the real pull
            push.pulls.add(pusher, self._minding(push.part), push.base, push.merge)
        return merged

    def _minding(self, part: ReplicaPart) -> ReplicaPart:
        """Return the rows of a push, but only the fields whose rule depends on how strongly rows are pulled."""
        rows = {
            type_name: RowValues(
                values.ids,
                {
                    name: column
                    for name, column in values.fields.items()
                    if name in self._row_rules[type_name] and self._row_rules[type_name][name].minds_contraction
                },
            )
            for type_name, values in part.rows.items()
        }
        return ReplicaPart({}, rows)

    def _trained_tables(self, part: ReplicaPart, base: Base) -> Iterator[tuple[str, Array, Array]]:
        """Yield (name, pushed table, table in the base) for each embedding table that the push trained and whose rule
        depends on how strongly rows are pulled."""
        for key, tensors in part.modules.items():
            old = base.modules[key].tensors
            yield from ((n, tensors[n], old[n]) for n in self._tables_of(key) if tensors[n] is not old[n])

    def _waited(self, now: float, *, stands: bool) -> float:
        """Return the seconds for which no push has moved the replica; 0 if this push moves it. `stands`: it does
        not."""
        # Every push that moves resets the wait. Otherwise one early unmoved push would end it for this master's life.
        self._still_since_s = min(self._still_since_s, now) if stands else math.inf
        return max(0.0, now - self._still_since_s)

    def _step(self, group: Group, merged: Merged, push: PushMerge, worker: str) -> Step:
        """Return the step of a push in one group, for the gate."""
        others = self.step_history.others(worker, group.name)
        step = Step(group.name, merged.sumsqs.get(group.name, 0.0), group.overflow, others=others)
        is_pair = len(others) == 1
        if is_pair or (group.near and needs_replica_length(step, push.merge.vertices)):
            mine = [each for each in pushed_tensors(push.part, push.base) if self.groups.get(each[0]) == group]
            ours, theirs = norm(old for _, _, old in mine), norm(pushed for _, pushed, _ in mine)
            # Running statistics may move by their whole length in one push, weights only by a share of it.
            free = ours * (FREE_SHARE if group.near else 1.0) if is_pair else 0.0
            if not group.near:
                return replace(step, free=free)
            # |p|² = |b|² + 2(p−b)·b + |p−b|²
            undone = (ours * ours + step.sumsq - theirs * theirs) / (2 * ours * ours) if ours > 0 else 0.0
            return replace(step, own=ours, free=free, undone=undone)
        return step

    @cached_property
    def groups(self) -> dict[str, Group]:
        """The group of every floating-point tensor, by its name in files. Constants that hold infinities have no
        group."""
        state = self._replica.state
        modules = [
            (name, tensor, None if self._tables[key[0]].type.has_own_rule else self._rule_set(key, vertex).rules[name])
            for key, vertex in state.modules.items()
            for name, tensor in vertex.tensors.items()
            if np.isfinite(tensor).all()
        ]
        rows = [
            (f"{type_name}/{name}", column, self._row_rules[type_name].get(name))
            for type_name, columns in state.arrays.items()
            for name, column in columns.items()
        ]
        return group_tensors([*modules, *rows])

    def group_of(self, name: str) -> str:
        """Return the name of a tensor's group; the tensor's own name if it has no group."""
        return self.groups[name].name if name in self.groups else name

    @cached_property
    def averages(self) -> bool:
        """True if whole tensors are averaged. Workers that train in parallel then bring the replica no further than one
        worker would."""
        return any(group.near and name.count("/") > 1 for name, group in self.groups.items())

    @cached_property
    def _all_groups(self) -> tuple[Group, ...]:
        return tuple(dict.fromkeys(self.groups.values()))

    def _add_up(self, sumsqs: dict[str, float], result: MergeResult) -> None:
        """Add the moves of one vertex, or of the rows of one type, to the sums of their groups."""
        for name, sumsq in result.sumsqs.items():
            if group := self.groups.get(name):
                sumsqs[group.name] = sumsqs.get(group.name, 0.0) + sumsq

    def flush(self, live: int, *, gathered: bool = True) -> dict[VertexKey, VertexState]:
        """Return the new values of tensors at the end of an epoch, when rules merge the pushes that they have
        buffered. `gathered`: also end the round of rules that gather."""
        return self._applied(lambda rules, vertex: rules.flush(vertex, live, gathered=gathered))

    def end_round(self, share: float) -> dict[VertexKey, VertexState]:
        """Return the new values of tensors at the end of a round, after `share` of the run."""
        return self._applied(lambda rules, vertex: rules.end_round(vertex, share))

    def _applied(self, apply: Callable[[RuleSet, VertexState], VertexState | None]) -> dict[VertexKey, VertexState]:
        applied: dict[VertexKey, VertexState] = {}
        for key, vertex in self._replica.state.modules.items():
            if vertex.buffers:  # they may have been filled under an earlier master
                new = apply(self._rule_set(key, vertex), vertex)
                if new is not None:
                    applied[key] = new
        return applied

    @cached_property
    def gathers(self) -> bool:
        """True if pushes of any tensor are gathered in rounds (`Aggregate.gathers`)."""
        return any(
            rule.gathers
            for key, vertex in self._replica.state.modules.items()
            if not self._tables[key[0]].type.has_own_rule
            for rule in self._rule_set(key, vertex).rules.values()
        )

    def end_pass(self) -> OwnerChanges:
        """Return what changes after a pass. Raises as `OwnerWork.end_pass` does."""
        if self._contractions is not None:
            self._contractions.end_pass()
        return self._work.end_pass(self._tables, self._replica.state)

    def _apply(self, push: PushMerge) -> Merged:
        """Merge a push as a whole, up to the first tensor that is not finite."""
        merged, clipped, gathered = Merged(), frozenset[str](), False
        for key in push.part.modules:
            result = self._merge_module(key, push)
            self._add_up(merged.sumsqs, result)
            if result.not_finite is not None or result.objection is not None:
                return Merged(not_finite=result.not_finite, objection=result.objection)
            clipped |= result.clipped
            merged.modules[key], kept = self._moved(key, result.state, push)
            gathered |= kept
        for type_name, rows in push.part.rows.items():
            own = self._tables[type_name].type.has_own_rule
            result = self._own_rules.merge_rows(type_name, push) if own else self._merge_rows(type_name, push)
            self._add_up(merged.sumsqs, result)
            if result.not_finite is not None or result.objection is not None:
                return Merged(not_finite=result.not_finite, objection=result.objection)
            clipped |= result.clipped
            merged.rows[type_name] = RowValues(rows.ids, result.state.tensors)
        return replace(merged, clipped=clipped, gathered=gathered)

    def _moved(self, key: VertexKey, merged: VertexState, push: PushMerge) -> tuple[VertexState, bool]:
        """Return (the state without unchanged tensors, which the rule does not move; whether a step was gathered).
        Tensors that the push brings are returned to the worker, unless it keeps its own until the end of the round."""
        pushed, base = push.part.modules[key], push.base.modules[key].tensors
        vertex = self._replica.state.modules[key]
        rules = {} if self._tables[key[0]].type.has_own_rule else self._rule_set(key, vertex).rules
        returned = {n for n in merged.tensors if pushed[n] is not base[n] and not (n in rules and rules[n].gathers)}
        moved = {n: t for n, t in merged.tensors.items() if n in returned or not same_bits(t, vertex.tensors[n])}
        gathered = any(pushed[n] is not base[n] and n not in moved for n in merged.tensors)
        return VertexState(moved, merged.buffers), gathered

    def _merge_module(self, key: VertexKey, push: PushMerge) -> MergeResult:
        if self._tables[key[0]].type.has_own_rule:
            return self._own_rules.merge_module(key, push)
        stale = self._replica.state.changed[key[0]][key[1]] > push.merge.base
        vertex = self._replica.state.modules[key]
        tensors, base = push.part.modules[key], push.base.modules[key].tensors
        merge, contractions = push.merge_of(stale), {}
        if self._contractions is not None and not merge.fast_forward:
            for name in self._tables_of(key):
                if contraction := self._contractions.of_table(name, merge):
                    contractions[name] = contraction
        rules = self._rule_set(key, vertex)
        return rules.merge(vertex, tensors, base, merge, scale=push.scale, contractions=contractions)

    def _tables_of(self, key: VertexKey) -> tuple[str, ...]:
        """Return the embedding tables of a module whose rule depends on how strongly rows are pulled."""
        if key not in self._embeddings:
            of, vertex = self._tables[key[0]].type, self._replica.state.modules[key]
            rules = {} if of.has_own_rule else self._rule_set(key, vertex).rules
            minding = {name for name, rule in rules.items() if rule.minds_contraction}
            self._embeddings[key] = tuple(name for name in tables_of(of, key[1]) if name in minding)
        return self._embeddings[key]

    def _holds(self, merged: Merged, part: ReplicaPart) -> bool:
        """Return whether the merged values equal the pushed values exactly."""
        old = self._replica.state.modules
        pairs = [({**old[key].tensors, **merged.modules[key].tensors}, part.modules[key]) for key in part.modules]
        pairs += [(dict(merged.rows[name].fields), rows.fields) for name, rows in part.rows.items()]
        return all(same_bits(new[name], values) for new, pushed in pairs for name, values in pushed.items())

    def _merge_rows(self, type_name: str, push: PushMerge) -> MergeResult:
        """Merge rows of array fields. Rows that other workers changed since the base are merged as stale, all others as
        fresh."""
        rows, state = push.part.rows[type_name], self._replica.state
        stale = state.changed[type_name][rows.ids] > push.merge.base
        merged, bases = VertexState(), push.base.rows(type_name, rows.ids)
        sumsqs = dict.fromkeys((f"{type_name}/{name}" for name in rows.fields), 0.0)
        clipped: set[str] = set()
        for name, pushed in rows.fields.items():
            out = merged.tensors[name] = np.empty_like(pushed)
            for group, merge in ((stale, push.merge_of(True)), (~stale, push.merge_of(False))):
                if not group.any():
                    continue
                value, base = state.arrays[type_name][name][rows.ids[group]], bases[name][group]
                part = np.ascontiguousarray(pushed[group])
                rule, contraction = self._row_rules[type_name][name], None
                if rule.minds_contraction and push.pulls is not None and not merge.fast_forward:
                    contraction = push.pulls.of(type_name, name, rows.ids[group], merge)
                tensor = TensorMerge(
                    value,
                    part,
                    base,
                    np.empty_like(part),
                    merge,
                    rule.scale_of(push.scale),
                    contraction=contraction,
                    clipped=partial(clipped.add, f"{type_name}/{name}"),
                )
                objection = rule.objection(tensor)
                if objection is not None:
                    return MergeResult(VertexState(), sumsqs, None, objection=f"{type_name}/{name}: {objection}")
                sumsq = rule.merge(tensor)
                if not math.isfinite(sumsq):
                    return MergeResult(VertexState(), sumsqs, f"{type_name}/{name}")
                out[group] = tensor.out
                sumsqs[f"{type_name}/{name}"] += sumsq
        return MergeResult(merged, sumsqs, None, frozenset(clipped))

    def _rule_set(self, key: VertexKey, vertex: VertexState) -> RuleSet:
        if key not in self._rule_sets:
            declared = self._tables[key[0]].type.rule
            self._rule_sets[key] = RuleSet({n: rule_for(n, t, declared) for n, t in vertex.tensors.items()})
        return self._rule_sets[key]


def _mismatch(
    prefix: str,
    got: Mapping[str, Array],
    expected: dict[str, tuple[tuple[int, ...], np.dtype[Any]]],
    *,
    partly: bool = False,
) -> str | None:
    """Return the reason why names, shapes or dtypes of a vertex's tensors are not as expected; None if they are.
    Tensors may be missing only if `partly` is True."""
    for name, values in got.items():
        if name not in expected:
            return f"the replica has no tensor {prefix}{name}"
        shape, dtype = expected[name]
        if values.shape != shape or values.dtype != dtype:
            return f"{prefix}{name} has {values.dtype} {values.shape}, expected {dtype} {shape}"
    missing = next((name for name in expected if not partly and name not in got), None)
    return None if missing is None else f"{prefix}{missing} is missing; the other tensors of its vertex are there"


def _is_add(rule: Aggregate) -> bool:
    return isinstance(rule, Add)


def _row_rules(table: Table) -> dict[str, Aggregate]:
    rules: dict[str, Aggregate] = {}
    if table.type.has_own_rule:
        return rules
    for name, column in table.columns.items():
        rule = rule_for(f"{table.type.name}/{name}", column[:0], table.type.rule)
        if rule.buffers(np.empty(0, column.dtype)):
            raise ProgramError(
                f"{table.type.name}.{name} is merged by row with {type(rule).__name__}, which buffers whole pushes; "
                f"use stale_mean, mean, add or easgd for array fields."
            )
        rules[name] = rule
    return rules
