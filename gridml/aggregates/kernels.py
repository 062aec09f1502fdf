"""Fused merge kernels: one pass reads v, b and p once, writes the result once, and returns Σ(p−b)².

v is the master's value, b the base of a push and p the pushed replica. numba is imported at the first merge. It
compiles the kernels for float32 and float64, single-threaded and without the GIL, and caches the machine code on disk.
Without numba, and for float16, numpy computes the same in blocks, but slower.
"""

from __future__ import annotations

import functools
import importlib
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gridml.aggregates.base import Array

# Elements of a block. Within a block, squares are summed in the tensor's dtype, which vectorises. The sums of blocks
# are added in float64, which keeps the total exact enough.
_BLOCK = 16_384
# NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED. Both flags are tested at once, because each test takes time, which counts
# for small tensors.
_READY = 0x101
# LLVM's fast-math flags that allow sums to be reordered and contracted. "nnan" and "ninf" must not be added, because
# the kernels detect a result that is not finite by its product with 0.
_FLAGS = frozenset({"reassoc", "contract", "arcp", "nsz"})
_Loop = Callable[..., float]


def blend(out: Array, value: Array, base: Array, replica: Array, pull: float, step: float) -> float:
    """Compute out = value + pull·(base − value) + step·(replica − base); return Σ(replica−base)².

    Every linear rule has this form. The form adds differences instead of three products with rounded coefficients, so
    an untrained tensor (value = base = replica) keeps every bit and does not drift.

    The arrays are floating-point and of one size. `out` is contiguous and does not overlap the others. The sum is NaN
    if the replica or the result is not finite. Otherwise the sum is finite: it saturates at the largest float64. Raises
    ValueError if sizes differ.
    """
    target, v, b, p = _target(out), _flat(value, out), _flat(base, out), _flat(replica, out)
    loop = _loop(_blend, 3, 2, out.dtype) if v.dtype == b.dtype == p.dtype == out.dtype else None
    total = (loop or _blend_numpy)(target, v, b, p, pull, step)
    return total if math.isfinite(total) else _exact_sum(target, b, p)


def blend_rows(out: Array, value: Array, base: Array, replica: Array, pulls: Array, steps: Array) -> float:
    """Like `blend`, but with a pull and a step for each row: out[i] is row i, and `pulls` and `steps` are (rows,). The
    squares of a row are summed in the tensor's dtype."""
    target, v, b, p = _target(out), _flat(value, out), _flat(base, out), _flat(replica, out)
    pulls, steps = (np.ascontiguousarray(each, np.result_type(out.dtype, np.float32)) for each in (pulls, steps))
    loop = _loop(_blend_rows, 5, 0, out.dtype) if v.dtype == b.dtype == p.dtype == out.dtype else None
    total = (loop or _blend_rows_numpy)(target, v, b, p, pulls, steps)
    return total if math.isfinite(total) else _exact_sum(target, b, p)


def fast_forward(out: Array, base: Array, replica: Array, scale: float) -> float:
    """Compute out = base + scale·(replica − base); at scale 1, out is the replica bit for bit. Return the same sum as
    `blend`."""
    if scale != 1:
        return blend(out, base, base, replica, 0.0, scale)
    target, b, p = _target(out), _flat(base, out), _flat(replica, out)
    loop = _loop(_copy, 2, 0, out.dtype) if b.dtype == p.dtype == out.dtype else None
    total = (loop or _copy_numpy)(target, b, p)
    return total if math.isfinite(total) else _exact_sum(target, b, p)


