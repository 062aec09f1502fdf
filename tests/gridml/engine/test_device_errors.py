"""Classification of errors: those of a device, and those of the program."""

from __future__ import annotations

import pytest
import torch

from gridml.engine.devices import DeviceFault, device_fault_of


def raised_from(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nmore")
FAULTS = {
    "out of memory": (MEMORY, DeviceFault.MEMORY),
    "cublas": (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), DeviceFault.MEMORY),
    "an older torch": (RuntimeError("CUDA error: out of memory"), DeviceFault.MEMORY),
    "accelerator": (torch.AcceleratorError("CUDA error: unspecified launch failure"), DeviceFault.ERROR),
    "cudnn": (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), DeviceFault.ERROR),
    "raised from it": (raised_from(ValueError("no batch"), MEMORY), DeviceFault.MEMORY),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_devices_error_is_known(name: str) -> None:
    error, expected = FAULTS[name]
    fault = device_fault_of(error)
    assert fault is not None and fault[0] is expected
    assert "\n" not in fault[1]


def test_the_programs_own_is_not() -> None:
    for error in (MemoryError("CUDA error"), RuntimeError("shapes differ"), KeyError("CUDA error")):
        assert device_fault_of(error) is None


def test_an_error_that_is_its_own_cause_ends() -> None:
    error = ValueError("again")
    error.__cause__ = error
    assert device_fault_of(error) is None
