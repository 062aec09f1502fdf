"""What a device and the host exchange so that nobody waits for it more often than must be."""

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


def brought(values: Sequence[Any]) -> list[float]:
    """Return values that may be on devices as floats, in their order; each device is waited for once for all that it
    has in one format."""
    together: dict[tuple[str, str], list[int]] = {}
    come = [0.0] * len(values)
    for at, value in enumerate(values):
        if isinstance(value, float):
            come[at] = value
        else:
            together.setdefault((str(value.device), str(value.dtype)), []).append(at)
    for places in together.values():
        import torch

        numbers = torch.stack([values[at].reshape(()) for at in places]).cpu().tolist()
        for at, number in zip(places, numbers, strict=True):
            come[at] = float(number)
    return come
