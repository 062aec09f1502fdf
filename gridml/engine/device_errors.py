"""Which errors are a device's: it ran out of memory, or does not work any more. The program is not to blame."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum


class Trouble(StrEnum):
    """What a device has failed with."""

    MEMORY = "out of memory"
    ERROR = "failed"


_MEMORY = "OutOfMemoryError"  # torch's, by name: nothing of torch is imported to look at an error
_ERROR = "AcceleratorError"
# What torch says in a plain RuntimeError, of libraries that it calls, and of devices before there was AcceleratorError.
_WORDS = ("CUDA error", "CUDA driver error", "CUDNN_STATUS_", "CUBLAS_STATUS_", "CUSPARSE_STATUS_", "cuDNN error")
_MEMORY_WORDS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")

ADVICE = {
    Trouble.MEMORY: "Give f a smaller batch, as in @gridml.update(batch=32), let fewer workers share a GPU, or ask for "
    "GPUs with more memory (--gpus-minimum-memory).",
    Trouble.ERROR: "Look at the GPU with nvidia-smi. Where it fails everywhere, --device cpu shows an index out of "
    "bounds as what it is.",
}


def trouble_of(error: BaseException) -> tuple[Trouble, str] | None:
    """Return (what is wrong with the device, in the error's words) where an error, or one that it was raised from, is a
    device's; None where it is the program's."""
    for each in _chain(error):
        names = {cls.__name__ for cls in type(each).__mro__}
        text = str(each).strip().partition("\n")[0]
        says = isinstance(each, RuntimeError) and any(words in text for words in _WORDS)
        if not (says or names & {_MEMORY, _ERROR}):
            continue
        memory = _MEMORY in names or any(words in text for words in _MEMORY_WORDS)
        return (Trouble.MEMORY if memory else Trouble.ERROR), text
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from, on purpose."""
    for _ in range(100):  # an error may be its own cause
        if error is None:
            return
        yield error
        error = error.__cause__
