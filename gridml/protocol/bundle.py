"""Bundles: a small message and tensors in one safetensors payload. Master and workers exchange nothing else.

A payload is a valid safetensors file whose metadata holds the message as JSON. Its SHA-256 travels with it (in the file
name), so that a truncated or altered payload is detected before it is parsed. Nothing in a payload is ever executed:
no pickle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gridml.protocol.compression import from_bfloat16
from gridml.protocol.foreign import described, remove
from gridml.protocol.payload import ALIGNMENT_BYTES, Arrived, Payload, Piece, Pieces, Received, aligned_copy, in_pieces

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
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
_INT32 = np.iinfo(np.int32)
_to_json = json.JSONEncoder(separators=(",", ":")).encode
FILLER = "filler/"  # prefix of tensors that only pad the payload
MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors itself


def encode(message: Mapping[str, Any], tensors: Mapping[str, Array], aligned: Container[str] = ()) -> bytes:
    """Return a message and named arrays of any shape as one payload. The message is JSON without NaN or infinity."""
    return bytes(pieces(message, tensors, aligned))


def pieces(message: Mapping[str, Any], tensors: Mapping[str, Array], aligned: Container[str] = ()) -> Pieces:
    """Return the payload of `encode` as pieces. Contiguous arrays are not copied: the pieces share their memory.

    Arrays named in `aligned` begin at byte offsets that are multiples of `ALIGNMENT_BYTES`.
    """
    # Not safetensors' own writer: it copies every array twice.
    header: dict[str, Any] = {"__metadata__": {"gridml": _to_json(message)}}
    arrays: list[Piece] = []
    end = 0
    # Larger items first, so that every array begins at a multiple of its item size.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        values = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("="))
        # safetensors allows no gaps between tensors, so the padding is a tensor as well.
        if name in aligned and (gap := -end % ALIGNMENT_BYTES):
            header[f"{FILLER}{len(header)}"] = {"dtype": "U8", "shape": (gap,), "data_offsets": (end, end + gap)}
            arrays.append(bytes(gap))
            end += gap
        begin, end = end, end + values.nbytes
        header[name] = {"dtype": _NAMES[values.dtype], "shape": tensor.shape, "data_offsets": (begin, end)}
        arrays.append(values.reshape(-1).view(np.uint8).data)
    text = _to_json(header).encode()
    text += b" " * (-(8 + len(text)) % (ALIGNMENT_BYTES if aligned else 8))
    return Pieces([len(text).to_bytes(8, "little") + text, *arrays])


def narrowed(ids: NDArray[np.int64]) -> Array:
    """Return integers as int32 where all of them fit, which halves the bytes sent."""
    fit = not ids.size or (ids.min() >= _INT32.min and ids.max() <= _INT32.max)
    return ids.astype(np.int32) if fit else ids


def decode(payload: Payload | Arrived, max_header: int = MAX_HEADER_BYTES) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the message and writable arrays of a payload, copied to aligned memory.

    Raises ValueError for an invalid payload, and for a header of more than `max_header` bytes without parsing it.
    """
    memory = aligned_copy(np.frombuffer(bytes(payload) if isinstance(payload, Pieces) else payload, np.uint8))
    return opened(memory.data, max_header)


def opened(payload: Piece, max_header: int = MAX_HEADER_BYTES) -> tuple[dict[str, Any], dict[str, Array]]:
    """Decode without copying: as `decode`, but the arrays share the payload's memory and are writable only if it is."""
    # Not safetensors' own reader: it copies every tensor, that is 100 MB for each push of a replica of 100 MB.
    try:
        length = int.from_bytes(payload[:8], "little")
        if length > max_header:
            raise ValueError(f"its header has {length:,} bytes, expected at most {max_header:,}")
        header = _JSON.decode(str(payload[8 : 8 + length], "utf-8"))
        message = _JSON.decode(header.pop("__metadata__")["gridml"])
        tensors = _tensors(header, np.frombuffer(payload, np.uint8)[8 + length :])
    except _DECODE_ERRORS as error:
        raise ValueError(f"not a gridml bundle of {len(payload):,} bytes: {described(error)}") from error
    if not isinstance(message, dict):
        raise ValueError(f"not a gridml bundle: its message is {type(message).__name__}, expected an object")
    return message, tensors


