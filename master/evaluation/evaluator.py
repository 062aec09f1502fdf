"""Evaluators: compute the metrics of a version, BatchNorm's statistics, and the FLOPs of one vertex.

They run the user's own code on the submit host. `tail_mean` averages the last versions of an epoch, its tail.
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
from master.store.settings import RunSettings
from master.store.spec import RunSpec
from master.store.versions import ReplicaState, Versions

Array = NDArray[Any]


def tail_mean(
    state: ReplicaState, tail: Sequence[tuple[int, str | None]], versions: Versions, program: Program
) -> ReplicaState:
    """Return the version `state` with its weights averaged with those of earlier versions, the `tail`.

    `tail` has (number, SHA-256) of each version, oldest first. The oldest counts once, the next twice, and so on; the
    version itself counts most. A version that cannot be read is left out.

    Only module tensors that merging also averages are averaged here, and embedding tables are not: merging adds up the
    steps of a table's rows, so a mean would only be an older state. All other tensors are the version's own.
    """
    earlier: list[Mapping[VertexKey, VertexState]] = []
    for version, sha256 in tail:
        with contextlib.suppress(DamagedError, OSError):  # nothing but this mean needs the earlier versions
            earlier.append(versions.mapped(version, sha256).modules)
    if not earlier:
        return state
    modules, types = dict(state.modules), program.types()
    for key, vertex in state.modules.items():
        declared = types.get(key[0])  # None for a type that only evaluate uses, which is never trained
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
    """Return the mean of values, oldest first, with weights 1, 2, 3, ...; the mean of equal values is exactly their
    value."""
    newest = values[-1]
    # A computed mean of equal values can differ in the last bit, but frozen weights must not change.
    if all(np.array_equal(value, newest) for value in values[:-1]):
        return newest
    whole, mean = len(values) * (len(values) + 1) // 2, np.zeros(newest.shape, np.float64)
    for times, value in enumerate(values, 1):
        mean += np.multiply(value, times / whole, dtype=np.float64)
    return mean.astype(newest.dtype)


Statistics = Mapping[VertexKey, Mapping[str, NDArray[Any]]]


@dataclass(frozen=True)
class Subject:
    """A version to evaluate, as the ledger names it. Field names are keys of the messages to the evaluation process."""

    epoch: int  # from 0
    version: int  # the last one of the epoch
    sha256: str | None  # of the version's file
    #: True: the replica is a mean of pushes, so its running statistics are recomputed. If that fails, the version is
    #: evaluated as it is, without `tail`, because its statistics belong to its own weights.
    averaged: bool = False
    # Progress of the run, for the program's evaluate: fields of `Progress`.
    share: float = 1.0
    step: int = 0
    steps: int = 1
    tail: tuple[tuple[int, str | None], ...] = ()  # (number, SHA-256) of earlier versions to include in the mean

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Subject:
        """Return the subject that `asdict` turned into a message."""
        return cls(**{**message, "tail": tuple((version, sha256) for version, sha256 in message["tail"])})

    @property
    def progress(self) -> Progress:
        """The progress of the run, as an argument of evaluate."""
        return Progress(self.epoch, self.version, self.share, self.step, self.steps)


@dataclass(frozen=True)
class Evaluated:
    """The result of an evaluation."""

    metrics: Metrics  # returned by evaluate
    not_recalibrated: str | None = None  # reason why the statistics could not be recomputed
    events: list[tuple[str, str]] = field(default_factory=list)  # (topic, text) to record


class Evaluator(ABC):
    """Computes one request at a time. The version that a request names is not deleted until the request is done.

    `limit_s` is the time limit of a request, if the implementation can enforce one.
    """

    @abstractmethod
    def evaluate(self, subject: Subject, limit_s: float) -> Evaluated:
        """Return the metrics of a version. Raises UserCodeError, ProgramError, and DamagedError for a version that
        cannot be read."""

    @abstractmethod
    def statistics(self, subject: Subject, limit_s: float) -> tuple[Statistics, str | None]:
        """Return (recomputed running statistics of a version, None), or ({}, reason why there are none). Raises
        DamagedError, and UserCodeError when a module cannot be made."""

    @abstractmethod
    def flops(self, subject: Subject, chunk: Chunk, limit_s: float) -> float | None:
        """Return the floating-point operations of f on one vertex of a chunk; None if they cannot be counted."""

    def prepare(self) -> None:  # noqa: B027  # optional: InlineEvaluator has nothing to prepare
        """Start up in parallel with the run, so that the first evaluation need not wait. Idempotent."""

    def close(self) -> None:  # noqa: B027  # optional: InlineEvaluator has nothing to end
        """Cancel the request under way, and accept none from now on. Idempotent."""


class InlineEvaluator(Evaluator):
    """Computes in this process, without a time limit. `graph` is called only for requests that need more than a
    version."""

    def __init__(
        self, settings: RunSettings, program: Program, graph: Callable[[], Graph], directory: RunDirectory
    ) -> None:
        self._settings = settings
        self._program = program
        self._graph = graph
        self._versions = Versions(directory.versions)

    @staticmethod
    def of(spec: RunSpec, directory: RunDirectory) -> InlineEvaluator:
        """Return an evaluator for a run whose graph is in memory, as in simulations and tests."""
        return InlineEvaluator(spec.settings, spec.program, lambda: spec.graph, directory)

    @cached_property
    def _recalibration(self) -> Recalibration:
        return Recalibration(RunSpec(self._settings, self._program, self._graph()))

    def evaluate(self, subject: Subject, limit_s: float) -> Evaluated:
        version = self._versions.read(subject.version, subject.sha256)
        state, problem = tail_mean(version, subject.tail, self._versions, self._program), None
        if subject.averaged and has_statistics(state):
            statistics, problem = self._recalibration.gather((subject.version, subject.tail), state)
            # Without statistics, the version is evaluated instead of the mean: see `Subject.averaged`.
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
