"""Memory of the host that a device copies from and to without anybody waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gridml.model.device_names import CPU

if TYPE_CHECKING:
    from torch import Tensor


def host_memory(shape: Sequence[int], dtype: Any) -> Tensor:
    """Return a tensor of the host with any values: pinned, so that copies need no other memory, where the system gives
    that. Torch uses such memory again when it is let go of and the copies that it was lent to are done."""
    import torch

    try:
        return torch.empty(shape, dtype=dtype, device=CPU, pin_memory=True)
    except RuntimeError:  # a limit on locked memory, or a device that knows no such thing
        return torch.empty(shape, dtype=dtype, device=CPU)
