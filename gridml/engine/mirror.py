"""Host copies of module tensors that numpy cannot access directly: on a device, or in bfloat16 or float16.

Where a module trains in bfloat16 or float16, the master's copy, pushes and merges are float32. The rounding error of
the values that the module was given is kept here, and a push is the given values plus the change since. So repeated
merges lose nothing to the format.

Copies between a device and the host use a stream of their own and pinned memory, so that training does not wait for
them. Bit sums show whether a tensor on a device has changed, without copying it. `check_tensors` rejects tensors that
cannot be pushed and merged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.model.device_memory import CPU, host_memory
from gridml.protocol.foreign import MAX_NAME_CHARS, printable

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]


@final
@dataclass(eq=False)
class PendingCopy:
    """A copy to the host that is in progress."""

    event: Any  #: torch's, recorded behind the copy
    staged: Sequence[Tensor] | None  #: the source, kept alive until the copy is complete; None afterwards
    #: Makes the device the current one of a thread. Without it, waiting on a new thread creates a context on GPU 0.
    on_device: Callable[[], AbstractContextManager[Any]]

    def wait(self) -> None:
        """Block until the copy is complete. Thread-safe and idempotent. Raises the device's error."""
        if self.staged is not None:
            with self.on_device():
                self.event.synchronize()
                self.staged = None


def _staged(tensors: Sequence[Tensor], into: Sequence[Tensor]) -> list[Tensor] | None:
    """Return copies of tensors on their device, in the dtypes of `into`; None if the device lacks the memory."""
    import torch

    try:
        with torch.no_grad():
            return [tensor.to(host.dtype, copy=True) for tensor, host in zip(tensors, into, strict=True)]
    except torch.OutOfMemoryError:
        return None


