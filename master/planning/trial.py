"""A program tried out before there is a run: every part of it once, as a run would use it, on this machine.

What fails raises the error that a run would end with, as soon as it is met: GridmlError, with the user's own traceback
where their code failed.
"""

from __future__ import annotations

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
from gridml.model.device_memory import AUTO, CPU, parse
from gridml.model.graph import Graph
from gridml.model.loading import load
from gridml.model.own_imports import conflicting_names
from gridml.model.own_modules import folder_of, own_files
from gridml.model.program import Metrics, Program, user_traceback
from gridml.model.schedule import Progress
from gridml.protocol.foreign import described
from gridml.protocol.push import Fields, ReplicaPart
from master.evaluation.metrics import ADVICE, evaluate, first_chunk, start_engine
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
from master.telemetry.loggers.base import LOGGERS

MAX_BATCH_VERTICES = 2_000  # vertices of a batch, where f takes more at once


@dataclass(frozen=True)
class Trial:
    """What became of it: how many `vertices` there are by type, how large the replica is, how long a batch of f took
    (seconds, of `batch` vertices, the second time), what f `moved`, what evaluate returned, what is odd,
    the device that f ran on, and the batch and rates that one worker and several train with."""

    vertices: dict[str, int]
    tensors: int
    replica_bytes: int
    batch: int
    batch_s: float
    moved: tuple[str, ...]
    metrics: Metrics
    odd: tuple[str, ...]
    device: str = CPU
    settings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As `gridml check --json` has it."""
        return asdict(self)


def try_out(file: Path, seed: int = 0, device: str = AUTO) -> Trial:
    """Load a program, build its graph and its replica, run f on two batches, merge what that makes as if another worker
    had pushed before, and evaluate it. f runs on `device`, named as `gridml run --device` names it. Where vertices are
    not connected f also runs on as few as an epoch may end with.

    Raises GridmlError for the first thing that is wrong.
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
    size, batch_s = min(program.update.batch or 1, MAX_BATCH_VERTICES), 0.0
    chunk = first_chunk(program, graph, 2 * size)
    with raising_device_errors(place):
        engine, start = start_engine(program, chunk, state, place, trial=True)
    trainable: list[Trainable] = []
    ends = [0, *islice(_ends(engine, size, chunk.count), 2)]
    counters = [untrained_buffers(program.types(), engine.module_values())]
    for first, stop in pairwise(ends):
        began = time.perf_counter()
        _train(engine, first, stop, program.factor(engine.at), driver, file)
        batch_s = time.perf_counter() - began
        trainable += engine.trainable()
        counters.append(untrained_buffers(program.types(), engine.module_values()))
    last = _last_size(program, graph.tables[driver].count, size)
    odd = [*_hidden(file), *_fitting_nothing(graph, state), *nonfinite_fields(graph)]
    odd += _last_batch(engine, last, program.factor(Progress(share=1.0)), driver, file)
    odd += [
        *_written_in_vain(engine, graph),
        *ignored_weight_writes(engine),
        *unfollowed_edges(program, graph, engine.followed),
        *dominant_component(program, graph, driver),
        *unsummed_counters(program.types(), counters, [stop - first for first, stop in pairwise(ends)]),
    ]
    with raising_device_errors(place):
        part = engine.wire(engine.snapshot())
    fields = engine.changed_fields(0, chunk.count)
    moved = (*_moved(part, start), *_changed(fields, graph))
    odd += reads_sums(TrialBatch(file, program, graph, chunk, ends[1], state, place), part)
    if not moved and not any(each.asked for each in trainable):
        odd.append("f changed nothing that is replicated, and no field of its own vertices")
    odd += untrained_parameters(trainable, moved)
    own = [each.type.name for each in graph.replicated if each.type.has_own_rule]
    before = {name: _tensors(state, name) for name in own}
    merged = _merged(graph, state, part, ends[-1])
    odd += [
        f"{name}.aggregate took nothing of what f made: it changes self, and what it returns is not looked at"
        for name in own
        if any(each.startswith((f"{name}/", f"{name}.")) for each in moved)
        and all(map(same_bits, before[name], _tensors(merged, name)))
    ]
    metrics = _evaluated(program, _with(graph, fields), merged, file)
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
        _settings(program),
    )


def _hidden(file: Path) -> Iterator[str]:
    """What beside a program is not what its imports lead to, or not what else looks for it by its name."""
    own = own_files(file)
    for path, by in own.hidden():
        yield f"{path} beside {file.name} is hidden by {by}, and an import gets that instead: rename it"
    for path, by in own.hidden_on_path():
        yield f"{path} is on Python's search path and hidden by {by}, and an import gets that instead: rename it"
    shared = conflicting_names(folder_of(file))
    imported = {path.partition("/")[0].removesuffix(".py") for path in own.files} - {file.stem}
    for name in sorted(imported & shared):
        yield (
            f"{name} beside {file.name} has the name of another package here. Imports of the program get yours; "
            f"pickle, processes that are spawned, and what finds modules by a text get the other one: rename it where "
            f"the program does any of that"
        )


