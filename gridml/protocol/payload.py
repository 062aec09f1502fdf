"""Payloads as carriers take them, memory aligned as torch aligns its own, and the kind of disk a path is on.

A payload is bytes, or pieces on the memory of the arrays that travel, hashed as they are read; and, where it is
received, hashed as it comes.

Kernels of matrix products and sums cut their loops by where an operand begins, and so round by it: the same rows at
another address give other bits. A loop that reads `x[rows]` has a tensor that torch has just allocated. What f
reads begins at the same boundary, whatever the chunk and the batch are that it was cut from.
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
BLOCK = 1 << 20  # bytes that are hashed and then written: a processor's cache holds them


@final
class Pieces:
    """A payload that is nowhere in one piece: the replica that travels in it is not copied for that.

    It has `len` bytes, and may be read more than once, but the arrays that it is on must stay as they are until then.
    Its SHA-256 is worked out while it is first read from end to end. Not iterable: `*payload` would ask for as many
    items as it has bytes.
    """

    __iter__ = None

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
        """In hexadecimal."""
        if self._sha256 is None:
            hashed = hashlib.sha256()
            for piece in self.pieces:
                hashed.update(piece)
            self._sha256 = hashed.hexdigest()
        return self._sha256

    def blocks(self, size: int = BLOCK, start: int = 0) -> Iterator[memoryview]:
        """Yield all from byte `start` on, in blocks of `size` bytes; the last may be shorter. Long pieces are cut, and
        only short ones are put together."""
        hashed = hashlib.sha256() if self._sha256 is None and not start else None
        for block in self._cut(size, start):
            if hashed is not None:
                hashed.update(block)
            yield block
        if hashed is not None:
            self._sha256 = hashed.hexdigest()

    def _cut(self, size: int, start: int) -> Iterator[memoryview]:
        together = bytearray()  # what is shorter than a block
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
    """A payload as it is received, in one piece: of `size` bytes at most, hashed part by part as these come, so that
    nobody goes through all of it once more for its SHA-256.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.received = 0  # bytes that have come
        self._hashed = hashlib.sha256()

    @property
    def missing(self) -> int:
        """Bytes that have not come."""
        return len(self) - self.received

    @property
    def sha256(self) -> str:
        """Of what has come, in hexadecimal: whoever writes to the memory later does not change it."""
        return self._hashed.hexdigest()

    def take(self, part: Piece) -> None:
        """Take the next bytes in. Raises ValueError for more than are missing."""
        if len(part) > self.missing:
            raise ValueError(f"{len(part):,} bytes came, expected at most {self.missing:,}")
        self[self.received : self.received + len(part)] = part
        self._hashed.update(part)
        self.received += len(part)

    def read(self, handle: int) -> None:
        """Take what an open file has from where it stands on, in blocks, until nothing is missing or it ends; then
        there is no more. Raises OSError."""
        with memoryview(self) as memory:
            while part := os.readv(handle, [memory[self.received : self.received + BLOCK]]) if self.missing else 0:
                self._hashed.update(memory[self.received : self.received + part])
                self.received += part
        self.end()

    def end(self) -> None:
        """There is no more than has come."""
        del self[self.received :]


Payload = bytes | Pieces
Arrived = bytes | bytearray  # a payload as it is received, in one piece: `Received` by those who hash it on the way


def in_pieces(payload: Payload) -> Pieces:
    """Return a payload in pieces."""
    return payload if isinstance(payload, Pieces) else Pieces([payload])


ALIGNMENT_BYTES = 64  # of torch on the host (c10::gAlignment)
DEVICE_ALIGNMENT_BYTES = 512  # of its allocators on devices: no device's is coarser


def aligned_empty(shape: Sequence[int], dtype: DTypeLike) -> Array:
    """Return an array with any values that begins at the boundary: numpy's own begin at multiples of 16 bytes."""
    of = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * of.itemsize
    memory = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
    begin = -_address(memory) % ALIGNMENT_BYTES
    return memory[begin : begin + nbytes].view(of).reshape(shape)


def is_aligned(values: Array) -> bool:
    """Whether an array begins at the boundary; one without values does."""
    return not values.size or _address(values) % ALIGNMENT_BYTES == 0


def aligned_copy(values: Array) -> Array:
    """Return a copy in C order that begins at the boundary, writable."""
    copy = aligned_empty(values.shape, values.dtype)
    np.copyto(copy, values)
    return copy


def aligned_rows(column: Array, rows: NDArray[np.int64]) -> Array:
    """Return a copy of some rows that begins at the boundary. Raises IndexError for a row that is not there."""
    if len(rows) and not (-len(column) <= rows.min() and rows.max() < len(column)):
        raise IndexError(
            f"rows {rows.min()} to {rows.max()} were asked for; expected rows of a column of {len(column)}"
        )
    copy = aligned_empty((len(rows), *column.shape[1:]), column.dtype)
    if len(rows):
        np.take(column, rows, axis=0, out=copy, mode="wrap")  # "raise" would buffer all of it
    return copy


def aligned_tensor(tensor: Any) -> Any:
    """Return a tensor as it is where it begins at the boundary of the memory it is in, otherwise a copy."""
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
    """Return the kind of network file system that a path is on, None for a local disk (or where that cannot be
    told)."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    here, file_system = path.resolve(), ""
    mounted = [line.split(" ", 3) for line in lines if line.count(" ") > 1]
    for _, point, kind, *_ in sorted(mounted, key=lambda parts: len(parts[1])):
        if here.is_relative_to(point.replace("\\040", " ")):
            file_system = kind  # of the innermost, and of those at one place the last
    return file_system if _NETWORK.fullmatch(file_system) else None
