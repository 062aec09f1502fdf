"""One worker and its engine, without a master's processes: passes of a program of stages over whole chunks.

The engine does what it does in a worker: it begins a decoded chunk, trains mini-batch after mini-batch, and copies what
a push would carry. The CPU seconds of that are the worker's. What a master would do (cut and encode the chunk, take
what comes back, call `global_sync`) is counted apart, and what carries a chunk (hash, write and read it) is not.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.table import Cell
from gridml.engine.engine import Engine
from gridml.model.batch import Rows
from gridml.model.chunk import Chunk, cut
from gridml.model.order import EpochOrder
from gridml.model.program import Program
from gridml.model.schedule import Progress
from gridml.protocol.push import ReplicaPart, RowValues

Array = NDArray[Any]


class Reached(NamedTuple):
    """Where training stands after some passes, or iterations of a peer."""

    passes: int
    cpu_s: float
    error: float  #: on what was held out
    master_s: float = 0.0  #: CPU seconds of what a master would do


def tried(of: str, settings: Any, error: str, last: Reached, digits: int) -> dict[str, Cell]:
    """Return a row of a table of settings, a dataclass: what was reached with them in the end."""
    row: dict[str, Cell] = {"of": of, "settings": named(settings), "passes": last.passes}
    return row | {"CPU-s": round(last.cpu_s, 2), error: round(last.error, digits)}


def named(settings: Any) -> str:
    """Return the settings of a dataclass as text."""
    return ", ".join(f"{name} {value:,}" for name, value in vars(settings).items())


def judged(
    peer: str,
    error: str,
    ours: Sequence[Sequence[Reached]],
    theirs: Sequence[Sequence[Reached]],
    digits: int,
    goal: float,
) -> list[dict[str, Cell]]:
    """Return rows of a table, one for each point at which a peer is judged: what it has reached, and when gridml's
    error is first as low. `ours` and `theirs` have a sequence for each seed; cells are medians over seeds."""
    return [_judged(peer, error, ours, points, digits, goal) for points in zip(*theirs, strict=True)]


def _judged(
    peer: str, error: str, ours: Sequence[Sequence[Reached]], theirs: Sequence[Reached], digits: int, goal: float
) -> dict[str, Cell]:
    firsts = [
        next((each for each in reached if each.error <= point.error), None)
        for reached, point in zip(ours, theirs, strict=True)
    ]
    line: dict[str, Cell] = {
        f"{peer}: iterations": theirs[0].passes,
        "CPU-s": round(median(each.cpu_s for each in theirs), 2),
        error: round(median(each.error for each in theirs), digits),
    }
    found = [each for each in firsts if each is not None]
    if len(found) < len(firsts):
        most = max(reached[-1].passes for reached in ours)
        return {**line, "gridml: passes": f"{len(firsts) - len(found)} of {len(firsts)} seeds not in {most}"}
    ratios = [mine.cpu_s / point.cpu_s for mine, point in zip(found, theirs, strict=True)]
    whole = [(mine.cpu_s + mine.master_s) / point.cpu_s for mine, point in zip(found, theirs, strict=True)]
    return {
        **line,
        "gridml: passes": median(each.passes for each in found),
        "its CPU-s": round(median(each.cpu_s for each in found), 2),
        f"gridml/{peer}": round(median(ratios), 2),
        "of seeds": f"{min(ratios):.2f} to {max(ratios):.2f}",
        "with a master": round(median(whole), 2),
        "goal": goal,
    }


class OneWorker:
    """Trains a program of stages in this process, as its only worker."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.graph = program.graph()
        program._connect(self.graph)
        self.driver = program.shape.driver.__name__
        self.worker_s = 0.0  #: CPU seconds of the worker so far
        self.master_s = 0.0  #: CPU seconds of what a master would do
        self.passes = 0
        self.values: dict[str, dict[str, Array]] = {
            name: {field: np.asarray(column).copy() for field, column in table.columns.items()}
            for name, table in self.graph.tables.items()
            if table.type.replicated
        }
        self.engine = Engine(program)
        self.engine.restart(self._replica(self.values))

    def run_pass(self) -> None:
        """Go over all driving vertices once, in an order of this pass."""
        count = self.graph.tables[self.driver].count
        with self._counted("master_s"):
            order = EpochOrder(count, 0, self.passes, "block", None).vertices(0, count)
            pieces = cut(self.graph, self.driver, order, None, None, bsp=False).pieces()
        payload = bytes(pieces)  # stands for carrying it
        with self._counted("worker_s"):
            chunk, engine, size = Chunk.decode(payload), self.engine, self.program.shape.batch
            assert size is not None
            engine.at = Progress(epoch=self.passes)
            engine.begin(chunk)
            for start in range(0, count, size):
                engine.train(start, min(start + size, count), 1.0)
            snapshot = engine.snapshot()
            local = engine.changed_fields(0, count)
        with self._counted("master_s"):
            for name, rows in snapshot.replica.rows.items():
                for field, column in rows.fields.items():
                    self.values[name][field][rows.ids] = column
            for name, rows in local.items():
                of, _, edge = name.partition(":")
                table = self.graph.tables[of]
                columns: Any = table.edges[edge].fields if edge else table.columns
                for field, column in rows.fields.items():
                    columns[field][rows.ids] = column
            changed = self._end_pass()
        with self._counted("worker_s"):
            engine.rebase(snapshot, changed, 1)
        self.passes += 1

    def _end_pass(self) -> ReplicaPart:
        """Call what follows a pass. Return the rows that differ from those that were pushed: the contexts."""
        for sync in self.program.syncs:
            fields = self.values[sync.context.name]
            sync.function(sync.context.cls._view(Rows(sync.context, np.zeros(1, np.int64), fields, frozenset(fields),
                                                      torch=False), 0))  # fmt: skip
        for name, fields in self.values.items():
            for field in self.graph.tables[name].type.accumulators:
                fields[field][:] = 0
        return self._replica({sync.context.name for sync in self.program.syncs})

    def _replica(self, names: Collection[str]) -> ReplicaPart:
        fields = {name: self.values[name] for name in names}
        return ReplicaPart({}, {n: RowValues(np.arange(len(next(iter(of.values())))), of) for n, of in fields.items()})

    @contextmanager
    def _counted(self, where: str) -> Iterator[None]:
        began = time.process_time()
        yield
        setattr(self, where, getattr(self, where) + time.process_time() - began)