@final
class Transfers:
    """Copies from and to one device, by its torch name."""

    def __init__(self, device: str) -> None:
        import torch

        self._device = torch.device(device)
        self._module = getattr(torch, self._device.type)  # torch.cuda, or what has its shape
        self._stream = self._module.Stream(self._device)

    def fetch(self, tensors: Sequence[Tensor], into: Sequence[Tensor]) -> PendingCopy | None:
        """Start to copy tensors of the device to the host, with their present values: later writes do not show.

        They are first copied on the device, on the compute stream, which takes a millisecond for a gigabyte. The copy
        to the host, which takes fifty, runs on the other stream. Returns None if the device lacks the memory: then the
        tensors were copied to the host synchronously.
        """
        import torch

        if (staged := _staged(tensors, into)) is None:
            with torch.no_grad():
                for tensor, host in zip(tensors, into, strict=True):
                    host.copy_(tensor.cpu())  # converted on the host: the device lacks the memory for it
            return None
        self._stream.wait_stream(self._module.current_stream(self._device))
        with self._module.stream(self._stream), torch.no_grad():
            for tensor, host in zip(staged, into, strict=True):
                host.copy_(tensor, non_blocking=True)
            event = self._module.Event(blocking=True)  # so that the waiting thread sleeps instead of spinning
            event.record(self._stream)
        return PendingCopy(event, staged, partial(self._module.device, self._device))

    def put(self, hosts: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """Copy from the host to tensors of the device, on the compute stream. Blocks until the host's memory may be
        reused."""
        import torch

        with torch.no_grad():
            for host, tensor in zip(hosts, into, strict=True):
                moved = host.to(tensor.device, non_blocking=True) if host.dtype != tensor.dtype else host
                tensor.copy_(moved, non_blocking=True)
        event = self._module.Event()
        event.record(self._module.current_stream(self._device))
        event.synchronize()


_WORD = 8  # bytes: int64 is summed without a converted copy


def bit_sums(tensor: Tensor) -> Tensor:
    """Return a checksum of a tensor's bits as int64 numbers on its device.

    The bits, as words of 64, are laid out as a square. The checksum is the sums of its rows and columns modulo 2**64,
    and the words that are left over. It changes if one word changes or two words are exchanged.

    Takes as long as reading the tensor twice, and memory for 3 * sqrt(words) numbers if the tensor is contiguous.
    """
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    if flat.storage_offset() * flat.element_size() % _WORD:
        flat = flat.clone()  # view(int64) needs an offset that is a multiple of its size
    size = flat.element_size()
    bits = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    whole = flat.numel() * size // _WORD * (_WORD // size)
    words = bits[:whole].view(torch.int64)
    side = math.isqrt(words.numel())
    square = words[: side * side].view(side, side)
    return torch.cat([square.sum(0), square.sum(1), words[side * side :], bits[whole:].to(torch.int64)])


SHORT = ("torch.bfloat16", "torch.float16")  # dtypes whose master copy is float32


def check_tensors(field: str, module: Any) -> None:
    """Raise ProgramError for an entry of a module's state dict that cannot be merged: an uninitialised parameter, a
    sparse, complex, quantised or meta tensor, or anything but a tensor. `field` is the module's name in messages."""
    import torch
    from torch.nn.parameter import is_lazy

    for name, tensor in module.state_dict(keep_vars=True).items():
        holds = f"{field} holds {printable(name, MAX_NAME_CHARS)}"
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


def needs_mirror(tensor: Tensor) -> bool:
    """True if numpy cannot view a tensor's memory as an array to merge into."""
    return tensor.device.type != CPU or str(tensor.dtype) in SHORT


@final
@dataclass(eq=False)
class Capture:
    """The values of some tensors at one moment, which may still be on their way to the host."""

    arrays: Mapping[str, Array]  #: by name; valid only after `wait`
    given: Mapping[str, tuple[Array, Array]]  #: as `Mirror._given`
    arrival: PendingCopy | None  #: None if the copy was synchronous
    is_complete: bool = False

    def wait(self) -> None:
        """Block until the arrays are valid. Thread-safe and idempotent. Raises the device's error."""
        if self.is_complete:
            return
        if self.arrival is not None:
            self.arrival.wait()
        _refine(self.arrays, self.given)
        self.is_complete = True


@final
class Mirror:
    """Tensors of one device by name, and `arrays`, their values on the host as of the last `pull` or `put`.

    The tensors are the module's own. They are read and written in place.
    """

    def __init__(self, tensors: Mapping[str, Tensor], device: str) -> None:
        import torch

        self.device = device
        self._tensors = dict(tensors)
        self._transfers = None if device == CPU else Transfers(device)
        self._dtypes = {
            name: torch.float32 if str(tensor.dtype) in SHORT else tensor.dtype
            for name, tensor in self._tensors.items()
        }
        self._hosts = self._memory(list(tensors))
        # Frozen parameters whose values `arrays` has: (data pointer, torch's version counter) at that time.
        self._unmoved: dict[str, tuple[int, int]] = {}
        self._sums: dict[str, Tensor] = {}  # `bit_sums` of the same parameters, on the device
        # Frozen parameters that f writes through `.data`, which no version counter shows. Copied at every pull.
        self._uncounted: set[str] = set()
        self.arrays: dict[str, Array] = {name: host.numpy() for name, host in self._hosts.items()}
        self._short = [name for name, tensor in self._tensors.items() if str(tensor.dtype) in SHORT]
        # Of short tensors: (the float32 values that were put, what the module holds of them).
        self._given: dict[str, tuple[Array, Array]] = {}
        self.pull()

    def follow(self, tensors: Mapping[str, Tensor]) -> bool:
        """Switch to other tensors of the same names, shapes and dtypes, and return True; return False, with no effect,
        for any others. The arrays keep their values until the next `pull`."""
        if tensors.keys() != self._tensors.keys():
            return False
        pairs = [(tensor, self._tensors[name]) for name, tensor in tensors.items()]
        if any(tensor.shape != before.shape or tensor.dtype != before.dtype for tensor, before in pairs):
            return False
        for name, tensor in tensors.items():
            if tensor is not self._tensors[name]:
                self._tensors[name] = tensor
                self._unmoved.pop(name, None)
        return True

    def pull(self) -> None:
        """Copy the tensors to `arrays`, except frozen ones that have not changed."""
        names = self._moved()
        arrival = self._fetch({name: self._hosts[name] for name in names})
        if arrival is not None:
            arrival.wait()
        _refine(self.arrays, {name: values for name, values in self._given.items() if name in names})
        self._note(names)

    def capture(self) -> Capture:
        """Start to copy the tensors' present values into new memory, except frozen ones that have not changed."""
        names = self._moved()
        hosts = self._memory(names)
        given = {name: values for name, values in self._given.items() if name in hosts}
        return Capture({name: host.numpy() for name, host in hosts.items()}, given, self._fetch(hosts))

    def put(self, names: Collection[str]) -> None:
        """Copy the arrays of these names to their tensors."""
        names = [name for name in self._tensors if name in names]
        hosts, into = [self._hosts[name] for name in names], [self._tensors[name] for name in names]
        if self._transfers is not None:
            self._transfers.put(hosts, into)
        else:
            import torch

            with torch.no_grad():
                for host, tensor in zip(hosts, into, strict=True):
                    tensor.copy_(host)
        self._note(names)
        for name in self._short:
            if name in names:
                self._given[name] = self.arrays[name].copy(), self._rounded(name)

    def _memory(self, names: Collection[str]) -> dict[str, Tensor]:
        """Return host tensors for copies. Torch caches pinned memory, so that a released one is reused."""
        import torch

        make = partial(torch.empty, device=CPU) if self._transfers is None else host_memory
        return {name: make(self._tensors[name].shape, dtype=self._dtypes[name]) for name in names}

    def _note(self, names: Collection[str]) -> None:
        """Record that `arrays` is up to date for these tensors, which lets frozen ones be skipped."""
        for name in names:
            self._unmoved.pop(name, None)
            self._sums.pop(name, None)
            if name not in self._uncounted and (now := _frozen(self._tensors[name])) is not None:
                self._unmoved[name] = now
                if self._transfers is not None:
                    self._sums[name] = bit_sums(self._tensors[name])

    def _moved(self) -> list[str]:
        """Return the names of tensors that may differ from `arrays`: all but frozen ones with unchanged bits.

        Bits are compared because a write through `.data`, as in an exponential moving average of another module, does
        not raise the version counter. That costs one wait for the device. A parameter found to be written that way is
        copied from then on without a comparison.
        """
        import torch

        still = [name for name, tensor in self._tensors.items() if self._unmoved.get(name, ()) == _frozen(tensor)]
        if self._transfers is not None:
            same = [(self._sums[name] == bit_sums(self._tensors[name])).all() for name in still]
            kept = torch.stack(same).cpu().tolist() if same else []
            written = [name for name, is_kept in zip(still, kept, strict=True) if not is_kept]
        else:
            written = [name for name in still if not torch.equal(self._short_of(name), self._tensors[name].detach())]
        self._uncounted.update(written)
        unmoved = set(still).difference(written)
        return [name for name in self._tensors if name not in unmoved]

    def _fetch(self, hosts: Mapping[str, Tensor]) -> PendingCopy | None:
        """Start to copy these tensors to the host; None if the copy was synchronous."""
        names = list(hosts)
        if self._transfers is not None:
            return self._transfers.fetch([self._tensors[n].detach() for n in names], [hosts[n] for n in names])
        for name in names:
            hosts[name].copy_(self._tensors[name].detach())
        return None

    def _rounded(self, name: str) -> Array:
        """Return the value of a short tensor's array, rounded to the tensor's format."""
        return np.asarray(self._short_of(name).to(self._hosts[name].dtype).numpy())

    def _short_of(self, name: str) -> Tensor:
        """Return the value of a tensor's array in the tensor's own dtype, on the host."""
        return self._hosts[name].to(self._tensors[name].dtype)


def _frozen(tensor: Tensor) -> tuple[int, int] | None:
    """Return (data pointer, version counter) of a frozen parameter, else None: fused optimisers write trained
    parameters without raising the counter."""
    from torch.nn import Parameter

    frozen = isinstance(tensor, Parameter) and not tensor.requires_grad
    return (tensor.data_ptr(), tensor._version) if frozen else None


def _refine(arrays: Mapping[str, Array], given: Mapping[str, tuple[Array, Array]]) -> None:
    """Add the rounding errors of the given values back, in place: values of unchanged weights are the given ones."""
    for name, (values, held) in given.items():
        with np.errstate(all="ignore"):  # values that are not finite are rejected at admission
            moved = arrays[name] != held
            np.copyto(arrays[name], values + (arrays[name] - held), where=moved)
            np.copyto(arrays[name], values, where=~moved)
