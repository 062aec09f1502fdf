"""Memory that begins where torch's own allocations do.

Kernels of matrix products and sums cut their loops by where an operand begins, and so round by it: the same rows at
another address give other bits. A loop that reads `x[rows]` has a tensor that torch has just allocated. What f reads
begins at the same boundary, whatever the chunk and the batch are that it was cut from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

ALIGNMENT_BYTES = 64  # of torch on the host (c10::gAlignment)
DEVICE_ALIGNMENT_BYTES = 512  # of its allocators on devices: no device's is coarser


def aligned_empty(shape: Sequence[int], dtype: DTypeLike) -> Array:
    """Return an array with any values that begins at the boundary: numpy's own begin at multiples of 16 bytes."""
    of = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * of.itemsize
    memory = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
    begin = -_address(memory) % ALIGNMENT_BYTES
    return memory[begin : begin + nbytes].view(of).reshape(shape)


def is_aligned(values: Array) -> bool:
    """Whether an array begins at the boundary; one without values does."""
    return not values.size or _address(values) % ALIGNMENT_BYTES == 0


def aligned_copy(values: Array) -> Array:
    """Return a copy in C order that begins at the boundary, writable."""
    copy = aligned_empty(values.shape, values.dtype)
    np.copyto(copy, values)
    return copy


def aligned_rows(column: Array, rows: NDArray[np.int64]) -> Array:
    """Return a copy of some rows that begins at the boundary. Raises IndexError for a row that is not there."""
    if len(rows) and not (-len(column) <= rows.min() and rows.max() < len(column)):
        raise IndexError(
            f"rows {rows.min()} to {rows.max()} were asked for; expected rows of a column of {len(column)}"
        )
    copy = aligned_empty((len(rows), *column.shape[1:]), column.dtype)
    if len(rows):
        np.take(column, rows, axis=0, out=copy, mode="wrap")  # "raise" would buffer all of it
    return copy


def aligned_tensor(tensor: Any) -> Any:
    """Return a tensor as it is where it begins at the boundary of the memory it is in, otherwise a copy."""
    if tensor.device.type == "cpu":
        begins = tensor.data_ptr() % ALIGNMENT_BYTES == 0
    else:
        begins = tensor.storage_offset() * tensor.element_size() % DEVICE_ALIGNMENT_BYTES == 0
    return tensor if begins or not tensor.numel() else tensor.clone()


def _address(values: Array) -> int:
    return int(values.__array_interface__["data"][0])
