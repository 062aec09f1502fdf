"""Compression of pushes: block-wise quantised steps of tensors in place of their values.

    d = p − b        in blocks: s = max|d|/L        q = round(d/s) ∈ [−L, L]        the master takes p̂ = b + s·q

Here b is the tensor that the push was trained from, p the trained tensor, s the scale of a block (one float32), q its
levels, and p̂ the tensor that the master receives. `int8` has L = 127 in blocks of 256 elements; `int4` has L = 7 in
blocks of 64, two levels per byte. Both ends compute p̂ by the same operations, so they agree to the last bit. Block-wise
quantisation is that of Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit optimizers via block-wise quantization" (arXiv
2110.02861), section 2.1, but the levels here are evenly spaced.

The rounding error p − p̂ is not lost: the worker continues from p and measures its next step from p̂, so the error is
part of that step. This is the error feedback of Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent"
(Interspeech 2014) and of Karimireddy, Rebjock, Stich, Jaggi (arXiv 1901.09847), algorithm 2; in these papers a
separate tensor remembers the error.

If pushes carry steps, replies can carry weights in bfloat16. A step is measured from the worker's rounded copy, so the
rounding of replies never reaches the master.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError

Array = NDArray[Any]
Codes = NDArray[np.uint8]

MIN_STEP_ELEMENTS = 64  # a smaller tensor is sent by value: header and scale would cost more than compression saves
_AT_ONCE = 1 << 16  # elements that are converted together, so that they fit into a processor's cache


@final
@dataclass(frozen=True)
class StepFormat:
    """Encoding of a step as uint8 (bytes,): the scales of all blocks, little-endian float32, then the levels."""

    name: str
    levels: int  # L: a level is between −L and L
    block: int  # elements per scale
    packed: int  # levels per byte

    def nbytes(self, size: int) -> int:
        """Return the bytes of a step of `size` elements."""
        return 4 * -(-size // self.block) + -(-size // self.packed)

    def pack(self, step: Array) -> Codes | None:
        """Encode a floating-point step of any shape. Return None if it is not finite or exceeds float32."""
        line = np.ravel(step)
        codes = np.zeros(self.nbytes(line.size), np.uint8)
        scales, levels = self._split(codes, line.size)
        with np.errstate(all="ignore"):
            for start in range(0, line.size, _AT_ONCE):
                blocks = _in_blocks(line[start : start + _AT_ONCE].astype(np.float32), self.block)
                scale = np.abs(blocks).max(1) / np.float32(self.levels)
                if not np.isfinite(scale).all():
                    return None
                scales[start // self.block :][: len(scale)] = scale
                inverse = np.where(scale > 0, 1 / scale, 0)[:, None]
                inverse[~np.isfinite(inverse)] = 0  # 1 / scale overflows: so small a step is left for a later push
                rounded = np.rint(blocks * inverse).clip(-self.levels, self.levels).astype(np.int8)
                self._put(levels, start, rounded.reshape(-1)[: line.size - start])
        return codes

    def taken(self, codes: Codes, base: Array) -> Array:
        """Return p̂ for a step from `base`, in the shape and dtype of `base`. Its values can be infinite. Raises
        ValueError for codes of another dtype or length."""
        if codes.dtype != np.uint8 or codes.shape != (self.nbytes(base.size),):
            raise ValueError(
                f"a step in {self.name} is {codes.dtype} {codes.shape}; expected uint8 ({self.nbytes(base.size)},) for "
                f"{base.size} elements"
            )
        scales, levels = self._split(codes, base.size)
        line, out = np.ravel(base), np.empty(base.size, base.dtype)
        wide = np.result_type(base.dtype, np.float32)
        with np.errstate(all="ignore"):
            for start in range(0, base.size, _AT_ONCE):
                values = line[start : start + _AT_ONCE].astype(wide)
                blocks = _in_blocks(self._get(levels, start, len(values)).astype(wide), self.block)
                blocks *= scales[start // self.block :][: len(blocks), None].astype(wide)
                out[start : start + len(values)] = values + blocks.reshape(-1)[: len(values)]
        return out.reshape(base.shape)

    def _split(self, codes: Codes, size: int) -> tuple[Array, Codes]:
        """Return views of the scales and of the levels."""
        end = 4 * -(-size // self.block)
        return codes[:end].view("<f4"), codes[end:]

    def _put(self, levels: Codes, start: int, rounded: NDArray[np.int8]) -> None:
        if self.packed == 1:
            levels[start : start + len(rounded)] = rounded.view(np.uint8)
            return
        pairs = np.zeros((-(-len(rounded) // 2), 2), np.uint8)
        pairs.reshape(-1)[: len(rounded)] = rounded + 8
        levels[start // 2 :][: len(pairs)] = pairs[:, 0] | pairs[:, 1] << 4

    def _get(self, levels: Codes, start: int, count: int) -> NDArray[np.int8]:
        if self.packed == 1:
            return levels[start : start + count].view(np.int8)
        pairs = levels[start // 2 :][: -(-count // 2)]
        return np.stack([pairs & 15, pairs >> 4], 1).reshape(-1)[:count].astype(np.int8) - np.int8(8)


def _in_blocks(line: Array, block: int) -> Array:
    """Return a 1-D array as (blocks, block), padded with zeros."""
    whole = -(-len(line) // block) * block
    return (line if len(line) == whole else np.pad(line, (0, whole - len(line)))).reshape(-1, block)


@final
@dataclass(frozen=True)
class TensorStep:
    """A compressed step: the change of a tensor since the base of a push."""

    form: StepFormat
    codes: Codes


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return finite values as bfloat16 bits. They are rounded to nearest even, or towards zero if that overflows."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    overflows = rounded & np.uint32(0x7F800000) == 0x7F800000
    return (np.where(overflows, bits, rounded) >> np.uint32(16)).astype(np.uint16)


def from_bfloat16(halves: Array) -> NDArray[np.float32]:
    """Return the values of bfloat16 bits. Raises ValueError for any dtype but uint16."""
    if halves.dtype != np.uint16:
        raise ValueError(f"a tensor in {BFLOAT16} is {halves.dtype}; expected uint16")
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


NONE, BFLOAT16 = "none", "bf16"
FORMATS = {made.name: made for made in (StepFormat("int8", 127, 256, 1), StepFormat("int4", 7, 64, 2))}


def check(compress: str, compress_down: str) -> None:
    """Raise UsageError for unknown or incompatible formats."""
    if compress not in (NONE, *FORMATS):
        raise UsageError(
            f"--compress is {compress!r}; expected {NONE}, {' or '.join(FORMATS)}: pushes carry the values of tensors, "
            "or their steps in 8 or 4 bits per element."
        )
    if compress_down not in (NONE, BFLOAT16):
        raise UsageError(f"--compress-down is {compress_down!r}; expected {NONE} or {BFLOAT16}.")
    if compress_down != NONE and compress == NONE:
        raise UsageError(
            f"got --compress-down {compress_down} without --compress; expected --compress {' or '.join(FORMATS)} with "
            "it: weights pushed by value would carry the rounding of replies to the master."
        )
