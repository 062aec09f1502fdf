"""Fields whose length differs from vertex to vertex, conversion of dtypes, and digests of columns.

A ragged field is stored as the concatenated values of all vertices, and the offset of each vertex. Only local vertices
have ragged fields, and f does not change them. The arrays can be memory-mapped: a chunk reads only its own rows.

A digest is the SHA-256 of an array. The array is hashed in blocks of rows, so a memory-mapped array is read only once,
and each thread has one block in memory. Hashing takes one second for about 1.3 GB on each core.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.protocol.foreign import described
from gridml.protocol.payload import aligned_tensor

Array = NDArray[Any]


def dtype_of(given: Any) -> np.dtype[Any]:
    """Return a dtype in this machine's byte order. Raises ProgramError for an invalid dtype, and for None, which numpy
    reads as float64."""
    try:
        if given is not None:
            dtype: np.dtype[Any] = np.dtype(given).newbyteorder("=")
            return dtype
    except (TypeError, ValueError):
        pass
    named = str(given).removeprefix("torch.") if str(given).startswith("torch.") else "float32"
    raise ProgramError(
        f"got {given!r} for a dtype; expected the name of one of numpy's, as in gridml.array('{named}', (28, 28))."
    )


def number_of(given: Any, maker: str) -> np.dtype[Any]:
    """Return a numeric dtype of at most 64 bits. Raises ProgramError, naming `maker`, for any other dtype."""
    dtype = dtype_of(given)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ProgramError(
            f"{maker} got dtype {dtype}; expected bool, an integer or a floating-point dtype of at most 64 bits. "
            f'Declare text as gridml.string(), lists as gridml.ragged("float32"), a complex number as two.'
        )
    return dtype


def shape_of(given: Any, maker: str) -> tuple[int, ...]:
    """Return the shape of one value as a tuple. Raises ProgramError, naming `maker`, for an invalid shape."""
    if not isinstance(given, tuple | list) or not all(type(n) is int and n >= 1 for n in given):
        raise ProgramError(
            f"{maker} got shape {given!r}; expected whole numbers from 1, such as (28, 28), or (28,). Declare what "
            f'differs in length from vertex to vertex as gridml.ragged("float32").'
        )
    return tuple(given)


def converted(name: str, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert `values` to `dtype`. Raises ProgramError, naming `name`, if that would change them beyond rounding."""
    if values.dtype == dtype:
        return values
    if len(values) > 1 and not any(values.strides):  # one number that stands for all, as `gridml.csr` takes it
        return np.broadcast_to(converted(name, values[:1], dtype), values.shape)
    if isinstance(values, np.memmap):
        raise ProgramError(
            f"{name} is a memory-mapped array of {values.dtype}; declared is {dtype}, and converting it would read it "
            f"whole into memory. Declare {values.dtype}, or store the file as {dtype}."
        )
    integers = values.dtype.kind in "biu" and dtype.kind in "biu"
    if not integers and not np.can_cast(values.dtype, dtype, "same_kind"):
        text = "gridml.string(), or give numbers: np.unique(values, return_inverse=True)[1]"
        number = f'gridml.array("{values.dtype}"), or give values.astype("{dtype}")'
        wanted = text if values.dtype.kind in "USO" else number
        raise ProgramError(f"{name} got dtype {values.dtype}; declared is {dtype}. Declare {wanted}.")
    changed, row = cast(values, dtype)
    if row is not None:
        raise ProgramError(
            f"{name} got {first_overflow(values[row], dtype)} in row {row:,}, which {dtype} cannot hold. Declare "
            f"{values.dtype}, or scale the values."
        )
    if integers and not np.array_equal(changed, values):
        raise ProgramError(
            f"{name} got integers from {values.min()} to {values.max()}, which {dtype} cannot hold. Declare a larger "
            f"dtype."
        )
    return changed


def cast(values: NDArray[Any], dtype: np.dtype[Any]) -> tuple[NDArray[Any], int | None]:
    """Return (`values` cast to `dtype`, the first row that became infinite, or None)."""
    with np.errstate(over="ignore"):
        changed = values.astype(dtype)
    if dtype.kind != "f" or np.can_cast(values.dtype, dtype):
        return changed, None
    infinite = np.isinf(changed)
    if values.dtype.kind == "f":
        infinite &= ~np.isinf(values)
    rows = infinite.any(axis=tuple(range(1, infinite.ndim))) if infinite.ndim else infinite.reshape(1)
    return changed, int(rows.argmax()) if rows.any() else None


