"""What a run has of local vertices, as arrays by name: the fields that f or stages changed, and the vertices' own ids.

The fields are those that the last epoch left: the base of `local_fields`, which has all patches once a run has ended.
Own ids do not change; they are in one file, written when the run begins, whose SHA-256 is in the ledger.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import DamagedError, LedgerError
from gridml.model.graph import Graph
from gridml.model.own_ids import OwnIds
from gridml.protocol import bundle
from gridml.protocol.foreign import described, map_array
from master.store.local_fields import FieldsBase, copy_base
from master.store.reader import opened, read_facts
from master.store.rundir import RunDirectory, base_name, read_named

Array = NDArray[Any]
IDS_SHA256 = (
    "ids_sha256"  # a fact of the run: the SHA-256 of the file of ids; None if no vertices have ids of their own
)


def save_ids(graph: Graph, directory: RunDirectory, *, durable: bool = True) -> str | None:
    """Write the ids of all types that have them; return the SHA-256 of the file, None without ids. Raises OSError."""
    tensors = {table.type.name: _stored(table.ids) for table in graph.tables.values() if table.ids is not None}
    if not tensors:
        return None
    payload = bundle.pieces({}, tensors)
    bundle.write_atomic(directory.ids, payload, durable=durable)
    return bundle.digest(payload)


def _stored(ids: OwnIds) -> Array:
    """Return ids as an array that a bundle holds: texts as bytes of UTF-8, uint8 (count, bytes of the longest)."""
    if ids.dtype.kind != "U":
        return ids
    encoded = np.char.encode(ids, "utf-8")
    return encoded.view(np.uint8).reshape(len(ids), encoded.dtype.itemsize)


def _read_ids(root: Path, sha256: str | None) -> dict[str, OwnIds]:
    if sha256 is None:
        return {}
    _, tensors = bundle.decode(read_named(RunDirectory(root).ids, sha256, "the ids of the vertices"))
    return {name: ids if ids.ndim == 1 else _texts(ids) for name, ids in tensors.items()}


def _texts(stored: Array) -> OwnIds:
    encoded = np.ascontiguousarray(stored).view(f"S{stored.shape[1]}").reshape(-1)
    return np.char.decode(encoded, "utf-8")


def _read_fields(root: Path, base: FieldsBase) -> dict[str, Array]:
    """Return copies of the fields of a base, verified."""
    folder, fields = RunDirectory(root).fields, {}
    for field, digests in base.digests.items():
        path = folder / base_name(field, base.version)
        try:
            mapped = map_array(path)
        except Exception as error:  # numpy's parser may raise anything for a damaged header
            raise DamagedError(f"{path} cannot be read: {described(error)}", path) from error
        fields[field] = np.empty(mapped.shape, mapped.dtype)
        copy_base(path, fields[field], digests)
    return fields


def read_local(root: Path, *, fields: bool) -> dict[str, Array]:
    """Return the ids of vertices, by "Type.ids", and with `fields` the fields of local vertices and of their edges as
    the last epoch left them, by "Type.field" and "Type.edge.field". All are copies, of which row i belongs to vertex or
    edge i of the graph. Raises LedgerError if a file is damaged or missing."""
    with opened(root) as ledger:
        facts = read_facts(ledger)
    try:
        ids = _read_ids(root, facts.get(IDS_SHA256))
        base = facts.get("base") if fields else None
        found = {} if base is None else _read_fields(root, FieldsBase(**base))
    except (DamagedError, ValueError, OSError, sqlite3.Error) as error:
        raise LedgerError(f"{described(error)}. Put back a copy of the file.") from error
    return {f"{name}.ids": each for name, each in ids.items()} | {
        field.replace(":", "."): column for field, column in found.items()
    }
