"""What a call gives a run to begin with, where that is no run and no file: state dicts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gridml.errors import StorageError, UsageError
from gridml.protocol import bundle
from gridml.protocol.push import Array

_FILE = "first.safetensors"  # in the run directory
_VERTEX = re.compile(r"(\w+)(?:\[(\d+)\])?\.(\w+)")  # "Network.model", "Network[3].model", "Word.count"

FirstValues = str | os.PathLike[str] | Mapping[str, Any]  # a run, RUN:which or a file; or state dicts


def apart(given: FirstValues | None) -> tuple[str | os.PathLike[str] | None, Mapping[str, Any] | None]:
    """Return what the command's option takes, and the state dicts, which it cannot: one of them is None, or both."""
    return (None, given) if isinstance(given, Mapping) else (given, None)


def written(given: Mapping[str, Any], root: Path, call: str) -> Path:
    """Write state dicts, or one, into the directory of a run; return the file. Raises UsageError for what is none,
    StorageError."""
    tensors: dict[str, Array] = {}
    for name, value in given.items():
        parts = _VERTEX.fullmatch(str(name))
        if isinstance(value, Mapping):
            if parts is None:
                raise UsageError(
                    f"{call} got init_from with the state dict {name!r}; expected them called as gridml.load does, "
                    'such as "Network.model".'
                )
            whole = f"{parts[1]}/{parts[2] or 0}/{parts[3]}"
            tensors |= {f"{whole}/{key}": _array(tensor, call) for key, tensor in value.items()}
        elif isinstance(value, np.ndarray) and parts is not None:
            tensors[f"{parts[1]}/{parts[3]}"] = value
        else:
            tensors[str(name)] = _array(value, call)
    if not tensors:
        raise UsageError(f"{call} got init_from without a tensor; expected a state dict, or what gridml.load returns.")
    from master.store.rundir import RunDirectory

    RunDirectory(root).create()
    path = root / _FILE
    try:
        bundle.write_atomic(path, bundle.pieces({}, tensors))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}. Make room, or name another run_dir.") from error
    return path


def _array(tensor: Any, call: str) -> Array:
    """Return a tensor of torch, or an array, as an array; what NumPy has no dtype for as float32."""
    if isinstance(tensor, np.ndarray):
        return tensor
    try:
        values = tensor.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
        array: Array = values.numpy()
        return array
    except AttributeError:
        raise UsageError(
            f"{call} got init_from with a {type(tensor).__name__} in it; expected tensors, as in a state dict."
        ) from None
