"""A module's tensors as the host sees them, where the host does not hold the memory itself.

That is so for tensors on a device, in a format that numpy does not have, or in one that is too coarse for a master
copy. The master's copy, pushes and merges are of float32 where the module trains in bfloat16 or float16. The part
of the values it was given that such a module cannot hold is kept here, and a push is those values plus what the
module has moved since. So a replica that is merged many times loses nothing to its format.

Copies between a device and the host use a stream of their own and pinned memory, so that training does not wait for
them. Sums of bits show whether a tensor on a device has changed, without a copy of it. `check_tensors` refuses
tensors that cannot be pushed and merged: they must be of a numeric dtype that numpy has, in memory of their own.
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
    """A copy to the host that is under way. What it reads from is kept, `staged`, until it has come. `on_device` makes
    the device the current one of a thread: one that has none would be given a context on the first GPU, by waiting."""

    event: Any
    staged: Sequence[Tensor] | None
    on_device: Callable[[], AbstractContextManager[Any]]

    def wait(self) -> None:
        """Return once the host has it. May be called on any thread, and again. Raises what the device fails with."""
        if self.staged is not None:
            with self.on_device():
                self.event.synchronize()
                self.staged = None


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

    def fetch(self, tensors: Sequence[Tensor], into: Sequence[Tensor]) -> PendingCopy | None:
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
        return PendingCopy(event, staged, partial(self._module.device, self._device))

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


_WORD = 8  # bytes: of such words no sum takes memory to convert


def bit_sums(tensor: Tensor) -> Tensor:
    """Return int64 numbers on a tensor's device that another tensor of its shape and dtype has only if its bits are the
    same, but for chance: its bits as words of 64, laid out as a square, and the sums of its rows and columns modulo
    2**64, with what is left over. One other word makes another sum, and so do two that change places.

    Takes as long as reading the tensor twice, and memory for 3 * sqrt(words) numbers, where it is contiguous.
    """
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    if flat.storage_offset() * flat.element_size() % _WORD:
        flat = flat.clone()  # words begin at multiples of their size
    size = flat.element_size()
    bits = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    whole = flat.numel() * size // _WORD * (_WORD // size)
    words = bits[:whole].view(torch.int64)
    side = math.isqrt(words.numel())
    square = words[: side * side].view(side, side)
    return torch.cat([square.sum(0), square.sum(1), words[side * side :], bits[whole:].to(torch.int64)])


SHORT = ("torch.bfloat16", "torch.float16")


def check_tensors(field: str, module: Any) -> None:
    """Raise ProgramError for what a module of `field` has in its state dict that cannot be merged: an uninitialised
    parameter, a sparse, complex, quantised or meta tensor, and what is no tensor."""
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
    """Whether the host cannot have a tensor's own memory as an array to merge into."""
    return tensor.device.type != CPU or str(tensor.dtype) in SHORT


@final
@dataclass(eq=False)
class Capture:
    """The values of some tensors at one moment, on their way to the host: `arrays` have them once it was waited for.
    What the tensors were `given` is as in `Mirror`."""

    arrays: Mapping[str, Array]
    given: Mapping[str, tuple[Array, Array]]
    arrival: PendingCopy | None
    has_come: bool = False

    def wait(self) -> None:
        """Return when they are here. May be called on any thread, and again. Raises what the device fails with."""
        if self.has_come:
            return
        if self.arrival is not None:
            self.arrival.wait()
        _refine(self.arrays, self.given)
        self.has_come = True


