"""Payloads as carriers take them: bytes, or pieces on the memory of the arrays that travel, hashed as they are read;
and as they are received, hashed as they come."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from typing import final

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
        self.came = 0  # bytes that have come
        self._hashed = hashlib.sha256()

    @property
    def missing(self) -> int:
        """Bytes that have not come."""
        return len(self) - self.came

    @property
    def sha256(self) -> str:
        """Of what has come, in hexadecimal: whoever writes to the memory later does not change it."""
        return self._hashed.hexdigest()

    def take(self, part: Piece) -> None:
        """Take the next bytes in. Raises ValueError for more than are missing."""
        if len(part) > self.missing:
            raise ValueError(f"{len(part):,} bytes came, expected at most {self.missing:,}")
        self[self.came : self.came + len(part)] = part
        self._hashed.update(part)
        self.came += len(part)

    def read(self, handle: int) -> None:
        """Take what an open file has from where it stands on, in blocks, until nothing is missing or it ends; then
        there is no more. Raises OSError."""
        with memoryview(self) as memory:
            while part := os.readv(handle, [memory[self.came : self.came + BLOCK]]) if self.missing else 0:
                self._hashed.update(memory[self.came : self.came + part])
                self.came += part
        self.end()

    def end(self) -> None:
        """There is no more than has come."""
        del self[self.came :]


Payload = bytes | Pieces
Arrived = bytes | bytearray  # a payload as it is received, in one piece: `Received` by those who hash it on the way


def in_pieces(payload: Payload) -> Pieces:
    """Return a payload in pieces."""
    return payload if isinstance(payload, Pieces) else Pieces([payload])
