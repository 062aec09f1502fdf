"""`gridml.compute`: a program of stages in this process, without master and workers, as fast as the stages are."""

from __future__ import annotations

import inspect
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gridml.api.handle import restored_process_state, user_traceback_shown
from gridml.engine.stage_jobs import MAX_RUNS, over_rows, threads_of
from gridml.engine.stage_runner import StageRunner, distinct, stages_of
from gridml.errors import NotFiniteError, ProgramError, UsageError
from gridml.model.batch import Rows
from gridml.model.chunk import BEFORE, ChunkEdges
from gridml.model.graph import Graph
from gridml.model.loading import check_guarded
from gridml.model.loading import load as load_program
from gridml.model.order import EpochOrder
from gridml.model.phases import Stages
from gridml.model.program import Metrics, Program
from gridml.model.schedule import Progress
from gridml.model.stages import ApplyStage, GlobalSync
from gridml.model.ticks import Ticks
from gridml.model.vertex import describe
from master.evaluation.metrics import evaluate, sampled
from master.leases.epochs import drawn
from master.store.settings import check_seed
from master.store.spec import shuffle_of
from master.store.versions import ReplicaState, initial
from master.sync.owner_work import OwnerWork, totals_of

Array = NDArray[Any]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class ComputedPass:
    """One pass over the graph, of `gridml.compute`."""

    number: int  #: from 1 on
    totals: Mapping[str, float]  #: accumulators of contexts that are one number, as the pass left them: "Shared.moved"
    wall_s: float  #: seconds


