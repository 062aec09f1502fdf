"""The names of devices, and memory and copies by which a device and the host seldom wait for each other.

A name is what `--device` and `gridml.module(..., device=...)` take. Whether there is such a device is another
question (`gridml.engine.devices`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gridml.errors import UsageError
from gridml.protocol.foreign import printable

if TYPE_CHECKING:
    from torch import Tensor


AUTO, CPU, CUDA = "auto", "cpu", "cuda"
PRIVATE_USE = "privateuseone"  # torch's own name for the device that a package beside torch brings
ACCELERATORS = (CUDA, PRIVATE_USE)
EXPECTED = "auto, cpu, cuda, or cuda:N with the number of a GPU from 0 on"
MAX_GPUS = 1024  # GPUs of a machine
_NAME = re.compile(r"(?P<kind>[a-z]+)(:(?P<index>0|[1-9][0-9]{0,8}))?")


class DeviceName(NamedTuple):
    """A device as it was asked for: `auto`, `cpu`, or a kind of accelerator with the `number` of one of them (None: any
    of them)."""

    kind: str
    number: int | None = None

    def __str__(self) -> str:
        return self.kind if self.number is None else f"{self.kind}:{self.number}"

    @property
    def accelerates(self) -> bool:
        """Whether only an accelerator will do."""
        return self.kind in ACCELERATORS


def parse(text: object, what: str = "--device") -> DeviceName:
    """Return the device that a text names. Raises UsageError, calling it `what`, for one that names none."""
    match = _NAME.fullmatch(text) if isinstance(text, str) else None
    kind, index = (match["kind"], match["index"]) if match else ("", None)
    if kind in (AUTO, CPU, *ACCELERATORS) and (index is None or (kind in ACCELERATORS and int(index) < MAX_GPUS)):
        return DeviceName(kind, None if index is None else int(index))
    raise UsageError(f"{what} is {printable(repr(text), 100)}; expected {EXPECTED}.")


def host_memory(shape: Sequence[int], dtype: Any) -> Tensor:
    """Return a tensor of the host with any values: pinned, so that copies need no other memory, where the system gives
    that. Torch uses such memory again when it is let go of and the copies that it was lent to are done."""
    import torch

    try:
        return torch.empty(shape, dtype=dtype, device=CPU, pin_memory=True)
    except RuntimeError:  # a limit on locked memory, or a device that knows no such thing
        return torch.empty(shape, dtype=dtype, device=CPU)


def to_floats(values: Sequence[Any]) -> list[float]:
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
