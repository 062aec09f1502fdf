"""The module tensors that the master is known to hold, so that a push carries only changed tensors.

A push omits a tensor that equals, bit for bit, the tensor of the push's base. So a frozen backbone is never sent, and
the merge rule still sees p = b for it (pushed replica = base). A vertex that f used is sent with at least one tensor,
even if nothing changed, because the master must know that it was used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import is_weight, rule_for
from gridml.aggregates.base import same_bits
from gridml.model.vertex import VertexType
from gridml.protocol.compression import FORMATS, MIN_STEP_ELEMENTS, StepFormat, TensorStep
from gridml.protocol.push import ModuleTensors, PushContent, ReplicaPart, RowValues, VertexKey

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
        modules = {
            key: {name: t - self._steps[key][name] if self._has(key, name) else t for name, t in tensors.items()}
            for key, tensors in part.modules.items()
        }
        return replace(part, modules=modules)

    def pushed(self, part: ReplicaPart) -> ReplicaPart:
        """Record the part that was pushed, as the master reconstructs it; return it with the gathered steps."""
        base = self._master.modules
        self._pushed = {
            key: {
                name: t - base[key][name]
                for name, t in tensors.items()
                if self._master.gathers(key, name, t) and not same_bits(t, base[key][name])
            }
            for key, tensors in part.modules.items()
        }
        return self.on(part)

    def on(self, part: ReplicaPart) -> ReplicaPart:
        """Return a part of the master's replica with the gathered steps added."""
        modules = {
            key: {name: t + self._steps[key][name] if self._has(key, name) else t for name, t in tensors.items()}
            for key, tensors in part.modules.items()
        }
        return replace(part, modules=modules)

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

    def _has(self, key: VertexKey, name: str) -> bool:
        return name in self._steps.get(key, {})


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
