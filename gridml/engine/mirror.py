"""Host copies of module tensors that numpy cannot access directly: on a device, or in bfloat16 or float16.

A module can train in bfloat16 or float16 (a "short" format here); the master's copy, pushes and merges are float32. So
a mirror keeps the float32 values that it last put into the module, and the rounded values that the module then held. A
push has the float32 values plus the module's change since then. Thus repeated merges do not add up rounding errors.

Copies from a device to the host use a stream of their own and pinned memory, so that training does not wait for them.
A checksum of bits (`bit_sums`) shows whether a tensor on a device has changed, without copying it. `check_tensors`
rejects tensors that cannot be pushed and merged.
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
from gridml.model.device_memory import CPU, host_memory, pinned
from gridml.protocol.foreign import MAX_NAME_CHARS, printable

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]


@final
@dataclass(eq=False)
class PendingCopy:
    """A copy to the host that is in progress."""

    event: Any  #: torch's event, recorded after the copy in its stream
    staged: Sequence[Tensor] | None  #: the source, kept alive until the copy is complete; None afterwards
    #: Context manager that makes the device current. Without it, waiting in a new thread creates a context on GPU 0.
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
    """Copies between the host and one device, given by its torch name."""

    def __init__(self, device: str) -> None:
        import torch

        self._device = torch.device(device)
        self._module = getattr(torch, self._device.type)  # torch.cuda, or a module with the same functions
        self._stream = self._module.Stream(self._device)

    def fetch(self, tensors: Sequence[Tensor], into: Sequence[Tensor]) -> PendingCopy | None:
        """Start to copy tensors of the device to the host. The copies have the present values: later writes do not
        affect them.

        The tensors are first copied on the device, on the compute stream: a gigabyte takes a millisecond. The copy to
        the host, fifty milliseconds for a gigabyte, runs on another stream. If the device lacks the memory, the tensors
        are copied to the host synchronously, and the result is None.
        """
        import torch

        if (staged := _staged(tensors, into)) is None:
            with torch.no_grad():
                for tensor, host in zip(tensors, into, strict=True):
                    host.copy_(tensor.cpu())  # the host converts the dtype: the device lacks the memory for that
            return None
        self._stream.wait_stream(self._module.current_stream(self._device))
        with self._module.stream(self._stream), torch.no_grad():
            for tensor, host in zip(staged, into, strict=True):
                host.copy_(tensor, non_blocking=True)
            event = self._module.Event(blocking=True)  # so that the waiting thread sleeps instead of spinning
            event.record(self._stream)
        return PendingCopy(event, staged, partial(self._module.device, self._device))

    def put(self, hosts: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """Copy from the host to tensors of the device, on the compute stream. Blocks until the host's memory can be
        reused."""
        import torch

        with torch.no_grad():
            for host, tensor in zip(hosts, into, strict=True):
                moved = host.to(tensor.device, non_blocking=True) if host.dtype != tensor.dtype else host
                tensor.copy_(moved, non_blocking=True)
        self.wait()

    def rebase(self, tensor: Tensor, pushed: Array, newest: Array) -> bool:
        """Start to set `tensor` to newest + (tensor − pushed) on the compute stream, in the order of operations of
        `Aggregate.adopt`. Return False, with no effect, if the device lacks the memory."""
        import torch

        try:
            left, right = (_as_tensor(values).to(tensor.device, non_blocking=True) for values in (pushed, newest))
        except torch.OutOfMemoryError:
            return False
        with torch.no_grad():
            tensor.sub_(left).add_(right)
        return True

    def wait(self) -> None:
        """Block until the compute stream has completed its work, so that the host's memory can be reused."""
        event = self._module.Event()
        event.record(self._module.current_stream(self._device))
        event.synchronize()


def _as_tensor(values: Array) -> Tensor:
    import torch

    return torch.from_numpy(values) if values.flags.writeable else pinned(values)


_WORD = 8  # bytes of an int64, which torch sums without a converted copy


