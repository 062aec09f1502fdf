"""Fields of local vertices that f changes: a file per field on the submit host, and patches that make each push atomic.

A patch is written and fsynced before the transaction that credits its push, and applied to the field's file after it.
Patches hold absolute values, so applying one again, after a crash, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from gridml.errors import LedgerError
from gridml.model.graph import Graph
from gridml.protocol import bundle
from gridml.protocol.push import Fields, decode_patch, encode_patch

Array = NDArray[Any]


class LocalFields:
    """The mutable columns of a graph. The graph's own columns are replaced by memory-mapped files in `folder`.

    With `bsp`, what is pushed in an epoch shows only when the epoch has ended: all f's of a superstep read the same
    values.
    """

    def __init__(self, graph: Graph, folder: Path, *, bsp: bool, durable: bool = True) -> None:
        self._folder = folder
        self._bsp = bsp
        self._durable = durable
        self._columns: dict[str, dict[str, Array]] = {}  # by type and field
        for table in graph.local:
            for name in table.type.mutable:
                column = self._open(f"{table.type.name}.{name}.npy", table.columns[name])
                table.columns[name] = column
                self._columns.setdefault(table.type.name, {})[name] = column

    @property
    def any(self) -> bool:
        """Whether f may change any field."""
        return bool(self._columns)

    def _open(self, name: str, values: Array) -> Array:
        self._folder.mkdir(exist_ok=True)
        path = self._folder / name
        if not path.exists():
            temporary = path.with_suffix(".tmp")
            file = open_memmap(temporary, "w+", values.dtype, values.shape)
            for at in range(0, len(values), 65536):
                file[at : at + 65536] = values[at : at + 65536]
            file.flush()
            temporary.replace(path)
        column = np.load(path, mmap_mode="r+")
        if column.shape != values.shape or column.dtype != values.dtype:
            raise LedgerError(f"{path} holds {column.dtype} {column.shape}, the graph {values.dtype} {values.shape}.")
        return np.asarray(column) if column.size == 0 else column

    def check(self, fields: Fields, allowed: Mapping[str, Array], trained: tuple[str, Array]) -> str | None:
        """Return why fields of a push cannot be taken, None if they can.

        `allowed` are the ids by type that its lease may change, `trained` is the driving type and its newly trained
        ids int64 (n,). All fields of these types must have come, or what f made of them would be lost with the credit.
        """
        driver, trained_ids = trained
        for type_name, columns in self._columns.items():
            sent = fields[type_name].fields if type_name in fields else {}
            lost = next((name for name in columns if name not in sent), None)
            if lost is not None and type_name in allowed:
                return f"{type_name}/{lost} is missing"
        for type_name, rows in fields.items():
            if not np.isin(rows.ids, allowed.get(type_name, [])).all():
                return f"fields of {type_name} name vertices outside the lease"
            if type_name == driver and not np.array_equal(rows.ids, trained_ids):
                return f"fields of {type_name} name others than the {len(trained_ids)} vertices that were trained"
            for name, values in rows.fields.items():
                if problem := self._problem(type_name, name, rows.ids, values):
                    return f"{type_name}/{name} {problem}"
        return None

    def _problem(self, type_name: str, name: str, ids: Array, values: Array) -> str | None:
        column = self._columns.get(type_name, {}).get(name)
        if column is None:
            return "is not a field that f may change"
        if values.shape != (len(ids), *column.shape[1:]) or values.dtype != column.dtype:
            return f"has {values.dtype} {values.shape}, which does not fit the field"
        # What was not finite before (a missing value, say) may stay so.
        if values.dtype.kind == "f" and np.isfinite(column[ids][~np.isfinite(values)]).any():
            return "is not finite (NaN or infinity)"
        return None

    def write_patch(self, version: int, pushes: Sequence[Fields]) -> str:
        """Write the fields of a group of pushes as one durable file; return its SHA-256. Raises OSError."""
        payload = bundle.encode({"version": version, "pushes": len(pushes)}, encode_patch(pushes))
        bundle.write_atomic(self._path(version), payload, durable=self._durable)
        return bundle.digest(payload)

    def committed(self, pushes: Sequence[Fields]) -> None:
        """Apply what was just credited, unless it must wait for the superstep's end."""
        if not self._bsp:
            self._apply(pushes)

    def recover(self, patches: Sequence[tuple[int, int, str]]) -> None:
        """Apply again what the ledger credits but the files may lack. Raises LedgerError for a damaged patch."""
        if not self._bsp:
            self._apply_files(patches)

    def settle(self, patches: Sequence[tuple[int, int, str]]) -> None:
        """Bring all patches of a finished epoch into the field files durably; afterwards they may be dropped."""
        if self._bsp:
            self._apply_files(patches)
        for column in self._columns.values():
            if isinstance(column, np.memmap) and self._durable:
                column.flush()

    def remove(self, patches: Sequence[tuple[int, int, str]]) -> None:
        """Remove the files of patches."""
        for version, _, _ in patches:
            self._path(version).unlink(missing_ok=True)

    def _path(self, version: int) -> Path:
        return self._folder / f"patch-{version:08d}.safetensors"

    def _apply_files(self, patches: Sequence[tuple[int, int, str]]) -> None:
        for version, _, sha256 in patches:
            try:
                payload = self._path(version).read_bytes()
            except OSError as error:
                raise LedgerError(f"the changed fields of version {version} cannot be read: {error}") from error
            if bundle.digest(payload) != sha256:
                raise LedgerError(f"{self._path(version)} is damaged: its SHA-256 is not the one in the ledger.")
            message, tensors = bundle.decode(payload)
            self._apply(decode_patch(tensors, message["pushes"]))

    def _apply(self, pushes: Sequence[Fields]) -> None:
        for fields in pushes:
            for type_name, rows in fields.items():
                for name, values in rows.fields.items():
                    self._columns[type_name][name][rows.ids] = values
