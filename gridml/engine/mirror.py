"""A module's tensors as the host sees them, where the host has not the memory itself: what is on a device, and what is
in a format that numpy does not have, or that is too coarse for a master copy.

The master's copy, pushes and merges are of float32 where the module trains in bfloat16 or float16. What such a module
cannot hold of the values that it was given is kept here, and a push is those values with what the module has moved
since: so a replica that is merged many times loses nothing to its format.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.engine.bit_sums import bit_sums
from gridml.engine.module_tensors import SHORT
from gridml.engine.transfers import Arrival, Transfers
from gridml.model.device_names import CPU
from gridml.model.host_memory import host_memory

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]


def needs_mirror(tensor: Tensor) -> bool:
    """Whether the host cannot have a tensor's own memory as an array to merge into."""
    return tensor.device.type != CPU or str(tensor.dtype) in SHORT


@final
class Capture:
    """The values of some tensors at one moment, on their way to the host: `arrays` have them once it was waited for."""

    def __init__(
        self, arrays: Mapping[str, Array], given: Mapping[str, tuple[Array, Array]], arrival: Arrival | None
    ) -> None:
        self.arrays = arrays
        self._given = given
        self._arrival = arrival
        self._came = False

    def wait(self) -> None:
        """Return when they are here. May be called on any thread, and again. Raises what the device fails with."""
        if self._came:
            return
        if self._arrival is not None:
            self._arrival.wait()
        _refine(self.arrays, self._given)
        self._came = True


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

    def _fetch(self, hosts: Mapping[str, Tensor]) -> Arrival | None:
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
