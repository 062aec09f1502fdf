"""Trial of a program on this machine: runs every part of the program once, in the way that a run would.

The first failure raises the same GridmlError that would end a run, with the user's own traceback if their code failed.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import ByName, Merge
from gridml.aggregates.base import same_bits
from gridml.engine.devices import Device, find_device, raising_device_errors
from gridml.engine.engine import Engine
from gridml.engine.modules import Trainable
from gridml.engine.pace import MAX_BATCH_PARTS, next_batch, used_settings
from gridml.engine.update_runner import BatchFailed
from gridml.errors import NotFiniteError, ProgramError, UserCodeError
from gridml.model.chunk import ChunkTable
from gridml.model.device_memory import AUTO, CPU, parse
from gridml.model.graph import Edges, Graph
from gridml.model.loading import load
from gridml.model.own_imports import conflicting_names
from gridml.model.own_modules import folder_of, own_files
from gridml.model.phases import Stages
from gridml.model.program import Metrics, Program, user_traceback
from gridml.model.schedule import Progress
from gridml.protocol.foreign import described
from gridml.protocol.push import Fields, ReplicaPart
from master.evaluation.metrics import ADVICE, evaluate, first_chunk, sampled, sampled_text, start_engine
from master.planning.program_warnings import (
    dominant_component,
    ignored_weight_writes,
    nonfinite_fields,
    unfollowed_edges,
    unsummed_counters,
    untrained_buffers,
    untrained_parameters,
)
from master.planning.read_sums import TrialBatch, reads_sums
from master.store.replica import Replica
from master.store.settings import check_placement
from master.store.versions import ReplicaState, Versions, initial
from master.sync.merger import Merger
from master.sync.owner_work import OwnerWork
from master.telemetry.loggers.base import LOGGERS

MAX_PLAIN_EDGES = 2_000  # edges that stages look at as plain Python: a second or two
MAX_BATCH_VERTICES = 2_000  # larger batches are cut to this size for the trial


@dataclass(frozen=True)
class Trial:
    """Result of a trial. The field names are those of `gridml check --json`."""

    vertices: dict[str, int]  #: number of vertices by type
    tensors: int  #: tensors and fields of the replica
    replica_bytes: int
    batch: int  #: vertices of the second batch
    batch_s: float  #: seconds that f took on the second batch; the first one warms up
    moved: tuple[str, ...]  #: tensors and fields that f changed
    metrics: Metrics  #: result of evaluate
    odd: tuple[str, ...]  #: warnings
    device: str = CPU  #: device that f ran on
    settings: tuple[str, ...] = ()  #: batch and learning rates, as (text for one worker, text for several workers)
    evaluated_on: str = ""  #: of how many vertices the metrics are, if evaluate takes a sample
    ticks: str = ""  #: what a pass is, if workers wait for one another within it

    def to_json(self) -> dict[str, Any]:
        """Return all fields by name."""
        return asdict(self)


def try_out(file: Path, seed: int = 0, device: str = AUTO) -> Trial:
    """Load a program, build its graph and replica, run f on two batches, merge the result as if another worker had
    pushed before, and evaluate the merged replica.

    f runs on `device`, as in `gridml run --device`. If vertices are not connected, f also runs on a batch of the size
    of an epoch's last batch. Raises GridmlError for the first error.
    """
    asked = parse(device)
    program = load(file)
    place, _ = find_device(asked) if program.uses_torch else (Device(), "")
    for name in program.loggers:
        LOGGERS.find(name).check()
    check_placement(f"the placement of {file}", program.placement, ProgramError)
    graph = program.build(file)
    driver = program.driving(graph)
    state = initial(graph, seed)
    size, batch_s = min(program.shape.batch or 1, MAX_BATCH_VERTICES), 0.0
    _run_plain(program, graph, seed, driver, file)
    chunk = first_chunk(program, graph, 2 * size)
    if isinstance(program.shape, Stages):
        chunk = replace(chunk, phase=0)
    with raising_device_errors(place):
        engine, start = start_engine(program, chunk, state, place, trial=True)
    trainable: list[Trainable] = []
    # Two batches: only the second is timed, because the first has start-up costs; and only a buffer that grows in both
    # looks like a counter.
    ends = [0, *islice(_ends(engine, size, chunk.count), 2)]
    counters = [untrained_buffers(program.types(), engine.module_values())]
    for first, stop in pairwise(ends):
        began = time.perf_counter()
        _train(engine, first, stop, program.factor(engine.at), driver, file)
        batch_s = time.perf_counter() - began
        trainable += engine.trainable()
        counters.append(untrained_buffers(program.types(), engine.module_values()))
    last = _last_size(program, graph.tables[driver].count, size)
    odd = [*_shadowed_modules(file), *_unmatched_patterns(graph, state), *nonfinite_fields(graph)]
    odd += _last_batch(engine, last, program.factor(Progress(share=1.0)), driver, file)
    odd += [
        *_discarded_writes(engine, graph),
        *ignored_weight_writes(engine),
        *unfollowed_edges(program, graph, engine.followed),
        *dominant_component(program, graph, driver),
        *unsummed_counters(program.types(), counters, [stop - first for first, stop in pairwise(ends)]),
    ]
    with raising_device_errors(place):
        part = engine.wire(engine.snapshot())
    fields = engine.changed_fields(0, chunk.count)
    try:
        moved = (*_moved(part, start), *_changed(fields, graph))
    except NotFiniteError as error:
        raise NotFiniteError(" ".join([str(error), *islice(nonfinite_fields(graph), 1)])) from None
    odd += reads_sums(TrialBatch(file, program, graph, chunk, ends[1], state, place), part)
    chooses = isinstance(program.shape, Stages) and any(each.when for each in program.shape.exchanges)
    if not moved and not chooses and not any(each.asked for each in trainable):
        odd.append("f changed nothing that is replicated, and no field of its own vertices")
    odd += untrained_parameters(trainable, moved)
    own = [each.type.name for each in graph.replicated if each.type.has_own_rule]
    before = {name: _tensors(state, name) for name in own}
    merged = _merged(graph, state, part, ends[-1])
    odd += [
        f"{name}.aggregate left its vertex unchanged: it must change self, because its return value is ignored"
        for name in own
        if any(each.startswith((f"{name}/", f"{name}.")) for each in moved)
        and all(map(same_bits, before[name], _tensors(merged, name)))
    ]
    work = OwnerWork.of(program)
    if isinstance(program.shape, Stages):
        merged = _later_phases(engine, graph, merged, work, driver, file)
        fields = engine.changed_fields(0, chunk.count)
    if program.ends_passes:
        work.end_pass({t.type.name: t for t in graph.replicated}, merged).put(merged)
    seen = graph if program.evaluate is None else _with(graph, fields)  # a copy of all that f may change
    metrics = _evaluated(program, seen, merged, file)
    return Trial(
        {table.type.name: table.count for table in graph.tables.values()},
        sum(1 for _ in state.tensors()),
        state.nbytes,
        ends[-1] - ends[-2],
        batch_s,
        moved,
        metrics,
        tuple(odd),
        place.name,
        _settings(program, graph),
        sampled_text(sampled(program, graph)),
        _ticks(program, graph),
    )


def _ticks(program: Program, graph: Graph) -> str:
    """Say what a pass is, if workers wait for one another within it; "" otherwise."""
    ticks, drawn = program.division(graph), program.shape.drawn
    if ticks is None or not program.consistency.waits:
        return ""
    return ticks.in_words(program.consistency.slack, None if drawn is None else drawn.__name__)


def _later_phases(
    engine: Engine, graph: Graph, state: ReplicaState, work: OwnerWork, driver: str, file: Path
) -> ReplicaState:
    """Do what follows the first phase of a mini-batch, whose push is merged in `state`. Return the replica after it."""
    shape, chunk = engine.program.shape, engine.chunk
    assert isinstance(shape, Stages) and chunk is not None
    for number, phase in enumerate(shape.phases):
        if number:
            engine.begin(replace(chunk, phase=number))
            engine.restart(state.part(chunk.touched()))
            _train(engine, 0, chunk.count, 1.0, driver, file)
            state = _merged(graph, state, engine.wire(engine.snapshot()), chunk.count)
        if phase.at_owner:
            work.end_tick(number, chunk.touched(), state).put(state)
    return state


def _run_plain(program: Program, graph: Graph, seed: int, driver: str, file: Path) -> None:
    """Run stages as plain Python on a few vertices, which finds an index out of range, that compiled code does not
    notice, and is easier to read. Raises UserCodeError with the user's lines. Does nothing for a program with f."""
    if not isinstance(program.shape, Stages):
        return
    edges = graph.tables[driver].edges.values()
    degree = sum(_ends_in(each) for each in edges) / max(1, graph.tables[driver].count)
    count = max(1, min(program.shape.batch or 1, int(MAX_PLAIN_EDGES / max(1.0, degree))))
    chunk, state = first_chunk(program, graph, count), initial(graph, seed)
    engine, work = Engine(program, plain=True), OwnerWork.of(program, plain=True)
    tables = {name: _copied(table) for name, table in chunk.tables.items()}
    engine.begin(replace(chunk, tables=tables, phase=0))
    engine.restart(state.part(chunk.touched()))
    _train(engine, 0, chunk.count, 1.0, driver, file)
    with contextlib.suppress(NotFiniteError):  # said of the compiled stages, with the data that it may come from
        state = _merged(graph, state, engine.wire(engine.snapshot()), chunk.count)
        _later_phases(engine, graph, state, work, driver, file)


