"""`gridml.infer`: what a trained program says of new vertices, such as a new user's factors or a new text's topics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.api.handle import Run, program_of, replica_of, restored_process_state, user_traceback_shown
from gridml.engine.engine import Engine
from gridml.engine.update_runner import BatchFailed
from gridml.errors import LedgerError, NotFiniteError, ProgramError, UsageError, UserCodeError
from gridml.model.graph import Graph
from gridml.model.loading import check_guarded
from gridml.model.phases import Stages
from gridml.model.program import Program, called_traceback
from gridml.model.schedule import Progress
from gridml.protocol.foreign import described
from master.evaluation.metrics import first_chunk
from master.planning.program_warnings import nonfinite_fields
from master.store.local_arrays import read_local
from master.store.saved_replica import read_replica
from master.store.versions import initial

Array = NDArray[Any]
Values = Mapping[str, Any]


def infer(
    run: Run | str | os.PathLike[str],
    new: Mapping[str, Values],
    *,
    passes: int,
    which: str | int | None = None,
) -> dict[str, Array]:
    """Run a program's stages over new vertices, with the replica of a run held fixed, and return what they change.

        ratings = gridml.csr([0, 3], [5, 60, 7], weight=[4.0, 5.0, 3.5])  # one user rated three items
        new = {"User": {"p": 0, "bias": 0, "rated": ratings}, "Shared": {"rate": 0.02}}
        factors = gridml.infer(run, new, passes=50)["User.p"]  # (1, 32)

    `new` has, for the type that the stages look at, what `Graph.add` takes by name: all its fields and edges, and `ids`
    if wanted. Edges lead to vertices of the run, by number, or by texts if these are their ids. For a context, `new`
    may have fields that shall differ from the run's: here the rate, which the run has lowered.

    Each pass runs the stages of the MiniBatch over the new vertices, in their order, on one core of this machine. What
    stages write to replicated types is dropped, so a vertex does not depend on which others are new. `global_sync` is
    not called. `gridml.uniform` draws the same numbers in each call. `run` and `which` are as in `gridml.load`.

    Returns the mutable fields of the new vertices, by "User.p" (vertices, *shape), those of their edges, by
    "Document.words.topic" (edges, *shape), and ids if given, by "User.ids". Raises ProgramError for a program with f
    instead of stages and for values that do not fit, NotFiniteError if a result is NaN or infinite, UserCodeError if a
    stage fails, UsageError for fewer than one pass, and what `gridml.load` raises.
    """
    check_guarded("gridml.infer")
    if type(passes) is not int or passes < 1:
        raise UsageError(f"gridml.infer got passes={passes!r}; expected a whole number from 1 on.")
    root, chosen = replica_of("gridml.infer", run, which)
    tensors = read_replica(root, chosen).tensors
    with user_traceback_shown(), restored_process_state():
        program, file = program_of(root)
        graph = _graph(program, tensors, read_local(root, fields=False), new)
        program = replace(program, graph=lambda: graph, evaluate=None, early_stopping=None, keep=None)
        made = program.build(file)
        if (wrong := next(nonfinite_fields(made), None)) is not None:
            raise ProgramError(f"gridml.infer got values that are not finite: {wrong}.")
        return _trained(program, made, passes)


def _graph(program: Program, tensors: Values, ids: Mapping[str, Array], new: Mapping[str, Values]) -> Graph:
    """Return the graph of the new vertices and of all replicated vertices of a run. Raises ProgramError for a type or
    a field that does not belong there."""
    shape = program.shape
    if not isinstance(shape, Stages):
        raise ProgramError(
            f"gridml.infer runs compiled stages, and the program has {shape.function.__name__}, an f; load what it "
            f"trained with gridml.load, and call that."
        )
    if shape.is_linked or shape.drawn is not None:
        named = (shape.drawn or shape.driver).__name__
        raise ProgramError(
            f"gridml.infer looks at new vertices one by one, and the exchanges of the program look at all of {named} "
            f"together; run gridml.compute on a graph that has the new vertices, too."
        )
    driver, contexts = shape.driver.__name__, [of.name for of in shape.contexts]
    if unknown := sorted(new.keys() - {driver, *contexts}):
        raise ProgramError(
            f"gridml.infer got {', '.join(unknown)}; expected {driver}, the type that the stages look at, and contexts "
            f"with values of their own: {', '.join(contexts) or 'none'}."
        )
    if driver not in new:
        raise ProgramError(f"gridml.infer got no {driver} vertices; give their fields and edges by name.")
    graph = Graph()
    for of in program.types().values():
        if not of.replicated:
            continue
        if lacking := [name for name in of.arrays if f"{of.name}/{name}" not in tensors]:
            raise LedgerError(f"the run has no {of.name}.{lacking[0]}, but its program does. Restore the program.")
        columns = {name: tensors[f"{of.name}/{name}"] for name in of.arrays}
        graph.add(of.cls, ids=ids.get(f"{of.name}.ids"), **{**columns, **new.get(of.name, {})})
    graph.add(shape.driver, **new[driver])
    return graph


def _trained(program: Program, graph: Graph, passes: int) -> dict[str, Array]:
    """Run the stages over all vertices of the driving type. Return their mutable fields, and those of their edges."""
    driver = program.driving(graph)
    table, size = graph.tables[driver], program.shape.batch or 1
    chunk = first_chunk(program, graph, table.count)
    engine = Engine(program, holds=True)
    engine.begin(chunk)
    engine.restart(initial(graph, 0).part(chunk.touched()))
    for number in range(passes):
        engine.at, at = Progress(epoch=number, share=number / passes), 0
        while at < chunk.count:
            stop, _ = engine.batch_end(at, size, chunk.count)
            try:
                engine.train(at, stop, 1.0)
            except BatchFailed as failed:
                cause = failed.__cause__ or failed
                raise UserCodeError(
                    f"a stage failed on {failed.named(driver)}: {described(cause)}", called_traceback(cause)
                ) from cause
            at = stop
    found = {} if table.ids is None else {f"{driver}.ids": table.ids}
    for owner, rows in engine.changed_fields(0, chunk.count).items():
        order = np.argsort(rows.ids)
        for name, values in rows.fields.items():
            found[f"{owner.replace(':', '.')}.{name}"] = values[order]
            wrong = np.flatnonzero(~np.isfinite(values[order].reshape(len(order), -1)).all(1))
            if len(wrong):
                raise NotFiniteError(
                    f"{owner}.{name} {wrong[0]:,} is NaN or infinite after {passes} passes. Lower the rate, by a field "
                    f"of a context, as in new={{'Shared': {{'rate': 0.01}}}}."
                )
    return found
