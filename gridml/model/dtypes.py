"""dtypes as users give them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError


def dtype_of(given: Any) -> np.dtype[Any]:
    """Return a dtype in this machine's byte order. Raises ProgramError for what numpy takes for none, and for None,
    which it takes for float64."""
    try:
        if given is not None:
            dtype: np.dtype[Any] = np.dtype(given).newbyteorder("=")
            return dtype
    except (TypeError, ValueError):
        pass
    raise ProgramError(f"got {given!r} for a dtype; expected one of numpy's, such as 'float32'.")


def number_of(given: Any, maker: str) -> np.dtype[Any]:
    """Return the dtype of numbers that a payload can hold, as `maker` was given it. Raises ProgramError for others."""
    dtype = dtype_of(given)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ProgramError(
            f"{maker} got dtype {dtype}; expected bool, an integer or a floating-point dtype of at most 64 bits. Store "
            f"other things as such numbers, for example a complex one as two."
        )
    return dtype


def shape_of(given: Any, maker: str) -> tuple[int, ...]:
    """Return the shape of one value, as `maker` was given it. Raises ProgramError for what is none."""
    if not isinstance(given, tuple | list) or not all(type(n) is int and n >= 1 for n in given):
        raise ProgramError(f"{maker} got shape {given!r}; expected whole numbers from 1, such as (28, 28).")
    return tuple(given)


def converted(name: str, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `values` as `dtype`, where that is a matter of form. Raises ProgramError where it would change them."""
    if values.dtype == dtype:
        return values
    if isinstance(values, np.memmap):
        raise ProgramError(
            f"{name} is a memory-mapped array of {values.dtype}; declared is {dtype}, and converting it would read it "
            f"whole into memory. Declare {values.dtype}, or store the file as {dtype}."
        )
    integers = values.dtype.kind in "iu" and dtype.kind in "iu"
    if not integers and not np.can_cast(values.dtype, dtype, "same_kind"):
        raise ProgramError(f"{name} got dtype {values.dtype}; declared is {dtype}. Convert it first.")
    changed, row = narrowed(values, dtype)
    if row is not None:
        raise ProgramError(
            f"{name} got {beyond(values[row], dtype)} in row {row:,}, which {dtype} cannot hold. Declare "
            f"{values.dtype}, or scale the values."
        )
    if integers and not np.array_equal(changed, values):
        raise ProgramError(
            f"{name} got integers from {values.min()} to {values.max()}, which {dtype} cannot hold. Declare a larger "
            f"dtype."
        )
    return changed


def narrowed(values: NDArray[Any], dtype: np.dtype[Any]) -> tuple[NDArray[Any], int | None]:
    """Return `values` as `dtype`, and the first row that has become infinite, None where none has."""
    with np.errstate(over="ignore"):
        changed = values.astype(dtype)
    if dtype.kind != "f" or np.can_cast(values.dtype, dtype):
        return changed, None
    infinite = np.isinf(changed)
    if values.dtype.kind == "f":
        infinite &= ~np.isinf(values)
    rows = infinite.any(axis=tuple(range(1, infinite.ndim))) if infinite.ndim else infinite.reshape(1)
    return changed, int(rows.argmax()) if rows.any() else None


def beyond(values: NDArray[Any], dtype: np.dtype[Any]) -> Any:
    """Return the first of `values` that `dtype` would make infinite."""
    finite = np.asarray(values)[np.isfinite(values)]
    with np.errstate(over="ignore"):
        return finite[np.isinf(finite.astype(dtype))].flat[0]
