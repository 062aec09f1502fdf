"""A worker's copy of the master's values: tensors of modules, so that a push carries only changed ones, and rows.

A push omits a tensor that equals, bit for bit, the tensor of the push's base. So a frozen backbone is never sent, and
the merge rule still sees p = b for it (pushed replica = base). A vertex that f used is sent with at least one tensor,
even if nothing changed, because the master must know that it was used.

`RowCache` holds the rows of one type as the master has them. A cached row outlives the chunk that brought it. The
master tracks which rows a worker has, and in which version (`master.caching.known_rows`), so it sends a row again only
after the row has changed.

`Rebasing` merges newer values of the master into a replica that the worker has trained further. The rule of each tensor
determines the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Aggregate, is_weight, rule_for
from gridml.aggregates.base import same_bits
from gridml.aggregates.sums import Add
from gridml.model.batch import Rows
from gridml.model.order import places
from gridml.model.vertex import VertexType, array
from gridml.protocol.changes import ChangedElements
from gridml.protocol.compression import FORMATS, MIN_STEP_ELEMENTS, StepFormat, TensorStep
from gridml.protocol.push import Changes, ModuleTensors, PushContent, ReplicaPart, RowValues, VertexKey

Array = NDArray[Any]
# Bytes. A tensor of at least this size is not held after a push by value, although it can then be sent again unchanged.
LARGE = 1 << 20


@final
class MasterCopy:
    """The master's module tensors at the version of the worker's replica. They come from replies, and from pushes that
    the master took unchanged.

    The arrays are shared and must not be written to. Large tensors that are pushed by value are released, because the
    reply brings newer values, except those whose steps the master gathers.
    """

    def __init__(self, types: Mapping[str, VertexType]) -> None:
        self._types = types
        self._modules: dict[VertexKey, ModuleTensors] = {}
        # The tensors of the push under way, as the master reconstructs them.
        self._pushed: dict[VertexKey, ModuleTensors] = {}
        self._as_step: dict[str, bool] = {}  # by tensor name: True if a compressed push sends its step
        self._gathers: dict[str, bool] = {}  # by tensor name

    def carry(self, part: ReplicaPart, compress: str) -> tuple[PushContent, ReplicaPart]:
        """Return (the content of a push, the rounded tensors) for the trained `part` of the replica.

        Tensors are compressed in the format `compress` if possible. A rounded tensor is a compressed tensor as the
        master reconstructs it, with rounding errors.
        """
        modules = {key: changed(tensors, self._modules.get(key, {})) for key, tensors in part.modules.items()}
        steps: dict[VertexKey, dict[str, TensorStep]] = {}
        rounded: dict[VertexKey, dict[str, Array]] = {}
        form = FORMATS.get(compress)
        for key, name in [(key, name) for key, tensors in modules.items() for name in tensors] if form else ():
            assert form is not None
            packed = self._packed(key, name, modules[key][name], form)
            if packed is not None:
                steps.setdefault(key, {})[name], rounded.setdefault(key, {})[name] = packed
        self._pushed = {key: {**tensors, **rounded.get(key, {})} for key, tensors in modules.items()}
        values = {key: {n: t for n, t in ts.items() if n not in rounded.get(key, {})} for key, ts in modules.items()}
        # This push makes the held values of these large tensors outdated; the reply brings newer values.
        for key, tensors in values.items():
            gone = {n for n, t in tensors.items() if t.nbytes >= LARGE and not self.gathers(key, n, t)}
            self._modules[key] = {n: t for n, t in self._modules.get(key, {}).items() if n not in gone}
        by_value = ReplicaPart({key: tensors for key, tensors in values.items() if tensors}, part.rows)
        return PushContent(by_value, steps=steps), ReplicaPart(rounded)

    @property
    def modules(self) -> Mapping[VertexKey, ModuleTensors]:
        """The held tensors, by vertex and name."""
        return self._modules

    def take(self, brought: ReplicaPart, *, fast_forward: bool) -> None:
        """Add the tensors of a reply. With `fast_forward`, the master took the push unchanged: first add the tensors of
        the push."""
        pushed, self._pushed = self._pushed, {}
        for newer in (pushed, brought.modules) if fast_forward else (brought.modules,):
            for key, tensors in newer.items():
                self._modules[key] = {**self._modules.get(key, {}), **{n: _detached(t) for n, t in tensors.items()}}

    def keep_only(self, kept: Collection[VertexKey]) -> None:
        """Drop all vertices but `kept`. A reply that brings a dropped vertex again brings all its tensors."""
        self._modules = {key: tensors for key, tensors in self._modules.items() if key in kept}

    def forget(self) -> None:
        """Drop everything. The next reply brings all tensors."""
        self._modules, self._pushed = {}, {}

    def gathers(self, key: VertexKey, name: str, tensor: Array) -> bool:
        """Return whether the master gathers the steps of a tensor until the end of a round."""
        if name not in self._gathers:
            declared = self._types[key[0]]
            self._gathers[name] = not declared.has_own_rule and rule_for(name, tensor, declared.rule).gathers
        return self._gathers[name]

    def _packed(self, key: VertexKey, name: str, trained: Array, form: StepFormat) -> tuple[TensorStep, Array] | None:
        """Return (the step of a tensor, its value as the master reconstructs it); None if it must be sent by value."""
        base = self._modules.get(key, {}).get(name)
        if name not in self._as_step:
            self._as_step[name] = travels_as_step(self._types[key[0]], name, trained)
        if base is None or not self._as_step[name]:
            return None
        with np.errstate(all="ignore"):
            codes = form.pack(np.subtract(trained, base, dtype=np.result_type(base.dtype, np.float32)))
        taken = None if codes is None else form.taken(codes, base)
        if codes is None or taken is None or not np.isfinite(taken).all():
            return None
        return TensorStep(form, codes), taken


@final
class Unmerged:
    """The steps of a worker that the master has gathered and will merge at the end of a round (`Aggregate.gathers`).

    The worker trains on with them. A push brings only what was trained since the one before, so they are taken off what
    is pushed, and what is received goes below them. All arrays are new; none is written to later.
    """

    def __init__(self, master: MasterCopy) -> None:
        self._master = master
        self._steps: dict[VertexKey, dict[str, Array]] = {}  # gathered in round `_round`
        self._round = -1
        self._pushed: dict[VertexKey, dict[str, Array]] = {}  # the steps of the push under way

    def push(self, part: ReplicaPart) -> ReplicaPart:
        """Return the part of a replica to push, without the gathered steps."""
        return self._moved(part, np.subtract)

    def on(self, part: ReplicaPart) -> ReplicaPart:
        """Return a part of the master's replica with the gathered steps added."""
        return self._moved(part, np.add)

    def pushed(self, part: ReplicaPart) -> ReplicaPart:
        """Record the part that was pushed, as the master reconstructs it; return its tensors whose steps are gathered,
        with those that were gathered before."""
        base, gathered = self._master.modules, dict[VertexKey, ModuleTensors]()
        for key, tensors in part.modules.items():
            if mine := {name: t for name, t in tensors.items() if self._master.gathers(key, name, t)}:
                gathered[key] = mine
        self._pushed = {
            key: {name: t - base[key][name] for name, t in tensors.items() if not same_bits(t, base[key][name])}
            for key, tensors in gathered.items()
        }
        return self.on(ReplicaPart(gathered))

    def answered(self, gathered: int, open_round: int) -> None:
        """Handle the reply to a sync. Its push, if it had one, was gathered in round `gathered` (-1: it was merged).
        What was gathered before `open_round` is merged."""
        steps, self._pushed = self._pushed, {}
        if self._round < open_round:
            self._steps = {}
        if gathered >= open_round:
            for key, tensors in steps.items():
                mine = self._steps.setdefault(key, {})
                mine.update({name: mine[name] + t if name in mine else t for name, t in tensors.items()})
            self._round = gathered

    def keep_only(self, kept: Collection[VertexKey]) -> None:
        """Forget the steps of all vertices but `kept`."""
        self._steps = {key: tensors for key, tensors in self._steps.items() if key in kept}

    def forget(self) -> None:
        """Forget all steps: the worker takes the master's replica without them."""
        self._steps, self._pushed, self._round = {}, {}, -1

    def _moved(self, part: ReplicaPart, move: Callable[[Array, Array], Array]) -> ReplicaPart:
        """Return a part whose tensors are moved by their gathered steps."""
        modules = dict(part.modules)
        for key, steps in self._steps.items():
            if key in modules:
                moved = {name: move(t, steps[name]) for name, t in modules[key].items() if name in steps}
                modules[key] = {**modules[key], **moved}
        return replace(part, modules=modules)


