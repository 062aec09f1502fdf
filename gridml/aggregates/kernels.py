"""Fused merge kernels: one pass reads v, b and p once, writes the result once, and returns Σ(p−b)².

numba is imported at the first merge. It compiles for float32 and float64, single-threaded, without the GIL, and
caches its machine code on disk. Without numba, and for float16, numpy does the same in blocks, but slower.
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

# Elements of a block. Squares are summed in the tensor's dtype within a block, which vectorises, and in float64 across
# blocks, which keeps the sum exact enough.
_BLOCK = 16_384
_READY = 0x101  # numpy's NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED: one test instead of two, for small tensors
# Sums may be reordered and contracted. "nnan" and "ninf" must stay out: the kernels test finiteness by out·0.
_FLAGS = frozenset({"reassoc", "contract", "arcp", "nsz"})
_Loop = Callable[..., float]


def blend(out: Array, value: Array, base: Array, replica: Array, pull: float, step: float) -> float:
    """out = value + pull·(base − value) + step·(replica − base); return Σ(replica−base)².

    Every linear rule has this form. It uses differences instead of three products, so an untrained tensor
    (value = base = replica) keeps every bit; rounded coefficients would let it drift.

    Floating-point arrays of one size; `out` contiguous, not overlapping the others. The sum is NaN if replica or
    result is not finite, and otherwise finite: it saturates at the largest float64. Raises ValueError if sizes
    differ.
    """
    target, v, b, p = _target(out), _flat(value, out), _flat(base, out), _flat(replica, out)
    loop = _loop(_blend, 3, 2, out.dtype) if v.dtype == b.dtype == p.dtype == out.dtype else None
    total = (loop or _blend_numpy)(target, v, b, p, pull, step)
    return total if math.isfinite(total) else _exact_sum(target, b, p)


def blend_rows(out: Array, value: Array, base: Array, replica: Array, pulls: Array, steps: Array) -> float:
    """Like `blend`, with a pull and a step for each row: out[i] is row i, and `pulls` and `steps` are (rows,). Squares
    within a row are summed in the tensor's dtype."""
    target, v, b, p = _target(out), _flat(value, out), _flat(base, out), _flat(replica, out)
    pulls, steps = (np.ascontiguousarray(each, np.result_type(out.dtype, np.float32)) for each in (pulls, steps))
    loop = _loop(_blend_rows, 5, 0, out.dtype) if v.dtype == b.dtype == p.dtype == out.dtype else None
    total = (loop or _blend_rows_numpy)(target, v, b, p, pulls, steps)
    return total if math.isfinite(total) else _exact_sum(target, b, p)


def fast_forward(out: Array, base: Array, replica: Array, scale: float) -> float:
    """out = base + scale·(replica − base), at scale 1 the replica bit for bit; return the same sum as `blend`."""
    if scale != 1:
        return blend(out, base, base, replica, 0.0, scale)
    target, b, p = _target(out), _flat(base, out), _flat(replica, out)
    loop = _loop(_copy, 2, 0, out.dtype) if b.dtype == p.dtype == out.dtype else None
    total = (loop or _copy_numpy)(target, b, p)
    return total if math.isfinite(total) else _exact_sum(target, b, p)


def shift(out: Array, value: Array, direction: Array, step: float) -> None:
    """out = value + step·direction, for finite inputs; saturates at the largest finite value instead of overflowing.

    `out` may be `value`. This is for emptying buffers: the pushes in them were accepted before, so none is left to
    reject for an overflow.
    """
    limit = float(np.finfo(out.dtype).max)
    target, start_values, directions = _target(out), _flat(value, out), _flat(direction, out)
    for start in range(0, out.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        moved = start_values[block].astype(np.float64) + step * directions[block].astype(np.float64)
        target[block] = np.clip(moved, -limit, limit)


def _blend(out: Any, value: Any, base: Any, replica: Any, pull: Any, step: Any) -> float:
    zero = pull - pull  # in the tensor's dtype, so that the loop stays in it
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
    """The sum in float64, for when the fast sum is not finite: a value is not finite, or large squares overflowed."""
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
    """Return the elements as a contiguous, aligned vector: one array type, so that kernels are compiled only once."""
    if array.size != out.size:
        raise ValueError(f"got {array.size} elements, expected {out.size}; Merger.check rejects such a push")
    if type(array) is not np.ndarray:
        array = np.asarray(array)
    if array.flags.num & _READY != _READY:
        array = np.require(array, requirements=["C", "A"])
    return array if array.ndim == 1 else array.reshape(-1)


@functools.cache
def _loop(function: _Loop, inputs: int, scalars: int, dtype: np.dtype[Any]) -> _Loop | None:
    """Compile `function` for a writable vector, `inputs` read-only vectors and `scalars` numbers; None: use numpy."""
    if dtype.name not in ("float32", "float64") or not dtype.isnative:
        return None
    try:
        # By name, because numba has no type hints for a checker to follow, and because workers run without it.
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
