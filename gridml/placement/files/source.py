"""A file that a graph is read from, packed by gzip or not: whatever is wrong with it is told with its name and line."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.protocol.text import printable

Text = NDArray[np.uint8]
Watch = Callable[[int, int], None]  # is told bytes read, and how many there are
BLOCK = 8 << 20  # bytes of text that are looked at together
PIECE = 64 << 10  # that are read at once, so that a damage is told near where it lies
SHOWN = 40  # characters of what is wrong
GZIP = b"\x1f\x8b"


def unwatched(read: int, size: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Source:
    """The file at `path`. `watch` is told how far it is read."""

    path: Path
    watch: Watch = unwatched

    def wrong(self, what: str, line: int | None = None) -> UsageError:
        """Return the error that says `what` is wrong with the file, or with one of its lines, counted from 1."""
        return UsageError(f"{self.path}{'' if line is None else f', line {line:,}'}: {what}")

    @contextmanager
    def opened(self) -> Iterator[Reader]:
        """The file's text, unpacked if it begins as gzip does. Raises UsageError where it cannot be read."""
        try:
            with self.path.open("rb") as file:
                packed = file.read(len(GZIP)) == GZIP
                file.seek(0)
                with gzip.GzipFile(fileobj=file) if packed else file as text:
                    yield Reader(self, file, text)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror or error}. Name a file.") from error

    def blocks(self) -> Iterator[Block]:
        """The text in blocks of whole lines. Raises UsageError where it cannot be read."""
        with self.opened() as reader:
            before, gathered = 0, bytearray()
            while piece := reader.read(PIECE):
                gathered += piece
                if (
                    len(gathered) >= BLOCK
                    and (cut := len(gathered) - len(piece) + piece.rfind(b"\n") + 1)
                    and (b"\n" in piece)
                ):
                    block = Block(np.frombuffer(bytes(gathered[:cut]), np.uint8), before)
                    before += int(np.count_nonzero(block.text == _NEWLINE))
                    del gathered[:cut]
                    yield block
            if gathered:
                ended = b"" if gathered.endswith(b"\n") else b"\n"
                yield Block(np.frombuffer(bytes(gathered + ended), np.uint8), before)


@dataclass(frozen=True)
class Block:
    """Whole lines, uint8, the last of which ends, too; the file has `before` lines before them."""

    text: Text
    before: int

    def line(self, at: int) -> int:
        """The line, counted from 1, in which a position of the text is."""
        return self.before + int(np.count_nonzero(self.text[:at] == _NEWLINE)) + 1

    def word(self, at: int) -> str:
        """What stands at a position, up to the next blank, as a person may read it; of a line's end nothing."""
        words = bytes(self.text[at : at + 4 * SHOWN]).split(b"\n")[0].split()
        return repr(self.shown(words[0])) if words else "the line's end"

    @staticmethod
    def shown(word: bytes) -> str:
        """A word as a person may read it: short, and nothing that a terminal obeys."""
        text = printable(word.decode(errors="backslashreplace"))
        return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@dataclass
class Reader:
    """What a file holds, unpacked. `lines` counts the ends of those that were read."""

    source: Source
    file: IO[bytes]
    text: IO[bytes] | gzip.GzipFile | io.BufferedReader
    lines: int = 0

    def __post_init__(self) -> None:
        self._size = os.fstat(self.file.fileno()).st_size

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, none at the end. Raises UsageError where the file is damaged."""
        try:
            read: bytes = self.text.read(size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UsageError(
                f"{self.source.path} is damaged after line {self.lines:,}: {error}. Get it, or pack it by gzip, again."
            ) from error
        self.lines += read.count(b"\n")
        self.source.watch(self.file.tell(), self._size)
        return read


_NEWLINE = ord("\n")