def shift(out: Array, value: Array, direction: Array, step: float) -> None:
    """Compute out = value + step·direction for finite inputs. Saturates at the largest finite value.

    `out` can be `value`. The function applies buffered steps. It saturates at an overflow, because the pushes of these
    steps were accepted before and can no longer be rejected.
    """
    limit = float(np.finfo(out.dtype).max)
    target, start_values, directions = _target(out), _flat(value, out), _flat(direction, out)
    for start in range(0, out.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        moved = start_values[block].astype(np.float64) + step * directions[block].astype(np.float64)
        target[block] = np.clip(moved, -limit, limit)


def _blend(out: Any, value: Any, base: Any, replica: Any, pull: Any, step: Any) -> float:
    zero = pull - pull  # 0 in the tensor's dtype, so that the loop computes in that dtype
    total = 0.0
    for start in range(0, out.size, _BLOCK):
        # With slices that begin at index 0, the compiler needs no wrap-around of negative indices, and can vectorise.
        o, v, b, p = (
            out[start : start + _BLOCK],
            value[start : start + _BLOCK],
            base[start : start + _BLOCK],
            replica[start : start + _BLOCK],
        )
        lanes = zero
        for i in range(o.size):
            moved = p[i] - b[i]
            merged = v[i] + pull * (b[i] - v[i]) + step * moved
            o[i] = merged
            lanes += moved * moved + merged * zero  # merged·0 is NaN exactly if the result is not finite
        total += lanes
    return total


def _blend_rows(out: Any, value: Any, base: Any, replica: Any, pulls: Any, steps: Any) -> float:
    total = 0.0
    length = out.size // max(1, pulls.size)
    for row in range(pulls.size):
        pull, step = pulls[row], steps[row]
        zero = pull - pull
        lanes = zero
        for i in range(row * length, (row + 1) * length):
            moved = replica[i] - base[i]
            merged = value[i] + pull * (base[i] - value[i]) + step * moved
            out[i] = merged
            lanes += moved * moved + merged * zero
        total += lanes
    return total


def _copy(out: Any, base: Any, replica: Any) -> float:
    total = 0.0
    for start in range(0, out.size, _BLOCK):
        o, b, p = out[start : start + _BLOCK], base[start : start + _BLOCK], replica[start : start + _BLOCK]
        lanes = p[0] - p[0]
        for i in range(o.size):
            moved = p[i] - b[i]
            o[i] = p[i]
            lanes += moved * moved
        total += lanes
    return total


def _blend_numpy(out: Array, value: Array, base: Array, replica: Array, pull: float, step: float) -> float:
    blocks = (slice(start, start + _BLOCK) for start in range(0, out.size, _BLOCK))
    return sum(_blend_block(out[block], value[block], base[block], replica[block], pull, step) for block in blocks)


def _blend_block(
    out: Array, value: Array, base: Array, replica: Array, pull: float | Array, step: float | Array
) -> float:
    wide = np.result_type(out.dtype, np.float32)
    with np.errstate(all="ignore"):
        v, b = value.astype(wide), base.astype(wide)
        moved = replica - b
        out[...] = v + pull * (b - v) + step * moved
        return float(np.dot(moved, moved)) + float(out.max() * 0) + float(out.min() * 0)


def _blend_rows_numpy(out: Array, value: Array, base: Array, replica: Array, pulls: Array, steps: Array) -> float:
    length = out.size // max(1, pulls.size)
    rows = max(1, _BLOCK // max(1, length))
    total = 0.0
    for first in range(0, pulls.size, rows):
        block = slice(first * length, min(first + rows, pulls.size) * length)
        pull, step = (np.repeat(each[first : first + rows], length) for each in (pulls, steps))
        total += _blend_block(out[block], value[block], base[block], replica[block], pull, step)
    return total


def _copy_numpy(out: Array, base: Array, replica: Array) -> float:
    np.copyto(out, replica)
    wide = np.result_type(out.dtype, np.float32)
    total = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, out.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            moved = replica[block] - base[block].astype(wide)
            total += float(np.dot(moved, moved))
    return total


def _exact_sum(out: Array, base: Array, replica: Array) -> float:
    """Return Σ(p−b)² in float64 after the fast sum was not finite: NaN if a value of `out` or `replica` is not finite,
    otherwise the sum of squares that overflowed, which saturates."""
    if not (np.isfinite(replica).all() and np.isfinite(out).all()):
        return math.nan
    with np.errstate(over="ignore"):
        moved = replica.astype(np.float64) - base
        total = float(np.dot(moved, moved))
    return min(total, sys.float_info.max)


def _target(out: Array) -> Array:
    if not out.flags.c_contiguous or not out.flags.aligned:
        raise ValueError("out is not contiguous and aligned; give an array made by numpy.empty")
    return out if out.ndim == 1 else out.reshape(-1)


def _flat(array: Array, out: Array) -> Array:
    """Return the elements as a contiguous, aligned vector. So kernels are compiled for one array type only."""
    if array.size != out.size:
        raise ValueError(f"got {array.size} elements, expected {out.size}; Merger.check rejects such a push")
    if type(array) is not np.ndarray:
        array = np.asarray(array)
    if array.flags.num & _READY != _READY:
        array = np.require(array, requirements=["C", "A"])
    return array if array.ndim == 1 else array.reshape(-1)


@functools.cache
def _loop(function: _Loop, inputs: int, scalars: int, dtype: np.dtype[Any]) -> _Loop | None:
    """Compile `function` for a writable vector, `inputs` read-only vectors and `scalars` numbers. Return None if numpy
    must be used instead."""
    if dtype.name not in ("float32", "float64") or not dtype.isnative:
        return None
    try:
        # Imported by name, because numba has no type hints for a checker to follow, and workers can lack numba.
        numba: Any = importlib.import_module("numba")
    except ImportError:
        return None
    number = getattr(numba, dtype.name)
    vector = functools.partial(numba.types.Array, number, 1, "C")
    signature = numba.float64(vector(), *[vector(readonly=True)] * inputs, *[number] * scalars)
    settings = {"fastmath": set(_FLAGS), "nogil": True, "error_model": "numpy"}
    try:
        compiled: _Loop = numba.njit(signature, cache=True, **settings)(function)
    except RuntimeError:  # no cache folder is writable: compile in every process
        compiled = numba.njit(signature, **settings)(function)
    return compiled
