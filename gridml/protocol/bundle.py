"""Bundles: a small message and tensors in one safetensors payload, the only thing that master and workers exchange.

A payload is a valid safetensors file whose metadata holds the message as JSON. Its SHA-256 travels beside it (in its
file name), so that a truncated or altered payload is recognised before it is parsed. Nothing in it is ever executed: no
pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

Array = NDArray[Any]

_DTYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "I16": np.int16,
    "U16": np.uint16,
    "I32": np.int32,
    "U32": np.uint32,
    "I64": np.int64,
    "U64": np.uint64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
}


def encode(message: Mapping[str, Any], tensors: Mapping[str, Array]) -> bytes:
    """Return one payload of a JSON-able message and named arrays of any shape."""
    contiguous = {name: np.ascontiguousarray(t).reshape(t.shape) for name, t in tensors.items()}
    return safetensors.numpy.save(contiguous, {"gridml": json.dumps(message, separators=(",", ":"))})


def decode(payload: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the message and the (writable) arrays of a payload. Raises ValueError when it is not one."""
    try:
        header = json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])
        message = json.loads(header["__metadata__"]["gridml"])
        tensors = {
            name: np.frombuffer(t["data"], _DTYPES[t["dtype"]]).reshape(t["shape"])
            for name, t in safetensors.deserialize(payload)  # type: ignore[no-untyped-call]
        }
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not a gridml bundle of {len(payload)} bytes: {error}") from error
    if not isinstance(message, dict):
        raise ValueError(f"a bundle's message is {type(message).__name__}, expected an object")
    return message, tensors


def digest(payload: bytes) -> str:
    """Return the SHA-256 of a payload in hexadecimal."""
    return hashlib.sha256(payload).hexdigest()


def write_atomic(path: Path, payload: bytes, *, durable: bool = True, durable_name: bool = True) -> None:
    """Write a file so that it is there whole or not at all: temporary name, fsync, rename.

    With `durable_name` the name too survives a power cut, at the price of a second fsync; without `durable` neither
    does the content, for what can be made again. Raises OSError; whatever it raises, nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(payload)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable and durable_name:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
