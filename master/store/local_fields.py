"""Mutable fields of local vertices, reconstructed from files that the ledger names.

    working copy = (the graph's own columns, or the base named in the ledger) + the patches named in the ledger

A base holds the fields as they were at the end of an epoch. A patch holds the fields that one version changed. It is
written and fsynced before the transaction that credits its pushes. Bases and patches are immutable and are read only if
they match their digests in the ledger.

Reads and changes use the working copy. Every master makes its own in new files, so the copy cannot be ahead of the
ledger, and a superseded master cannot write to it. At the end of an epoch the base and the patches are merged into the
next base, without the working copy.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import DamagedError
from gridml.model.graph import Graph
from gridml.model.ragged import block_digest, block_digests, blocks
from gridml.protocol import bundle
from gridml.protocol.foreign import MAX_NAME_CHARS, printable
from gridml.protocol.push import Fields, RowValues, decode_patch, encode_patch
from master.store.rundir import base_name, patch_name, read_named

Array = NDArray[Any]


@dataclass(frozen=True)
class FieldsBase:
    """The fields at the end of an epoch, in immutable files."""

    version: int  # the version that ends the epoch
    digests: Mapping[str, Sequence[str]]  # by "Type.field": the SHA-256 of each block (`gridml.model.ragged`)


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of a .npy file."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file := BytesIO(), header)
    return file.getvalue()


def create(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Create a .npy file with every block allocated, and map it. Raises OSError."""
    # The file is allocated before it is mapped: on a full disk, writing to a hole of a mapped file kills the process
    # with SIGBUS. For the same reason no file here is a reflink, whose blocks are allocated on the first write.
    size, header = dtype.itemsize * prod(shape), _header(dtype, shape)
    with path.open("wb") as file:
        file.write(header)
        file.flush()
        if size:
            os.posix_fallocate(file.fileno(), len(header), size)
    return np.memmap(path, dtype, "r+", len(header), shape) if size else np.empty(shape, dtype)


def open_base(path: Path, like: Array) -> Array:
    """Map a field's file for reading. Raises DamagedError if it is missing, or its dtype or shape is not `like`'s."""
    # Only one header is valid, so it is compared as bytes. For a damaged header NumPy's parser would raise many types
    # of errors.
    header = _header(like.dtype, like.shape)
    try:
        with path.open("rb") as file:
            found, size = file.read(len(header)), os.fstat(file.fileno()).st_size
        if found != header or size != len(header) + like.nbytes:
            got = f"{printable(found.decode(errors='replace').strip(), MAX_NAME_CHARS)!r} in {size:,} bytes"
            raise DamagedError(f"{path} cannot be read: got {got}, expected {like.dtype} {like.shape}", path)
        return np.memmap(path, like.dtype, "r", len(header), like.shape) if like.size else like
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error}", path) from error


def copy_base(path: Path, target: Array, digests: Sequence[str]) -> None:
    """Copy a base into `target`, verifying the digest of each block. Raises DamagedError, naming the vertices."""
    source = open_base(path, target)
    parts = list(blocks(source))
    if len(digests) != len(parts):
        raise DamagedError(f"{path} has {len(parts)} blocks, the ledger names {len(digests)}", path)
    for rows, digest in zip(parts, digests, strict=True):
        block = np.array(source[rows])  # one copy, so that the bytes used are those verified
        if block_digest(block) != digest:
            raise DamagedError(f"{path} is damaged between vertices {rows.start:,} and {rows.stop - 1:,}", path)
        target[rows] = block


Patch = tuple[int, int, str]  # (version, epoch, SHA-256)
# File names of bases, patches and unfinished files; a working copy's name does not match.
_OF_A_VERSION = re.compile(r".+@\d{8}\.npy|patch-\d{8}\.safetensors|\..+\.tmp")