def _ends_in(edges: Edges) -> int:
    return edges.count * edges.degree if edges.offsets is None else len(edges.targets)


def _copied(table: ChunkTable) -> ChunkTable:
    return replace(table, fields={name: column.copy() for name, column in table.fields.items()})


def _shadowed_modules(file: Path) -> Iterator[str]:
    """Yield warnings about modules next to a program that hide another module of the same name, or are hidden by
    one."""
    own = own_files(file)
    for path, by in own.hidden():
        yield f"{path} next to {file.name} is hidden by {by}, so an import gets that instead: rename it"
    for path, by in own.hidden_on_path():
        yield f"{path} is on Python's search path but hidden by {by}, so an import gets that instead: rename it"
    shared = conflicting_names(folder_of(file))
    imported = {path.partition("/")[0].removesuffix(".py") for path in own.files} - {file.stem}
    for name in sorted(imported & shared):
        yield (
            f"{name} next to {file.name} has the name of an installed package. Imports in the program get yours; "
            f"pickle, spawned processes and imports by a string get the other one: rename it if the program uses any "
            f"of these"
        )


def _unmatched_patterns(graph: Graph, state: ReplicaState) -> Iterator[str]:
    """Yield a warning for each `by_name` pattern that matches no tensor, because the intended tensor then gets another
    rule."""
    for table in graph.replicated:
        if not isinstance(table.type.rule, ByName):
            continue
        names = [name for name, _ in state.tensors() if name.startswith(f"{table.type.name}/")]
        for pattern, rule in table.type.rule.patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                yield (
                    f"the pattern {pattern!r} of {table.type.name}'s by_name matches no tensor, so {rule!r} merges "
                    f"nothing. Names are, for example, {', '.join(names[:4])}"
                )


