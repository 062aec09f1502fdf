"""Gate and average in one pass over the bytes: read v, b, p once, write the result once, and return Σ(p−b)².

Every linear rule is v + pull·(b−v) + step·(p−b). Written with differences rather than with three products, a
tensor that nobody trained (v = b = p) stays as it is to the last bit, where rounded coefficients would let it
drift.

The loop is blocked: within a block squares are summed in the tensor's own dtype, in as many lanes as the
processor has, and the blocks in float64. Finiteness costs nothing extra: out·0 joins the sum, and is NaN exactly
when out is not finite. So the loop may be reordered and contracted, but must not be compiled under the assumption
that there are no NaNs or infinities.

numba is imported at the first merge and compiles for float32 and float64, one thread, without the GIL; its
machine code is cached on disk. Without numba, and for float16, numpy does the same in blocks, slower.
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

_BLOCK = 16_384
_READY = 0x101  # numpy's NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED: one look instead of two, for small tensors
_FLAGS = frozenset({"reassoc", "contract", "arcp", "nsz"})
_Loop = Callable[..., float]


def blend(out: Array, value: Array, base: Array, replica: Array, pull: float, step: float) -> float:
    """out = value + pull·(base − value) + step·(replica − base); return Σ(replica−base)².

    Floating-point arrays of one size; `out` contiguous, not overlapping the others. The sum is NaN if replica or
    result is not finite, and otherwise finite: it saturates at the largest float64. Raises ValueError if sizes
    differ.
    """
    target, v, b, p = _target(out), _flat(value, out), _flat(base, out), _flat(replica, out)
    loop = _loop(_blend, 3, 2, out.dtype) if v.dtype == b.dtype == p.dtype == out.dtype else None
    total = (loop or _blend_numpy)(target, v, b, p, pull, step)
    return total if math.isfinite(total) else _truth(target, b, p)


def blend_rows(out: Array, value: Array, base: Array, replica: Array, pulls: Array, steps: Array) -> float:
    """As `blend`, with a pull and a step for each row; out[i] is row i, `pulls` and `steps` are (rows,). Squares of a
    row are summed in the tensor's own dtype."""
    target, v, b, p = _target(out), _flat(value, out), _flat(base, out), _flat(replica, out)
    pulls, steps = (np.ascontiguousarray(each, np.result_type(out.dtype, np.float32)) for each in (pulls, steps))
    loop = _loop(_blend_rows, 5, 0, out.dtype) if v.dtype == b.dtype == p.dtype == out.dtype else None
    total = (loop or _blend_rows_numpy)(target, v, b, p, pulls, steps)
    return total if math.isfinite(total) else _truth(target, b, p)


def fast_forward(out: Array, base: Array, replica: Array, scale: float) -> float:
    """out = base + scale·(replica − base), at scale 1 the replica bit for bit; return the sum that `blend` does."""
    if scale != 1:
        return blend(out, base, base, replica, 0.0, scale)
    target, b, p = _target(out), _flat(base, out), _flat(replica, out)
    loop = _loop(_copy, 2, 0, out.dtype) if b.dtype == p.dtype == out.dtype else None
    total = (loop or _copy_numpy)(target, b, p)
    return total if math.isfinite(total) else _truth(target, b, p)


def shift(out: Array, value: Array, direction: Array, step: float) -> None:
    """out = value + step·direction, for finite inputs; saturates at the largest finite value instead of overflowing.

    `out` may be `value`. For the rare moments when a buffer is emptied, where no push is left that could be
    refused.
    """
    limit = float(np.finfo(out.dtype).max)
    target, start_values, directions = _target(out), _flat(value, out), _flat(direction, out)
    for start in range(0, out.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        moved = start_values[block].astype(np.float64) + step * directions[block].astype(np.float64)
        target[block] = np.clip(moved, -limit, limit)


def _blend(out: Any, value: Any, base: Any, replica: Any, pull: Any, step: Any) -> float:
    zero = pull - pull  # of the tensor's dtype
    total = 0.0
    for start in range(0, out.size, _BLOCK):
        # Over the length of a slice the compiler needs no wrap-around of negative indices, and so vectorises.
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
            lanes += moved * moved + merged * zero
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


def _truth(out: Array, base: Array, replica: Array) -> float:
    """The sum where the fast one is not finite: something is bad, or squares of large finite values overflowed."""
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
    """The elements as a contiguous, aligned line, as many as `out` has: one type for the compiler."""
    if array.size != out.size:
        raise ValueError(f"got {array.size} elements, expected {out.size}; Merger.check refuses such a push")
    if type(array) is not np.ndarray:
        array = np.asarray(array)
    if array.flags.num & _READY != _READY:
        array = np.require(array, requirements=["C", "A"])
    return array if array.ndim == 1 else array.reshape(-1)


@functools.cache
def _loop(function: _Loop, inputs: int, scalars: int, dtype: np.dtype[Any]) -> _Loop | None:
    """`function` compiled for a writable line, `inputs` read-only lines and `scalars` numbers, or None: use numpy."""
    if dtype.name not in ("float32", "float64") or not dtype.isnative:
        return None
    try:
        # By name, because numba has no type hints for a checker to follow, and because workers run without it.
        numba: Any = importlib.import_module("numba")
    except ImportError:
        return None
    number = getattr(numba, dtype.name)
    line = functools.partial(numba.types.Array, number, 1, "C")
    signature = numba.float64(line(), *[line(readonly=True)] * inputs, *[number] * scalars)
    settings = {"fastmath": set(_FLAGS), "nogil": True, "error_model": "numpy"}
    try:
        compiled: _Loop = numba.njit(signature, cache=True, **settings)(function)
    except RuntimeError:  # neither the package's folder nor the home folder can be written: compile in every process
        compiled = numba.njit(signature, **settings)(function)
    return compiled
