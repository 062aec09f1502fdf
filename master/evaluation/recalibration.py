"""Recalibration: recomputes BatchNorm's running statistics for a replica that is evaluated or kept.

Merged statistics do not fit the merged weights, because each worker measured them with the weights of its own replica
while it trained. So about two thousand random rows, drawn from the run's seed, pass through f in training mode without
an optimiser step. The means over these batches replace the merged statistics (Izmailov et al. 2018, arXiv:1803.05407,
section 3.2; Wu and Johnson 2021, arXiv:2105.07576, section 3). Workers keep the merged statistics, which nothing reads
in training mode.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import VertexState
from gridml.aggregates.rule_set import is_statistic
from gridml.engine.engine import Engine
from gridml.engine.rng_state import RngState
from gridml.engine.update_runner import BatchFailed
from gridml.model.chunk import Chunk, cut
from gridml.model.graph import Components, components
from gridml.model.order import EpochOrder
from gridml.protocol.foreign import described
from gridml.protocol.push import ReplicaPart, VertexKey
from master.store.spec import RunSpec
from master.store.versions import ReplicaState

Array = NDArray[Any]

#: Minimum number of rows to use; (minimum, maximum) number of batches, which takes precedence over MIN_ROWS.
MIN_ROWS, BATCH_LIMITS = 2_048, (10, 100)


class Recalibration:
    """Recomputes the statistics of one program's replica."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._driver = spec.program.shape.driver.__name__
        #: (version, its statistics) of the last call, because an evaluated version is often kept, too
        self._newest: tuple[Hashable, dict[VertexKey, dict[str, Array]]] | None = None

    def gather(self, version: Hashable, state: ReplicaState) -> tuple[dict[VertexKey, dict[str, Array]], str | None]:
        """Return (a version's running means and variances by vertex and name, None), or ({}, reason).

        `version` identifies `state`. Changes neither `state` nor the graph nor the random numbers of the process.
        Raises UserCodeError when a module cannot be made.
        """
        if not has_statistics(state):
            return {}, None
        if self._newest is None or self._newest[0] != version:
            rng_state = RngState(f"{self._spec.settings.seed}/recalibration", torch=True)
            rng_state.swap()
            try:
                self._newest = version, self._gather(state)
            except BatchFailed as failed:
                if isinstance(failed.__cause__, KeyboardInterrupt):  # Ctrl-C is not a failure of f
                    raise KeyboardInterrupt from failed
                return {}, f"{failed}: {described(failed.__cause__ or failed)}"
            except ArithmeticError as error:
                return {}, str(error)
            finally:
                rng_state.swap()
        return self._newest[1], None

    def _gather(self, state: ReplicaState) -> dict[VertexKey, dict[str, Array]]:
        """Return the running means and variances by vertex and name. Raises BatchFailed, and ArithmeticError if any is
        not finite."""
        import torch

        engine = Engine(self._spec.program)
        engine.restart(ReplicaPart({key: vertex.tensors for key, vertex in state.modules.items()}, {}))
        statistics = engine.gather_statistics()
        kept = {
            key: {name: tensor for name, tensor in vertex.tensors.items() if name not in statistics[key]}
            for key, vertex in state.modules.items()
        }
        size = self._spec.program.shape.batch or 1
        with torch.no_grad():
            for chunk in self._chunks(size):
                engine.begin(chunk)
                rows = state.part(_rows_of(chunk, state)).rows
                ends = [*range(size, chunk.count - size + 1, size), chunk.count]  # several if a component is large
                for start, stop in pairwise([0, *ends]):
                    engine.restart(ReplicaPart(kept, rows))  # f may have changed these values without an optimiser
                    engine.train(start, stop, 1.0)
        engine.pull()
        gathered = {
            key: {name: view.copy() for name, view in views.items() if view.dtype.kind == "f"}
            for key, views in statistics.items()
        }
        for name, values in ((name, values) for views in gathered.values() for name, values in views.items()):
            if not np.isfinite(values).all():
                raise ArithmeticError(f"{name} is not finite")
        return gathered

    def _chunks(self, size: int) -> Iterator[Chunk]:
        """Yield the batches one by one, so that only one is in memory. An incomplete last batch is left out, because
        its statistics would count as much as those of a full batch."""
        order, graph = self._order, self._spec.graph
        start, stop = 0, order.boundary(size)
        for _ in range(min(max(BATCH_LIMITS[0], math.ceil(MIN_ROWS / size)), BATCH_LIMITS[1])):
            yield cut(graph, self._driver, order.vertices(start, stop), order.ends(start, stop), self._parts, bsp=False)
            start, stop = stop, order.boundary(stop + size)
            if stop - start < size:
                return

    @cached_property
    def _parts(self) -> Components | None:
        return components(self._spec.graph)

    @cached_property
    def _order(self) -> EpochOrder:
        """The rows in random order, even if epochs are not shuffled, because the original order may group rows by
        class."""
        count = self._spec.graph.tables[self._driver].count
        units = None if self._parts is None else self._parts.units[self._driver]
        return EpochOrder(count, self._spec.settings.seed, 0, "all", units)


def _rows_of(chunk: Chunk, state: ReplicaState) -> dict[str, NDArray[np.int64]]:
    return {name: ids for name, ids in chunk.touched().items() if name in state.arrays}


def has_statistics(state: ReplicaState) -> bool:
    """Return whether a version has any running means or variances."""
    return any(is_statistic(name) for vertex in state.modules.values() for name in vertex.tensors)


def with_statistics(state: ReplicaState, statistics: Mapping[VertexKey, Mapping[str, Array]]) -> ReplicaState:
    """Return a version with `statistics` in place of its own."""
    modules = {
        key: VertexState({**vertex.tensors, **statistics.get(key, {})}, vertex.buffers)
        for key, vertex in state.modules.items()
    }
    return replace(state, modules=modules)
