"""Runs the stages of a mini-batch over the rows of a chunk, compiled or as plain Python.

The columns of a chunk's tables are the arrays of the kernels; edges are grouped by source, with the row of the end of
each. Vertices of a mini-batch are consecutive rows, in the order of training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.cache import module_of
from gridml.codegen.interpreted import interpreted
from gridml.codegen.kernel import Column, Kernel, adder, kernel_of
from gridml.codegen.line_map import explained
from gridml.model.batch import Rows
from gridml.model.chunk import ChunkEdges
from gridml.model.schedule import Progress
from gridml.model.stages import ApplyStage, ExchangeStage, Part, Stages
from gridml.model.vertex import describe

Array = NDArray[Any]
LOG_ENTRIES = 1 << 10  # room of a new log; kernels double it
MAX_ROWS_PER_END = 64  # up to which the ends of edges are marked in an array of all rows, which is faster than sorting


@dataclass(frozen=True)
class Csr:
    """Edges of the driving rows along one field, grouped by source."""

    offsets: NDArray[np.int64]  #: (n+1,)
    ends: NDArray[np.int32]  #: (m,) rows of the table that they lead to
    fields: Mapping[str, Array]  #: (m,) by field of the edge

    @classmethod
    def of(cls, edges: ChunkEdges, count: int) -> Csr:
        offsets = edges.offsets
        if offsets is None:
            offsets = np.arange(count + 1, dtype=np.int64) * edges.degree
        weight = {} if edges.weight is None else {"weight": edges.weight}
        return cls(offsets, edges.index.astype(np.int32), {**weight, **edges.fields})


@final
@dataclass
class CompiledStage:
    """A stage with its kernel."""

    stage: ExchangeStage | ApplyStage
    kernel: Kernel
    call: Callable[..., Any]
    file: str  #: of the generated module; "" for plain Python
    is_compiled: bool = False  #: True once the kernel has run
    #: (elements, changes) of each column with a log; a kernel may replace them by longer ones
    logs: list[tuple[Array, Array]] = field(default_factory=list)

    @cached_property
    def logging(self) -> list[Column]:
        """The columns whose changes go to logs."""
        return [column for column in self.kernel.columns if column.logs]

    @cached_property
    def add(self) -> Callable[[Array, Array, Array, int], None]:
        """Adds a log to a flat array, as `numpy.add.at` does, which is slow."""
        return adder() if self.file else lambda values, at, by, count: np.add.at(values, at[:count], by[:count])

    def run(self, arguments: Sequence[Any]) -> Sequence[tuple[Array, Array, int]]:
        """Call the kernel. Return its logs: (elements, changes, number of both). Raises StageError if it cannot be
        compiled."""
        if not self.file:
            return self.call(*arguments) or ()
        if self.is_compiled:
            made = self.call(*arguments)
        else:
            from numba.core.errors import NumbaError

            try:
                made = self.call(*arguments)
            except NumbaError as error:
                raise explained(error, self.file, self.kernel.lines, self.stage.name) from None
            self.is_compiled = True
        made = made or ()
        self.logs = [(at, by) for at, by, _ in made]
        return made


def compiled_stages(
    stages: Sequence[ExchangeStage | ApplyStage], *, exact: bool, plain: bool = False, holds: bool = False
) -> list[CompiledStage]:
    """Return stages, compiled when they first run. `plain`: as plain Python; `holds`: they leave the replica as it is.
    Raises StageError for what cannot be compiled."""
    made = []
    for stage in stages:
        kernel = kernel_of(stage, exact=exact, holds=holds)
        if plain:
            made.append(CompiledStage(stage, kernel, interpreted(stage, kernel, holds=holds), ""))
        else:
            module = module_of(kernel.text, stage.name)
            made.append(CompiledStage(stage, kernel, module.kernel, str(module.__file__)))
    return made


def stages_of(stages: Stages, *, plain: bool = False, holds: bool = False) -> list[CompiledStage]:
    """Return the stages of a mini-batch that workers run, as `compiled_stages` does."""
    batch = stages.mini_batch
    return compiled_stages(batch.on_workers, exact=batch.exact, plain=plain, holds=holds)


@final
class StageRunner:
    """Runs stages on rows of one chunk, whose `tables` are given by name."""

    def __init__(self, stages: Stages, compiled: list[CompiledStage], tables: Mapping[str, Any]) -> None:
        self._compiled = compiled
        self._tables: Mapping[str, Rows] = tables
        self._draws_from = stages.mini_batch.seed
        self._driving = tables[stages.driver.__name__]
        self._csr: dict[str, Csr] = {}  # by edge field
        self._workspace: dict[tuple[str, str], Array] = {}  # by type and field
        # The columns of each stage, by its number and theirs. A column is the same array for the whole chunk, unless a
        # kernel needs a copy of it.
        self._columns: dict[tuple[int, int], Array] = {}
        self._reads: dict[str, list[str]] = {}  # by type of mirrors: the edge fields that lead to them
        for name, edges in self._driving.edges.items():
            self._reads.setdefault(edges.target, []).append(name)

    def run(self, start: int, stop: int, progress: Progress) -> None:
        """Run the stages on rows [start, stop) of the driving type. Raises StageError if one cannot be compiled."""
        made = []
        for number, each in enumerate(self._compiled):
            drawn = [self._seed(progress.epoch, number), self._driving.ids] if each.kernel.draws else []
            columns = [self._argument(number, place) for place in range(len(each.kernel.columns))]
            numbers = [number for _, number in each.kernel.numbers]
            logs = [array for pair in self._logs(each) for array in pair]
            span = self._span(each.stage, start, stop)
            found = each.run([*span, *drawn, *columns, *logs, *numbers])
            made += [(each, column, log) for column, log in zip(each.logging, found, strict=True)]
        # In force only now, so that no stage sees changes of its own mini-batch.
        for each, column, log in made:
            each.add(self._values(column).reshape(-1), *log)

    def isolate_failure(self, start: int, stop: int, progress: Progress, error: BaseException) -> tuple[int, int]:
        """Return the range of rows: an error of a stage has no vertex."""
        return start, stop

    def _seed(self, epoch: int, stage: int) -> np.uint64:
        """Return the seed of the random numbers of a stage in a pass."""
        named = f"{self._draws_from}/{epoch}/{stage}".encode()
        return np.uint64(int.from_bytes(hashlib.sha256(named).digest()[:8]))

    def _span(self, stage: ExchangeStage | ApplyStage, start: int, stop: int) -> list[Any]:
        """Return the first arguments of a kernel, which say what it goes over."""
        if isinstance(stage, ExchangeStage):
            csr = self._edges(stage.edge)
            return [start, stop, csr.offsets, csr.ends]
        parts = [self._edges(name) for name in self._reads[describe(stage.over).name]]
        ends = [csr.ends[csr.offsets[start] : csr.offsets[stop]] for csr in parts]
        return [distinct(ends, len(self._tables[describe(stage.over).name].ids))]

    def _edges(self, name: str) -> Csr:
        if name not in self._csr:
            self._csr[name] = Csr.of(self._driving.edges[name], len(self._driving.ids))
        return self._csr[name]

    def _argument(self, stage: int, place: int) -> Any:
        """Return an argument of a kernel: an array, or a number as it is now."""
        each = self._compiled[stage]
        column = each.kernel.columns[place]
        values = self._columns.get((stage, place))
        if values is None:
            values = self._column(each, column)
            seen = values if column.is_written or column.is_number else read_only(values)
            if np.may_share_memory(seen, values):
                self._columns[stage, place] = seen
            values = seen
        return values[0] if column.is_number else values

    def _column(self, each: CompiledStage, column: Column) -> Array:
        """Return the array of a column: of a context, that of its one vertex, unless it is a number."""
        access = column.access
        if access.type is None:
            assert isinstance(each.stage, ExchangeStage)
            return self._edges(each.stage.edge).fields[access.name]
        values = self._values(column)
        return values[0] if access.argument.part is Part.CONTEXT and access.declared.shape else values

    def _values(self, column: Column) -> Array:
        """Return the field of a vertex, of all rows here."""
        access = column.access
        assert access.type is not None
        table = self._tables[access.type.name]
        if access.declared.travels:
            return table.fields[access.name]
        key = access.type.name, access.name
        if key not in self._workspace:
            self._workspace[key] = np.zeros((len(table.ids), *access.declared.shape), access.declared.dtype)
        return self._workspace[key]

    @staticmethod
    def _logs(each: CompiledStage) -> list[tuple[Array, Array]]:
        if not each.logs:
            dtypes = [column.access.declared.dtype for column in each.logging]
            each.logs = [(np.empty(LOG_ENTRIES, np.int64), np.empty(LOG_ENTRIES, dtype)) for dtype in dtypes]
        return each.logs


def distinct(ends: Sequence[Array], rows: int) -> NDArray[np.int64]:
    """Return the distinct numbers below `rows` in integer arrays, in ascending order."""
    if rows > MAX_ROWS_PER_END * sum(map(len, ends)):
        return np.unique(np.concatenate(ends)).astype(np.int64)
    found = np.zeros(rows, np.bool_)
    for each in ends:
        found[each] = True
    return np.flatnonzero(found)


def read_only(values: Array) -> Array:
    """Return an array that is read-only for numba too, so that a kernel has one type, whoever made the array."""
    seen = np.ascontiguousarray(values).view()
    seen.flags.writeable = False
    return seen
