"""Exceptions of gridml. Each message has the actual value, the expected one and advice.

The command line prints these errors without a traceback and exits with their `exit_status`. Any other exception is a
bug in gridml and keeps its traceback.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import ClassVar

# Exit statuses of workers, from <sysexits.h>. The master reads them to decide where the next worker may start.
UNFIT = 69  # EX_UNAVAILABLE: the machine lacks something
DEVICE = 71  # EX_OSERR: the device failed during training
UNEQUIPPED = 78  # EX_CONFIG: Python or modules are missing; a job can bring them along


_RATE = "gridml.module(factory, partial(torch.optim.SGD, lr=0.05))"
_LABELS = 'declare the labels as gridml.array("int64")'
# Errors that users of torch and similar libraries cause by habit: a pattern in the error's message, and what to write
# instead. `advice` takes the first pattern that matches.
INSTEAD = {
    r"log\(\) takes 0 pos|'gridml' has no .*'(log|add)_": "write gridml.log(loss=loss), or gridml.log(**a_dict)",
    r"'gridml' has no .*'Trainer'|'Program' .* no .*'(run|fit|train)'": "write gridml.run(program)",
    r"(update\(\)|Program\.\S*) got .*'batch": "write @gridml.update(batch=64) above f",
    r"Program\.\S* got .*epochs'": "write epochs=12",
    r"(Program|module)\.\S* got .*'(lr|learning_rate|optimizer)'": f"write {_RATE}",
    r"Program\.\S* got .*scheduler'|not an Optimizer|LR\.__init__\(\) missing|number, not \w*LR": (
        "write schedule=gridml.torch_schedule(lambda optimiser: StepLR(optimiser, 30)); by_epoch=True counts epochs"
    ),
    r"array\.\S* got .* keyword": 'write gridml.array("float32", (28, 28)), and give values to graph.add by field',
    r"EarlyStopping\.": 'write gridml.early_stopping("loss", patience=3)',
    r"Graph\.add\(\) takes": "write the fields by name, as in graph.add(Image, pixels=pixels, label=label)",
    r"step\(\) got .*'(max_norm|clip|grad)": "write network.step(loss, clip_norm=1.0)",
    r"missing .*'closure'": "write network.optimiser.step(closure), since this optimiser takes a closure",
    r"Vertex\.step\(\) missing|through the graph a second": "write network.step(loss) alone: it calls loss.backward()",
    r"no attribute '(step|optimizer)'": "write network.step(loss); the optimiser itself is network.optimiser",
    r"no attribute 'scheduler'": "write Program(..., schedule=...), and do not call step() of a scheduler",
    r"is not callable|no attribute '(train|eval|parameters|zero_grad|forward|state_dict|cuda|to)'": (
        "if that is a vertex, write the field that holds its module, as in network.model(images.pixels)"
    ),
    r"'Batch' object is not subscr|values to unpack|unpack non-iter": (
        "write images.pixels, images.label: a batch has an attribute for each field, and f needs no DataLoader"
    ),
    r"with CUDA enabled|no NVIDIA driver": "leave out .cuda() and .to(device): all is on the worker's device",
    r"np\.ndarray \(got Tensor\)": "write the field as it is: where a program has a module, fields are tensors",
    r"must be Tensor, not numpy": "write torch.from_numpy(values)",
    r"inhomogeneous shape": 'declare what differs in length as gridml.ragged("float32")',
    r"target dtype to be Long|scalar type Long": f"{_LABELS}, or write images.label.long()",
    r"0D or 1D target": f"{_LABELS} without a shape, or write images.label.squeeze(1)",
    r"output type Long": "write images.label.float()",
    r"'indices' to have": 'declare what is looked up as gridml.array("int64"), or write .long()',
    r"Target \d+ is out of bounds": "labels count from 0: write images.label - 1 if they begin at 1",
    r"the same dtype, but got|scalar type Float": 'write images.pixels.float(), or declare gridml.array("float32")',
    r"No such file or directory: '[^/]": (
        "workers have other working directories: read it in graph(), use an absolute path, or give gridml run --send"
    ),
}


def advice(error: BaseException, message: str) -> str:
    """Return advice for a user's error with this message, in brackets; "" if there is none."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        unsure = "" if package == "torch" else ", if it is called that (your own file belongs beside the program)"
        install = f"Install it there: pip install {package}{unsure}; workers elsewhere need it, too"
        return f" ({sys.executable} has no {package}. {install})"
    known = () if isinstance(error, GridmlError) else INSTEAD.items()  # the message of a GridmlError has advice
    return next((f" ({hint})" for pattern, hint in known if re.search(pattern, message)), "")


class GridmlError(Exception):
    """Base class of errors that are shown to the user."""

    exit_status: ClassVar[int] = 1


class UsageError(GridmlError):
    """A command or call got an invalid argument (a missing file, a size below one)."""

    exit_status = 2


class ProgramError(GridmlError):
    """The user's file is not a valid program: no Program, arrays of unequal length, ..."""

    exit_status = 3


class UnguardedError(ProgramError):
    """A file starts a run while it is loaded as a program."""


class _TracedError(GridmlError):
    """An error of code outside gridml, with its traceback as text."""

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class UserCodeError(_TracedError):
    """The user's f, g or evaluate raised, or returned an invalid value.

    `traceback_text` is the user's own traceback, without frames of gridml.
    """

    exit_status = 4


class DataError(_TracedError):
    """A data set is not available, or its content does not match its checksum.

    `traceback_text` is the traceback of the data set's own code, if that code failed.
    """

    exit_status = 5


class StorageError(GridmlError):
    """The disk is full or not writable. The run is intact up to its last commit."""

    exit_status = 6


class LedgerError(GridmlError):
    """The ledger of a run cannot be read, or belongs to another run."""

    exit_status = 7


class DamagedError(LedgerError):
    """A file of a run is missing, or does not match the ledger. The message has no advice, because advice depends on
    the run (`master.store.diagnosis`)."""

    def __init__(self, problem: str, file: Path) -> None:
        super().__init__(problem)
        self.file = file


class RunError(GridmlError):
    """A run cannot continue (another master runs it, it was cancelled, no worker can start)."""

    exit_status = 8


class CancelledError(RunError):
    """A user has cancelled the run."""


class SupersededError(RunError):
    """Another master has taken over the run. This master has written nothing since then, and must write nothing."""


class NotFiniteError(UserCodeError):
    """A loss or a replica contains NaN or infinity."""


class Interruption(BaseException):
    """The process was asked to exit. Code that handles errors of user code re-raises it."""
