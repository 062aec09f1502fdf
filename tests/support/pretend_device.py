"""A device in Python, to test training on a device without one: torch takes it for an accelerator, and it computes by
the CPU's kernels, bit for bit like the CPU.

It is as strict as a GPU: tensors of the CPU and of the device do not mix, copies that do not block are deferred
(`pretend_streams`), memory can be exhausted, and it can be set to fail, after which it fails permanently.

`install` changes the process permanently: torch has one such device and never unregisters it. Tests therefore use it
in their own process. A program of this checkout may, too: `gridml run --device privateuseone` with a file that begins
with

    from tests.support import pretend_device
    pretend_device.install()

Needs torch 2.9 or newer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from gridml.model.device_memory import PRIVATE_USE
from tests.support import pretend_streams

NAME = f"{PRIVATE_USE}:0"
_EMPTY = ("empty.memory_format", "empty_strided")
_GROWING = ("arange", "arange.start", "arange.start_step", "linspace", "eye", "eye.m", "randperm")  # from nothing
_COPIES = ("aten::copy_", "aten::_to_copy", "aten::_copy_from")
_CAST = ("linear", "matmul", "conv2d")  # what autocast computes in the smaller format


@dataclass
class State:
    """The state of the device. `limit` is its memory in bytes, of which `used` are in use. After `fails_after`
    operations it raises `failure`; from then on it is `broken`."""

    limit: int | None = None
    used: int = 0
    operations: int = 0
    fails_after: int | None = None
    failure: str = "CUDA error: an illegal memory access was encountered"
    broken: bool = False
    deferred: int = 0  # copies so far that did not block
    late: BaseException | None = None  # an error in a backward pass, raised by the next operation


STATE = State()
_AUTOCAST: Any = getattr(torch._C.DispatchKey, "AutocastPrivateUse1")  # noqa: B009  (no stub has it)
_library: list[Any] = []  # registrations end when their library is garbage-collected


class _Memory:
    """Bytes of the device, in use as long as a tensor refers to them."""

    def __init__(self, nbytes: int) -> None:
        if STATE.limit is not None and STATE.used + nbytes > STATE.limit:
            _fail(
                torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {nbytes} bytes; {STATE.used} of {STATE.limit} are in use."
                )
            )
        STATE.used += nbytes
        weakref.finalize(self, _free, nbytes)


def _free(nbytes: int) -> None:
    STATE.used -= nbytes


class PretendTensor(torch.Tensor):
    """A tensor of the device; `raw` has its values."""

    raw: torch.Tensor
    memory: _Memory
    __torch_function__: ClassVar[Any] = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: torch.Tensor, memory: _Memory) -> PretendTensor:
        tensor: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), raw.stride(), raw.storage_offset(), dtype=raw.dtype, device=torch.device(NAME)
        )
        tensor.raw, tensor.memory = raw, memory
        return tensor

    def __init__(self, raw: torch.Tensor, memory: _Memory) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _compute(func, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"can't convert {NAME} device type tensor to numpy. Use Tensor.cpu() first.")
        return self.cpu().numpy()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendTensor({self.raw})"


def install(memory: int | None = None, fails_after: int | None = None) -> None:
    """Register the device with torch, with `limit` bytes of memory and a failure after `fails_after` operations."""
    STATE.limit, STATE.fails_after, STATE.late = memory, fails_after, None
    if _library:
        return
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(PRIVATE_USE, _Module())
    libraries: Any = torch.library  # untyped
    library = libraries.Library("aten", "IMPL")
    for name in (*_EMPTY, *_GROWING):
        packet, _, overload = name.partition(".")
        library.impl(name, _factory(getattr(getattr(torch.ops.aten, packet), overload or "default")), "PrivateUse1")
    fallbacks = libraries.Library("_", "IMPL")
    fallbacks.fallback(lambda func, *args, **kwargs: _compute(func, args, kwargs), "PrivateUse1")
    fallbacks.fallback(libraries.fallthrough_kernel, "AutocastPrivateUse1")
    for name in _CAST:
        library.impl(name, _in_smaller_format(getattr(torch.ops.aten, name).default), "AutocastPrivateUse1")
    _library.extend([library, fallbacks])


def wait() -> None:
    """Run all deferred work of the default stream."""
    pretend_streams.DEFAULT.run()


class _Module:
    """The module that torch needs of a device, and gridml of `torch.get_device_module`, like `torch.cuda`."""

    Stream = pretend_streams.Stream
    Event = pretend_streams.Event
    stream = staticmethod(pretend_streams.on)
    device = staticmethod(pretend_streams.device)

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def current_stream(self, device: Any = None) -> pretend_streams.Stream:
        return pretend_streams.current()

    def synchronize(self, device: Any = None) -> None:
        wait()

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def _factory(func: Any) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        return _compute(func, args, {**kwargs, "pin_memory": None})

    return make


def _in_smaller_format(func: Any) -> Callable[..., Any]:
    """Return a function as changed by autocast: with its tensors in the smaller format."""

    def cast(*args: Any) -> Any:
        dtype = torch.get_autocast_dtype(PRIVATE_USE)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_AUTOCAST)):
            args = pytree.tree_map_only(torch.Tensor, lambda t: t.to(dtype) if t.dtype == torch.float32 else t, args)
            return func(*args)

    return cast


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation of torch on the raw tensors, after the deferred work of this stream."""
    _fail_if_due()
    name = func._schema.name
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if name in _COPIES:
        return _copy(func, args, kwargs)
    _check_alike(name, tensors)
    pretend_streams.current().run()
    raw_args, raw_kwargs = pytree.tree_map_only(PretendTensor, lambda tensor: tensor.raw, (args, kwargs))
    if raw_kwargs.get("device") is not None:
        raw_kwargs = {**raw_kwargs, "device": torch.device("cpu")}
    made = func(*raw_args, **raw_kwargs)
    if (written := _written(func, args, kwargs)) is not None:
        return written
    own = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
    return pytree.tree_map_only(torch.Tensor, lambda raw: _wrapped(raw, own), made)


