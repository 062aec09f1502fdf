"""Device selection for a worker, and detection of device failures.

`choose` is a pure function of the requested device, the accelerators that torch finds and the worker's slot. A device
that runs out of memory or stops working is a `DeviceFault`, which is not counted as an error of the program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from gridml.errors import DEVICE, UNFIT, GridmlError
from gridml.model.device_memory import AUTO, CPU, CUDA, PRIVATE_USE, DeviceName, parse
from gridml.protocol.foreign import printable

if TYPE_CHECKING:
    from gridml.model.vertex import module


class DeviceFault(StrEnum):
    """The kinds of device failure."""

    MEMORY = "out of memory"
    ERROR = "failed"


_MEMORY = "OutOfMemoryError"  # names of torch's error classes, so that classifying an error needs no import of torch
_ERROR = "AcceleratorError"
# A RuntimeError with one of these texts is a device failure. torch raises such RuntimeErrors for failures of CUDA
# libraries; old versions of torch raise them for all failures of a device.
_PHRASES = ("CUDA error", "CUDA driver error", "CUDNN_STATUS_", "CUBLAS_STATUS_", "CUSPARSE_STATUS_", "cuDNN error")
_MEMORY_PHRASES = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")

ADVICE = {
    DeviceFault.MEMORY: "Give f a smaller batch, as in @gridml.update(batch=32), let fewer workers share a GPU, or ask "
    "for GPUs with more memory (--gpus-minimum-memory).",
    DeviceFault.ERROR: "Look at the GPU with nvidia-smi. If the program fails on every GPU, run it with --device cpu: "
    "an index out of bounds then gets an error of its own.",
}


def device_fault_of(error: BaseException) -> tuple[DeviceFault, str] | None:
    """Return (the kind of fault, the first line of the error) if the device caused the error or one of its causes.
    Return None for an error of the program."""
    for each in _chain(error):
        names = {cls.__name__ for cls in type(each).__mro__}
        text = str(each).strip().partition("\n")[0]
        says = isinstance(each, RuntimeError) and any(words in text for words in _PHRASES)
        if not (says or names & {_MEMORY, _ERROR}):
            continue
        memory = _MEMORY in names or any(words in text for words in _MEMORY_PHRASES)
        return (DeviceFault.MEMORY if memory else DeviceFault.ERROR), text
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its explicit causes (`raise ... from`)."""
    for _ in range(100):  # bounded, because an error can be its own cause
        if error is None:
            return
        yield error
        error = error.__cause__


# Environment variable with the number of a worker on its machine, from 0. It spreads workers over the GPUs.
SLOT = "GRIDML_SLOT"
MAX_ERROR_CHARS = 300  # characters of a device's error that a message quotes


class NoDeviceError(GridmlError):
    """This machine lacks the requested device; another machine may have it."""

    exit_status: ClassVar[int] = UNFIT


class DeviceFailedError(GridmlError):
    """The device of this worker failed, so the worker exits. The program is not at fault. `fault` is the kind of
    failure."""

    exit_status: ClassVar[int] = DEVICE

    def __init__(self, device: str, fault: DeviceFault, words: str) -> None:
        super().__init__(f"{device} {fault.value}: {printable(words, MAX_ERROR_CHARS)} {ADVICE[fault]}")
        self.fault = fault


class Accelerators(NamedTuple):
    """The accelerators that this process may use."""

    kind: str = ""  #: torch's device type, such as "cuda"; "" if there are none
    number: int = 0
    why_none: str = ""  #: the reason why there are none, if torch knows it

    def __str__(self) -> str:
        if not self.number:
            return f"only the CPU{f' ({self.why_none})' if self.why_none else ''}"
        last = "" if self.number == 1 else f" to {self.kind}:{self.number - 1}"
        return f"{self.kind}:0{last}"


def choose(asked: DeviceName, present: Accelerators, slot: int | None = None) -> tuple[str, str]:
    """Return (torch's name of the device, reason).

    Workers of one machine take its accelerators in turn: `slot` is the worker's number on the machine, from 0, or None
    for a worker that does not share the machine. Raises NoDeviceError if the machine lacks the requested device.
    """
    if asked.kind == CPU:
        return CPU, "as asked for"
    if asked.kind == AUTO and not present.number:
        return CPU, f"this machine has {present}"
    if asked.kind != AUTO and (asked.kind != present.kind or (asked.number or 0) >= present.number):
        raise NoDeviceError(
            f"--device is {asked}; this machine has {present}. Choose one that is here, or --device auto, which takes "
            f"the CPU if there is no accelerator."
        )
    if asked.number is not None:
        return str(asked), "as asked for"
    index = 0 if slot is None else slot % present.number
    why = (
        "the first that this worker sees" if slot is None else f"slot {slot} of {present.number} GPUs that slots share"
    )
    return f"{present.kind}:{index}", why


def find_accelerators() -> Accelerators:
    """Return the accelerators that torch finds. A batch system assigns GPUs to a job by CUDA_VISIBLE_DEVICES. CUDA
    itself applies that variable, so torch counts only these GPUs and numbers them from 0."""
    import torch

    if torch.cuda.is_available():
        return Accelerators(CUDA, torch.cuda.device_count())
    other = getattr(torch, PRIVATE_USE, None)
    if other is not None and other.is_available():
        return Accelerators(PRIVATE_USE, other.device_count())
    if torch.version.cuda is None:
        return Accelerators(why_none="its torch was built without CUDA")
    return Accelerators(why_none="CUDA finds no GPU")


@dataclass(frozen=True)
class Device:
    """The device of an engine, by torch's name: "cpu", "cuda:0"."""

    name: str = CPU

    @property
    def accelerates(self) -> bool:
        return self.name != CPU

    def of(self, declared: module, field: str) -> str:
        """Return torch's name of the device of a module: the device that its declaration asks for, by default the
        engine's. Raises NoDeviceError if the worker does not have the device."""
        if declared.device is None or (asked := parse(declared.device)).kind == AUTO:
            return self.name
        if asked.kind == CPU:
            return CPU
        kind = self.name.partition(":")[0]
        if asked.kind != kind:
            raise NoDeviceError(
                f"{field} asks for {asked}, and this worker trains on {self.name}. Give --device {asked.kind} on a "
                f"machine that has one, or remove device= from gridml.module."
            )
        return self.name if asked.number is None else str(asked)


@contextlib.contextmanager
def raising_device_errors(device: Device) -> Iterator[None]:
    """Turn failures of the device into DeviceFailedError; other errors pass unchanged."""
    try:
        yield
    except Exception as error:
        if not device.accelerates or (fault := device_fault_of(error)) is None:
            raise
        raise DeviceFailedError(device.name, *fault) from error


def find_device(asked: DeviceName, slot: int | None = None) -> tuple[Device, str]:
    """Return (the device to train on, reason), chosen by `choose` among the accelerators of this machine. Raises
    NoDeviceError if the machine lacks the requested device."""
    if asked.kind == CPU:
        return Device(), "as asked for"
    name, reason = choose(asked, find_accelerators(), slot)
    return Device(name), reason
