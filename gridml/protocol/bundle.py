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
from typing import Any, BinaryIO

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from gridml.protocol.foreign_files import remove
from gridml.protocol.text import described

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


LONGEST_HEADER = 100_000_000  # bytes, of safetensors itself


def encode(message: Mapping[str, Any], tensors: Mapping[str, Array]) -> bytes:
    """Return one payload of a JSON-able message, without NaN or infinity, and named arrays of any shape."""
    contiguous = {name: np.ascontiguousarray(t).reshape(t.shape) for name, t in tensors.items()}
    return safetensors.numpy.save(contiguous, {"gridml": json.dumps(message, separators=(",", ":"))})


def decode(payload: bytes, longest_header: int = LONGEST_HEADER) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the message and the (writable) arrays of a payload.

    Raises ValueError when it is not one; a header of more than `longest_header` bytes is not even looked at.
    """
    try:
        length = int.from_bytes(payload[:8], "little")
        if length > longest_header:
            raise ValueError(f"its header has {length:,} bytes, expected at most {longest_header:,}")
        header = json.loads(payload[8 : 8 + length])  # what it says of tensors is checked by safetensors
        message = _JSON.decode(header["__metadata__"]["gridml"])
        tensors = {
            name: _array(t)
            for name, t in safetensors.deserialize(payload)  # type: ignore[no-untyped-call]
        }
    except _NO_BUNDLE as error:
        raise ValueError(f"not a gridml bundle of {len(payload):,} bytes: {described(error)}") from error
    if not isinstance(message, dict):
        raise ValueError(f"not a gridml bundle: its message is {type(message).__name__}, expected an object")
    return message, tensors


def views(file: NDArray[np.uint8]) -> dict[str, Array]:
    """Return the arrays of a payload that this process has written, on its own memory, uint8 (n,)."""
    start = 8 + int.from_bytes(file[:8].tobytes(), "little")
    header = json.loads(file[8:start].tobytes())
    del header["__metadata__"]
    tensors = {}
    for name, of in header.items():
        begin, end = of["data_offsets"]
        tensors[name] = file[start + begin : start + end].view(_DTYPES[of["dtype"]]).reshape(of["shape"])
    return tensors


def _array(tensor: dict[str, Any]) -> Array:
    dtype = _DTYPES[tensor["dtype"]]
    if dtype is np.bool_:  # a byte of 2 would be a bool that is neither
        array: Array = np.frombuffer(tensor["data"], np.uint8) != 0
    else:
        array = np.frombuffer(tensor["data"], dtype)
    return array.reshape(tensor["shape"])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return values


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_JSON = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number)
_NO_BUNDLE = (safetensors.SafetensorError, KeyError, TypeError, ValueError, OverflowError, RecursionError)


def digest(payload: bytes | memoryview) -> str:
    """Return the SHA-256 of a payload in hexadecimal."""
    return hashlib.sha256(payload).hexdigest()


def write_atomic(path: Path, payload: bytes, *, durable: bool = True, durable_name: bool = True) -> None:
    """Write a file so that it is there whole or not at all: temporary name, fsync, rename.

    With `durable_name` the name too survives a power cut, at the price of a second fsync; without `durable` neither
    does the content, for what can be made again. Raises OSError; whatever it raises, nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _new(temporary) as file:
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


def _new(path: Path) -> BinaryIO:
    """Open a file that is not there yet. What somebody has put there is removed, never followed."""
    try:
        return path.open("xb")
    except FileExistsError:
        remove(path)
        return path.open("xb")


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
