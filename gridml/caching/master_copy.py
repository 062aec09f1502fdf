"""The module tensors that a worker knows the master to hold, so that a push carries only what changed.

A tensor that a push does not bring is, bit for bit, what the push's base holds. So a frozen backbone stays where it
is, and the rule that merges the push sees p = b for it, as if it had come. A vertex that was used comes with one
tensor at least: that it was used and not changed is a fact, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import is_weight
from gridml.aggregates.base import same_bits
from gridml.model.vertex import VertexType
from gridml.protocol.compression import FORMATS, MIN_STEP_ELEMENTS, StepFormat, TensorStep
from gridml.protocol.push import ModuleTensors, PushContent, ReplicaPart, VertexKey

Array = NDArray[Any]
LARGE = 1 << 20  # bytes: such a tensor is rather sent once more, where an answer does not bring it, than held meanwhile


@final
class MasterCopy:
    """The module tensors of the version that a worker stands on: they come with replies, or, where the master took a
    push as it was, are what was pushed. It holds the arrays themselves, which nobody writes to and of which no copy is
    made. Large ones that travel by value are let go of: the answer brings newer ones."""

    def __init__(self, types: Mapping[str, VertexType]) -> None:
        self._types = types
        self._modules: dict[VertexKey, ModuleTensors] = {}
        self._pushed: dict[VertexKey, ModuleTensors] = {}
        self._as_step: dict[str, bool] = {}

    def carry(self, part: ReplicaPart, compress: str) -> tuple[PushContent, ReplicaPart]:
        """Return (what of a trained part a push carries, the tensors of it that the master takes otherwise than they
        are), in the format that `compress` names or by value."""
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
        for key, tensors in values.items():
            gone = {name for name, tensor in tensors.items() if tensor.nbytes >= LARGE}
            self._modules[key] = {n: t for n, t in self._modules.get(key, {}).items() if n not in gone}
        by_value = ReplicaPart({key: tensors for key, tensors in values.items() if tensors}, part.rows)
        return PushContent(by_value, steps=steps), ReplicaPart(rounded)

    @property
    def modules(self) -> Mapping[VertexKey, ModuleTensors]:
        """The tensors that it holds, by vertex and name."""
        return self._modules

    def take(self, brought: ReplicaPart, *, fast_forward: bool) -> None:
        """Take what a reply brought; with `fast_forward` the master holds what was pushed last, besides."""
        pushed, self._pushed = self._pushed, {}
        for newer in (pushed, brought.modules) if fast_forward else (brought.modules,):
            for key, tensors in newer.items():
                self._modules[key] = {**self._modules.get(key, {}), **{n: _apart(t) for n, t in tensors.items()}}

    def keep_only(self, kept: Collection[VertexKey]) -> None:
        """Hold nothing of other vertices: replies that bring one again bring all of it."""
        self._modules = {key: tensors for key, tensors in self._modules.items() if key in kept}

    def forget(self) -> None:
        """Hold nothing any more: the next reply brings all of it."""
        self._modules, self._pushed = {}, {}

    def _packed(self, key: VertexKey, name: str, trained: Array, form: StepFormat) -> tuple[TensorStep, Array] | None:
        """Return (a tensor's step, what the master takes for it); None where it is to travel by value."""
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


def _apart(tensor: Array) -> Array:
    """Return a small tensor off the answer that brought it, which all of would else be held as long as that is."""
    return tensor.copy() if tensor.base is not None and tensor.nbytes < LARGE else tensor


def travels_as_step(declared: VertexType, name: str, tensor: Array) -> bool:
    """Whether a push that is compressed carries a tensor's step: a long one that is merged as a weight, by a rule of
    ours. Sums and statistics travel by value, and so does what the user's own g sees."""
    return tensor.size >= MIN_STEP_ELEMENTS and not declared.has_own_rule and is_weight(name, tensor, declared.rule)


def changed(tensors: ModuleTensors, base: ModuleTensors) -> ModuleTensors:
    """Return the tensors of a used vertex that differ from those of `base`; the smallest where none does."""
    differ = {name: t for name, t in tensors.items() if name not in base or not same_bits(t, base[name])}
    return differ or dict(sorted(tensors.items(), key=lambda item: item[1].nbytes)[:1])


def reconstruct(content: PushContent, base: Mapping[VertexKey, ModuleTensors]) -> ReplicaPart:
    """Return the part of the replica that was trained, with all tensors of its vertices: those that did not travel are
    the very arrays of the push's `base`.

    Nothing is allocated for a step that does not fit. Raises ValueError for one.
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
    return ReplicaPart(whole, content.replica.rows, moments=content.replica.moments)