def _settings(program: Program, graph: Graph) -> tuple[str, ...]:
    """Return the batch and rates of one worker, and those of `MAX_BATCH_PARTS` workers; () if they cannot differ."""
    adds, counts = program.adds_steps(graph), (1, MAX_BATCH_PARTS) if program.has_settings else ()
    return tuple(used_settings(program, workers, adds=adds)[1] for workers in counts)


def _discarded_writes(engine: Engine, graph: Graph) -> Iterator[str]:
    """Yield a warning for each field of f's own vertices that f wrote although it is not mutable."""
    assert engine.chunk is not None
    table = engine.chunk.tables[engine.chunk.driver]
    declared = graph.tables[table.type]
    for name in table.fields.keys() - declared.type.mutable:
        given = np.ascontiguousarray(declared.columns[name][table.ids])
        if not same_bits(np.ascontiguousarray(table.fields[name]), given):
            yield (
                f"f wrote {table.type}.{name}, which is discarded: only a field declared "
                f"gridml.array(..., mutable=True) is sent back"
            )


def _last_size(program: Program, count: int, size: int) -> int:
    """Return the size of an epoch's last batch if it is smaller or larger than `size`, else 0."""
    if program.shape.drop_last:
        return 0
    left = count if count <= size else size + count % size
    batch = next_batch(left, size, program.min_actual_batch, alike=False)
    last = left - batch or batch
    return 0 if last == size else last


def _last_batch(engine: Engine, left: int, factor: float, driver: str, file: Path) -> Iterator[str]:
    """Yield a warning if f fails on a batch of `left` vertices. One worker gets such a batch at the end of an epoch;
    several workers share the rest of an epoch evenly."""
    assert engine.chunk is not None
    if not left or engine.chunk.ends is not None:
        return
    try:
        _train(engine, 0, left, factor, driver, file)
    except UserCodeError as failed:
        yield f"with one worker, the last batch of an epoch has {left} vertices, and {failed}"


