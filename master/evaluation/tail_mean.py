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
    """Return a version with means over it and a tail's versions, (number, SHA-256), oldest first, in place of its
    weights. The oldest counts once, the next twice, and so on. One that cannot be read is left out.

    Weights are those tensors of modules that are averaged as they are merged, but no tables of embeddings: the moves of
    their rows add up, and what is averaged only lies further back. All else is the version's own.
    """
    earlier: list[Mapping[VertexKey, VertexState]] = []
    for version, sha256 in tail:
        with contextlib.suppress(DamagedError, OSError):  # nothing else depends on it
            earlier.append(versions.mapped(version, sha256).modules)
    if not earlier:
        return state
    modules, types = dict(state.modules), program.types()
    for key, vertex in state.modules.items():
        declared = types.get(key[0])  # f does not reach what evaluate alone takes, and nobody trains it
        if declared is None or declared.own_rule:
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
    """The mean of values, oldest first, which count 1, 2, 3, ... times; of values that stand still that value."""
    newest = values[-1]
    if all(np.array_equal(value, newest) for value in values[:-1]):
        return newest
    whole, mean = len(values) * (len(values) + 1) // 2, np.zeros(newest.shape, np.float64)
    for times, value in enumerate(values, 1):
        mean += np.multiply(value, times / whole, dtype=np.float64)
    return mean.astype(newest.dtype)