def plain_tensors(payload: bytes) -> dict[str, Array]:
    """Return the arrays of any safetensors file. Those in bfloat16, which NumPy lacks, become float32.

    Raises ValueError for any other file.
    """
    try:
        length = int.from_bytes(payload[:8], "little")
        header = _JSON.decode(str(payload[8 : 8 + length], "utf-8"))
        header.pop("__metadata__", None)
        short = [name for name, of in header.items() if of["dtype"] == "BF16"]
        for name in short:
            header[name]["dtype"] = "U16"
        tensors = _tensors(header, np.frombuffer(bytearray(payload), np.uint8)[8 + length :])
        return tensors | {name: from_bfloat16(tensors[name]) for name in short}
    except _DECODE_ERRORS as error:
        raise ValueError(f"not a safetensors file of {len(payload):,} bytes: {described(error)}") from error


def _tensors(header: Mapping[str, Any], data: NDArray[np.uint8]) -> dict[str, Array]:
    """Return the arrays of a header, ordered by offset. They share the memory of `data`.

    Raises ValueError unless the arrays cover `data` without gap or overlap, as safetensors requires. Raises any of
    `_DECODE_ERRORS` for values of a wrong type.
    """
    tensors, covered = {}, 0
    for name, of in sorted(header.items(), key=lambda item: (item[1]["data_offsets"], item[0])):
        shape, (begin, end) = of["shape"], of["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
            raise ValueError(f"the shape or the offsets of {name!r} are not whole numbers")
        if begin != covered or end < begin:
            raise ValueError(f"{name!r} has bytes {begin:,} to {end:,}, expected them to begin at {covered:,}")
        tensors[name], covered = _array(data[begin:end], of["dtype"], shape), end
    if covered != data.size:
        raise ValueError(f"it has {data.size:,} bytes of tensors, expected {covered:,}")
    return tensors


def _array(data: NDArray[np.uint8], dtype: str, shape: Sequence[int]) -> Array:
    numpy_dtype = _DTYPES[dtype]
    values: Array = data != 0 if numpy_dtype is np.bool_ else data.view(numpy_dtype)  # a byte of 2 is no valid bool
    array = values.reshape(shape)
    return array if array.flags.aligned else array.copy()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("an object has a duplicate name")
    return values


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_JSON = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_reject_constant)
# Everything that decoding hostile JSON may raise. RecursionError: nested too deeply.
_DECODE_ERRORS = (KeyError, AttributeError, TypeError, ValueError, OverflowError, RecursionError)


def digest(payload: Payload | Piece) -> str:
    """Return the SHA-256 of a payload in hexadecimal. For a received payload: the hash of the bytes as they arrived."""
    return payload.sha256 if isinstance(payload, Pieces | Received) else Pieces([payload]).sha256


def write_atomic(path: Path, payload: Payload, *, durable: bool = True) -> None:
    """Write a file atomically: temporary name, fsync, rename. Pieces are hashed while they are written.

    `durable` makes content and name survive a power cut, by one fsync each; set it to False for files that can be
    rebuilt. Raises OSError, and leaves no temporary file.
    """
    _write(path, lambda: path, payload, durable=durable)


def write_secret(path: Path, text: str) -> None:
    """Write a file atomically with mode 0600. Raises OSError."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    # The mode is set on creation: with a later chmod, others could read the file for a moment.
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


def write_named(name: Callable[[str], Path], payload: Payload) -> None:
    """Write a file as `write_atomic` does, but not durably. `name` returns its path for its SHA-256, which is known
    once it is written. The temporary name is derived from `name("")`."""
    pieces = in_pieces(payload)
    _write(name(""), lambda: name(pieces.sha256), pieces, durable=False)


def _write(working: Path, path: Callable[[], Path], payload: Payload, *, durable: bool) -> None:
    temporary = working.with_name(f".{working.name}.{os.getpid()}.tmp")
    try:
        with _new(temporary) as file:
            for block in payload.blocks() if isinstance(payload, Pieces) else [payload]:
                file.write(block)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(working.parent)


def _new(path: Path) -> BinaryIO:
    """Create a file. An existing one is removed first and never followed: another user may have put a link there."""
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
