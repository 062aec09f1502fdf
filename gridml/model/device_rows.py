"""Rows that f reads as tensors on a device, while the engine, pushes and merges use arrays on the host.

A field that f only reads is copied to the device once for each chunk, and f gets views of it. Its rows are copied only
as training reaches them, so that the device can compute while later rows are copied. A field that f may change is
copied for each batch, and changed rows are written back when f returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from gridml.model.batch import Array, Rows, to_host
from gridml.model.device_memory import pinned, torch_dtype
from gridml.protocol.payload import aligned_tensor

BLOCK = 64 << 20  # bytes of a staging buffer: the device copies one while the next is filled
MIN_COPIED = 4 << 20  # minimum bytes of a copy, unless a column ends: even the smallest copy takes 20 µs


@final
@dataclass(eq=False, repr=False)
class DeviceRows(Rows):
    """Rows of a chunk that f reads on `device`, which is named as in torch."""

    # Fields that f only reads: (the column on the device, number of rows copied so far). Mutated only by `column`.
    _columns: dict[str, tuple[Any, int]] = field(default_factory=dict)

    def present(self, values: Array) -> Any:
        """Return an array as a tensor on the device. The copy is asynchronous, from staging memory, so the caller may
        change the array at once."""
        import torch

        if values.nbytes <= BLOCK:
            return pinned(values).to(self.device, non_blocking=True)
        made = torch.empty(values.shape, dtype=torch_dtype(values), device=self.device)
        _copy(values, made)
        return made

    def column(self, name: str, until: int | None = None) -> Any:
        """Return a field that f only reads as a tensor on the device, (n, *shape). Only the rows before `until`
        (default: all) are valid."""
        import torch

        values = self.fields[name]
        if name not in self._columns:
            self._columns[name] = torch.empty(values.shape, dtype=torch_dtype(values), device=self.device), 0
        made, copied = self._columns[name]
        until = len(values) if until is None else min(until, len(values))
        if copied < until:
            until = min(len(values), max(until, copied + MIN_COPIED * len(values) // max(1, values.nbytes)))
            _copy(values[copied:until], made[copied:until])
            self._columns[name] = made, until
        return made

    def read(self, name: str, at: int) -> Any:
        if name in self.changed or name not in self.fields or self.fields[name].ndim == 1:
            return super().read(name, at)
        return aligned_tensor(self.column(name, at + 1)[at])

    def write(self, name: str, at: int, value: Any) -> None:
        super().write(name, at, to_host(value))


def _copy(values: Array, into: Any) -> None:
    """Start to copy an array to a tensor on a device, block by block."""
    step = max(1, BLOCK * len(values) // max(1, values.nbytes))
    for at in range(0, len(values), step):
        into[at : at + step].copy_(pinned(values[at : at + step]), non_blocking=True)
