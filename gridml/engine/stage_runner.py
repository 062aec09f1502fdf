"""Runs the stages of a mini-batch over the rows of a chunk, compiled or as plain Python.

The columns of a chunk's tables are the arrays of the kernels; edges are grouped by source, with the row of the end of
each. Vertices of a mini-batch are consecutive rows, in the order of training. `gridml.engine.stage_jobs` says what
threads do at the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
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
from gridml.codegen.stage_code import StageError
from gridml.engine import stage_jobs
from gridml.engine.stage_jobs import Division, StageJob, Waves
from gridml.model.batch import Rows
from gridml.model.chunk import BEFORE, ChunkEdges
from gridml.model.graph import turned
from gridml.model.phases import Stages
from gridml.model.schedule import Progress
from gridml.model.stage_fields import accumulator, scratch
from gridml.model.stages import ApplyStage, ExchangeStage, Part
from gridml.model.vertex import describe

Array = NDArray[Any]
Log = tuple[Array, Array, int]  # elements, changes, number of both
LOG_ENTRIES = 1 << 10  # room of a new log; kernels double it
MERGES = {"add": np.add, "max": np.maximum, "min": np.minimum}  # accumulators of jobs, by `accumulator.by`
MAX_SAMPLED = 1 << 12
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
        fields = {**({} if edges.weight is None else {"weight": edges.weight}), **edges.fields}
        fields = {name: np.ascontiguousarray(values) for name, values in fields.items()}  # one number may stand for all
        offsets = read_only(offsets)
        flags = edges.index.flags
        ends = edges.index.astype(np.int32, copy=not (flags.writeable and flags.c_contiguous))  # one type for numba
        return cls(offsets, offsets[:-1], offsets[1:], ends, fields)

    def turned(self, rows: int) -> Csr:
        """Return the same edges by their ends, of which there are `rows`, with fields that are read-only."""
        from gridml.model.transposed import by_ends  # deferred, because it imports numba, and that scipy

        offsets, sources, moved = by_ends(self.offsets, self.ends, rows, self.fields)
        offsets, fields = read_only(offsets), {name: read_only(values) for name, values in moved.items()}
        return Csr(offsets, offsets[:-1], offsets[1:], sources, fields)


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
    push: CompiledStage | None = None  #: the same from the sources' side, for few of them; None: it is not the same
    is_push: bool = False  #: it is such a one

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

    @cache
    def read(stage: ExchangeStage | ApplyStage, pushes: bool) -> tuple[Kernel, Callable[..., Any], str]:
        """Return a stage's kernel. A stage that stands in the list several times is read once."""
        kernel = kernel_of(stage, exact=exact, holds=holds, pushes=pushes)
        if plain:
            return kernel, interpreted(stage, kernel, holds=holds), ""
        module = module_of(kernel.text, stage.name)
        return kernel, module.kernel, str(module.__file__)

    made = []
    for stage in stages:
        made.append(CompiledStage(stage, *read(stage, False)))
        if not plain and stage_jobs.may_push(stage, made[-1].kernel)[0]:
            made[-1].push = CompiledStage(stage, *read(stage, True), is_push=True)
    for each, (division, _) in zip(made, stage_jobs.divisions([(m.stage, m.kernel) for m in made]), strict=True):
        each.division = division
    return made


def stages_of(stages: Stages, *, plain: bool = False, holds: bool = False) -> list[CompiledStage]:
    """Return the stages of a mini-batch that workers run, those of all phases, as `compiled_stages` does."""
    on_workers = [each for phase in stages.phases for each in phase.on_workers]
    made = compiled_stages(on_workers, exact=stages.mini_batch.exact, plain=plain, holds=holds)
    for phase in range(len(stages.phases) if stages.has_phases else 0):
        _check_sums([made[number] for number in stages.numbers(phase)])
    return made


def _check_sums(phase: Sequence[CompiledStage]) -> None:
    """Raise StageError for an accumulator of local vertices that is not filled in the phase in which it is read."""
    filled: set[str] = set()
    for each in phase:
        used = [column.access for column in each.kernel.columns if isinstance(column.access.declared, accumulator)]
        own = {f"{access.type.name}.{access.name}" for access in used if access.type and not access.travels}
        if isinstance(each.stage, ExchangeStage):
            filled |= own
        elif lacks := own - filled:
            raise StageError(
                f"{each.stage.name} reads {', '.join(sorted(lacks))}, and nothing has added to it since all parts "
                f"waited for one another, where accumulators of local vertices begin again; put {each.stage.name} "
                f"right behind the exchange that adds to it."
            )


