"""The end of a pass: the program's `global_sync` functions change contexts, and accumulators begin again at 0.

The master calls them when every vertex of an epoch is credited and merged, in the transaction that closes the epoch. So
they run once for each pass, whatever dies, and the next epoch opens with what they leave.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gridml.errors import Interruption, NotFiniteError, UserCodeError
from gridml.model.batch import Rows
from gridml.model.graph import Table
from gridml.model.program import user_traceback
from gridml.model.stages import GlobalSync
from gridml.model.vertex import VertexType
from gridml.protocol.foreign import described
from gridml.protocol.push import RowValues
from master.store.versions import ReplicaState


class PassEnd(NamedTuple):
    """The changes of contexts at the end of a pass."""

    rows: dict[str, RowValues]  #: the new values, by type
    totals: dict[str, float]  #: the accumulators that are one number, as the pass left them, by "Type.field"
    enough: tuple[str, ...] = ()  #: the functions that end the run with this pass


def end_pass(syncs: Sequence[GlobalSync], tables: Mapping[str, Table], state: ReplicaState) -> PassEnd:
    """Return the contexts after a pass. `state` is unchanged. Raises UserCodeError if a function fails, NotFiniteError
    if it leaves NaN or infinity."""
    types = {t.type.name: t.type for t in tables.values() if t.type.accumulators}
    types |= {sync.context.name: sync.context for sync in syncs}
    fields = {name: {n: column.copy() for n, column in state.arrays[name].items()} for name in types}
    totals = {
        f"{name}.{field}": float(fields[name][field][0])
        for name, of in types.items()
        for field in of.accumulators
        if not of.arrays[field].shape
    }
    enough = [sync.name for sync in syncs if called(sync, fields[sync.context.name])]
    for name, of in types.items():
        for field in of.accumulators:
            fields[name][field][:] = 0
        _check_finite(of, fields[name])
    rows = {name: RowValues(np.arange(len(_any(f)), dtype=np.int64), f) for name, f in fields.items()}
    return PassEnd(rows, totals, tuple(enough))


def _any(fields: Mapping[str, np.ndarray]) -> np.ndarray:
    return next(iter(fields.values()))


def called(sync: GlobalSync, fields: Mapping[str, np.ndarray]) -> bool:
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


def _check_finite(of: VertexType, fields: Mapping[str, np.ndarray]) -> None:
    for name, values in fields.items():
        if not np.isfinite(values).all():
            raise NotFiniteError(
                f"{of.name}.{name} is not finite after a pass, and no worker could start from it. Check what the "
                f"global_sync computes, and what workers add to the accumulators of {of.name}."
            )
