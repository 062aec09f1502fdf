"""Copies between a device and the host that training does not wait for: on a stream of their own, by pinned memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from torch import Tensor


@final
class Arrival:
    """A copy to the host that is under way. What it reads from is kept until it has come. `on_device` makes the device
    the current one of a thread: one that has none would be given a context on the first GPU, by waiting."""

    def __init__(
        self, event: Any, staged: Sequence[Tensor], on_device: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._event = event
        self._staged: Sequence[Tensor] | None = staged
        self._on_device = on_device

    def wait(self) -> None:
        """Return once the host has it. May be called on any thread, and again. Raises what the device fails with."""
        if self._staged is not None:
            with self._on_device():
                self._event.synchronize()
                self._staged = None


def _staged(tensors: Sequence[Tensor], into: Sequence[Tensor]) -> list[Tensor] | None:
    """Return copies of tensors on their device, in the dtypes of others; None where there is no memory for them."""
    import torch

    try:
        with torch.no_grad():
            return [tensor.to(host.dtype, copy=True) for tensor, host in zip(tensors, into, strict=True)]
    except torch.OutOfMemoryError:
        return None


@final
class Transfers:
    """The copies from and to one device, in torch's words."""

    def __init__(self, device: str) -> None:
        import torch

        self._device = torch.device(device)
        self._module = getattr(torch, self._device.type)  # torch.cuda, or what has its shape
        self._stream = self._module.Stream(self._device)

    def fetch(self, tensors: Sequence[Tensor], into: Sequence[Tensor]) -> Arrival | None:
        """Begin to copy tensors of the device to the host as they are now, whatever is done to them afterwards.

        They are copied on the device first, in the order of what it computes, which takes a thousandth of a second for
        a gigabyte; the way to the host, which takes fifty, is the other stream's. Where the device has no memory for
        that they are copied to the host at once, and there is nothing to wait for: None.
        """
        import torch

        if (staged := _staged(tensors, into)) is None:
            with torch.no_grad():
                for tensor, host in zip(tensors, into, strict=True):
                    host.copy_(tensor.cpu())  # another dtype is made here: there is no memory for it on the device
            return None
        self._stream.wait_stream(self._module.current_stream(self._device))
        with self._module.stream(self._stream), torch.no_grad():
            for tensor, host in zip(staged, into, strict=True):
                host.copy_(tensor, non_blocking=True)
            event = self._module.Event(blocking=True)  # the courier's thread sleeps, where it would spin on a core
            event.record(self._stream)
        return Arrival(event, staged, partial(self._module.device, self._device))

    def put(self, hosts: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """Copy from the host to tensors of the device, in the order of what it computes; afterwards the host's memory
        is free for other things."""
        import torch

        with torch.no_grad():
            for host, tensor in zip(hosts, into, strict=True):
                moved = host.to(tensor.device, non_blocking=True) if host.dtype != tensor.dtype else host
                tensor.copy_(moved, non_blocking=True)
        event = self._module.Event()
        event.record(self._module.current_stream(self._device))
        event.synchronize()