class LocalFields:
    """The mutable columns of a graph. `show` replaces the graph's own columns by memory-mapped files in `folder`.

    With `bsp` each epoch is a superstep: its changes become visible when it ends, so that every call of f in it reads
    the same values. If an epoch has `phases`, each of them is a superstep, and has ended when every row has come home
    once: no vertex is trained in the next phase before that, so that patches alone say which phases have ended.
    """

    def __init__(self, graph: Graph, folder: Path, *, bsp: bool, phases: bool = False, durable: bool = True) -> None:
        self._graph = graph
        self._folder = folder
        self._bsp, self._phases = bsp, bsp and phases
        self._waiting: list[Fields] = []  # pushes of a phase that has not ended
        self._came: Counter[str] = Counter()  # their rows, by "Type.field"
        self._durable = durable
        self._first = graph.mutable_columns()  # its own, before any training; dropped once there is a base
        # by "Type.field": (dtype, shape)
        self._forms = {field: (column.dtype, column.shape) for field, column in self._first.items()}
        self._columns = self._first  # the working copies, by "Type.field"

    @property
    def any(self) -> bool:
        """Return whether f may change any field."""
        return bool(self._forms)

    def show(self, base: FieldsBase | None, patches: Sequence[Patch]) -> None:
        """Make working copies that contain `base` and, without bsp, `patches`. Raises DamagedError, OSError."""
        if not self.any:
            return
        self._folder.mkdir(exist_ok=True)
        self._columns = self._make(lambda field: f"{field}.npy", base, () if self._bsp else patches)
        self._waiting, self._came = [], Counter()
        for patch in patches if self._phases else ():
            self._arrived(self._read_patch(patch))
        if base is not None:
            self._first = {}  # frees their memory
        for field, column in self._columns.items():
            self._graph.replace_column(field, column)

    def merge_patches(self, base: FieldsBase | None, patches: Sequence[Patch]) -> FieldsBase:
        """Make the next base from `base` and `patches`. The transaction that drops the patches from the ledger must
        also record this base. Raises DamagedError, OSError."""
        version = max(version for version, _, _ in patches)
        columns = self._make(lambda field: base_name(field, version), base, patches)
        return FieldsBase(version, {field: block_digests(column) for field, column in columns.items()})

    def _make(self, name: Callable[[str], str], base: FieldsBase | None, patches: Sequence[Patch]) -> dict[str, Array]:
        """Make a file for each field from a base and patches; return the mapped files by field. Each file is complete
        and durable before it gets its name."""
        temporary = {field: self._folder / f".{name(field)}.tmp" for field in self._forms}
        columns = {field: create(temporary[field], *form) for field, form in self._forms.items()}
        for field, column in columns.items():
            if base is None:
                for rows in blocks(column):
                    column[rows] = self._first[field][rows]
            else:
                copy_base(self._folder / base_name(field, base.version), column, base.digests[field])
        for patch in patches:
            _apply(columns, self._read_patch(patch))
        for field, column in columns.items():
            if self._durable and isinstance(column, np.memmap):  # a field without rows is not mapped
                column.flush()
            temporary[field].replace(self._folder / name(field))
        if self._durable:
            bundle.sync_folder(self._folder)
        return columns

    def check(self, fields: Fields, allowed: Mapping[str, Array], trained: tuple[str, Array]) -> str | None:
        """Return why the fields of a push are rejected, None if they are accepted.

        `allowed` has, by type, the ids that the lease permits the push to change. `trained` is (driving type, ids of
        its newly trained vertices, int64 (n,)).
        """
        driver, trained_ids = trained
        allowed = dict(allowed)
        for owner in {field.split(".")[0] for field in self._forms}:
            type_name, _, edge = owner.partition(":")
            if edge and type_name == driver:  # edges come home with the vertices at which they start
                allowed[owner] = self._graph.tables[type_name].edges[edge].places(trained_ids)
        # A push must have every mutable field of the types in `allowed`. If it is credited without a field, the changes
        # of that field are lost.
        for type_name, name in (field.split(".") for field in self._forms):
            if type_name in allowed and (type_name not in fields or name not in fields[type_name].fields):
                return f"{type_name}/{name} is missing"
        for type_name, rows in fields.items():
            if not np.isin(rows.ids, allowed.get(type_name, [])).all():
                return f"fields of {type_name} name vertices outside the lease"
            if type_name == driver and not np.array_equal(rows.ids, trained_ids):
                return f"fields of {type_name} name other vertices than the {len(trained_ids)} that were trained"
            if ":" in type_name and not np.array_equal(rows.ids, allowed.get(type_name, [])):
                return f"fields of {type_name} name other edges than those of the {len(trained_ids)} that were trained"
            for name, values in rows.fields.items():
                if problem := self._problem(f"{type_name}.{name}", rows.ids, values):
                    return f"{type_name}/{name} {problem}"
        return None

    def values(self, type_name: str, rows: RowValues) -> dict[str, Array]:
        """Return, by field, the values of a push's rows in the working copy. Call before the push is applied."""
        return {name: self._columns[f"{type_name}.{name}"][rows.ids] for name in rows.fields}

    def _problem(self, field: str, ids: Array, values: Array) -> str | None:
        column = self._columns.get(field)
        if column is None:
            return "is not a field that f may change"
        if values.shape != (len(ids), *column.shape[1:]) or values.dtype != column.dtype:
            return f"has {values.dtype} {values.shape}, which does not fit the field"
        # A value that was not finite before, such as a marker of missing data, may stay not finite.
        if values.dtype.kind == "f" and np.isfinite(column[ids][~np.isfinite(values)]).any():
            return "is not finite (NaN or infinity)"
        return None

    def write_patch(self, version: int, pushes: Sequence[Fields]) -> str:
        """Write the fields of a group of pushes as one durable file; return its SHA-256. Raises OSError."""
        payload = bundle.encode({"version": version, "pushes": len(pushes)}, encode_patch(pushes))
        bundle.write_atomic(self._folder / patch_name(version), payload, durable=self._durable)
        return bundle.digest(payload)

    def committed(self, pushes: Sequence[Fields]) -> None:
        """Apply committed pushes to the working copy. With bsp they wait for the end of the superstep."""
        if self._phases:
            self._arrived(pushes)
        elif not self._bsp:
            _apply(self._columns, pushes)

    def _arrived(self, pushes: Sequence[Fields]) -> None:
        """Apply pushes once every row of what they have is there."""
        for push in pushes:
            self._waiting.append(push)
            for owner, rows in push.items():
                self._came.update({f"{owner}.{name}": len(rows.ids) for name in rows.fields})
            if all(count == len(self._columns[field]) for field, count in self._came.items()):
                _apply(self._columns, self._waiting)
                self._waiting, self._came = [], Counter()

    def sweep(self, base: FieldsBase | None, patches: Sequence[Patch]) -> None:
        """Remove the files of all bases and patches except `base` and `patches`, and unfinished files."""
        named = {patch_name(version) for version, _, _ in patches}
        if base is not None:
            named.update(base_name(field, base.version) for field in base.digests)
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if _OF_A_VERSION.fullmatch(path.name) and path.name not in named:
                path.unlink(missing_ok=True)

    def _read_patch(self, patch: Patch) -> list[Fields]:
        version, _, sha256 = patch
        what = f"the changed fields of version {version}"
        message, tensors = bundle.decode(read_named(self._folder / patch_name(version), sha256, what))
        return decode_patch(tensors, message["pushes"])


def _apply(columns: Mapping[str, Array], pushes: Sequence[Fields]) -> None:
    for fields in pushes:
        for type_name, rows in fields.items():
            for name, values in rows.fields.items():
                columns[f"{type_name}.{name}"][rows.ids] = values
