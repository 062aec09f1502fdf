"""What the submit host computes with the user's own code: the metrics of a version, BatchNorm's statistics, the
arithmetic of one vertex."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from gridml.model.chunk import Chunk
from gridml.model.graph import Graph
from gridml.model.program import Metrics, Program
from gridml.model.progress import Progress
from gridml.protocol.push import VertexKey
from master.evaluation.metrics import evaluate, flops_per_vertex, graph_of, names_local
from master.evaluation.recalibration import Recalibration, has_statistics, with_statistics
from master.evaluation.tail_mean import tail_mean
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.store.spec import RunSpec
from master.store.versions import Versions

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
    news: list[tuple[str, str]] = field(default_factory=list)


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


class Here(Evaluator):
    """Computes in this process. `graph` is only asked for where a version does not do."""

    def __init__(
        self, settings: Settings, program: Program, graph: Callable[[], Graph], directory: RunDirectory
    ) -> None:
        self._settings = settings
        self._program = program
        self._graph = graph
        self._versions = Versions(directory.versions)

    @staticmethod
    def of(spec: RunSpec, directory: RunDirectory) -> Here:
        """Return one for a run whose graph is there: of simulations and tests."""
        return Here(spec.settings, spec.program, lambda: spec.graph, directory)

    @cached_property
    def _recalibration(self) -> Recalibration:
        return Recalibration(RunSpec(self._settings, self._program, self._graph()))

    def evaluate(self, subject: Subject, limit_s: float) -> Evaluated:
        version = self._versions.read(subject.version, subject.sha256)
        state, problem = tail_mean(version, subject.tail, self._versions, self._program), None
        if subject.averaged and has_statistics(state):
            statistics, problem = self._recalibration.gather((subject.version, subject.tail), state)
            state = with_statistics(state, statistics) if problem is None else version
        graph = self._graph() if names_local(self._program) else graph_of(self._program, state)
        metrics = evaluate(self._program, graph, state, self._settings.program, subject.progress)
        return Evaluated(metrics, problem)

    def statistics(self, subject: Subject, limit_s: float) -> tuple[Statistics, str | None]:
        version = self._versions.read(subject.version, subject.sha256)
        state = tail_mean(version, subject.tail, self._versions, self._program)
        return self._recalibration.gather((subject.version, subject.tail), state)

    def flops(self, subject: Subject, chunk: Chunk, limit_s: float) -> float | None:
        state = self._versions.read(subject.version, subject.sha256)
        return flops_per_vertex(self._program, chunk, state)
