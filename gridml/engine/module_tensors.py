"""Which tensors of a module can be pushed and merged: numbers of numpy's kinds, in memory of their own."""

from __future__ import annotations

from typing import Any

from gridml.errors import ProgramError
from gridml.protocol.text import NAME, printable

SHORT = ("torch.bfloat16", "torch.float16")


def check_tensors(field: str, module: Any) -> None:
    """Raise ProgramError for what a module of `field` has in its state dict that cannot be merged: an uninitialised
    parameter, a sparse, complex, quantised or meta tensor, and what is no tensor."""
    import torch
    from torch.nn.parameter import is_lazy

    for name, tensor in module.state_dict(keep_vars=True).items():
        holds = f"{field} holds {printable(name, NAME)}"
        if not isinstance(tensor, torch.Tensor):
            raise ProgramError(
                f"{holds}, a {type(tensor).__name__}; expected tensors in its state dict, which are all that is "
                f"merged. Take get_extra_state out, or return a tensor from it."
            )
        if is_lazy(tensor):
            raise ProgramError(
                f"{holds}, which has no shape yet; expected tensors with shapes, as all workers' are merged. Say how "
                f"many inputs a lazy layer has (nn.Linear(8, 4) for nn.LazyLinear(4)), or call the module once in the "
                f"factory before you return it: module(torch.zeros(1, 8))."
            )
        if tensor.layout != torch.strided:
            raise ProgramError(
                f"{holds} as {tensor.layout}; expected a dense tensor. Register a buffer with persistent=False where "
                f"every worker makes it the same, or keep its indices and values in two dense ones."
            )
        if tensor.is_meta:
            raise ProgramError(
                f"{holds} on the meta device; expected a tensor with values. Make the module without device='meta'."
            )
        if tensor.dtype.is_complex:
            raise ProgramError(
                f"{holds} as {tensor.dtype}; expected real numbers. Keep a float tensor whose last dimension is 2, and "
                f"use torch.view_as_complex of it in forward; register a buffer with persistent=False where every "
                f"worker makes it the same."
            )
        if str(tensor.dtype) not in SHORT and not _is_numpys(tensor.dtype):
            raise ProgramError(
                f"{holds} as {tensor.dtype}; expected a dtype numpy has, bfloat16 or float16. Keep the master copy in "
                f"float32."
            )


def _is_numpys(dtype: Any) -> bool:
    import torch

    try:
        torch.empty(0, dtype=dtype, device="cpu").numpy()
    except (TypeError, RuntimeError):
        return False
    return True
