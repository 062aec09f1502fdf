"""Payloads of carriers, arrays aligned as torch aligns tensors, and detection of network disks.

A payload to send is bytes, or pieces that share the memory of arrays and are hashed while they are read. A received
payload is hashed while it arrives.

Alignment matters for reproducibility: kernels of matrix products and sums split their loops by the address of an
operand, so the same rows at another alignment can be rounded differently. Therefore everything that f reads, in every
chunk and batch, is aligned like a tensor that torch has just allocated.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]


Piece = bytes | bytearray | memoryview
BLOCK = 1 << 20  # bytes that are hashed and written together, while they are in the processor's cache


@final
class Pieces:
    """A payload of several buffers, so that the arrays of a replica need not be copied into one.

    `len` returns its length in bytes. It can be read more than once, but the arrays must not change in between. Its
    SHA-256 is computed during the first complete read.
    """

    __iter__ = None  # with `__len__` alone, `*payload` would iterate over single bytes

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self.pieces = tuple(piece for one in pieces if (piece := memoryview(one).cast("B")).nbytes)
        self._length = sum(piece.nbytes for piece in self.pieces)
        self._sha256: str | None = None

    def __len__(self) -> int:
        return self._length

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def sha256(self) -> str:
        """The SHA-256 in hexadecimal."""
        if self._sha256 is None:
            hashed = hashlib.sha256()
            for piece in self.pieces:
                hashed.update(piece)
            self._sha256 = hashed.hexdigest()
        return self._sha256

    def blocks(self, size: int = BLOCK, start: int = 0) -> Iterator[memoryview]:
        """Yield the payload from byte `start` on, in blocks of `size` bytes; the last block may be shorter. Blocks
        within one piece are not copied."""
        hashed = hashlib.sha256() if self._sha256 is None and not start else None
        for block in self._cut(size, start):
            if hashed is not None:
                hashed.update(block)
            yield block
        if hashed is not None:
            self._sha256 = hashed.hexdigest()

    def _cut(self, size: int, start: int) -> Iterator[memoryview]:
        together = bytearray()  # pending bytes, fewer than a block
        for whole in self.pieces:
            skipped = min(start, whole.nbytes)
            piece, start = whole[skipped:], start - skipped
            if together:
                missing = size - len(together)
                together += piece[:missing]
                piece = piece[missing:]
                if len(together) < size:
                    continue
                yield memoryview(together)
                together = bytearray()
            while piece.nbytes >= size:
                yield piece[:size]
                piece = piece[size:]
            together += piece
        if together:
            yield memoryview(together)


@final
class Received(bytearray):
    """A payload being received into one buffer of at most `size` bytes, hashed part by part while it arrives."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.received = 0  # number of received bytes; the rest of the buffer is not valid yet
        self._hashed = hashlib.sha256()

    @property
    def missing(self) -> int:
        """Bytes that have not arrived."""
        return len(self) - self.received

    @property
    def sha256(self) -> str:
        """The SHA-256 of the received bytes in hexadecimal; later writes to the buffer do not change it."""
        return self._hashed.hexdigest()

    def take(self, part: Piece) -> None:
        """Append the next bytes. Raises ValueError for more bytes than are missing."""
        if len(part) > self.missing:
            raise ValueError(f"{len(part):,} bytes came, expected at most {self.missing:,}")
        self[self.received : self.received + len(part)] = part
        self._hashed.update(part)
        self.received += len(part)

    def read(self, handle: int) -> None:
        """Read from the current position of an open file until nothing is missing or the file ends, then call `end`.
        Raises OSError."""
        with memoryview(self) as memory:
            while part := os.readv(handle, [memory[self.received : self.received + BLOCK]]) if self.missing else 0:
                self._hashed.update(memory[self.received : self.received + part])
                self.received += part
        self.end()

    def end(self) -> None:
        """Truncate the payload to the received bytes."""
        del self[self.received :]


Payload = bytes | Pieces
Arrived = bytes | bytearray  # a received payload; one that was hashed on arrival is a `Received`


def in_pieces(payload: Payload) -> Pieces:
    """Return a payload as pieces."""
    return payload if isinstance(payload, Pieces) else Pieces([payload])


ALIGNMENT_BYTES = 64  # of torch's host allocator (c10::gAlignment)
DEVICE_ALIGNMENT_BYTES = 512  # of torch's device allocators, at most


def aligned_empty(shape: Sequence[int], dtype: DTypeLike) -> Array:
    """Return an uninitialised array, aligned to `ALIGNMENT_BYTES`; numpy itself aligns to 16 bytes only."""
    of = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * of.itemsize
    memory = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
    begin = -_address(memory) % ALIGNMENT_BYTES
    return memory[begin : begin + nbytes].view(of).reshape(shape)


def is_aligned(values: Array) -> bool:
    """Return whether an array is aligned. An empty array counts as aligned."""
    return not values.size or _address(values) % ALIGNMENT_BYTES == 0


def aligned_copy(values: Array) -> Array:
    """Return an aligned, writable copy in C order."""
    copy = aligned_empty(values.shape, values.dtype)
    np.copyto(copy, values)
    return copy


def aligned_rows(column: Array, rows: NDArray[np.int64]) -> Array:
    """Return an aligned copy of some rows. Raises IndexError for a row that does not exist."""
    if len(rows) and not (-len(column) <= rows.min() and rows.max() < len(column)):
        raise IndexError(
            f"rows {rows.min()} to {rows.max()} were asked for; expected rows of a column of {len(column)}"
        )
    copy = aligned_empty((len(rows), *column.shape[1:]), column.dtype)
    if len(rows):
        np.take(column, rows, axis=0, out=copy, mode="wrap")  # mode "raise" would buffer the output
    return copy


def aligned_tensor(tensor: Any) -> Any:
    """Return the tensor itself if it is aligned, else a copy. Host and device tensors have their own alignment."""
    if tensor.device.type == "cpu":
        begins = tensor.data_ptr() % ALIGNMENT_BYTES == 0
    else:
        begins = tensor.storage_offset() * tensor.element_size() % DEVICE_ALIGNMENT_BYTES == 0
    return tensor if begins or not tensor.numel() else tensor.clone()


def _address(values: Array) -> int:
    return int(values.__array_interface__["data"][0])


_NETWORK = re.compile(
    r"nfs4?|cifs|smb3|smbfs|afs|9p|ceph|lustre|gpfs|beegfs|glusterfs|panfs|orangefs|fuse\.(?!(ext4|overlayfs)$).*"
)
MOUNTS = Path("/proc/mounts")


def network_disk(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the kind of network file system that a path is on; None for a local disk, or if the kind is unknown."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    here, file_system = path.resolve(), ""
    mounted = [line.split(" ", 3) for line in lines if line.count(" ") > 1]
    for _, point, kind, *_ in sorted(mounted, key=lambda parts: len(parts[1])):
        if here.is_relative_to(point.replace("\\040", " ")):
            file_system = kind  # the innermost mount wins; of several mounts at one path, the last
    return file_system if _NETWORK.fullmatch(file_system) else None
