"""Whether a tensor of a device still has the bits that it had, without a copy of it: by sums of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_WORD = 8  # bytes: of such words no sum takes memory to convert


def bit_sums(tensor: Tensor) -> Tensor:
    """Return int64 numbers on a tensor's device that another tensor of its shape and dtype has only if its bits are the
    same, but for chance: its bits as words of 64, laid out as a square, and the sums of its rows and columns modulo
    2**64, with what is left over. One other word makes another sum, and so do two that change places.

    Takes as long as reading the tensor twice, and memory for 3 * sqrt(words) numbers, where it is contiguous.
    """
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    if flat.storage_offset() * flat.element_size() % _WORD:
        flat = flat.clone()  # words begin at multiples of their size
    size = flat.element_size()
    bits = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    whole = flat.numel() * size // _WORD * (_WORD // size)
    words = bits[:whole].view(torch.int64)
    side = math.isqrt(words.numel())
    square = words[: side * side].view(side, side)
    return torch.cat([square.sum(0), square.sum(1), words[side * side :], bits[whole:].to(torch.int64)])