@final
class Mirror:
    """Tensors of one device by name, and `arrays`, their values on the host as they were when they were last pulled or
    put. Tensors are those of the module: they are looked at, and written in place."""

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
        self._unmoved: dict[str, tuple[int, int]] = {}  # of frozen parameters, (where they lay, how often written)
        self._sums: dict[str, Tensor] = {}  # on the device, of their bits
        self._restless: set[str] = set()  # frozen parameters that somebody writes without counting it
        self.arrays: dict[str, Array] = {name: host.numpy() for name, host in self._hosts.items()}
        self._short = [name for name, tensor in self._tensors.items() if str(tensor.dtype) in SHORT]
        self._given: dict[str, tuple[Array, Array]] = {}  # of short tensors: (as given, as the module holds it)
        self.pull()

    def follow(self, tensors: Mapping[str, Tensor]) -> bool:
        """Have these be the module's tensors from now on, and return True; False where they are not of the names,
        shapes and dtypes that the others were of. What the arrays hold is as before: `pull` brings what these do."""
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
        """Bring the tensors' values home, as they are now; not what is frozen, and is as `arrays` have it."""
        names = self._moved()
        arrival = self._fetch({name: self._hosts[name] for name in names})
        if arrival is not None:
            arrival.wait()
        _refine(self.arrays, {name: values for name, values in self._given.items() if name in names})
        self._note(names)

    def capture(self) -> Capture:
        """Begin to bring the tensors' values home as they are now, into memory of its own; not of what is frozen,
        and is as `arrays` have it."""
        names = self._moved()
        hosts = self._memory(names)
        given = {name: values for name, values in self._given.items() if name in hosts}
        return Capture({name: host.numpy() for name, host in hosts.items()}, given, self._fetch(hosts))

    def put(self, names: Collection[str]) -> None:
        """Give tensors the values that their arrays have."""
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
        """Memory of the host for tensors; what was pinned for an earlier copy is used again when that is let go."""
        import torch

        make = partial(torch.empty, device=CPU) if self._transfers is None else host_memory
        return {name: make(self._tensors[name].shape, dtype=self._dtypes[name]) for name in names}

    def _note(self, names: Collection[str]) -> None:
        """Note which of the tensors nobody trains, and that arrays have what they hold."""
        for name in names:
            self._unmoved.pop(name, None)
            self._sums.pop(name, None)
            if name not in self._restless and (now := _frozen(self._tensors[name])) is not None:
                self._unmoved[name] = now
                if self._transfers is not None:
                    self._sums[name] = bit_sums(self._tensors[name])

    def _moved(self) -> list[str]:
        """Return which tensors may hold something else than arrays have: all but what is frozen, and has the bits that
        it had. A write through `.data`, as a teacher that follows its pupil is given, is counted nowhere, so that the
        bits are looked at: for one wait for the device, and none once a parameter was seen to be written like that."""
        import torch

        still = [name for name, tensor in self._tensors.items() if self._unmoved.get(name, ()) == _frozen(tensor)]
        if self._transfers is not None:
            same = [(self._sums[name] == bit_sums(self._tensors[name])).all() for name in still]
            kept = torch.stack(same).cpu().tolist() if same else []
            written = [name for name, is_kept in zip(still, kept, strict=True) if not is_kept]
        else:
            written = [name for name in still if not torch.equal(self._short_of(name), self._tensors[name].detach())]
        self._restless.update(written)
        unmoved = set(still).difference(written)
        return [name for name in self._tensors if name not in unmoved]

    def _fetch(self, hosts: Mapping[str, Tensor]) -> PendingCopy | None:
        """Begin to copy all tensors to the host; None where that is done at once."""
        names = list(hosts)
        if self._transfers is not None:
            return self._transfers.fetch([self._tensors[n].detach() for n in names], [hosts[n] for n in names])
        for name in names:
            hosts[name].copy_(self._tensors[name].detach())
        return None

    def _rounded(self, name: str) -> Array:
        """What a short tensor holds of the value of its array."""
        return np.asarray(self._short_of(name).to(self._hosts[name].dtype).numpy())

    def _short_of(self, name: str) -> Tensor:
        """The value of a tensor's array in the tensor's own format, on the host."""
        return self._hosts[name].to(self._tensors[name].dtype)


def _frozen(tensor: Tensor) -> tuple[int, int] | None:
    """Return where a parameter lies that nobody trains, and how often it was written; None for any other tensor, which
    fused optimisers write without counting."""
    from torch.nn import Parameter

    frozen = isinstance(tensor, Parameter) and not tensor.requires_grad
    return (tensor.data_ptr(), tensor._version) if frozen else None


def _refine(arrays: Mapping[str, Array], given: Mapping[str, tuple[Array, Array]]) -> None:
    """Give back to values what the format of their tensors could not hold of them."""
    for name, (values, held) in given.items():
        with np.errstate(all="ignore"):  # what is not finite is for whoever merges it to refuse
            moved = arrays[name] != held
            np.copyto(arrays[name], values + (arrays[name] - held), where=moved)
            np.copyto(arrays[name], values, where=~moved)
