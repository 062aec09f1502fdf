"""Fields of a vertex type on the disk: written an item at a time, mapped read-only afterwards."""

from __future__ import annotations

from array import array as numbers
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import DataError
from gridml.model.ragged import Ragged, beyond, narrowed
from gridml.model.ragged import ragged as ragged_field
from gridml.model.vertex import array
from gridml.protocol.foreign import described

Array = NDArray[Any]
_BUFFER = 1 << 20  # bytes


class FieldWriter:
    """Writes the values of one declared field, in the order of the items. `close` tells what `opened` needs."""

    def __init__(self, folder: Path, declared: array | ragged_field) -> None:
        self._declared = declared
        self._values = (folder / f"{declared.name}.values").open("xb", buffering=_BUFFER)
        self._ends = numbers("q", [0])  # eight bytes each, where a list takes 36
        self._ragged = isinstance(declared, ragged_field)
        self._folder = folder
        self.nbytes = 0

    def write(self, item: int, value: Any) -> None:
        """Write the value of item number `item`. Raises DataError where it does not fit the declaration."""
        values = as_array(self._declared, item, value)
        if self._ragged:
            self._ends.append(self._ends[-1] + len(values))
        else:
            self._ends[0] += 1
        self.nbytes += values.nbytes
        self._values.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)

    def close(self) -> list[int]:
        """Close the file, and return how many values there are and, of a ragged field, how many offsets."""
        self._values.close()
        if self._ragged:
            np.frombuffer(self._ends, np.int64).tofile(self._folder / f"{self._declared.name}.offsets")
            return [self._ends[-1], len(self._ends)]
        return [self._ends[0]]


def opened(folder: Path, declared: array | ragged_field, lengths: list[int]) -> Array | Ragged:
    """Return a written field, mapped read-only. Raises ValueError or OSError where its files have another size."""
    values = _mapped(folder / f"{declared.name}.values", declared.dtype, (lengths[0], *declared.shape))
    if not isinstance(declared, ragged_field):
        return values
    offsets = _mapped(folder / f"{declared.name}.offsets", np.dtype(np.int64), (lengths[1],))
    return Ragged(values, offsets, declared.text)


def _mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if path.stat().st_size != size:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, expected {size:,}")
    return np.memmap(path, dtype, "r", shape=shape) if size else np.empty(shape, dtype)


def as_array(declared: array | ragged_field, item: int, value: Any) -> Array:
    """Return a value in the declared dtype and shape. Raises DataError where it is not of that form."""
    name = declared.name
    if isinstance(declared, ragged_field) and declared.text:
        if not isinstance(value, str):
            raise DataError(f"item {item:,} has {_what(value)} as {name}; expected a str, as it is declared.")
        try:
            return np.frombuffer(value.encode(), np.uint8)
        except UnicodeEncodeError as error:
            raise DataError(f"item {item:,} has a {name} that UTF-8 cannot hold: {error}") from error
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # which NumPy has no dtype for; float32 holds all of it
            value = value.float()
    if isinstance(value, np.ma.MaskedArray):
        raise DataError(f"item {item:,} has a masked array as {name}, whose mask would be lost. Give its filled(...).")
    try:
        values: Array = np.asarray(value)
    except Exception as error:
        raise DataError(f"item {item:,} has {_what(value)} as {name}, which is no array: {described(error)}") from error
    if isinstance(declared, ragged_field) and values.shape in ((0,), (0, *declared.shape)):
        values = values.reshape(0, *declared.shape).astype(declared.dtype)
    if values.dtype.kind not in "biuf":
        hint = " Declare it as gridml.string()." if isinstance(value, str) else ""
        raise DataError(f"item {item:,} has {_what(value)} as {name}; expected {_wanted(declared)}.{hint}")
    if isinstance(declared, ragged_field):
        if values.ndim == 0 or values.shape[1:] != declared.shape:
            raise DataError(f"item {item:,} has a {name} of shape {values.shape}; expected {_wanted(declared)}.")
    elif values.shape != declared.shape:
        raise DataError(
            f"item {item:,} has a {name} of shape {values.shape}; expected {_wanted(declared)}, as declared. All items "
            f"of gridml.array have one shape: make them so in the data set, or declare {name} as gridml.ragged, whose "
            f"length may differ from item to item."
        )
    return _converted(declared, item, values)


def _converted(declared: array | ragged_field, item: int, values: Array) -> Array:
    dtype = declared.dtype
    if values.dtype == dtype:
        return values
    converted, row = narrowed(values, dtype)
    if row is not None:
        raise DataError(
            f"item {item:,} has a {declared.name} with {beyond(values, dtype)} in it, which {dtype} cannot hold. "
            f"Declare {values.dtype}, or scale the values in the data set."
        )
    same = np.array_equal(converted, values) if dtype.kind in "iub" and values.dtype.kind in "iub" else None
    if same is False or (same is None and not np.can_cast(values.dtype, dtype, "same_kind")):
        span = f" from {values.min()} to {values.max()}" if values.size else ""
        raise DataError(
            f"item {item:,} has a {declared.name} of {values.dtype}{span}; declared is {dtype}, which cannot hold "
            f"it as it is. Declare {values.dtype}, or convert it in the data set."
        )
    return converted


def _wanted(declared: array | ragged_field) -> str:
    shape = ("any number", *declared.shape) if isinstance(declared, ragged_field) else declared.shape
    return f"{declared.dtype} of shape ({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _what(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"