def first_overflow(values: NDArray[Any], dtype: np.dtype[Any]) -> Any:
    """Return the first of `values` that overflows in `dtype`."""
    finite = np.asarray(values)[np.isfinite(values)]
    with np.errstate(over="ignore"):
        return finite[np.isinf(finite.astype(dtype))].flat[0]


BLOCK_BYTES = 1 << 24
MAX_HASH_THREADS = 4  # four threads hash faster than most disks read, and the machine may have other users


def blocks(values: Array) -> Iterator[slice]:
    """Yield the rows of each block of `values` (count, ...): 16 MiB of rows, at least one."""
    rows = max(1, BLOCK_BYTES // max(1, values[:1].nbytes))
    for start in range(0, len(values), rows):
        yield slice(start, min(start + rows, len(values)))


def block_digest(block: Array) -> str:
    """Return the SHA-256 of the bytes of `block`, in C order, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data).hexdigest()


def block_digests(values: Array) -> list[str]:
    """Return the digest of each block of `values`, in order."""
    with ThreadPoolExecutor(min(MAX_HASH_THREADS, os.cpu_count() or 1)) as several:  # hashing releases the GIL
        return list(several.map(lambda rows: block_digest(values[rows]), blocks(values)))


def array_digest(values: Array) -> str:
    """Return one SHA-256 of the dtype, shape and block digests of `values`, in hexadecimal."""
    whole = hashlib.sha256(f"{values.dtype.str} {values.shape}".encode())
    for digest in block_digests(values):
        whole.update(bytes.fromhex(digest))
    return whole.hexdigest()


Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """A ragged column of n vertices: vertex i has `values[offsets[i]:offsets[i+1]]`."""

    values: Array  #: the values of all vertices, (m, ...)
    offsets: Array  #: int64 (n+1,), ascending from 0 to m
    text: bool = False  #: the values are UTF-8 bytes, and a vertex reads as str

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.offsets.nbytes

    def one(self, at: int) -> Any:
        """Return the value of vertex `at`: a view (k, ...), or a str."""
        values = self.values[int(self.offsets[at]) : int(self.offsets[at + 1])]
        return values.tobytes().decode() if self.text else values

    def take(self, rows: slice | Ids) -> Ragged:
        """Return the column of `rows`, in that order: a view for a slice without a step, otherwise a copy."""
        if isinstance(rows, slice):
            offsets = np.asarray(self.offsets[rows.start : rows.stop + 1], np.int64)
            return Ragged(self.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0], self.text)
        begin, end = np.asarray(self.offsets[rows]), np.asarray(self.offsets[rows + 1])
        offsets = np.concatenate([[0], np.cumsum(end - begin)]).astype(np.int64)
        at = np.repeat(begin - offsets[:-1], end - begin) + np.arange(offsets[-1])
        return Ragged(np.asarray(self.values[at]), offsets, self.text)

    def then(self, *others: Ragged) -> Ragged:
        """Return the concatenation with `others`, a copy."""
        lengths = np.concatenate([np.diff(column.offsets) for column in (self, *others)])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Ragged(np.concatenate([column.values for column in (self, *others)]), offsets, self.text)

    def digest(self) -> str:
        """Return a SHA-256 of values and offsets, in hexadecimal."""
        return hashlib.sha256(f"{array_digest(self.values)} {array_digest(self.offsets)}".encode()).hexdigest()


class Lists(Sequence[Any]):
    """A ragged field of a batch, as f receives it: a sequence with one array or tensor (k, ...) for each vertex.

    `values` (m, ...) and `offsets` int64 (n+1,) have the same data: the item of vertex i is
    `values[offsets[i]:offsets[i+1]]`. All tensors are aligned like those that torch allocates.
    """

    def __init__(self, values: Any, offsets: Any) -> None:
        self.values = values
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(f"{at} of {len(self)} vertices")
        at %= len(self)
        part = self.values[int(self.offsets[at]) : int(self.offsets[at + 1])]
        return part if isinstance(part, np.ndarray) else aligned_tensor(part)

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))


class Declared:
    """Base of field descriptors. A vertex reads and writes its fields in its store."""

    name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, vertex: Any, owner: type) -> Any:
        return self if vertex is None else vertex._store.read(self.name, vertex._at)

    def __set__(self, vertex: Any, value: Any) -> None:
        vertex._store.write(self.name, vertex._at, value)


class ragged(Declared):
    """A field whose number of values differs from vertex to vertex, such as the tokens of a sentence or the points of a
    track. Each value has `shape` and `dtype`. f cannot change the field. In f the field of a vertex reads as an array
    (k, *shape), and the field of a batch as `Lists`.
    """

    text = False

    def __init__(self, dtype: Any, shape: tuple[int, ...] = ()) -> None:
        self.dtype = number_of(dtype, "gridml.ragged")
        self.shape = shape_of(shape, "gridml.ragged")

    def column(self, type_name: str, given: Any) -> Ragged:
        """Return the column of all vertices from `given`, the argument of `graph.add`. Raises ProgramError, naming the
        first vertex whose values do not fit."""
        name = f"{type_name}.{self.name}"
        column = given if isinstance(given, Ragged) else self._joined(name, given)
        check(column, name)
        if column.values.shape[1:] != self.shape or column.text != self.text:
            kinds = {True: "text", False: "numbers"}
            raise ProgramError(
                f"{name} got {kinds[column.text]} with values of shape {column.values.shape[1:]}; declared are "
                f"{kinds[self.text]} with values of shape {self.shape}."
            )
        if column.values.dtype != self.dtype:
            column = Ragged(converted(name, column.values, self.dtype), column.offsets, self.text)
        return column

    def values_of(self, name: str, given: Any) -> Array:
        """Convert the values of one vertex, (k, *shape). Raises ProgramError if they do not fit."""
        try:
            values = np.asarray(given)
        except Exception as error:
            raise ProgramError(f"{name} is no array: {described(error)}") from error
        if values.shape in ((0,), (0, *self.shape)):  # the dtype of an empty list is arbitrary
            values = np.empty((0, *self.shape), self.dtype)
        if values.shape[1:] != self.shape or values.ndim == 0 or values.dtype.kind not in "biuf":
            wanted = ", ".join(["any number", *map(str, self.shape)])
            raise ProgramError(
                f"{name} got {values.dtype} of shape {values.shape}; expected ({wanted}) numbers as declared."
            )
        return converted(name, values, self.dtype)

    def _joined(self, name: str, given: Any) -> Ragged:
        if isinstance(given, str | bytes) or not hasattr(given, "__len__") or not hasattr(given, "__iter__"):
            each = "one str for each vertex, in a list" if self.text else "one list or array for each vertex"
            raise ProgramError(f"{name} got {type(given).__name__}; expected {each}.")
        parts = [self.values_of(f"{name} of vertex {at:,}", item) for at, item in enumerate(given)]
        values = np.concatenate(parts) if parts else np.empty((0, *self.shape), self.dtype)
        return Ragged(values, np.cumsum([0, *map(len, parts)], dtype=np.int64), self.text)


class string(ragged):
    """A text field. In f the field of a vertex reads as str, and the field of a batch as list[str]. f cannot change the
    field."""

    text = True

    def __init__(self) -> None:
        super().__init__("uint8")

    def values_of(self, name: str, given: Any) -> Array:
        if not isinstance(given, str):
            raise ProgramError(f"{name} got {type(given).__name__}; expected a str.")
        try:
            return np.frombuffer(given.encode(), np.uint8)
        except UnicodeEncodeError as error:
            raise ProgramError(f"{name} is text that UTF-8 cannot encode: {error}") from error

    def _joined(self, name: str, given: Any) -> Ragged:
        if isinstance(given, str) or not hasattr(given, "__len__"):
            return super()._joined(name, given)
        try:
            parts = [*map(str.encode, given)]
        except (TypeError, UnicodeEncodeError):
            return super()._joined(name, given)  # slower, but its error names the vertex that does not fit
        lengths = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        return Ragged(np.frombuffer(bytearray().join(parts), np.uint8), lengths, text=True)


def check(column: Ragged, name: str) -> None:
    """Raise ProgramError if the offsets of `column` do not match its values."""
    values, offsets = column.values, column.offsets
    if values.ndim == 0 or values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise ProgramError(
            f"{name} got values of {values.dtype} {values.shape}; expected an array of numbers (m, ...)."
        )
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
        raise ProgramError(f"{name} got offsets of {offsets.dtype} {offsets.shape}; expected int64 (vertices + 1,).")
    if offsets[0] != 0 or offsets[-1] != len(values) or np.any(np.diff(offsets) < 0):
        raise ProgramError(
            f"{name} got offsets from {offsets[0]} to {offsets[-1]}; expected a non-decreasing array from 0 to "
            f"{len(values)}, the number of values."
        )
