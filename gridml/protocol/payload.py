"""Payloads as carriers take them: bytes, or pieces on the memory of the arrays that travel, hashed as they are read."""

from __future__ import annotations

import hashlib
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


Payload = bytes | Pieces
Arrived = bytes | bytearray  # a payload as it is received, in one piece


def in_pieces(payload: Payload) -> Pieces:
    """Return a payload in pieces."""
    return payload if isinstance(payload, Pieces) else Pieces([payload])