def _evaluated(program: Program, graph: Graph, state: ReplicaState, file: Path) -> Metrics:
    """Evaluate the replica after two batches. Raises UserCodeError and ProgramError, reworded for a trial."""
    try:
        metrics = evaluate(program, graph, state, file)
        for goal in program.goals:
            goal.value(metrics)
        return metrics
    except UserCodeError as failed:
        said = str(failed).replace(ADVICE, "It was given what two batches have made.")
        raise UserCodeError(said, failed.traceback_text) from failed
    except ProgramError as failed:
        raise ProgramError(str(failed).replace(ADVICE, "").strip()) from failed


def _with(graph: Graph, fields: Fields) -> Graph:
    """Return the graph with the fields that f changed put into its columns, as after an epoch."""
    changed, columns = Graph(), graph.mutable_columns()
    for name, table in graph.tables.items():
        changed.tables[name] = replace(table, columns=dict(table.columns), edges=dict(table.edges))
    for owner, rows in fields.items():
        for name, values in rows.fields.items():
            column = np.array(columns[f"{owner}.{name}"])
            column[rows.ids] = values
            changed.replace_column(f"{owner}.{name}", column)
    return changed


def _ends(engine: Engine, size: int, count: int) -> Iterator[int]:
    at = 0
    while at < count:
        at, _ = engine.batch_end(at, size, count)
        yield at


def _train(engine: Engine, start: int, stop: int, factor: float, driver: str, file: Path) -> None:
    """Run f on a batch. Raises UserCodeError with the user's traceback and the vertices."""
    try:
        with raising_device_errors(engine.device):
            engine.train(start, stop, factor)
            engine.read_losses()
    except BatchFailed as failed:
        cause = failed.__cause__ or failed
        raise UserCodeError(
            f"f failed on {failed.named(driver)}: {described(cause)}", user_traceback(cause, file)
        ) from cause


def _moved(part: ReplicaPart, start: ReplicaPart) -> Iterator[str]:
    """Yield the names of tensors and of row fields that f changed. Raises NotFiniteError if a changed one is not
    finite."""
    pairs = [(name, t, start.modules[key][name]) for key, ts in part.modules.items() for name, t in ts.items()]
    for type_name, rows in part.rows.items():
        before = start.rows[type_name]
        at = np.searchsorted(before.ids, rows.ids)
        pairs += [(f"{type_name}.{name}", values, before.fields[name][at]) for name, values in rows.fields.items()]
    for name, now, then in pairs:
        if not same_bits(now, then):
            if not np.isfinite(now).all():
                raise NotFiniteError(
                    f"{name} is not finite after f has run on its first vertices, and such a push is never merged. "
                    f"Lower the learning rate, or check the inputs."
                )
            yield name


def _changed(fields: Fields, graph: Graph) -> Iterator[str]:
    """Yield the names of local vertices' fields that f changed."""
    columns = graph.mutable_columns()
    for owner, rows in fields.items():
        for name, values in rows.fields.items():
            before = columns[f"{owner}.{name}"][rows.ids]
            if not same_bits(np.ascontiguousarray(values), np.ascontiguousarray(before)):
                yield f"{owner}.{name}"


def _tensors(state: ReplicaState, type_name: str) -> list[NDArray[Any]]:
    """Return copies of all tensors of a type, in a fixed order."""
    return [tensor.copy() for name, tensor in state.tensors() if name.startswith(f"{type_name}/")]


def _merged(graph: Graph, state: ReplicaState, part: ReplicaPart, vertices: int) -> ReplicaState:
    """Return the replica after merging the result of f, as if another worker had pushed before. Raises UserCodeError if
    the user's own g (the aggregate) fails."""
    with tempfile.TemporaryDirectory() as folder:
        replica = Replica(graph, Versions(Path(folder) / "versions", durable=False))
        merger = Merger(graph, replica, workers=2)
        merger.add_buffers(state)
        replica.start(state)
        for table in graph.replicated:
            state.changed[table.type.name][:] = 1  # by the other worker
        merge = Merge(version=2, base=0, vertices=vertices, credited_by_others=vertices, live=2)
        merged, passage = merger.merge(part, state, merge, "another")
        if merged is not None:
            replica.put(merged.modules, merged.rows, 2)
        elif passage.failed:
            raise NotFiniteError(f"what f made cannot be merged: {passage.reason}")
        return replica.state
