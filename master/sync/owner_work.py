"""The work of the master when all parts' pushes of a tick, or of a pass, are merged: owner's stages, global_sync.

It happens in the transaction that completes the tick, or closes the epoch. So it happens once, whatever dies, and what
comes next begins with what it leaves.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.kernel import Column
from gridml.engine.stage_runner import CompiledStage, compiled_stages, read_only
from gridml.errors import Interruption, NotFiniteError, UserCodeError
from gridml.model.batch import Rows
from gridml.model.graph import Table
from gridml.model.order import Touched
from gridml.model.phases import Stages
from gridml.model.program import Program, user_traceback
from gridml.model.stages import ApplyStage, GlobalSync, Part
from gridml.model.vertex import VertexType, describe
from gridml.protocol.foreign import described
from gridml.protocol.push import Ids, RowValues
from master.store.versions import ReplicaState

Array = NDArray[Any]
Work = Sequence[ApplyStage | GlobalSync]


class OwnerChanges(NamedTuple):
    """The changes that the master makes."""

    rows: dict[str, RowValues]  #: the new values, by type
    enough: tuple[str, ...] = ()  #: the functions that end the run with this pass
    totals: Mapping[str, float] = {}  #: of a pass: accumulators that are one number, as it left them, by "Type.field"

    def put(self, state: ReplicaState) -> None:
        """Set the rows in the arrays of a version."""
        for name, rows in self.rows.items():
            for field, values in rows.fields.items():
                state.arrays[name][field][rows.ids] = values


@final
class OwnerWork:
    """The work of one program. `phases` are done at the end of ticks in turn, `after` at the end of a pass. Raises
    StageError for what cannot be compiled."""

    def __init__(
        self, phases: Sequence[Work] = (), after: Work = (), *, exact: bool = False, plain: bool = False
    ) -> None:
        self._phases, self._after = [list(phase) for phase in phases], list(after)
        applied = [each for work in (*phases, after) for each in work if isinstance(each, ApplyStage)]
        self._compiled: dict[ApplyStage, CompiledStage] = dict(
            zip(applied, compiled_stages(applied, exact=exact, plain=plain), strict=True)
        )
        self._workspace: dict[tuple[str, str], Array] = {}  # scratch of contexts, by type and field

    @classmethod
    def of(cls, program: Program, *, plain: bool = False) -> OwnerWork:
        """Return the work of a program."""
        if not isinstance(program.shape, Stages):
            return cls((), program.after)
        stages, batch = program.shape, program.shape.mini_batch
        return cls([phase.at_owner for phase in stages.phases], program.after, exact=batch.exact, plain=plain)

    def end_tick(self, tick: int, touched: Touched, state: ReplicaState) -> OwnerChanges:
        """Return what changes at the end of a tick; stages look at the rows of `touched`. `state` is unchanged. Raises
        NotFiniteError for NaN or infinity, StageError for what cannot be compiled, UserCodeError if a global_sync
        fails."""
        work = self._phases[tick % len(self._phases)]
        rows: dict[str, RowValues] = {}
        enough = self._do(work, touched, state, rows)
        for of in map(_of, work):  # what is read here is complete, and begins again
            _clear(of, rows[of.name])
        _check_finite(rows, "tick", work)
        return OwnerChanges(rows, enough)

    def end_pass(self, tables: Mapping[str, Table], state: ReplicaState) -> OwnerChanges:
        """Return what changes at the end of a pass: stages look at all rows, and every accumulator begins again. Raises
        as `end_tick` does."""
        summed = {t.type.name: t.type for t in tables.values() if t.type.accumulators}
        everywhere = {name: np.arange(table.count) for name, table in tables.items() if table.type.replicated}
        rows = {name: RowValues(everywhere[name], state.rows(name, everywhere[name])) for name in summed}
        # Those that ticks read are empty, and tell nothing.
        read = {of.name for work in self._phases for of in map(_of, work)}
        totals = totals_of([of for name, of in summed.items() if name not in read], state)
        enough = self._do(self._after, everywhere, state, rows)
        for name, of in summed.items():
            _clear(of, rows[name])
        _check_finite(rows, "pass", self._after)
        return OwnerChanges(rows, enough, totals)

    def _do(self, work: Work, touched: Touched, state: ReplicaState, rows: dict[str, RowValues]) -> tuple[str, ...]:
        """Do work on rows of a version, which are added to `rows` where they are not there. Return the functions that
        end the run."""
        enough: list[str] = []
        one = np.zeros(1, np.int64)
        for each in work:
            if isinstance(each, GlobalSync):
                _read(rows, each.context.name, one, state)
                enough += [each.name] * called(each, rows[each.context.name].fields)
                continue
            for argument in each.arguments:
                assert argument.type is not None, "an apply takes no edge"
                none = one if argument.part is Part.CONTEXT else one[:0]
                _read(rows, argument.type.name, touched.get(argument.type.name, none), state)
            stage = self._compiled[each]
            columns = [self._column(column, rows) for column in stage.kernel.columns]
            over = np.arange(len(rows[each.over.__name__].ids))
            stage.run([over, *columns, *(number for _, number in stage.kernel.numbers)])
        return tuple(enough)

    def _column(self, column: Column, rows: Mapping[str, RowValues]) -> Any:
        access = column.access
        assert access.type is not None, "an apply takes no edge"
        if access.travels:
            values = rows[access.type.name].fields[access.name]
        else:
            empty = np.zeros((1, *access.declared.shape), access.declared.dtype)
            values = self._workspace.setdefault((access.type.name, access.name), empty)
        if column.is_number:
            return values[0]
        if access.argument.part is Part.CONTEXT and access.declared.shape:
            values = values[0]
        return values if column.is_written else read_only(values)


def _of(each: ApplyStage | GlobalSync) -> VertexType:
    return each.context if isinstance(each, GlobalSync) else describe(each.over)


def _read(rows: dict[str, RowValues], type_name: str, ids: Ids, state: ReplicaState) -> None:
    """Add rows of a version, unless they are there."""
    if type_name not in rows:
        rows[type_name] = RowValues(ids, state.rows(type_name, ids))


def _clear(of: VertexType, rows: RowValues) -> None:
    for name in of.accumulators:
        rows.fields[name][...] = 0


def totals_of(types: Iterable[VertexType], state: ReplicaState) -> dict[str, float]:
    """Return the accumulators of types that are one number, by "Type.field"."""
    named = [(of.name, name) for of in types for name in of.accumulators if not of.arrays[name].shape]
    return {f"{of}.{name}": float(state.arrays[of][name][0]) for of, name in named}


def called(sync: GlobalSync, fields: Mapping[str, Array]) -> bool:
    """Call a function with its context, whose `fields` (1, *shape) it changes. Return whether it ends the run. Raises
    UserCodeError if it fails."""
    rows = Rows(sync.context, np.zeros(1, np.int64), dict(fields), frozenset(fields), torch=False)
    vertex = sync.context.cls._view(rows, 0)
    try:
        returned = sync.function(vertex)
    except Interruption:
        raise
    except BaseException as error:
        raise UserCodeError(
            f"{sync.name} failed after a pass: {described(error)}",
            user_traceback(error, Path(inspect.getfile(sync.function))),
        ) from error
    if returned is None or isinstance(returned, bool | np.bool_):
        return bool(returned)
    raise UserCodeError(
        f"{sync.name} returned {type(returned).__name__}; a global_sync changes the context, and returns nothing, or "
        f"True to end the run.",
        "",
    )


def _check_finite(rows: Mapping[str, RowValues], after: str, work: Work) -> None:
    for type_name, each in rows.items():
        for name, values in each.fields.items():
            if not np.isfinite(values).all():
                names = f"what {', '.join(each.name for each in work)} computes" if work else "the program"
                raise NotFiniteError(
                    f"{type_name}.{name} is not finite after a {after}, and no worker could start from it. Check "
                    f"{names}, what workers add to the accumulators of {type_name}, and a smaller rate."
                )
