"""Rows that f reads as tensors on a device, while the engine, pushes and merges use arrays on the host.

A field that f only reads is copied to the device once for each chunk, and f gets views of it. A field that f may change
is copied for each batch, and changed rows are written back when f returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from gridml.model.batch import Array, Rows, to_host
from gridml.model.device_memory import host_memory
from gridml.protocol.payload import aligned_tensor

BLOCK = 64 << 20  # bytes of a staging buffer: the device copies one while the next is filled


@final
@dataclass(eq=False, repr=False)
class DeviceRows(Rows):
    """Rows of a chunk on a device, by its torch name."""

    _columns: dict[str, Any] = field(
        default_factory=dict
    )  # fields that f only reads, on the device; filled on first use

    def present(self, values: Array) -> Any:
        """Return an array as a tensor on the device. The copy is asynchronous, from staging memory, so the caller may
        change the array at once."""
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
        """Return a field that f only reads as a tensor on the device, (n, *shape)."""
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
    """Copy an array to host memory from which the device can copy asynchronously."""
    staged = host_memory(values.shape, dtype)
    np.copyto(staged.numpy(), values)
    return staged
