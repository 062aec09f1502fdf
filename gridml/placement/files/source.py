"""A file or pipe that a graph is read from, packed or not: what is wrong with it is told with its name and line."""

from __future__ import annotations

import gzip
import os
import shlex
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.placement.files.encoding import encoding_of, in_utf8, with_newlines
from gridml.placement.files.packing import HEAD, Raw, TornPackingError, is_tar, packing_of, unpacked
from gridml.protocol.text import printable

Text = NDArray[np.uint8]
Watch = Callable[[int, int], None]  # is told bytes read, and how many there are
BLOCK = 8 << 20  # bytes of text that are looked at together
PIECE = 64 << 10  # that are read at once, so that a damage is told near where it lies
SHOWN = 40  # characters of what is wrong


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

    def blocks(self) -> Iterator[Block]:
        """The text in blocks of whole lines. Raises UsageError where it cannot be read."""
        before, gathered = 0, bytearray()
        for piece in self._text():
            gathered += piece
            if len(gathered) >= BLOCK and b"\n" in piece:
                cut = len(gathered) - len(piece) + piece.rfind(b"\n") + 1
                block = Block(np.frombuffer(bytes(gathered[:cut]), np.uint8), before)
                before += int(np.count_nonzero(block.text == _NEWLINE))
                del gathered[:cut]
                yield block
        if gathered:
            ended = b"" if gathered.endswith(b"\n") else b"\n"
            yield Block(np.frombuffer(bytes(gathered + ended), np.uint8), before)

    def check_text(self) -> None:
        """Raise UsageError where the file is packed as none that is read, or is no text for another reason that its
        beginning tells, or cannot be read."""
        for _ in self._text():
            return

    def _text(self) -> Iterator[bytes]:
        """Pieces of the text, unpacked, as `text` makes them."""
        lines = 0
        try:
            with self.path.open("rb") as file:
                raw = Raw(file)
                size = os.fstat(file.fileno()).st_size  # of a pipe 0
                with unpacked(raw) as content:
                    head = content.read(HEAD)
                    self._check_head(raw.head, head)
                    for piece in with_newlines(in_utf8(self._pieces(raw, size, head, content), encoding_of(head))):
                        yield piece
                        lines += piece.count(b"\n")
        except (TornPackingError, gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise UsageError(
                f"{self.path} is damaged after line {lines:,}: {error}. Get it, or pack it, again."
            ) from error
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror or error}. Name a file.") from error

    def _pieces(self, raw: Raw, size: int, head: bytes, content: BufferedIOBase) -> Iterator[bytes]:
        while piece := head[:PIECE] or content.read(PIECE):
            head = head[PIECE:]
            self.watch(raw.count, size)
            yield piece

    def _check_head(self, packed: bytes, head: bytes) -> None:
        """Raise UsageError where what a file begins with, packed and unpacked, tells that it is none that is read."""
        name = shlex.quote(str(self.path))
        outer, inner = packing_of(packed), packing_of(head)
        if outer is not None and inner is not None:
            if packed != head:
                raise self.wrong(f"is packed twice, within by {inner[0]}; expected once. Unpack it: {outer[1]} {name}")
            also = " (an .npz of scipy's is read with --format npz)" if inner[0] == "zip" else ""
            raise self.wrong(
                f"is packed by {inner[0]}; expected text, or text packed by gzip, bzip2 or xz{also}. "
                f"Unpack it: {inner[1]} {name}"
            )
        if is_tar(head):
            raise self.wrong(f"is a tar archive; expected one file of those in it. Unpack it: tar xf {name}")
        if encoding_of(head) is None and 0 in head[:4]:
            order = "BE" if head[0] == 0 else "LE"
            raise self.wrong(
                "has zero bytes, as UTF-16 does; expected text in UTF-8, or one that begins with a byte order mark. "
                f"Convert it: iconv -f UTF-16{order} -t UTF-8 {name}"
            )


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


_NEWLINE = ord("\n")
