"""Metrics: calls the user's evaluate on a version of the replica, and counts the FLOPs of one vertex."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gridml.engine.devices import Device
from gridml.engine.engine import Engine
from gridml.engine.modules import Modules
from gridml.engine.update_runner import BatchFailed
from gridml.errors import Interruption, ProgramError, UserCodeError
from gridml.model.batch import Batch, Rows
from gridml.model.chunk import Chunk, cut
from gridml.model.graph import Graph, Table, components
from gridml.model.order import EpochOrder
from gridml.model.program import Metrics, Mode, Program, user_traceback
from gridml.model.samples import GraphEdges, Sample, samples_of
from gridml.model.schedule import Progress
from gridml.model.vertex import Vertex, VertexType, describe
from gridml.protocol.foreign import described, printable
from gridml.protocol.push import ReplicaPart
from master.store.versions import ReplicaState

Array = NDArray[Any]

# Bounds of an evaluation's result, which the ledger keeps whole: metrics, numbers in a list, characters of a name.
MAX_METRICS, MAX_NUMBERS, MAX_NAME_CHARS = 1_000, 10_000, 128
WHOLE = Progress(share=1.0)  # the progress of a finished run
ADVICE = "The training is kept; fix evaluate and resume the run --with-changes."


def evaluate(program: Program, graph: Graph, state: ReplicaState, source: Path, at: Progress = WHOLE) -> Metrics:
    """Call the program's evaluate on a version, and return its metrics: numbers or lists of numbers by name. `at` is
    the progress of the run.

    Raises UserCodeError with the user's traceback if evaluate fails, ProgramError if its result is no such dict.
    """
    if program.evaluate is None:
        return {}
    hints, samples = typing.get_type_hints(program.evaluate), samples_of(program.evaluate)
    arguments = []
    for name in inspect.signature(program.evaluate).parameters:
        hint = hints.get(name)
        if hint is Progress:
            arguments.append(at)
        else:
            arguments.append(_argument(name, hint, samples.get(name), graph, state, torch=program.uses_torch))
    try:
        metrics = program.evaluate(*arguments)
    except Interruption:
        raise
    except BaseException as error:  # also SystemExit, whose status could make the run look like a success
        raise UserCodeError(f"evaluate failed: {described(error)}. {ADVICE}", user_traceback(error, source)) from error
    return _plain_metrics(metrics)


def _plain_metrics(metrics: Any) -> Metrics:
    """Convert the result of evaluate to JSON types. Raises ProgramError unless it is a dict of numbers by name."""
    if not isinstance(metrics, dict):
        wanted = 'expected a dict of numbers by name, as in return {"accuracy": 0.98}'
        raise ProgramError(f"evaluate returned {type(metrics).__name__}; {wanted}. {ADVICE}")
    if len(metrics) > MAX_METRICS:
        raise ProgramError(f"evaluate returned {len(metrics):,} metrics; expected at most {MAX_METRICS:,}. {ADVICE}")
    for name in metrics:
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise ProgramError(
                f"evaluate returned a metric called {printable(repr(name), MAX_NAME_CHARS)}; expected a name of 1 to "
                f"{MAX_NAME_CHARS} printable characters. {ADVICE}"
            )
        mode, _, bare = name.partition(":")
        if mode in get_args(Mode) and bare:
            raise ProgramError(
                f"evaluate returned a metric called {name!r}; expected {bare!r}: {mode}: belongs where the program "
                f'refers to it, as in keep="best:{name}". {ADVICE}'
            )
    return {name: _plain(name, value) for name, value in metrics.items()}


def _plain(name: str, value: Any) -> Any:
    wanted = f"expected a number, or a list of at most {MAX_NUMBERS:,}. {ADVICE}"
    try:
        array = np.asarray(_without_gradient(value))
    except Exception as error:  # a list of lists of unequal length
        raise ProgramError(
            f"evaluate returned {type(value).__name__} as {name}: {described(error)}; {wanted}"
        ) from error
    if array.dtype.kind not in "fiub" or array.ndim > 1 or array.size > MAX_NUMBERS:
        got = f"{type(value).__name__} of {array.dtype} {array.shape}"
        raise ProgramError(f"evaluate returned {got} as {name}; {wanted}")
    return array.astype(np.float64).tolist() if array.dtype.kind == "f" else array.tolist()


def _without_gradient(value: Any) -> Any:
    """Return a tensor detached, on the CPU and in a dtype of numpy; any other value unchanged."""
    if not hasattr(value, "detach"):  # instead of isinstance, which would import torch
        return value
    value = value.detach().cpu()
    return value.double() if value.is_floating_point() else value  # numpy has no bfloat16


def sampled(program: Program, graph: Graph) -> dict[str, tuple[int, int]]:
    """Return (vertices that evaluate takes, all vertices) by argument, where it takes a sample of them."""
    hints = typing.get_type_hints(program.evaluate) if program.evaluate is not None else {}
    found = {}
    for name, sample in samples_of(program.evaluate).items():
        total = graph.tables[describe(typing.get_args(hints[name])[0]).name].count
        if sample.count < total:
            found[name] = sample.count, total
    return found


def sampled_text(counts: Mapping[str, tuple[int, int]]) -> str:
    """Return what `sampled` found as text, such as "1,000 of 77,360 pages"; empty if evaluate takes all vertices."""
    return " and ".join(f"{few:,} of {total:,} {name}" for name, (few, total) in counts.items())


def _argument(name: str, hint: Any, sample: Sample | None, graph: Graph, state: ReplicaState, *, torch: bool) -> Any:
    """Return an argument of evaluate with a version's values: the vertex of a type, or a Batch of all its vertices, or
    of a sample."""
    batched = typing.get_origin(hint) is Batch
    cls = typing.get_args(hint)[0] if batched else hint
    if not (isinstance(cls, type) and issubclass(cls, Vertex) and describe(cls).name in graph.tables):
        raise ProgramError(
            f"argument {name} of evaluate is annotated {hint}; expected a vertex type of the graph, or gridml.Batch "
            f"of one."
        )
    table = graph.tables[describe(cls).name]
    if table.type.modules:
        modules = Modules(table.type)
        for index in range(table.count):
            views = modules.views(index)
            for key, view in views.items():
                np.copyto(view, state.modules[table.type.name, index].tensors[key])
            modules.put(index, views)
        modules.evaluation_mode()
        return [modules.vertex(i) for i in range(table.count)] if batched else modules.vertex(0)
    chosen = None if sample is None else sample.rows(table.count)
    ids = np.arange(table.count) if chosen is None else chosen
    rows = Rows(table.type, ids, _columns(table, state, chosen), frozenset(), torch=torch, aligned=False)
    rows.ragged = table.ragged if chosen is None else {name: each.take(chosen) for name, each in table.ragged.items()}
    if not batched:
        return cls._view(rows, 0)
    edges = {name: each for name, each in table.edges.items() if name in describe(cls).edges}  # not those of stages
    return Batch._over(rows, slice(0, len(ids)), GraphEdges(rows, edges, chosen))


def _columns(table: Table, state: ReplicaState, chosen: NDArray[np.int64] | None) -> Mapping[str, Array]:
    """Return a type's arrays: those of the version for a replicated type, those of the graph for a local one; of the
    chosen vertices only.

    Local fields that f can change are copied, because evaluate may write to them, and the run still needs their values.
    """
    columns = state.arrays[table.type.name] if table.type.replicated else table.columns
    if chosen is not None:
        return {name: np.asarray(column[chosen]) for name, column in columns.items()}
    if table.type.replicated:
        return columns
    return {name: np.array(column) if name in table.type.mutable else column for name, column in columns.items()}


def needs_graph(program: Program) -> bool:
    """Return whether evaluate has an argument of local vertices, which are only in the graph, not in a version."""
    return any(not vertex_type.replicated for vertex_type in _argument_types(program))


def graph_from_version(program: Program, state: ReplicaState) -> Graph:
    """Return a graph with only the replicated types among evaluate's arguments. Their counts come from a version."""
    graph = Graph()
    for vertex_type in _argument_types(program):
        if vertex_type.name in state.changed:
            graph.tables[vertex_type.name] = Table(vertex_type, len(state.changed[vertex_type.name]))
    return graph


