"""Evaluation on the submit host, with the user's own code.

It computes the metrics of a version, BatchNorm's statistics, and the arithmetic of one vertex. `tail_mean` is the
mean over the versions in the tail of an epoch.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import VertexState, is_weight
from gridml.errors import DamagedError
from gridml.model.chunk import Chunk
from gridml.model.graph import Graph
from gridml.model.layers import tables_of
from gridml.model.program import Metrics, Program
from gridml.model.schedule import Progress
from gridml.protocol.push import VertexKey
from master.evaluation.metrics import evaluate, flops_per_vertex, graph_from_version, needs_graph
from master.evaluation.recalibration import Recalibration, has_statistics, with_statistics
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.store.spec import RunSpec
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
        if declared is None or declared.has_own_rule:
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


Statistics = Mapping[VertexKey, Mapping[str, NDArray[Any]]]


@dataclass(frozen=True)
class Subject:
    """A version of the replica as the ledger names it: the one that an epoch, counted from 0, ended with, and those in
    that epoch's `tail`, (number, SHA-256), over which its weights are to be averaged. Where pushes were `averaged`, its
    running statistics are to be gathered anew; where they cannot be, it is taken as it is, for those that it has are of
    its own weights. `share`, `step` and `steps` are evaluate's to know.
    """

    epoch: int
    version: int
    sha256: str | None
    averaged: bool = False
    share: float = 1.0
    step: int = 0
    steps: int = 1
    tail: tuple[tuple[int, str | None], ...] = ()

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Subject:
        """The subject of which `asdict` made a message."""
        return cls(**{**message, "tail": tuple((version, sha256) for version, sha256 in message["tail"])})

    @property
    def progress(self) -> Progress:
        """How far the run was, as evaluate is told."""
        return Progress(self.epoch, self.version, self.share, self.step, self.steps)


@dataclass(frozen=True)
class Evaluated:
    """What evaluate said, why the version was `not_recalibrated` though it should have been, and (topic, text) of what
    a person should hear."""

    metrics: Metrics
    not_recalibrated: str | None = None
    events: list[tuple[str, str]] = field(default_factory=list)


class Evaluator(ABC):
    """Computes one thing at a time, of versions that the ledger keeps as long. `limit_s` is how long it may take where
    that can be enforced."""

    @abstractmethod
    def evaluate(self, subject: Subject, limit_s: float) -> Evaluated:
        """Return the metrics of a version. Raises UserCodeError, ProgramError, and DamagedError for a version that
        cannot be read."""

    @abstractmethod
    def statistics(self, subject: Subject, limit_s: float) -> tuple[Statistics, str | None]:
        """Return the running statistics of a version, gathered anew, and no reason; or none, and why. Raises
        DamagedError, UserCodeError when a module cannot be made."""

    @abstractmethod
    def flops(self, subject: Subject, chunk: Chunk, limit_s: float) -> float | None:
        """Return the floating-point operations of f on one vertex of a chunk; None where they cannot be counted."""

    def prepare(self) -> None:  # noqa: B027  # what computes here is ready
        """Get ready beside the run, so that the first evaluation need not wait for it. Idempotent."""

    def close(self) -> None:  # noqa: B027  # what computes here has nothing to end
        """End at once what is being computed, and compute nothing more. Idempotent."""


class InlineEvaluator(Evaluator):
    """Computes in this process. `graph` is only asked for where a version does not do."""

    def __init__(
        self, settings: Settings, program: Program, graph: Callable[[], Graph], directory: RunDirectory
    ) -> None:
        self._settings = settings
        self._program = program
        self._graph = graph
        self._versions = Versions(directory.versions)

    @staticmethod
    def of(spec: RunSpec, directory: RunDirectory) -> InlineEvaluator:
        """Return one for a run whose graph is there: of simulations and tests."""
        return InlineEvaluator(spec.settings, spec.program, lambda: spec.graph, directory)

    @cached_property
    def _recalibration(self) -> Recalibration:
        return Recalibration(RunSpec(self._settings, self._program, self._graph()))

    def evaluate(self, subject: Subject, limit_s: float) -> Evaluated:
        version = self._versions.read(subject.version, subject.sha256)
        state, problem = tail_mean(version, subject.tail, self._versions, self._program), None
        if subject.averaged and has_statistics(state):
            statistics, problem = self._recalibration.gather((subject.version, subject.tail), state)
            state = with_statistics(state, statistics) if problem is None else version
        graph = self._graph() if needs_graph(self._program) else graph_from_version(self._program, state)
        metrics = evaluate(self._program, graph, state, self._settings.program, subject.progress)
        return Evaluated(metrics, problem)

    def statistics(self, subject: Subject, limit_s: float) -> tuple[Statistics, str | None]:
        version = self._versions.read(subject.version, subject.sha256)
        state = tail_mean(version, subject.tail, self._versions, self._program)
        return self._recalibration.gather((subject.version, subject.tail), state)

    def flops(self, subject: Subject, chunk: Chunk, limit_s: float) -> float | None:
        state = self._versions.read(subject.version, subject.sha256)
        return flops_per_vertex(self._program, chunk, state)
