"""The mean over the versions in the tail of an epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import VertexState, is_weight
from gridml.errors import DamagedError
from gridml.model.layers import tables_of
from gridml.model.program import Program
from gridml.protocol.push import VertexKey
from master.store.versions import ReplicaState, Versions

Array = NDArray[Any]


def tail_mean(
    state: ReplicaState, tail: Sequence[tuple[int, str | None]], versions: Versions, program: Program
) -> ReplicaState:
    """Return a version with means over it and a tail's versions, (number, SHA-256), in place of its weights: those
    tensors of modules that are averaged as they are merged, but for tables of embeddings, whose rows' moves add up and
    would only lie further back. All else is its own. The newest counts most, and each before it by the same less.

    One that cannot be read is left out. Sums have 64 bits, so that the mean of equal values of 32 is that value.
    """
    earlier: list[Mapping[VertexKey, VertexState]] = []
    for version, sha256 in tail:
        with contextlib.suppress(DamagedError):  # nothing else depends on it
            earlier.append(versions.mapped(version, sha256).modules)
    if not earlier:
        return state
    modules, types = dict(state.modules), program.types()
    for key, vertex in state.modules.items():
        declared = types[key[0]]
        if declared.own_rule:
            continue
        tables = tables_of(declared, key[1])
        means = {
            name: _mean([*(each[key].tensors[name] for each in earlier), tensor])
            for name, tensor in vertex.tensors.items()
            if name not in tables and is_weight(name, tensor, declared.rule)
        }
        modules[key] = VertexState({**vertex.tensors, **means}, vertex.buffers)
    return replace(state, modules=modules)


def _mean(values: Sequence[Array]) -> Array:
    """The mean of values, oldest first, which count 1, 2, 3, ... times."""
    total = values[0].astype(np.float64)
    for times, value in enumerate(values[1:], 2):
        total += np.multiply(value, times, dtype=np.float64)
    total /= len(values) * (len(values) + 1) // 2
    return total.astype(values[0].dtype)
