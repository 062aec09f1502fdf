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
        self._columns: dict[str, Array] = {}
        for table in graph.local:
            for name in table.type.mutable:
                column = self._open(f"{table.type.name}.{name}.npy", table.columns[name])
                table.columns[name] = column
                self._columns[f"{table.type.name}/{name}"] = column

    @property
    def any(self) -> bool:
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
        found = np.load(path, mmap_mode="r+")
        if found.shape != values.shape or found.dtype != values.dtype:
            raise LedgerError(f"{path} holds {found.dtype} {found.shape}, the graph {values.dtype} {values.shape}.")
        return np.asarray(found) if found.size == 0 else found

    def check(
        self, pushed: Mapping[str, Array], allowed: Mapping[str, Array], trained: tuple[str, Array]
    ) -> str | None:
        """Why fields of a push cannot be taken, None if they can.

        `allowed` are the ids by type that its lease may change, `trained` is the driving type and its newly trained
        ids int64 (n,). All fields of these types must have come, or what f made of them would be lost with the credit.
        """
        driver, ids = trained
        lost = [n for n in self._columns if n not in pushed and n.split("/", 1)[0] in allowed]
        if lost:
            return f"{lost[0]} is missing"
        for name, values in sorted(pushed.items(), key=lambda item: item[0]):  # "@ids/..." first
            if name.startswith("@ids/"):
                kind = name.removeprefix("@ids/")
                if values.dtype != np.int64 or values.ndim != 1 or not np.isin(values, allowed.get(kind, [])).all():
                    return f"{name} names vertices outside the lease"
                if kind == driver and not np.array_equal(values, ids):
                    return f"{name} names others than the {len(ids)} vertices that were trained"
                continue
            if name not in self._columns:
                return f"{name} is not a field that f may change"
            column, at = self._columns[name], pushed.get("@ids/" + name.split("/", 1)[0])
            if at is None or values.shape != (len(at), *column.shape[1:]) or values.dtype != column.dtype:
                return f"{name} has {values.dtype} {values.shape}, which does not fit the field"
            # What was not finite before (a missing value, say) may stay so.
            if values.dtype.kind == "f" and np.isfinite(column[at][~np.isfinite(values)]).any():
                return f"{name} is not finite (NaN or infinity)"
        return None

    def write_patch(self, version: int, pushes: Sequence[Mapping[str, Array]]) -> str:
        """Write the fields of a group of pushes as one durable file; returns its SHA-256. Raises OSError."""
        tensors = {f"{i}/{name}": values for i, pushed in enumerate(pushes) for name, values in pushed.items()}
        payload = bundle.encode({"version": version, "pushes": len(pushes)}, tensors)
        bundle.write_atomic(self._path(version), payload, durable=self._durable)
        return bundle.digest(payload)

    def committed(self, pushes: Sequence[Mapping[str, Array]]) -> None:
        """Apply what was just credited, unless it must wait for the superstep's end."""
        if not self._bsp:
            for pushed in pushes:
                self._apply(pushed)

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
            for i in range(message["pushes"]):
                self._apply({n.split("/", 1)[1]: t for n, t in tensors.items() if n.split("/", 1)[0] == str(i)})

    def _apply(self, pushed: Mapping[str, Array]) -> None:
        for name, values in pushed.items():
            if not name.startswith("@ids/"):
                self._columns[name][pushed["@ids/" + name.split("/", 1)[0]]] = values