@final
class StageRunner:
    """Runs the stages of a `phase`, or of all, on rows of one chunk, whose `tables` are given by name, on up to
    `threads` threads."""

    def __init__(
        self,
        stages: Stages,
        compiled: list[CompiledStage],
        tables: Mapping[str, Any],
        threads: int = 1,
        phase: int | None = None,
    ) -> None:
        self._compiled = compiled
        self._numbers = stages.numbers(phase)
        self._threads = threads
        self._tables: Mapping[str, Rows] = tables
        self._draws_from = stages.mini_batch.seed
        self._over = stages.driver
        self._driving = tables[stages.driver.__name__]
        self._csr: dict[str, Csr] = {}  # by edge field
        self._borders: dict[str, Array] = {}  # by edge field: those of `border_finder`
        # By number of the stage: the last rows that it went over, what its kernel takes for these, and its jobs.
        self._last: dict[int, tuple[tuple[int, int], list[Any], Waves]] = {}
        self._own: tuple[int, Array] | None = None  # the first of the rows that an apply went over, and all of them
        self._are_all: dict[str, bool] = {}  # by table of neighbours: whether its rows are those of the driving type
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
        for (type_name, name), values in self._workspace.items():
            declared = self._driving.vertex_type.workspace.get(name) if type_name == self._over.__name__ else None
            if isinstance(declared, accumulator):  # of local vertices: complete within the mini-batch
                reset = partial(_fill, values[start:stop], declared.first)
                stage_jobs.over_rows(reset, stop - start, self._threads)
        made = []
        for number in self._numbers:
            each, found = self._compiled[number], self._do(number, start, stop, progress)
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
        if each.push is not None and self._has_all_edges(each, start, stop):
            each, waves, columns = each.push, *self._pushing(each, columns)
        else:
            if (last := self._last.get(number)) is None or last[0] != (start, stop):
                span, work = self._span(each, start, stop)
                last = (start, stop), span, self._waves(each, span, work) if work >= each.least else ()
                self._last[number] = last
            _, span, waves = last
        if not waves:
            return [each.run_job(0, [*span, *drawn, *columns], numbers)]
        jobs = [job for wave in waves for job in wave]
        if self._threads > 1 and each.file and not each.is_compiled:  # compiles, for no row, before threads begin
            each.run_job(0, [*_nothing(jobs[0].span), *drawn, *columns], numbers)
        # Jobs have sums of their own, also on one thread, so that additions have the same order on any number.
        sums = [self._sums(each, number, columns, at) for at in range(len(jobs))]
        found: list[Sequence[Log]] = [()] * len(jobs)

        def call(at: int) -> None:
            own = sums[at] | self._scratch(number, jobs[at].memory)
            given = [own.get(place, values) for place, values in enumerate(columns)]
            found[at] = each.run_job(at, [*jobs[at].span, *drawn, *given], numbers)

        begin = 0
        for wave in waves:
            calls = [partial(call, at) for at in range(begin, begin + len(wave))]
            stage_jobs.do_all(calls, self._threads if each.file else 1)
            begin += len(wave)
        for made in sums:
            for place, total in made.items():
                declared = each.kernel.columns[place].access.declared
                assert isinstance(declared, accumulator)
                merge = partial(_merge, MERGES[declared.by], columns[place], total)
                stage_jobs.over_rows(merge, len(total), self._threads)
        return found

    def _has_all_edges(self, each: CompiledStage, start: int, stop: int) -> bool:
        """Return whether all edges from and to the rows [start, stop) are here, and the rows that they come from are
        these, as the last pass left them."""
        assert isinstance(each.stage, ExchangeStage)
        ids, edges = self._driving.ids, self._driving.edges.get(each.stage.edge)
        if start or stop != len(ids) or edges is None:
            return False
        if edges.target not in self._are_all:
            self._are_all[edges.target] = np.array_equal(self._tables[edges.target].ids, ids)
        return self._are_all[edges.target]

    def _pushing(self, each: CompiledStage, columns: Sequence[Any]) -> tuple[Waves, list[Any]]:
        """Return (the jobs of a stage from the sources' side, the arguments of its kernel)."""
        stage = each.stage
        assert isinstance(stage, ExchangeStage) and stage.when is not None
        active = np.flatnonzero(self._tables[stage.over.__name__ + BEFORE].fields[stage.when])
        csr, pieces = self._edges(stage.edge), [active]
        if self._threads > 1:
            step = 1 + len(active) // MAX_SAMPLED  # so many of the active rows say where they are parted
            sample = active[::step]
            edges = np.concatenate([[0], np.cumsum((csr.stops[sample] - csr.begins[sample]) * step)])
            least, rows = stage_jobs.least_run(stage), len(csr.begins)
            count, _ = stage_jobs.pushing_runs(int(edges[-1]), rows, least, self._threads)
            borders = [at * step for at in stage_jobs.groups(edges, 0, len(sample), count)]
            pieces = [active[first:last] for first, last in pairwise([*borders[:-1], len(active)])]
        jobs = [StageJob([piece, csr.begins, csr.stops, csr.ends], i) for i, piece in enumerate(pieces)]
        of_edges = {i for i, column in enumerate(each.kernel.columns) if column.access.type is None}
        names = [column.access.name for column in each.kernel.columns]
        return [jobs], [read_only(csr.fields[names[i]]) if i in of_edges else v for i, v in enumerate(columns)]

    def _sums(self, each: CompiledStage, number: int, columns: Sequence[Any], job: int) -> dict[int, Array]:
        """Return accumulators of a job, by place of their column: those of contexts and, from the sources' side, where
        several may lead to one vertex, of ends, but for the first job."""
        found = {}
        for place, column in enumerate(each.kernel.columns):
            access, declared = column.access, column.access.declared
            if access.is_summed or (each.is_push and job and column.is_written):
                assert isinstance(declared, accumulator)
                key = number, f"{access} of {place}", job
                if key not in self._memory:  # new pages would take longer than what is done with them
                    self._memory[key] = np.empty_like(columns[place])
                found[place] = self._memory[key]
                stage_jobs.over_rows(partial(_fill, found[place], declared.first), len(found[place]), self._threads)
        return found

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
            csr = self._edges(stage.walked)
            if stage.is_backward:  # the chunk has the edges of its mini-batch, and no other
                start, stop = 0, len(csr.begins)
            if each.division is Division.BLOCKS and each.file and not each.is_compiled:
                self._find(csr, stage.walked, start, start)  # compiles
            return [start, stop, csr.begins, csr.stops, csr.ends], int(csr.offsets[stop] - csr.offsets[start])
        if stage.over is self._over:
            if self._own is None or (self._own[0], len(self._own[1])) != (start, stop - start):
                self._own = start, np.arange(start, stop)
            return [self._own[1]], (stop - start) * each.width
        parts = [self._edges(name) for name in self._reads[describe(stage.over).name]]
        ends = [csr.ends[csr.offsets[start] : csr.offsets[stop]] for csr in parts]
        rows = distinct(ends, len(self._tables[describe(stage.over).name].ids))
        return [rows], len(rows) * each.width

    def _waves(self, each: CompiledStage, span: Sequence[Any], work: int) -> Waves:
        """Return the jobs of a stage; none if it is better done whole."""
        stage = each.stage
        if isinstance(stage, ApplyStage):
            count, _ = stage_jobs.runs_of(work, stage_jobs.least_run(stage))
            return [[StageJob([part], i) for i, part in enumerate(np.array_split(span[0], count))]]
        start, stop, *edges = span
        csr = self._edges(stage.walked)
        if each.division is Division.RUNS:
            count, _ = stage_jobs.runs_of(work, stage_jobs.least_run(stage))
            runs = pairwise(stage_jobs.groups(csr.offsets, start, stop, count))
            return [[StageJob([first, last, *edges], i) for i, (first, last) in enumerate(runs)]]
        if not stage_jobs.is_blocked(work, stop - start)[0]:
            return ()
        borders = self._find(csr, stage.walked, start, stop)
        return () if borders is None else list(stage_jobs.diagonals(start, stop, csr.offsets, csr.ends, borders))

    def _find(self, csr: Csr, edge: str, start: int, stop: int) -> Array | None:
        """Return the borders of blocks of rows [start, stop). None if the ends of a row do not ascend."""
        if edge not in self._borders:
            self._borders[edge] = np.empty((stage_jobs.SIDE + 1, len(csr.begins)), np.int64)
        limits = stage_jobs.limits_of(csr.ends[csr.offsets[start] : csr.offsets[stop]])
        found: list[bool] = []

        def find(first: int, last: int) -> None:
            found.append(border_finder()(first, last, csr.offsets, csr.ends, limits, self._borders[edge]))

        parts = stage_jobs.groups(csr.offsets, start, stop, self._threads)
        stage_jobs.do_all([partial(find, first, last) for first, last in pairwise(parts)], self._threads)
        return read_only(self._borders[edge]) if all(found) else None

    def _edges(self, name: str) -> Csr:
        if name not in self._csr:
            edges = self._driving.edges.get(name)
            if edges is None:  # of a replicated type, whose rows differ from chunk to chunk
                declared = next(each for each in self._driving.edges if turned(each) == name)
                ahead = self._edges(declared)
                self._csr[name] = ahead.turned(len(self._tables[self._driving.edges[declared].target].ids))
            else:
                self._csr[name] = Csr.of(edges, len(self._driving.ids))
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
            return self._edges(each.stage.walked).fields[access.name]
        values = self._values(column)
        return values[0] if access.argument.part is Part.CONTEXT and access.declared.shape else values

    def _values(self, column: Column) -> Array:
        """Return the field of a vertex, of all rows here."""
        access = column.access
        assert access.type is not None
        table = self._tables[access.type.name + BEFORE * access.before]
        if access.travels:
            return table.fields[access.name]
        key, declared = (access.type.name, access.name), access.declared
        if key not in self._workspace:
            first = declared.first if isinstance(declared, accumulator) else 0
            self._workspace[key] = np.full((len(table.ids), *declared.shape), first, declared.dtype)
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


def _nothing(span: Sequence[Any]) -> list[Any]:
    """Return the first arguments of a kernel for none of the rows of a job's."""
    first = span[0]
    return [first[:0], *span[1:]] if isinstance(first, np.ndarray) else [first, first, *span[2:]]


def _fill(values: Array, number: float, rows: slice) -> None:
    values[rows] = number


def _merge(merge: np.ufunc, into: Array, found: Array, rows: slice) -> None:
    merge(into[rows], found[rows], out=into[rows])
