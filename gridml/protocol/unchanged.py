"""Tensors that nobody changed do not travel: what of a module vertex a push leaves out, and how that is put back.

A tensor that a push does not bring is, bit for bit, what the push's base holds. So a frozen backbone stays where it is,
and whatever merges the push sees p = b for it, as if it had come. A vertex that was used comes with one tensor at
least: that it was used and not changed is a fact, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from gridml.aggregates.bits import same_bits
from gridml.protocol.push import ModuleTensors, VertexKey

Array = NDArray[Any]


def changed(tensors: ModuleTensors, base: ModuleTensors) -> ModuleTensors:
    """Return the tensors of a used vertex that differ from those of `base`; the smallest where none does."""
    differ = {name: t for name, t in tensors.items() if name not in base or not same_bits(t, base[name])}
    return differ or dict(sorted(tensors.items(), key=lambda item: item[1].nbytes)[:1])


def put_back(
    modules: Mapping[VertexKey, ModuleTensors], base: Mapping[VertexKey, ModuleTensors]
) -> dict[VertexKey, ModuleTensors]:
    """Return the vertices of a push with all their tensors: what is missing is the very array of `base`."""
    return {key: {**base[key], **tensors} for key, tensors in modules.items()}
