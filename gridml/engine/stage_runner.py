"""Runs the stages of a mini-batch over the rows of a chunk, compiled or as plain Python.

The columns of a chunk's tables are the arrays of the kernels; edges are grouped by source, with the row of the end of
each. Vertices of a mini-batch are consecutive rows, in the order of training. `gridml.engine.stage_jobs` says what
threads do at the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from math import prod
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.blocks import border_finder
from gridml.codegen.cache import module_of
from gridml.codegen.interpreted import interpreted
from gridml.codegen.kernel import Column, Kernel, adder, kernel_of
from gridml.codegen.line_map import explained
from gridml.engine import stage_jobs
from gridml.engine.stage_jobs import Division, Phases, StageJob
from gridml.model.batch import Rows
from gridml.model.chunk import ChunkEdges
from gridml.model.schedule import Progress
from gridml.model.stage_fields import accumulator, scratch
from gridml.model.stages import ApplyStage, ExchangeStage, Part, Stages
from gridml.model.vertex import describe

Array = NDArray[Any]
Log = tuple[Array, Array, int]  # elements, changes, number of both
LOG_ENTRIES = 1 << 10  # room of a new log; kernels double it
MAX_ROWS_PER_END = 64  # up to which the ends of edges are marked in an array of all rows, which is faster than sorting


@dataclass(frozen=True)
class Csr:
    """Edges of the driving rows along one field, grouped by source."""

    offsets: NDArray[np.int64]  #: (n+1,), read-only
    begins: NDArray[np.int64]  #: (n,) `offsets` but the last
    stops: NDArray[np.int64]  #: (n,) `offsets` but the first
    ends: NDArray[np.int32]  #: (m,) rows of the table that they lead to
    fields: Mapping[str, Array]  #: (m,) by field of the edge

    @classmethod
    def of(cls, edges: ChunkEdges, count: int) -> Csr:
        offsets = edges.offsets
        if offsets is None:
            offsets = np.arange(count + 1, dtype=np.int64) * edges.degree
        weight = {} if edges.weight is None else {"weight": edges.weight}
        offsets = read_only(offsets)
        return cls(offsets, offsets[:-1], offsets[1:], edges.index.astype(np.int32), {**weight, **edges.fields})


@final
@dataclass
class CompiledStage:
    """A stage with its kernel."""

    stage: ExchangeStage | ApplyStage
    kernel: Kernel
    call: Callable[..., Any]
    file: str  #: of the generated module; "" for plain Python
    division: Division = Division.WHOLE
    is_compiled: bool = False  #: True once the kernel has run
    #: by number of the job: (elements, changes) of each column with a log; a kernel may replace them by longer ones
    logs: dict[int, list[tuple[Array, Array]]] = field(default_factory=dict)

    @cached_property
    def logging(self) -> list[Column]:
        """The columns whose changes go to logs."""
        return [column for column in self.kernel.columns if column.logs]

    @cached_property
    def add(self) -> Callable[[Array, Array, Array, int], None]:
        """Adds a log to a flat array, as `numpy.add.at` does, which is slow."""
        return adder() if self.file else lambda values, at, by, count: np.add.at(values, at[:count], by[:count])

    def run(self, arguments: Sequence[Any]) -> Sequence[Log]:
        """Call the kernel. Return its logs. Raises StageError if it cannot be compiled."""
        if not self.file or self.is_compiled:
            return self.call(*arguments) or ()
        from numba.core.errors import NumbaError

        try:
            made = self.call(*arguments)
        except NumbaError as error:
            raise explained(error, self.file, self.kernel.lines, self.stage.name) from None
        self.is_compiled = True
        return made or ()

    @cached_property
    def least(self) -> float:
        """The least work that is cut into jobs: edges, or elements of an apply."""
        return stage_jobs.least_work(self.stage, self.division)

    @cached_property
    def width(self) -> int:
        """The elements of a row that an apply goes over."""
        own = [c.access.declared.shape for c in self.kernel.columns if c.access.argument.part is Part.SCANNED]
        return max(map(prod, own), default=1)

    def logs_of(self, job: int) -> list[Array]:
        """Return the arguments of the kernel for the logs of a job."""
        if not self.logging:
            return []
        if job not in self.logs:
            dtypes = [column.access.declared.dtype for column in self.logging]
            self.logs[job] = [(np.empty(LOG_ENTRIES, np.int64), np.empty(LOG_ENTRIES, dtype)) for dtype in dtypes]
        return [array for pair in self.logs[job] for array in pair]

    def run_job(self, job: int, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Log]:
        """Call the kernel for a job, with the arguments before and after its logs. Return its logs."""
        made = self.run([*before, *self.logs_of(job), *after])
        if made:
            self.logs[job] = [(elements, by) for elements, by, _ in made]
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
    for each, (division, _) in zip(made, stage_jobs.divisions([(m.stage, m.kernel) for m in made]), strict=True):
        each.division = division
    return made


def stages_of(stages: Stages, *, plain: bool = False, holds: bool = False) -> list[CompiledStage]:
    """Return the stages of a mini-batch that workers run, as `compiled_stages` does."""
    batch = stages.mini_batch
    return compiled_stages(batch.on_workers, exact=batch.exact, plain=plain, holds=holds)


@final
class StageRunner:
    """Runs stages on rows of one chunk, whose `tables` are given by name, on up to `threads` threads."""

    def __init__(
        self, stages: Stages, compiled: list[CompiledStage], tables: Mapping[str, Any], threads: int = 1
    ) -> None:
        self._compiled = compiled
        self._threads = threads
        self._tables: Mapping[str, Rows] = tables
        self._draws_from = stages.mini_batch.seed
        self._driving = tables[stages.driver.__name__]
        self._csr: dict[str, Csr] = {}  # by edge field
        self._borders: dict[str, Array] = {}  # by edge field: those of `border_finder`
        self._workspace: dict[tuple[str, str], Array] = {}  # by type and field
        # Working memory of jobs that are done at the same time, by number of the stage, field and number of the memory.
        self._memory: dict[tuple[int, str, int], Array] = {}
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
            found = self._do(number, start, stop, progress)
            made += [(each, column, logs[i]) for i, column in enumerate(each.logging) for logs in found]
        # In force only now, so that no stage sees changes of its own mini-batch.
        for each, column, log in made:
            each.add(self._values(column).reshape(-1), *log)

    def _do(self, number: int, start: int, stop: int, progress: Progress) -> list[Sequence[Log]]:
        """Run a stage. Return the logs of each of its jobs."""
        each = self._compiled[number]
        drawn = [self._seed(progress.epoch, number), self._driving.ids] if each.kernel.draws else []
        columns = [self._argument(number, place) for place in range(len(each.kernel.columns))]
        numbers = [number for _, number in each.kernel.numbers]
        span, work = self._span(each, start, stop)
        phases = self._phases(each, span, work) if work >= each.least else ()
        if not phases:
            return [each.run_job(0, [*span, *drawn, *columns], numbers)]
        # Jobs have sums of their own, also on one thread, so that additions have the same order on any number.
        jobs = [job for phase in phases for job in phase]
        sums = [self._zeros(each, columns) for _ in jobs]
        found: list[Sequence[Log]] = [()] * len(jobs)

        def call(at: int) -> None:
            own = sums[at] | self._scratch(number, jobs[at].memory)
            given = [own.get(place, values) for place, values in enumerate(columns)]
            found[at] = each.run_job(at, [*jobs[at].span, *drawn, *given], numbers)

        begin = 0
        for phase in phases:
            calls = [partial(call, at) for at in range(begin, begin + len(phase))]
            stage_jobs.do_all(calls, self._threads if each.is_compiled else 1)
            begin += len(phase)
        for made in sums:
            for place, total in made.items():
                declared = each.kernel.columns[place].access.declared
                assert isinstance(declared, accumulator)
                (np.add if declared.by == "add" else np.maximum)(columns[place], total, out=columns[place])
        return found

    @staticmethod
    def _zeros(each: CompiledStage, columns: Sequence[Any]) -> dict[int, Array]:
        """Return sums of a job, by place of their column."""
        summed = [place for place, column in enumerate(each.kernel.columns) if column.access.is_summed]
        return {place: np.zeros_like(columns[place]) for place in summed}

    def _scratch(self, number: int, memory: int) -> dict[int, Array]:
        """Return the working memory of a job, by place of its column. Number 0 is that of the columns."""
        found: dict[int, Array] = {}
        for place, column in enumerate(self._compiled[number].kernel.columns if memory else ()):
            access = column.access
            if isinstance(access.declared, scratch) and access.type is not None and not column.is_number:
                # By field, as two arguments may be the same context.
                key = number, f"{access.type.name}.{access.name}", memory
                if key not in self._memory:
                    self._memory[key] = np.zeros_like(self._argument(number, place))
                found[place] = self._memory[key] if column.is_written else read_only(self._memory[key])
        return found

    def isolate_failure(self, start: int, stop: int, progress: Progress, error: BaseException) -> tuple[int, int]:
        """Return the range of rows: an error of a stage has no vertex."""
        return start, stop

    def _seed(self, epoch: int, stage: int) -> np.uint64:
        """Return the seed of the random numbers of a stage in a pass."""
        named = f"{self._draws_from}/{epoch}/{stage}".encode()
        return np.uint64(int.from_bytes(hashlib.sha256(named).digest()[:8]))

    def _span(self, each: CompiledStage, start: int, stop: int) -> tuple[list[Any], int]:
        """Return (the first arguments of a kernel, which say what it goes over, the work: edges, or elements)."""
        stage = each.stage
        if isinstance(stage, ExchangeStage):
            csr = self._edges(stage.edge)
            if each.division is Division.BLOCKS and each.file and not each.is_compiled:
                self._find(csr, stage.edge, start, start)  # compiles
            return [start, stop, csr.begins, csr.stops, csr.ends], int(csr.offsets[stop] - csr.offsets[start])
        parts = [self._edges(name) for name in self._reads[describe(stage.over).name]]
        ends = [csr.ends[csr.offsets[start] : csr.offsets[stop]] for csr in parts]
        rows = distinct(ends, len(self._tables[describe(stage.over).name].ids))
        return [rows], len(rows) * each.width

    def _phases(self, each: CompiledStage, span: Sequence[Any], work: int) -> Phases:
        """Return the jobs of a stage; none if it is better done whole."""
        stage = each.stage
        if isinstance(stage, ApplyStage):
            count, _ = stage_jobs.runs_of(work, stage_jobs.least_run(stage))
            return [[StageJob([part], i) for i, part in enumerate(np.array_split(span[0], count))]]
        start, stop, *edges = span
        csr = self._edges(stage.edge)
        if each.division is Division.RUNS:
            count, _ = stage_jobs.runs_of(work, stage_jobs.least_run(stage))
            runs = pairwise(stage_jobs.groups(csr.offsets, start, stop, count))
            return [[StageJob([first, last, *edges], i) for i, (first, last) in enumerate(runs)]]
        if not stage_jobs.is_blocked(work, stop - start)[0]:
            return ()
        borders = self._find(csr, stage.edge, start, stop)
        return () if borders is None else list(stage_jobs.diagonals(start, stop, csr.offsets, csr.ends, borders))

    def _find(self, csr: Csr, edge: str, start: int, stop: int) -> Array | None:
        """Return the borders of blocks of rows [start, stop). None if the ends of a row do not ascend."""
        if edge not in self._borders:
            self._borders[edge] = np.empty((stage_jobs.SIDE + 1, len(csr.begins)), np.int64)
        limits = stage_jobs.limits_of(csr.ends[csr.offsets[start] : csr.offsets[stop]])
        ascend = border_finder()(start, stop, csr.offsets, csr.ends, limits, self._borders[edge])
        return read_only(self._borders[edge]) if ascend else None

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


def distinct(ends: Sequence[Array], rows: int) -> NDArray[np.int64]:
    """Return the distinct numbers below `rows` in integer arrays, in ascending order."""
    if rows > MAX_ROWS_PER_END * sum(map(len, ends)):
        return np.unique(np.concatenate(ends)).astype(np.int64)
    found = np.zeros(rows, np.bool_)
    for each in ends:
        found[each.astype(np.intp)] = True  # numpy converts int32 as well, in twice the time
    return np.flatnonzero(found)


def read_only(values: Array) -> Array:
    """Return an array that is read-only for numba too, so that a kernel has one type, whoever made the array."""
    seen = np.ascontiguousarray(values).view()
    seen.flags.writeable = False
    return seen
