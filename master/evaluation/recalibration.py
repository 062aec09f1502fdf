"""Running statistics of BatchNorm, gathered anew for a replica that is evaluated or kept.

Merged statistics are those of other parameters: of the replicas that were averaged, each seen while it moved. So some
two thousand rows, drawn by the run's seed, go through f in training mode without any step, and the means of what its
layers see take their place (Izmailov et al. 2018, arXiv:1803.05407, section 3.2; Wu and Johnson 2021, arXiv:2105.07576,
section 3). Workers are given the merged ones: in training mode nothing depends on them.
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

MIN_ROWS, BATCH_LIMITS = 2_048, (10, 100)  # that are enough, and how many batches they may be


class Recalibration:
    """Gathers the statistics of one program's replica. The newest ones are remembered."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._driver = spec.program.update.driver.__name__
        self._newest: tuple[Hashable, dict[VertexKey, dict[str, Array]]] | None = None

    def apply(self, version: Hashable, state: ReplicaState) -> tuple[ReplicaState, str | None]:
        """Return a version with statistics of its own, and no reason; or as it was merged, and why.

        `state` is not changed, nor are the graph and the random numbers of the process. Raises UserCodeError when a
        module cannot be made.
        """
        statistics, problem = self.gather(version, state)
        return with_statistics(state, statistics) if statistics else state, problem

    def gather(self, version: Hashable, state: ReplicaState) -> tuple[dict[VertexKey, dict[str, Array]], str | None]:
        """Return a version's running means and variances by vertex and name, and no reason; or none, and why. Raises
        as `apply` does. `version` says which one it is."""
        if not has_statistics(state):
            return {}, None
        if self._newest is None or self._newest[0] != version:
            rng_state = RngState(f"{self._spec.settings.seed}/recalibration", torch=True)
            rng_state.swap()
            try:
                self._newest = version, self._gather(state)
            except BatchFailed as failed:
                if isinstance(failed.__cause__, KeyboardInterrupt):  # of a person
                    raise KeyboardInterrupt from failed
                return {}, f"{failed}: {described(failed.__cause__ or failed)}"
            except ArithmeticError as error:
                return {}, str(error)
            finally:
                rng_state.swap()
        return self._newest[1], None

    def _gather(self, state: ReplicaState) -> dict[VertexKey, dict[str, Array]]:
        """Return running means and variances by vertex and name. Raises BatchFailed, and ArithmeticError where one is
        not finite."""
        import torch

        engine = Engine(self._spec.program)
        engine.restart(ReplicaPart({key: vertex.tensors for key, vertex in state.modules.items()}, {}))
        statistics = engine.gather_statistics()
        kept = {
            key: {name: tensor for name, tensor in vertex.tensors.items() if name not in statistics[key]}
            for key, vertex in state.modules.items()
        }
        size = self._spec.program.update.batch or 1
        with torch.no_grad():
            for chunk in self._chunks(size):
                engine.begin(chunk)
                rows = state.part(_rows_of(chunk, state)).rows
                ends = [*range(size, chunk.count - size + 1, size), chunk.count]  # several in a large component
                for start, stop in pairwise([0, *ends]):
                    engine.restart(ReplicaPart(kept, rows))  # whatever f did to them
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
        """Cut the batches one by one, so that only one of them is in memory. A last one that is not full is left
        out: its statistics would count as much as those of the others."""
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
        """Rows in a random order, whatever that of the epochs is: those of one class may stand together there."""
        count = self._spec.graph.tables[self._driver].count
        units = None if self._parts is None else self._parts.units[self._driver]
        return EpochOrder(count, self._spec.settings.seed, 0, "all", units)


def _rows_of(chunk: Chunk, state: ReplicaState) -> dict[str, NDArray[np.int64]]:
    return {name: ids for name, ids in chunk.touched().items() if name in state.arrays}


def has_statistics(state: ReplicaState) -> bool:
    """Whether a version holds any running means or variances."""
    return any(is_statistic(name) for vertex in state.modules.values() for name in vertex.tensors)


def with_statistics(state: ReplicaState, statistics: Mapping[VertexKey, Mapping[str, Array]]) -> ReplicaState:
    """Return a version with these in place of its own."""
    modules = {
        key: VertexState({**vertex.tensors, **statistics.get(key, {})}, vertex.buffers)
        for key, vertex in state.modules.items()
    }
    return replace(state, modules=modules)
