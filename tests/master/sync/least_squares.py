"""Least squares that several workers solve together, to measure the progress of replicated rows with any merger."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Merge, VertexState
from gridml.model.graph import Graph
from gridml.protocol.push import ReplicaPart
from master.store.replica import Replica
from master.store.versions import ReplicaState, Versions, initial
from master.sync.merger import Merger

Array = NDArray[np.float64]
Ids = NDArray[np.int64]
VERTICES, WIDTH = 2_000, 4


@dataclass(frozen=True)
class Problem:
    """A least-squares problem. A point prescribes the product of the sum of its rows with its own direction."""

    targets: Ids  # (points, rows of a point)
    directions: Array  # (points, WIDTH)
    truth: Array  # (rows, WIDTH)
    rate: float

    @classmethod
    def drawn(
        cls, seed: int, rows: int, each: int, rate: float, *, uneven: float = 1.0, popular: float = 0.0
    ) -> Problem:
        """Draw points. `uneven` is the ratio of the pull on a row's last number to that on its first; with `popular`
        below 0 the first rows are touched most."""
        chance = np.random.default_rng(seed)
        with np.errstate(divide="ignore"):
            gumbel = -np.log(-np.log(chance.random((VERTICES, rows))))
        targets = np.argsort(popular * np.log(np.arange(1, rows + 1)) + gumbel, axis=1)[:, :each]
        directions = chance.normal(size=(VERTICES, WIDTH)) * np.geomspace(1, uneven, WIDTH)
        return cls(targets, directions, chance.normal(size=(rows, WIDTH)), rate)

    def train(self, rows: Array, points: Ids) -> None:
        for i in points:
            at, direction = self.targets[i], self.directions[i]
            wrong = ((self.truth[at] - rows[at]).sum(0) * direction).sum()
            rows[at] += self.rate * wrong * direction

    def distance(self, rows: Array) -> float:
        """Return the mean squared error of the rows over the points."""
        wrong = ((self.truth - rows)[self.targets].sum(1) * self.directions).sum(1)
        return float(np.sqrt(np.mean(wrong**2)))


@dataclass(frozen=True)
class Place:
    """The place of the rows in a replica, and the push of the touched `ids`."""

    rows: Callable[[ReplicaState], Array]
    pushed: Callable[[Array, Ids], ReplicaPart]


class Master:
    """A merger, and the versions that workers train from."""

    def __init__(self, graph: Graph, folder: Path, workers: int, driver: str | None) -> None:
        folder.mkdir(exist_ok=True)
        self.replica = Replica(graph, Versions(folder / "versions", durable=False))
        self.replica.start(initial(graph, 0))
        self.merger = Merger(graph, self.replica, workers, driver)
        self.version = 0

    @property
    def state(self) -> ReplicaState:
        """Return a copy of the newest version."""
        now = self.replica.state
        modules = {k: VertexState({n: t.copy() for n, t in v.tensors.items()}) for k, v in now.modules.items()}
        arrays = {name: {n: column.copy() for n, column in columns.items()} for name, columns in now.arrays.items()}
        return ReplicaState(modules, arrays, {name: changed.copy() for name, changed in now.changed.items()})

    def push(self, worker: str, base: ReplicaState, version: int, part: ReplicaPart, n: int) -> None:
        others = (self.version - version) * n
        merge = Merge(self.version + 1, version, n, others, 4)
        merged, decision = self.merger.merge(part, base, merge, worker)
        if merged is None:  # the replica has reached its optimum and does not move any more
            assert decision.reason.startswith("its replica is the one that it was given"), decision.reason
            return
        self.version += 1
        self.replica.put(merged.modules, merged.rows, self.version)


def trained(problem: Problem, master: Master, place: Place, workers: int, pushes: int, n: int = 50) -> float:
    """Return the error of the rows after some pushes by workers in turn, each of `n` points, from the version after its
    last push."""
    chance = np.random.default_rng(7)
    turns = deque((f"w{k}", master.state, 0) for k in range(workers))
    for _ in range(pushes):
        worker, base, version = turns.popleft()
        points = chance.choice(VERTICES, n, replace=False)
        rows = place.rows(base).copy()
        problem.train(rows, points)
        master.push(worker, base, version, place.pushed(rows, np.unique(problem.targets[points])), n)
        turns.append((worker, master.state, master.version))
    return problem.distance(place.rows(master.replica.state))