@dataclass(frozen=True)
class Computed:
    """The result of `gridml.compute`."""

    arrays: dict[str, Array]  #: as `gridml.load` returns them: "Page.rank" (vertices, *shape), "Shared.moved" (1,)
    passes: int
    ended_by: str | None  #: the `global_sync` that returned True; None if the program's passes were done
    totals: Mapping[str, float]  #: those of the last pass
    metrics: Metrics  #: of evaluate, after the last pass; empty without one
    #: (vertices that evaluate took, all vertices) by argument, where it takes a `gridml.sample`
    sampled: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def compute(
    program: Program | str | os.PathLike[str],
    *,
    threads: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    progress: Callable[[ComputedPass], None] | None = None,
) -> Computed:
    """Run a program of stages to its end in this process, and return what it computes.

        ranks = gridml.compute("pagerank.py").arrays["Page.rank"]  # (pages,)

    No master, no worker and no file takes part, nothing is saved, and the graph stays in memory. `threads` is by
    default OMP_NUM_THREADS, or else the number of cores, at most 16; it does not change the result. `epochs` takes the
    place of the program's number of passes, and `seed` is that of the order of vertices, as in `gridml.run`. `progress`
    is called after each pass. evaluate is called once, at the end.

    A program whose vertices are linked with one another ends with the bits of a run with parts=1. Where mini-batches
    have parts, the t-th ones of all parts are one, so that sums are those of a run up to rounding. Fields that stages
    change in place in a replicated type are those of one worker.

    Raises ProgramError for a program with f, with early_stopping or with values that are not finite, StageError for
    what cannot be compiled, NotFiniteError if a stage makes NaN or infinity of a finite value, UserCodeError if graph,
    a global_sync or evaluate fails, and UsageError for wrong arguments.
    """
    check_guarded("gridml.compute")
    count, _ = threads_of(os.environ.get("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0)))))
    threads = count if threads is None else threads
    for name, number in (("threads", threads), ("epochs", epochs)):
        if number is not None and (type(number) is not int or number < 1):
            raise UsageError(f"gridml.compute got {name}={number!r}; expected a whole number from 1 on.")
    check_seed(seed)
    with user_traceback_shown(), restored_process_state():
        if isinstance(program, Program):
            program.check()
            file = Path(inspect.getfile(program.shape.function))
        else:
            file = Path(program)
            program = load_program(file)
        return _Computation(program, program.build(file), min(threads, MAX_RUNS), seed).run(epochs, progress, file)


class _Rows(NamedTuple):
    """All rows of the driving type in the order of a pass, with edges."""

    driving: Rows
    runners: Sequence[StageRunner]  #: by phase

    def touched(self, start: int, stop: int, state: ReplicaState) -> dict[str, Ids]:
        """Return the replicated vertices, by type, to which edges of some rows lead."""
        ends: dict[str, list[Ids]] = {}
        for edges in self.driving.edges.values():
            if edges.target in state.arrays:
                ends.setdefault(edges.target, []).append(edges.index[edges.span(start, stop)])
        return {name: distinct(each, len(state.changed[name])) for name, each in ends.items()}


class _Order(NamedTuple):
    """The order of a pass."""

    order: Ids | None  #: int64 (vertices,) by row; None: rows are the graph's columns themselves
    fields: Mapping[str, Array]  #: (vertices, *shape) of the driving type, in this order
    spans: Sequence[tuple[int, int]]  #: the rows of each mini-batch
    whole: _Rows | None  #: None if mini-batches are vertices of a replicated type, each with edges of its own


@final
class _Computation:
    """A program and its graph, whose columns it changes in place."""

    def __init__(self, program: Program, graph: Graph, threads: int, seed: int) -> None:
        shape = program.shape
        if not isinstance(shape, Stages):
            raise ProgramError(
                f"gridml.compute runs compiled stages, and the program has {shape.function.__name__}, an f; expected "
                f"a MiniBatch of stages, or use gridml.run."
            )
        if program.early_stopping is not None:
            raise ProgramError(
                "gridml.compute evaluates once, at the end, and the program has early_stopping; leave it out and let a "
                "global_sync return True, or use gridml.run."
            )
        self._program, self._shape, self._threads, self._seed = program, shape, threads, seed
        self._graph = Graph()  # the user's own, and its arrays, stay as they are
        self._graph.tables = {n: replace(t, columns={**t.columns}, edges={**t.edges}) for n, t in graph.tables.items()}
        self._table = self._graph.tables[program.driving(graph)]
        _check_given(graph)
        for name, column in graph.mutable_columns().items():
            self._graph.replace_column(name, column.copy())
        self._state = initial(graph, seed)
        self._owner = OwnerWork.of(program)
        self._compiled = stages_of(shape)
        self._shuffle, self._division = shuffle_of(program, graph), program.division(graph)
        #: mini-batches are drawn from a replicated type
        self._draws = shape.drawn is not None and self._division is not None and self._division.blocks > 1
        used = {c.access.name for each in self._compiled for c in each.kernel.columns if c.access.before}
        columns = self._table.columns
        #: the columns that stages read across edges between local vertices: copies of those that change
        self._before = {n: columns[n].copy() if n in self._table.type.mutable else columns[n] for n in sorted(used)}
        self._made: _Order | None = None  # of the last pass
        #: by field in which not all elements are finite: those that were after the last pass
        self._finite: dict[str, Array] = {}

    def run(self, epochs: int | None, progress: Callable[[ComputedPass], None] | None, file: Path) -> Computed:
        """Do all passes."""
        passes = epochs or self._program.epochs
        totals: Mapping[str, float] = {}
        enough: list[str] = []
        number = 0
        self._check(number)
        while number < passes and not enough:
            began_s = time.perf_counter()
            enough, within = self._pass(Progress(epoch=number, share=number / passes))
            ended = self._owner.end_pass(self._graph.tables, self._state)
            ended.put(self._state)
            totals, number = {**ended.totals, **within}, number + 1
            enough += ended.enough
            self._check(number)
            if progress is not None:
                progress(ComputedPass(number, totals, time.perf_counter() - began_s))
        if epochs is None and not enough and (why := self._program.not_ended(number)) is not None:
            warnings.warn(
                f"{file.name}: {why}: what it waits for was not reached. Give gridml.Program more epochs.", stacklevel=3
            )
        arrays = {name.replace("/", "."): values for name, values in self._state.tensors()}
        arrays |= {name.replace(":", "."): column for name, column in self._graph.mutable_columns().items()}
        arrays |= {f"{name}.ids": table.ids for name, table in self._graph.tables.items() if table.ids is not None}
        metrics = evaluate(self._program, self._graph, self._state, file)
        of = sampled(self._program, self._graph)
        return Computed(arrays, number, " and ".join(enough) or None, totals, metrics, of)

    def _pass(self, progress: Progress) -> tuple[list[str], dict[str, float]]:
        """Do the mini-batches of a pass. Return (the functions among their stages that end the run, the totals that
        these functions found last)."""
        enough: dict[str, None] = {}
        totals: dict[str, float] = {}
        if self._made is None or self._shuffle != "none":
            self._made = self._order(progress.epoch)
        order, fields, spans, whole = self._made
        for number, (start, stop) in enumerate(spans):
            rows = whole or self._rows(order, fields, self._drawn(progress.epoch, number))
            for phase, runner in enumerate(rows.runners):
                if not number:  # each phase of a program whose vertices are linked is a superstep
                    self._look_back(order, fields)
                runner.run(start, stop, progress)
                if at_owner := self._shape.phases[phase].at_owner:
                    contexts = [each.context for each in at_owner if isinstance(each, GlobalSync)]
                    totals |= totals_of(contexts, self._state)
                    applies = any(isinstance(each, ApplyStage) for each in at_owner)
                    touched = rows.touched(start, stop, self._state) if applies else {}
                    ended = self._owner.end_tick(phase, touched, self._state)
                    ended.put(self._state)  # in the arrays that stages hold
                    enough |= dict.fromkeys(ended.enough)
        if order is not None:
            for name in self._table.type.mutable:
                self._table.columns[name][order] = fields[name]
            for name, edges in ({} if whole is None else whole.driving.edges).items():
                for each in self._table.type.mutable_of_edge(name):
                    self._table.edges[name].fields[each][edges.places] = edges.fields[each]
        return [*enough], totals

    def _look_back(self, order: Ids | None, fields: Mapping[str, Array]) -> None:
        """Copy what stages read across edges between local vertices, as it is now: `fields`, in the `order` of a
        pass."""
        for name, values in self._before.items():
            if name in self._table.type.mutable:
                now = fields[name]
                if order is None:
                    over_rows(partial(_copy, now, values), len(values), self._threads)
                else:
                    values[order] = now

    def _order(self, epoch: int) -> _Order:
        """Return the order of a pass."""
        count, columns = self._table.count, self._table.columns
        drawn_order = EpochOrder(count, self._seed, epoch, self._shuffle).vertices(0, count)
        order, spans = _mini_batches(self._division, drawn_order, self._shape.batch or count)
        own = None if (order == np.arange(count)).all() else order
        fields = columns if own is None else {name: each[own] for name, each in columns.items()}
        return _Order(own, fields, spans, None if self._draws else self._rows(own, fields))

    def _drawn(self, epoch: int, block: int) -> tuple[str, Array]:
        """Return the replicated type of whose vertices mini-batches are, and a mask (count,) of those of one."""
        assert self._shape.drawn is not None and self._division is not None
        name = self._shape.drawn.__name__
        shuffles, blocks = self._program.shuffle != "none", self._division.blocks
        return name, drawn(self._graph.tables[name].count, self._seed, epoch, block, blocks, shuffles=shuffles)

    def _rows(self, order: Ids | None, fields: Mapping[str, Array], only: tuple[str, Array] | None = None) -> _Rows:
        """Return all rows of a pass, in this order, with edges; of those to the type in `only`, which lead to its
        vertices."""
        table, ids, types = self._table, np.arange(self._table.count), self._graph.tables
        driving = Rows(table.type, ids if order is None else order, fields, frozenset(table.type.mutable), torch=False)
        tables = {
            name: Rows(types[name].type, np.arange(types[name].count), columns, frozenset(columns), torch=False)
            for name, columns in self._state.arrays.items()
        }
        before = Rows(table.type, ids, self._before, frozenset(), torch=False, before=True)
        tables |= {table.type.name: driving, table.type.name + BEFORE: before}
        for name, edges in table.edges.items():
            target = describe(table.type.target(name))
            key = target.name if target.replicated else target.name + BEFORE
            if key not in tables:
                continue  # edges to another local type, which stages do not walk
            places: Ids | None = None
            if edges.constant is not None:
                driving.edges[name] = ChunkEdges(key, np.broadcast_to(np.int64(edges.constant), ids.shape))
                continue
            if order is not None:
                places, edges = edges.places(order), edges.take(order)
            if only is not None and key == only[0]:
                edges = edges.only(only[1])
            driving.edges[name] = ChunkEdges(
                key, edges.targets, edges.offsets, edges.degree, edges.weight, edges.fields, places
            )
        phases = range(len(self._shape.phases))
        return _Rows(driving, [StageRunner(self._shape, self._compiled, tables, self._threads, p) for p in phases])

    def _check(self, number: int) -> None:
        """Raise NotFiniteError if pass `number` made NaN or infinity of a finite value. With 0, note where there is
        infinity from the beginning."""
        trained = {name.replace("/", "."): values for name, values in self._state.tensors()}
        for name, values in {**trained, **self._graph.mutable_columns()}.items():
            if values.dtype.kind != "f":
                continue
            if name not in self._finite:
                found: list[bool] = []
                over_rows(partial(_look, values, found), len(values), self._threads)
                if all(found):
                    continue
            # What was infinite before, such as the distance of a vertex that was not reached yet, may stay so.
            finite, before = np.empty(values.shape, np.bool_), self._finite.get(name)
            before = np.ones(values.shape, np.bool_) if before is None else before
            made: list[bool] = []
            over_rows(partial(_compare, values, before, finite, made), len(values), self._threads)
            if number and any(made):
                at = int(np.flatnonzero((before > finite).reshape(len(finite), -1).any(1))[0])
                raise NotFiniteError(
                    f"{name} of vertex {at:,} is {values[at]} after pass {number}, and was finite before. Check what "
                    f"stages divide by, or lower the rate."
                )
            self._finite[name] = finite


def _copy(values: Array, to: Array, rows: slice) -> None:
    np.copyto(to[rows], values[rows])


def _look(values: Array, found: list[bool], rows: slice) -> None:
    """Note whether all `rows` are finite, or False if their sum overflows."""
    with np.errstate(all="ignore"):
        # A finite sum has no other terms, and takes a third of the time of a look at each.
        found.append(bool(np.isfinite(values[rows].sum())))


def _compare(values: Array, before: Array, finite: Array, made: list[bool], rows: slice) -> None:
    """Find which of `rows` are finite, and note whether any were `before` and are not now."""
    np.isfinite(values[rows], out=finite[rows])
    made.append(bool((before[rows] > finite[rows]).any()))


def _mini_batches(division: Ticks | None, order: Ids, size: int) -> tuple[Ids, list[tuple[int, int]]]:
    """Return (the vertices of a pass in the order of mini-batches, the rows of each). The t-th mini-batches of all
    parts are one."""
    if division is None:
        return order, list(pairwise([*range(0, len(order), size), len(order)]))
    count = division.count // (division.phases * division.blocks)
    ends = replace(division, count=count, phases=1, blocks=1).mini_batches(order).ends
    pieces = np.split(order, ends[:-1])
    in_turn = [piece for tick in range(count) for piece in pieces[tick::count]]
    lengths = np.array([len(piece) for piece in in_turn]).reshape(count, -1).sum(1)
    spans = list(pairwise([0, *np.cumsum(lengths).tolist()]))
    return np.concatenate(in_turn), spans * division.blocks


def _check_given(graph: Graph) -> None:
    """Raise ProgramError for values with which no stage can begin: NaN, or infinity where no stage changes it."""
    mutable = graph.mutable_columns()
    for table in graph.tables.values():
        columns = {f"{table.type.name}.{name}": column for name, column in table.columns.items()}
        for name, edges in table.edges.items():
            weight = {} if edges.weight is None else {"weight": edges.weight}
            columns |= {f"{table.type.name}:{name}.{each}": v for each, v in {**weight, **edges.fields}.items()}
        for name, values in columns.items():
            if values.dtype.kind != "f":
                continue
            wrong = np.isnan(values) if name in mutable else ~np.isfinite(values)
            if wrong.any():
                at = int(np.flatnonzero(wrong.reshape(len(wrong), -1).any(1))[0])
                raise ProgramError(
                    f"{name.replace(':', '.')} has NaN or infinity in {int(wrong.sum()):,} of {wrong.size:,} numbers, "
                    f"first at {at:,}; give finite values. Infinity may stand in mutable fields only."
                )