def _fitting_nothing(graph: Graph, state: ReplicaState) -> Iterator[str]:
    """Patterns of rules that no tensor has the name of: what they are for is merged by another rule."""
    for table in graph.replicated:
        if not isinstance(table.type.rule, ByName):
            continue
        names = [name for name, _ in state.tensors() if name.startswith(f"{table.type.name}/")]
        for pattern, rule in table.type.rule.patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                yield (
                    f"the pattern {pattern!r} of {table.type.name}'s by_name fits no tensor, so {rule!r} merges "
                    f"nothing: names are such as {', '.join(names[:4])}"
                )


def _settings(program: Program) -> tuple[str, ...]:
    """What one worker and so many as share a batch most train with; nothing where no program could differ."""
    return tuple(used_settings(program, workers)[1] for workers in (1, MAX_BATCH_PARTS) if program.has_settings)


def _written_in_vain(engine: Engine, graph: Graph) -> Iterator[str]:
    """What f wrote through a tensor into fields of its own vertices that do not come home."""
    assert engine.chunk is not None
    table = engine.chunk.tables[engine.chunk.driver]
    declared = graph.tables[table.type]
    for name in table.fields.keys() - declared.type.mutable:
        given = np.ascontiguousarray(declared.columns[name][table.ids])
        if not same_bits(np.ascontiguousarray(table.fields[name]), given):
            yield (
                f"f wrote {table.type}.{name}, and nobody will see it: a field comes home where it is declared "
                f"gridml.array(..., mutable=True)"
            )


def _last_size(program: Program, count: int, size: int) -> int:
    """How many vertices an epoch's last batch has if that is no full one, else 0."""
    if program.update.drop_last:
        return 0
    left = count if count <= size else size + count % size
    batch = next_batch(left, size, program.min_actual_batch, alike=False)
    last = left - batch or batch
    return 0 if last == size else last


def _last_batch(engine: Engine, left: int, factor: float, driver: str, file: Path) -> Iterator[str]:
    """What is odd about f on as few vertices as an epoch ends with for one worker; several share the rest evenly."""
    assert engine.chunk is not None
    if not left or engine.chunk.ends is not None:
        return
    try:
        _train(engine, 0, left, factor, driver, file)
    except UserCodeError as failed:
        yield f"of one worker alone an epoch's last batch has {left} vertices, and {failed}"


def _evaluated(program: Program, graph: Graph, state: ReplicaState, file: Path) -> Metrics:
    """Evaluate what two batches made. Raises UserCodeError, ProgramError with what a run does not say."""
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
    """The graph with the fields that f changed, as they are after an epoch."""
    changed = Graph()
    for name, table in graph.tables.items():
        columns = dict(table.columns)
        for field, values in fields[name].fields.items() if name in fields else ():
            columns[field] = np.array(columns[field])
            columns[field][fields[name].ids] = values
        changed.tables[name] = replace(table, columns=columns)
    return changed


def _ends(engine: Engine, size: int, count: int) -> Iterator[int]:
    at = 0
    while at < count:
        at, _ = engine.batch_end(at, size, count)
        yield at


def _train(engine: Engine, start: int, stop: int, factor: float, driver: str, file: Path) -> None:
    """Run f on a batch. Raises UserCodeError with the user's traceback, and with the vertices."""
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
    """The tensors and the fields of rows that f changed. Raises NotFiniteError for one that is not finite by now."""
    pairs = [(name, t, start.modules[key][name]) for key, ts in part.modules.items() for name, t in ts.items()]
    for type_name, rows in part.rows.items():
        before = start.rows[type_name]
        at = np.searchsorted(before.ids, rows.ids)
        pairs += [(f"{type_name}.{name}", values, before.fields[name][at]) for name, values in rows.fields.items()]
    for name, now, then in pairs:
        if not same_bits(now, then):
            if not np.isfinite(now).all():
                raise NotFiniteError(
                    f"{name} is not finite after f has run on its first vertices, and no such push is merged. Lower "
                    f"the learning rate, or look at the inputs."
                )
            yield name


def _changed(fields: Fields, graph: Graph) -> Iterator[str]:
    """The fields of local vertices that f changed."""
    for type_name, rows in fields.items():
        columns = graph.tables[type_name].columns
        for name, values in rows.fields.items():
            if not same_bits(np.ascontiguousarray(values), np.ascontiguousarray(columns[name][rows.ids])):
                yield f"{type_name}.{name}"


def _tensors(state: ReplicaState, type_name: str) -> list[NDArray[Any]]:
    """Copies of all tensors of a type, in one order."""
    return [tensor.copy() for name, tensor in state.tensors() if name.startswith(f"{type_name}/")]


def _merged(graph: Graph, state: ReplicaState, part: ReplicaPart, vertices: int) -> ReplicaState:
    """Return what f made, merged as if another worker had pushed before. Raises UserCodeError where the user's own g
    fails."""
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