def _argument_types(program: Program) -> list[VertexType]:
    """Return the vertex types of evaluate's arguments."""
    hints = typing.get_type_hints(program.evaluate) if program.evaluate is not None else {}
    hints.pop("return", None)
    classes = [typing.get_args(hint)[0] if typing.get_origin(hint) is Batch else hint for hint in hints.values()]
    return [describe(cls) for cls in classes if isinstance(cls, type) and issubclass(cls, Vertex)]


def flops_per_vertex(program: Program, chunk: Chunk, state: ReplicaState) -> float | None:
    """Return the floating-point operations of f per vertex, which torch counts while f trains the chunk; None if f
    fails or the count is 0."""
    from torch.utils.flop_counter import FlopCounterMode

    engine, _ = start_engine(program, chunk, state)
    with contextlib.suppress(BatchFailed), FlopCounterMode(display=False) as counter:
        engine.train(0, chunk.count, 1.0)
        return counter.get_total_flops() / chunk.count or None
    return None


def first_chunk(program: Program, graph: Graph, count: int) -> Chunk:
    """Return the chunk of the first `count` vertices, extended to whole connected components."""
    driver = program.shape.driver.__name__
    parts = None if program.consistency.is_bsp else components(graph)
    units = None if parts is None else parts.units[driver]
    order = EpochOrder(graph.tables[driver].count, 0, 0, "none", units)
    stop = order.boundary(count)
    return cut(graph, driver, order.vertices(0, stop), order.ends(0, stop), parts, bsp=program.consistency.is_bsp)


def start_engine(
    program: Program, chunk: Chunk, state: ReplicaState, device: Device | None = None, *, trial: bool = False
) -> tuple[Engine, ReplicaPart]:
    """Return (an engine that has begun a chunk from a version, the part of the version that the chunk touches)."""
    start = state.part(chunk.touched())
    engine = Engine(program, device, trial=trial)
    engine.begin(chunk)
    engine.restart(start)
    return engine, start