def bit_sums(tensor: Tensor) -> Tensor:
    """Return a checksum of a tensor's bits as int64 numbers on its device.

    The tensor's 64-bit words are laid out as a square. The checksum consists of the sums of the rows and of the columns
    modulo 2**64, followed by the words and bytes outside the square. It changes if one word changes or two words are
    exchanged.

    This takes as long as reading the tensor twice. It needs memory for 3 * sqrt(words) numbers if the tensor is
    contiguous.
    """
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    if flat.storage_offset() * flat.element_size() % _WORD:
        flat = flat.clone()  # view(int64) needs a byte offset that is a multiple of 8
    size = flat.element_size()
    bits = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    whole = flat.numel() * size // _WORD * (_WORD // size)
    words = bits[:whole].view(torch.int64)
    side = math.isqrt(words.numel())
    square = words[: side * side].view(side, side)
    return torch.cat([square.sum(0), square.sum(1), words[side * side :], bits[whole:].to(torch.int64)])


SHORT = ("torch.bfloat16", "torch.float16")  # dtypes whose master copy is float32


def check_tensors(field: str, module: Any) -> None:
    """Raise ProgramError if a module's state dict has an entry that cannot be merged: an uninitialised parameter, a
    sparse, complex, quantised or meta tensor, or anything but a tensor. `field` is the module's name in messages."""
    import torch
    from torch.nn.parameter import is_lazy

    for name, tensor in module.state_dict(keep_vars=True).items():
        holds = f"{field} holds {printable(name, MAX_NAME_CHARS)}"
        if not isinstance(tensor, torch.Tensor):
            raise ProgramError(
                f"{holds}, a {type(tensor).__name__}; expected tensors alone in its state dict, because "
                f"nothing else is merged. Remove get_extra_state, or return a tensor from it."
            )
        if is_lazy(tensor):
            raise ProgramError(
                f"{holds}, which has no shape yet; expected tensors with shapes, because they are merged. Say how many "
                f"inputs a lazy layer has (nn.Linear(8, 4) for nn.LazyLinear(4)), or call the module once in the "
                f"factory before you return it: module(torch.zeros(1, 8))."
            )
        if tensor.layout != torch.strided:
            raise ProgramError(
                f"{holds} as {tensor.layout}; expected a dense tensor. If every worker "
                f"makes the same one, register it with persistent=False; else keep indices and values as two tensors."
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
    """True if numpy cannot access a tensor's memory as an array to merge into."""
    return tensor.device.type != CPU or str(tensor.dtype) in SHORT


MAX_CAPTURES = 2  # number of captures in host memory at the same time: the copy of the master's values, the next push


@final
@dataclass(eq=False)
class Capture:
    """The values of some tensors at one moment. Their copy to the host may still be in progress."""

    arrays: Mapping[str, Array]  #: by name; valid only after `wait`
    given: Mapping[str, tuple[Array, Array]]  #: the entries of `Mirror._given` for these tensors
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
    """Tensors of one device by name, and `arrays`: their values on the host as of the last `pull` or `put`.

    The tensors are those of the module itself, read and written in place.
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
        # (data pointer, torch's version counter) of each frozen parameter when it was last copied to `arrays`.
        self._unmoved: dict[str, tuple[int, int]] = {}
        self._sums: dict[str, Tensor] = {}  # `bit_sums` of the parameters in `_unmoved`, on the device
        # Names of frozen parameters that f has written through `.data`. The version counter does not show such writes,
        # so every pull copies these parameters.
        self._uncounted: set[str] = set()
        self.arrays: dict[str, Array] = {name: host.numpy() for name, host in self._hosts.items()}
        self._short = [name for name, tensor in self._tensors.items() if str(tensor.dtype) in SHORT]
        # By name of a short tensor: (the float32 values last put, the rounded values that the module then held).
        self._given: dict[str, tuple[Array, Array]] = {}
        self.pull()
        if self._transfers is not None:
            # Pinning memory takes 0.9 s for a gigabyte. Torch caches the memory that is pinned and released here, so
            # the first snapshots do not wait for it.
            trained = [name for name, tensor in self._tensors.items() if _frozen(tensor) is None]
            _ = [self._memory(trained) for _ in range(MAX_CAPTURES)]

    def follow(self, tensors: Mapping[str, Tensor]) -> bool:
        """Switch to other tensors and return True, if they have the same names, shapes and dtypes. Else return False,
        with no effect. The arrays keep their values until the next `pull`."""
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

    def rebase(self, changes: Mapping[str, tuple[Array, Array]]) -> set[str]:
        """Set tensors to newest + (tensor − pushed) on their device. `changes` maps a name to (pushed, newest). Return
        the names of the tensors that were set. Their values in `arrays` are outdated until the next `pull`.

        The host must rebase all other tensors: integer tensors; frozen tensors, which are compared with `arrays`;
        tensors in a short format, whose rounding errors the host keeps; tensors with infinities, such as masks; and
        those for which the device lacks the memory.
        """
        import torch

        done: set[str] = set()
        wanted = self._tensors.keys() & changes.keys() - {*self._short}
        own = {name: tensor.detach() for name, tensor in self._tensors.items() if name in wanted}
        own = {n: t for n, t in own.items() if t.is_floating_point() and _frozen(self._tensors[n]) is None}
        if self._transfers is None or not own:
            return done
        finite = torch.stack([torch.isfinite(tensor.sum()) for tensor in own.values()]).cpu().tolist()
        for (name, tensor), is_finite in zip(own.items(), finite, strict=True):
            if is_finite and self._transfers.rebase(tensor, *changes[name]):
                done.add(name)
        self._transfers.wait()
        return done

    def pull(self, wanted: Collection[str] | None = None) -> None:
        """Copy the tensors of these names (default: all) to `arrays`, except frozen tensors that have not changed."""
        names = [name for name in self._moved() if wanted is None or name in wanted]
        arrival = self._fetch({name: self._hosts[name] for name in names})
        if arrival is not None:
            arrival.wait()
        _refine(self.arrays, {name: values for name, values in self._given.items() if name in names})
        self._note(names)

    def capture(self) -> Capture:
        """Start to copy the present values of the tensors to new host memory, except frozen tensors that have not
        changed."""
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
        """Return host tensors for copies. Torch caches pinned memory, so released memory is reused."""
        import torch

        make = partial(torch.empty, device=CPU) if self._transfers is None else host_memory
        return {name: make(self._tensors[name].shape, dtype=self._dtypes[name]) for name in names}

    def _note(self, names: Collection[str]) -> None:
        """Record that `arrays` is up to date for these tensors, so that later copies can skip the frozen ones."""
        for name in names:
            self._unmoved.pop(name, None)
            self._sums.pop(name, None)
            if name not in self._uncounted and (now := _frozen(self._tensors[name])) is not None:
                self._unmoved[name] = now
                if self._transfers is not None:
                    self._sums[name] = bit_sums(self._tensors[name])

    def _moved(self) -> list[str]:
        """Return the names of the tensors that may differ from `arrays`: all but frozen tensors with unchanged bits.

        Bits are compared because a write through `.data`, as is usual for exponential moving averages of other modules,
        does not raise the version counter. The comparison waits once for the device. Once it has found such a write to
        a parameter, the parameter is always copied without a comparison.
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
        """Return the array of a short tensor after rounding to the tensor's format, as float32."""
        return np.asarray(self._short_of(name).to(self._hosts[name].dtype).numpy())

    def _short_of(self, name: str) -> Tensor:
        """Return the host array of a tensor, converted to the tensor's dtype."""
        return self._hosts[name].to(self._tensors[name].dtype)


def _frozen(tensor: Tensor) -> tuple[int, int] | None:
    """Return (data pointer, version counter) of a frozen parameter, and None for any other tensor. The counter of a
    trained parameter does not show every write, because fused optimisers do not raise it."""
    from torch.nn import Parameter

    frozen = isinstance(tensor, Parameter) and not tensor.requires_grad
    return (tensor.data_ptr(), tensor._version) if frozen else None


def _refine(arrays: Mapping[str, Array], given: Mapping[str, tuple[Array, Array]]) -> None:
    """Undo the rounding of short tensors, in place; `given` is as `Mirror._given`. An unchanged weight gets its float32
    value back. A changed weight gets that value plus the change."""
    for name, (values, held) in given.items():
        with np.errstate(all="ignore"):  # values that are not finite are rejected at admission
            moved = arrays[name] != held
            np.copyto(arrays[name], values + (arrays[name] - held), where=moved)
            np.copyto(arrays[name], values, where=~moved)