def _fail_if_due() -> None:
    STATE.operations += 1
    STATE.broken |= STATE.fails_after is not None and STATE.operations > STATE.fails_after
    if STATE.late is not None and not _in_backward():
        late, STATE.late = STATE.late, None
        raise late
    if STATE.broken:
        _fail(torch.AcceleratorError(STATE.failure))


def _fail(error: BaseException) -> None:
    """Raise an error: of a backward pass when that is over, because torch ends the process if Python raises in one."""
    if not _in_backward():
        raise error
    STATE.late = STATE.late or error


def _in_backward() -> bool:
    return int(torch._C._current_graph_task_id()) != -1


def _check_alike(name: str, tensors: Sequence[torch.Tensor]) -> None:
    others = [tensor for tensor in tensors if not isinstance(tensor, PretendTensor) and tensor.dim()]
    if others and len(others) < len(tensors):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {NAME} and cpu! ({name})"
        )


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the argument that a function writes to and returns, None if it makes a new tensor."""
    returns = func._schema.returns
    if len(returns) != 1 or returns[0].alias_info is None or not returns[0].alias_info.is_write:
        return None
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            return args[at] if at < len(args) else kwargs[argument.name]
    return None


def _wrapped(raw: torch.Tensor, inputs: Sequence[PretendTensor]) -> PretendTensor:
    """Return a raw tensor as one of the device: on the memory of an input that it is a view of, or on memory of its
    own."""
    pointer = raw.untyped_storage().data_ptr()
    memory = next((t.memory for t in inputs if pointer and t.raw.untyped_storage().data_ptr() == pointer), None)
    return PretendTensor(raw, memory or _Memory(raw.untyped_storage().nbytes()))


def _copy(func: Any, args: Any, kwargs: Any) -> Any:
    """Copy between the device and the host; if the caller does not wait, the copy is deferred."""
    name = func._schema.name
    if name == "aten::_to_copy":
        source, into = args[0], kwargs.get("device")
        target = torch.device(into) if into is not None else source.device
        raw = source.raw if isinstance(source, PretendTensor) else source
        pretend_streams.current().run()
        if target.type == PRIVATE_USE and not isinstance(source, PretendTensor) and kwargs.get("non_blocking"):
            made = _wrapped(torch.empty_like(raw, dtype=kwargs.get("dtype") or raw.dtype), ())
            _defer(made.raw, raw)
            return made
        plain = {key: value for key, value in kwargs.items() if key not in ("device", "non_blocking", "pin_memory")}
        made = func(raw, **plain)
        return made if target.type == "cpu" else _wrapped(made, ())
    source, into = (args[1], args[0]) if name == "aten::copy_" else (args[0], args[1])
    given = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    target, values = (t.raw if isinstance(t, PretendTensor) else t for t in (into, source))
    crosses = isinstance(source, PretendTensor) != isinstance(into, PretendTensor)
    if given and crosses:
        _defer(target, values)
    else:
        pretend_streams.current().run()
        target.copy_(values)
    return into


def _defer(target: torch.Tensor, source: torch.Tensor) -> None:
    STATE.deferred += 1
    pretend_streams.current().defer(lambda: _copied(target, source))


def _copied(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.no_grad():
        target.copy_(source)
