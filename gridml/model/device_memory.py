"""Device names, and copies between device and host that rarely block.

Names are the values of `--device` and `gridml.module(..., device=...)`. `gridml.engine.devices` finds the devices that
exist.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.protocol.foreign import printable

if TYPE_CHECKING:
    from torch import Tensor


AUTO, CPU, CUDA = "auto", "cpu", "cuda"
PRIVATE_USE = "privateuseone"  # torch's name for a device that another package adds
ACCELERATORS = (CUDA, PRIVATE_USE)
EXPECTED = "auto, cpu, cuda, or cuda:N with the number of a GPU from 0 on"
MAX_GPUS = 1024  # in one machine
_NAME = re.compile(r"(?P<kind>[a-z]+)(:(?P<index>0|[1-9][0-9]{0,8}))?")


class DeviceName(NamedTuple):
    """A requested device."""

    kind: str  #: "auto", "cpu", or a kind of accelerator
    number: int | None = None  #: the accelerator's number; None: any accelerator

    def __str__(self) -> str:
        return self.kind if self.number is None else f"{self.kind}:{self.number}"

    @property
    def accelerates(self) -> bool:
        """True if an accelerator is required."""
        return self.kind in ACCELERATORS


def parse(text: object, what: str = "--device") -> DeviceName:
    """Parse a device name. Raises UsageError for any other text, which the message calls `what`."""
    match = _NAME.fullmatch(text) if isinstance(text, str) else None
    kind, index = (match["kind"], match["index"]) if match else ("", None)
    if kind in (AUTO, CPU, *ACCELERATORS) and (index is None or (kind in ACCELERATORS and int(index) < MAX_GPUS)):
        return DeviceName(kind, None if index is None else int(index))
    raise UsageError(f"{what} is {printable(repr(text), 100)}; expected {EXPECTED}.")


def host_memory(shape: Sequence[int], dtype: Any) -> Tensor:
    """Return an uninitialised tensor on the host, pinned if possible, so that the device copies without a staging
    buffer. Torch reuses pinned memory after it is released and its copies are complete."""
    import torch

    try:
        return torch.empty(shape, dtype=dtype, device=CPU, pin_memory=True)
    except RuntimeError:  # a limit on locked memory, or a device without pinned memory
        return torch.empty(shape, dtype=dtype, device=CPU)


def torch_dtype(values: NDArray[Any]) -> Any:
    """Return torch's dtype of an array, which may be read-only."""
    import torch

    return torch.from_numpy(np.empty(0, values.dtype)).dtype


def pinned(values: NDArray[Any]) -> Tensor:
    """Return a copy of an array as a tensor of `host_memory`."""
    copy = host_memory(values.shape, torch_dtype(values))
    np.copyto(copy.numpy(), values)
    return copy


def to_floats(values: Sequence[Any]) -> list[float]:
    """Return numbers as floats, in the same order. Some may be tensors on devices: for these, wait once for each device
    and dtype."""
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
