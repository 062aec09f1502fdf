"""Rows whose fields f reads as tensors of a device, while the engine, pushes and merges have them on the host.

A field that f only reads is copied to the device once a chunk, and what f gets of it is a view. A field that f may
change travels with each batch, and what has changed comes home when f returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from gridml.model.batch import Array, Rows, to_host
from gridml.model.device_memory import host_memory
from gridml.protocol.payload import aligned_tensor

BLOCK = 64 << 20  # bytes that are staged at once: the device copies some while the next are staged


@final
@dataclass(eq=False, repr=False)
class DeviceRows(Rows):
    """Rows of a chunk of a program with modules; `device` is in torch's words."""

    _columns: dict[str, Any] = field(default_factory=dict)  # on the device, of fields that f only reads

    def present(self, values: Array) -> Any:
        """Return an array as f sees it: a tensor on the device. It comes there by memory that the device copies from
        when it gets to it, so that this thread goes on; the array is its caller's again at once."""
        import torch

        dtype = torch.from_numpy(np.empty(0, values.dtype)).dtype
        if values.nbytes <= BLOCK:
            return _staged(values, dtype).to(self.device, non_blocking=True)
        made = torch.empty(values.shape, dtype=dtype, device=self.device)
        step = max(1, BLOCK * len(values) // values.nbytes)
        for at in range(0, len(values), step):
            made[at : at + step].copy_(_staged(values[at : at + step], dtype), non_blocking=True)
        return made

    def column(self, name: str) -> Any:
        """Return a field that f only reads, on the device, (n, *shape)."""
        if name not in self._columns:
            self._columns[name] = self.present(self.fields[name])
        return self._columns[name]

    def read(self, name: str, at: int) -> Any:
        if name in self.changed or name not in self.fields or self.fields[name].ndim == 1:
            return super().read(name, at)
        return aligned_tensor(self.column(name)[at])

    def write(self, name: str, at: int, value: Any) -> None:
        super().write(name, at, to_host(value))


def _staged(values: Array, dtype: Any) -> Any:
    """Return an array's values in memory of the host that a device copies from."""
    staged = host_memory(values.shape, dtype)
    np.copyto(staged.numpy(), values)
    return staged
