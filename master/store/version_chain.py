"""Incremental files of versions, which hold only the rows of array fields that changed since a parent version.

Such a file names its parent and the parent's SHA-256 in its message. For each type that it does not contain whole, it
has only the rows that changed: their ids as "@rows/Type", int64 (n,) in ascending order, and their values as
"Type/field" (n, *shape). A version is reconstructed from a chain of files: its own, its parent's, and so on, down to a
whole file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gridml.errors import DamagedError
from gridml.protocol import bundle
from gridml.protocol.foreign import described
from gridml.protocol.push import Array, Ids, RowValues
from master.store.rundir import version_name

# Prefixes of tensor names: "@changed/Type" has the version of each vertex's last change, "@rows/Type" has ids.
CHANGED, _ROWS = "@changed/", "@rows/"


@dataclass(frozen=True)
class Parent:
    """The version to which an incremental file adds changes."""

    version: int
    sha256: str  # of its file

    @classmethod
    def of(cls, message: Mapping[str, Any], version: int) -> Parent | None:
        """Parse the parent from the message of a version's file, None for a whole file. Raises ValueError."""
        parent, sha256 = message.get("parent"), message.get("parent_sha256")
        if parent is None:
            return None
        # A parent's number is below its child's, so no chain is circular.
        if type(parent) is not int or not 0 <= parent < version or not isinstance(sha256, str):
            raise ValueError(f"it stands on version {parent!r}; expected one before {version}, and its SHA-256")
        return cls(parent, sha256)

    def message(self) -> dict[str, Any]:
        """Return the entries of a file's message that name the parent."""
        return {"parent": self.version, "parent_sha256": self.sha256}


@dataclass(frozen=True)
class VersionFile:
    """The content of one file."""

    version: int
    parent: Parent | None  # None for a whole file
    tensors: Mapping[str, Array]  # by name, as stored

    @cached_property
    def rows(self) -> dict[str, RowValues]:
        """By type, for types that the file does not hold whole: the rows that changed since the parent."""
        types = [name.removeprefix(_ROWS) for name in self.tensors if name.startswith(_ROWS)]
        return {name: RowValues(self.tensors[f"{_ROWS}{name}"], self.columns(name)) for name in types}

    def columns(self, type_name: str) -> dict[str, Array]:
        """Return the stored fields of an array type, empty for a type of modules."""
        names = ((name.split("/"), tensor) for name, tensor in self.tensors.items())
        return {parts[1]: tensor for parts, tensor in names if len(parts) == 2 and parts[0] == type_name}

    @property
    def others(self) -> dict[str, Array]:
        """Tensors that the file holds whole, by name."""
        partly = {f"{name}/{field}" for name, rows in self.rows.items() for field in rows.fields}
        return {n: t for n, t in self.tensors.items() if n not in partly and not n.startswith(_ROWS)}


def changed_rows(type_name: str, ids: Ids, columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return tensors by name, which store copies of the rows `ids` of a type in a file. `ids` must ascend."""
    return {f"{_ROWS}{type_name}": ids, **{f"{type_name}/{name}": column[ids] for name, column in columns.items()}}


@dataclass(frozen=True)
class Chain:
    """The files from which a version is reconstructed."""

    files: tuple[VersionFile, ...]  # the version's own first; the last one is whole

    def later(self, type_name: str) -> Iterator[RowValues]:
        """Yield the changed rows of a type, newest first, from the files newer than the one with the whole type."""
        return (file.rows[type_name] for file in self.files[: self._whole(type_name)])

    def columns(self, type_name: str) -> dict[str, Array]:
        """Return the fields of a type from the newest file that holds the type whole."""
        return self.files[self._whole(type_name)].columns(type_name)

    def _whole(self, type_name: str) -> int:
        return next(at for at, file in enumerate(self.files) if type_name not in file.rows)

    def tensors(self) -> dict[str, Array]:
        """Return the tensors of the version by name, as in a whole file. Overwrites arrays of the files, which must be
        writable."""
        tensors = self.files[0].others
        for type_name in self.files[0].rows:
            at = self._whole(type_name)
            columns, changed = self.columns(type_name), self.files[at].tensors[f"{CHANGED}{type_name}"]
            for file in self.files[:at][::-1]:  # oldest first, so that newer rows overwrite
                rows = file.rows[type_name]
                for name, column in columns.items():
                    column[rows.ids] = rows.fields[name]
                changed[rows.ids] = file.version
            tensors |= {f"{type_name}/{name}": column for name, column in columns.items()}
            tensors[f"{CHANGED}{type_name}"] = changed
        return tensors


def open_chain(folder: Path, version: int, sha256: str | None, *, mapped: bool) -> Chain:
    """Open the files of a version and verify their SHA-256. Tensors are copied to memory, or `mapped` read-only.

    Raises DamagedError, naming the file that is damaged or missing, and OSError.
    """
    files = [_opened(folder, version, version, sha256, mapped=mapped)]
    while (parent := files[-1].parent) is not None:
        files.append(_opened(folder, version, parent.version, parent.sha256, mapped=mapped))
    return Chain(tuple(files))


def _opened(folder: Path, wanted: int, version: int, sha256: str | None, *, mapped: bool) -> VersionFile:
    path = folder / version_name(version)
    needing = "" if version == wanted else f" (version {wanted} stands on it)"
    try:
        payload = np.memmap(path, np.uint8, "r").data
    except (FileNotFoundError, ValueError) as error:  # an empty file cannot be mapped
        raise DamagedError(f"{path}, version {version} of the replica, is gone{needing}", path) from error
    if sha256 is not None and bundle.digest(payload) != sha256:
        names = "in the ledger" if version == wanted else "that this version names"
        raise DamagedError(f"{path} is damaged: its SHA-256 is not the one {names}{needing}", path)
    try:
        message, tensors = bundle.opened(payload)
        if not mapped:  # copies: a view of one tensor would keep the whole file in memory
            tensors = {name: np.array(tensor) for name, tensor in tensors.items()}
        return VersionFile(version, Parent.of(message, version), tensors)
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: {described(error)}{needing}", path) from error


def message_of(path: Path) -> dict[str, Any]:
    """Return the message of a version's file without reading its tensors. Raises OSError, ValueError."""
    message, _ = bundle.opened(np.memmap(path, np.uint8, "r").data)
    return message