def _detached(tensor: Array) -> Array:
    """Return a copy of a small tensor, so that it does not keep the whole payload of its reply in memory."""
    return tensor.copy() if tensor.base is not None and tensor.nbytes < LARGE else tensor


def travels_as_step(declared: VertexType, name: str, tensor: Array) -> bool:
    """Return whether a compressed push carries the step of a tensor. True for a tensor of at least `MIN_STEP_ELEMENTS`
    elements that a built-in rule merges as a weight. Sums, statistics, and tensors for the user's own g are sent by
    value."""
    return tensor.size >= MIN_STEP_ELEMENTS and not declared.has_own_rule and is_weight(name, tensor, declared.rule)


def changed(tensors: ModuleTensors, base: ModuleTensors) -> ModuleTensors:
    """Return the tensors of a used vertex that differ from `base`. If no tensor differs, return the smallest one."""
    differ = {name: t for name, t in tensors.items() if name not in base or not same_bits(t, base[name])}
    return differ or dict(sorted(tensors.items(), key=lambda item: item[1].nbytes)[:1])


OldRows = Callable[[str, NDArray[np.int64]], Mapping[str, Array]]  # the fields of rows of a type, as of the base


def reconstruct(
    content: PushContent, base: Mapping[VertexKey, ModuleTensors], rows_of: OldRows | None = None
) -> ReplicaPart:
    """Return the trained part of the replica with all tensors of its vertices, and all fields of its rows. A tensor
    that the push omitted is the array of `base` itself, not a copy.

    Raises ValueError for a step that does not fit its tensor, before any memory is allocated for it.
    """
    modules: dict[VertexKey, ModuleTensors] = dict(content.replica.modules)
    for key, steps in content.steps.items():
        taken: dict[str, Array] = {}
        for name, step in steps.items():
            if key not in base or name not in base[key]:
                raise ValueError(f"the replica has no tensor {name}")
            if base[key][name].dtype.kind != "f":
                raise ValueError(f"{name} is {base[key][name].dtype} and comes in {step.form.name}; expected its value")
            try:
                taken[name] = step.form.taken(step.codes, base[key][name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        modules[key] = {**modules.get(key, {}), **taken}
    whole = {key: {**base[key], **tensors} for key, tensors in modules.items()}
    rows = dict(content.replica.rows)
    for type_name, fields in content.changes.items() if rows_of is not None else ():
        assert rows_of is not None
        pushed, old = rows[type_name], rows_of(type_name, rows[type_name].ids)
        whole_fields = {name: changed.added_to(old[name]) for name, changed in fields.items()}
        rows[type_name] = RowValues(pushed.ids, {**pushed.fields, **whole_fields})
    return ReplicaPart(whole, rows, moments=content.replica.moments)


Ids = NDArray[np.int64]
_ABSENT = -1


@final
class RowCache:
    """Rows by id, with lookup in constant time. Each field of the type has a column, and a slot is the place of a row
    in all columns. `arrays` are the declared fields of the type."""

    def __init__(self, arrays: Mapping[str, array]) -> None:
        self._arrays = arrays
        self.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self._slots: NDArray[np.int32] = np.empty(0, np.int32)  # by id; `_ABSENT` for a row that is not cached
        self._fields = {name: np.empty((0, *one.shape), one.dtype) for name, one in self._arrays.items()}
        self._used = 0  # number of used slots, from 0 without gaps; columns can have spare slots at the end

    def __len__(self) -> int:
        return self._used

    def values(self, ids: Ids) -> dict[str, Array]:
        """Return copies of the fields of some rows, each (n, *shape); zeros for rows that are not cached."""
        found = self._found(ids)
        absent = found == _ABSENT
        if not absent.any():
            return {name: column[found] for name, column in self._fields.items()}
        here = found[~absent]
        values = {name: np.zeros((len(ids), *one.shape), one.dtype) for name, one in self._arrays.items()}
        for name, column in self._fields.items():
            values[name][~absent] = column[here]
        return values

    def take(self, rows: RowValues) -> None:
        """Store rows. No id occurs twice in `rows`."""
        slots = self._made(rows.ids)
        for name, values in rows.fields.items():
            self._fields[name][slots] = values

    def keep(self, ids: Ids) -> None:
        """Drop all rows but those with these ids."""
        kept = RowValues(ids, self.values(ids))
        self.clear()
        self.take(kept)

    def _found(self, ids: Ids) -> NDArray[np.int32]:
        if not len(ids) or int(ids.max()) < len(self._slots):
            return self._slots[ids]
        slots = np.full(len(ids), _ABSENT, np.int32)
        inside = ids < len(self._slots)
        slots[inside] = self._slots[ids[inside]]
        return slots

    def _made(self, ids: Ids) -> NDArray[np.int32]:
        """Return the slots of rows, allocating missing ones."""
        highest = int(ids.max(initial=-1))
        if highest >= len(self._slots):
            # The array grows by at least half, so that adding n ids one by one copies O(n) entries in total.
            more = np.full(max(highest + 1, 3 * len(self._slots) // 2) - len(self._slots), _ABSENT, np.int32)
            self._slots = np.concatenate([self._slots, more])
        slots = self._slots[ids]
        new = np.flatnonzero(slots == _ABSENT)
        if len(new):
            slots[new] = np.arange(self._used, self._used + len(new), dtype=np.int32)
            self._slots[ids[new]] = slots[new]
            self._used += len(new)
            self._grow()
        return slots

    def _grow(self) -> None:
        for name, column in self._fields.items():
            if len(column) < self._used:
                larger = np.zeros((max(self._used, 3 * len(column) // 2), *column.shape[1:]), column.dtype)
                larger[: len(column)] = column
                self._fields[name] = larger


@final
class Rebasing:
    """Rebases tensors of a program's replicated `types` by their rules."""

    def __init__(self, types: Mapping[str, VertexType]) -> None:
        self._types = types
        self._rules: dict[str, Aggregate] = {}  # by tensor name, filled on first use

    def merge_in(self, type_name: str, name: str, local: Array, newest: Array, pushed: Array | None, live: int) -> None:
        """Merge `newest` into `local` in place. If `pushed` is given, the rule of tensor `name` keeps the training
        since `pushed`; otherwise `newest` replaces `local`."""
        if pushed is None or _is_constant(local, pushed):
            np.copyto(local, newest)
            return
        self._rule(type_name, name, local).adopt(local, pushed, newest, local, live)

    def is_plain(self, type_name: str, name: str, values: Array) -> bool:
        """Return whether tensor `name` is rebased as newest + (local − pushed), which a device can compute itself."""
        return type(self._rule(type_name, name, values)).adopt is Aggregate.adopt

    def adds(self, type_name: str, name: str, values: Array) -> bool:
        """Return whether the rule of a field is `add`."""
        declared = self._types[type_name]
        return not declared.has_own_rule and isinstance(self._rule(type_name, f"{type_name}/{name}", values), Add)

    def _rule(self, type_name: str, name: str, values: Array) -> Aggregate:
        if name not in self._rules:
            self._rules[name] = rule_for(name, values, self._types[type_name].rule)
        return self._rules[name]


def _is_constant(local: Array, pushed: Array) -> bool:
    """Return whether a tensor has infinities, as a mask has, and is unchanged. A rule would compute inf - inf for such
    a tensor."""
    with np.errstate(all="ignore"):  # a finite sum proves that all elements are finite
        return local.dtype.kind == "f" and not np.isfinite(local.sum()) and same_bits(local, pushed)


@final
class ReplicatedRows:
    """Replicated rows by type: caches of the master's values, and the rows of the push under way."""

    def __init__(self, types: Mapping[str, VertexType], rebasing: Rebasing) -> None:
        self.caches = {n: RowCache(t.arrays) for n, t in types.items() if t.replicated and not t.modules}
        self.under_way: dict[str, RowValues] = {}  # rows of the push that has no reply yet, by type name
        self._rebasing = rebasing

    def values(self, type_name: str, ids: Ids) -> dict[str, Array]:
        """Return copies of the rows that a chunk starts with: pushed values for rows of the push under way, the
        master's values for other rows, and zeros for rows that are not cached."""
        values = self.caches[type_name].values(ids)
        pushed = self.under_way.get(type_name)
        if pushed is not None and len(pushed.ids):
            at, here = places(ids, pushed.ids)
            for name, column in pushed.fields.items():
                values[name][at[here]] = column[here]
        return values

    def as_changes(self, pushed: Mapping[str, RowValues]) -> tuple[dict[str, RowValues], Changes]:
        """Return (the rows of a push without the fields of which only changed elements travel, these elements). They
        are fields with `add`, in which few elements differ from the master's values."""
        rows, changes = dict(pushed), {}
        for type_name, values in pushed.items():
            added = [n for n, column in values.fields.items() if self._rebasing.adds(type_name, n, column)]
            old = self.caches[type_name].values(values.ids) if added else {}
            found = {name: ChangedElements.of(old[name], values.fields[name]) for name in added}
            changes[type_name] = {name: each for name, each in found.items() if each is not None}
            left = {name: column for name, column in values.fields.items() if name not in changes[type_name]}
            rows[type_name] = RowValues(values.ids, left)
        return rows, {type_name: fields for type_name, fields in changes.items() if fields}

    def whole(self, part: ReplicaPart) -> ReplicaPart:
        """Return a part of a reply with whole rows in place of changed ones: changes of the rows that are cached now.
        Raises ValueError for changes that do not fit."""
        rows = dict(part.rows)
        for type_name, changed in part.changed.items():
            values = self.caches[type_name].values(changed.ids)
            if values.keys() != changed.changes.keys():
                raise ValueError(f"changes of {type_name} have {[*changed.changes]}; expected {[*values]}")
            for name, each in changed.changes.items():
                if problem := each.problem(len(changed.ids), values[name].shape[1:], values[name].dtype):
                    raise ValueError(f"{type_name}/{name} of a reply {problem}")
                values[name] = each.added_to(values[name])
            if (others := rows.get(type_name)) is not None:
                values = {name: np.concatenate([others.fields[name], column]) for name, column in values.items()}
            ids = changed.ids if others is None else np.concatenate([others.ids, changed.ids])
            rows[type_name] = RowValues(ids, values)
        return replace(part, rows=rows, changed={})

    def acknowledge_push(self) -> None:
        """Store the rows of the push, which the master has merged. The reply brings the rows whose merged values differ
        from the push."""
        for type_name, rows in self.under_way.items():
            self.caches[type_name].take(rows)
        self.under_way = {}

    def take(self, newest: Mapping[str, RowValues]) -> None:
        """Store rows of the master, for the next chunks."""
        for type_name, rows in newest.items():
            if type_name in self.caches:
                self.caches[type_name].take(rows)

    def take_into(self, table: Rows | None, type_name: str, newest: RowValues, live: int, *, keeps: bool) -> None:
        """Store rows of the master, and merge them into `table`, the rows of the chunk in training. With `keeps`, the
        training since the master's previous values is kept."""
        cache = self.caches.get(type_name)
        if cache is None:
            return  # f does not use this type
        if table is not None:
            at, here = places(table.ids, newest.ids)  # the other rows are for a later chunk
            at, ids = at[here], newest.ids[here]
            before = cache.values(ids)
            for name, values in newest.fields.items():
                column = table.fields[name]
                local = column[at]
                self._rebasing.merge_in(
                    type_name, f"{type_name}/{name}", local, values[here], before[name] if keeps else None, live
                )
                column[at] = local
        cache.take(newest)

    def keep(self, held: Mapping[str, Ids]) -> None:
        """Drop all rows of each type but those with the ids in `held`."""
        for type_name, cache in self.caches.items():
            cache.keep(held.get(type_name, np.empty(0, np.int64)))

    def forget(self) -> None:
        """Drop all rows, because the training based on them was refused."""
        self.under_way = {}
        for cache in self.caches.values():
            cache.clear()
