"""Text sources of graphs: files or pipes, decompressed and normalised to UTF-8 lines. Errors name the file and line.

gzip, bzip2 and xz are decompressed; other compressions and archives are recognised and rejected. Text is yielded as
UTF-8 bytes with newlines as the only line ends, whatever the encoding and line ends of the file.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import shlex
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.protocol.foreign import printable

HEAD = 512  # number of first bytes by which the type of a file is recognised: the length of a tar header
GZIP, BZIP2, XZ, LZMA, ZIP = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"]\x00\x00", b"PK\x03\x04"

# For the magic bytes of each compression: its name, and the command that decompresses it.
COMPRESSIONS = {
    GZIP: ("gzip", "gzip -d"),
    BZIP2: ("bzip2", "bzip2 -d"),
    XZ: ("xz", "xz -d"),
    LZMA: ("lzma", "xz -d"),
    ZIP: ("zip", "unzip"),
    b"PK\x05\x06": ("zip", "unzip"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -d"),
    b"\x02\x21\x4c\x18": ("lz4", "lz4 -d"),
    b"\xff\x06\x00\x00sNaPpY": ("snappy", "snzip -d"),
    b"\x1f\x9d": ("compress", "uncompress"),
    b"LZIP": ("lzip", "lzip -d"),
    b"\x89LZO": ("lzop", "lzop -d"),
    b"7z\xbc\xaf\x27\x1c": ("7z", "7z x"),
    b"Rar!\x1a\x07": ("rar", "unrar x"),
}


class TruncatedFileError(Exception):
    """A compressed file is truncated or damaged."""


class Raw(io.RawIOBase):
    """A file or pipe whose first bytes, the `head`, can be inspected before it is read. `count` is the number of bytes
    read so far."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self.head = self._ahead = file.read(HEAD)
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self._ahead or self._file.read(len(buffer))
        read, self._ahead = read[: len(buffer)], read[len(buffer) :]
        buffer[: len(read)] = read
        self.count += len(read)
        return len(read)


class _Decompressed(io.RawIOBase):
    """The decompressed content of a file with one or more concatenated streams.

    bz2.BZ2File and lzma.LZMAFile are not used: they end silently where a later stream is damaged.
    """

    def __init__(self, packed: io.BufferedIOBase, decoder: Callable[[], Any]) -> None:
        super().__init__()
        self._packed, self._new, self._decoder = packed, decoder, decoder()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        decompressed = b""
        while not decompressed:
            more = b""
            if self._decoder.eof:
                more = self._decoder.unused_data.lstrip(b"\0")  # zeros can pad a stream, or the last block of a tape
                while not more:
                    if not (read := self._packed.read(PIECE)):
                        return 0
                    more = read.lstrip(b"\0")
                self._decoder = self._new()
            elif self._decoder.needs_input and not (more := self._packed.read(PIECE)):
                raise TruncatedFileError("it ends in the middle of the compressed data")
            try:
                decompressed = self._decoder.decompress(more, len(buffer))
            except (OSError, ValueError, lzma.LZMAError) as error:
                raise TruncatedFileError(str(error)) from error
        buffer[: len(decompressed)] = decompressed
        return len(decompressed)


def decompressed(raw: Raw) -> io.BufferedIOBase:
    """Return the content of a file: decompressed if it is gzip, bzip2 or xz, otherwise unchanged."""
    packed = io.BufferedReader(raw, PIECE)
    if raw.head.startswith(GZIP):
        return gzip.GzipFile(fileobj=packed)
    if raw.head.startswith(BZIP2):
        return io.BufferedReader(_Decompressed(packed, bz2.BZ2Decompressor), PIECE)
    if raw.head.startswith((XZ, LZMA)):
        return io.BufferedReader(_Decompressed(packed, lzma.LZMADecompressor), PIECE)
    return packed


def compression_of(head: bytes) -> tuple[str, str] | None:
    """Return the name of the compression that has these magic bytes, and the command that decompresses it; None if the
    file is not compressed, or by an unknown method."""
    return next((known for magic, known in COMPRESSIONS.items() if head.startswith(magic)), None)


def is_tar(head: bytes) -> bool:
    """Return True if the first `HEAD` bytes of a file are those of a tar archive."""
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


# UTF-32 must come before UTF-16, because the mark of UTF-32-LE begins with that of UTF-16-LE.
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def encoding_of(head: bytes) -> str | None:
    """Return the encoding that the byte order mark of a text gives; None: there is no mark."""
    return next((encoding for mark, encoding in _MARKS.items() if head.startswith(mark)), None)


def in_utf8(pieces: Iterator[bytes], encoding: str | None) -> Iterator[bytes]:
    """Yield the pieces of a text in UTF-8, without its byte order mark (`encoding_of`).

    Text without a mark, or with the mark of UTF-8, is not decoded. Raises UnicodeDecodeError for damaged UTF-16 or
    UTF-32.
    """
    if encoding == "utf-8":
        mark = codecs.BOM_UTF8
        for piece in pieces:
            yield piece[len(mark) :]
            mark = mark[len(piece) :]
    elif encoding is not None:
        decoder = codecs.getincrementaldecoder(encoding)()
        for piece in pieces:
            yield decoder.decode(piece).encode()
        yield decoder.decode(b"", final=True).encode()
    else:
        yield from pieces


def with_newlines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a text with every CR LF, and every single CR, replaced by a newline."""
    held = b""
    for piece in pieces:
        piece = held + piece
        held = b"\r" if piece.endswith(b"\r") else b""  # the newline of this CR may be in the next piece
        piece = piece.removesuffix(held)
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield piece
    if held:
        yield b"\n"


Text = NDArray[np.uint8]
Watch = Callable[[int, int], None]  # called with the bytes read so far, and the size of the file (0: unknown)
BLOCK = 8 << 20  # bytes of text that are parsed together
# Maximum rows of a graph, and maximum columns: MAX_EMPTY, or MAX_EMPTY_PER_EDGE times its edges if that is more.
MAX_EMPTY, MAX_EMPTY_PER_EDGE = 10_000_000, 1_000
# Maximum bytes of an unpacked file: MAX_UNPACKED, or MAX_RATIO times the packed size if that is more.
MAX_UNPACKED, MAX_RATIO = 64 << 20, 1_000
PIECE = 64 << 10  # bytes per read: small, so that the error for a damaged file names a line near the damage
MAX_SHOWN_CHARS = 40  # maximum characters of a wrong word that an error message shows


def unwatched(read: int, size: int) -> None:
    """The default of `GraphSource.watch`: progress is not reported."""


@dataclass(frozen=True)
class GraphSource:
    """A text file or pipe."""

    path: Path
    watch: Watch = unwatched  #: called with the progress of reading
    block: int | None = None  #: bytes of text that are parsed together; None: BLOCK

    def wrong(self, what: str, line: int | None = None) -> UsageError:
        """Return an error about the file, or about one of its lines, counted from 1."""
        return UsageError(f"{self.path}{'' if line is None else f', line {line:,}'}: {what}")

    def check_size(self, rows: int, columns: int, edges: int) -> None:
        """Raise UsageError for too many rows or columns for the number of edges: each would take memory."""
        if max(rows, columns) > max(MAX_EMPTY, MAX_EMPTY_PER_EDGE * edges):
            expected = f"at most {MAX_EMPTY:,} rows and columns, or {MAX_EMPTY_PER_EDGE:,} for each edge"
            held = f"{rows:,} rows, {columns:,} columns and {edges:,} edges"
            raise self.wrong(f"has {held}; expected {expected}. Number rows and columns without gaps.")

    def blocks(self) -> Iterator[TextBlock]:
        """Yield the text in blocks of whole lines. Raises UsageError if it cannot be read."""
        before, gathered = 0, bytearray()
        for piece in self._text():
            gathered += piece
            if len(gathered) >= (BLOCK if self.block is None else self.block) and b"\n" in piece:
                cut = len(gathered) - len(piece) + piece.rfind(b"\n") + 1
                block = TextBlock(np.frombuffer(bytes(gathered[:cut]), np.uint8), before)
                before += int(np.count_nonzero(block.text == _NEWLINE))
                del gathered[:cut]
                yield block
        if gathered:
            ended = b"" if gathered.endswith(b"\n") else b"\n"
            yield TextBlock(np.frombuffer(bytes(gathered + ended), np.uint8), before)

    def check_text(self) -> None:
        """Raise UsageError if the file cannot be read, has an unsupported compression, or does not begin like text."""
        for _ in self._text():
            return

    def _text(self) -> Iterator[bytes]:
        """Yield pieces of the decompressed and normalised text."""
        lines = 0
        try:
            with self.path.open("rb") as file:
                raw = Raw(file)
                size = os.fstat(file.fileno()).st_size  # 0 for a pipe
                with decompressed(raw) as content:
                    head = content.read(HEAD)
                    self._check_head(raw.head, head)
                    for piece in with_newlines(in_utf8(self._pieces(raw, size, head, content), encoding_of(head))):
                        yield piece
                        lines += piece.count(b"\n")
        except (TruncatedFileError, gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise UsageError(
                f"{self.path} is damaged after line {lines:,}: {error}. Get it, or compress it, again."
            ) from error
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror or error}. Name a file.") from error

    def _pieces(self, raw: Raw, size: int, head: bytes, content: BufferedIOBase) -> Iterator[bytes]:
        unpacked = 0
        while piece := head[:PIECE] or content.read(PIECE):
            head = head[PIECE:]
            unpacked += len(piece)
            if unpacked > max(MAX_UNPACKED, MAX_RATIO * raw.count):
                _, unpack = compression_of(raw.head) or ("", "unpack")
                advice = f"If it is a graph: {unpack} {shlex.quote(str(self.path))}"
                raise self.wrong(f"unpacks to more than {MAX_RATIO:,} times its size. {advice}")
            self.watch(raw.count, size)
            yield piece

    def _check_head(self, packed: bytes, head: bytes) -> None:
        """Raise UsageError if the first bytes, compressed or decompressed, show a file that cannot be read."""
        name = shlex.quote(str(self.path))
        outer, inner = compression_of(packed), compression_of(head)
        if outer is not None and inner is not None:
            if packed != head:
                raise self.wrong(
                    f"is compressed twice, inside by {inner[0]}; expected once. Decompress it: {outer[1]} {name}"
                )
            also = " (an .npz of scipy's is read with --format npz)" if inner[0] == "zip" else ""
            raise self.wrong(
                f"is compressed by {inner[0]}; expected text, or text compressed by gzip, bzip2 or xz{also}. "
                f"Decompress it: {inner[1]} {name}"
            )
        if is_tar(head):
            raise self.wrong(f"is a tar archive; expected one of the files in it. Unpack it: tar xf {name}")
        if encoding_of(head) is None and 0 in head[:4]:
            order = "BE" if head[0] == 0 else "LE"
            raise self.wrong(
                "has zero bytes, as UTF-16 does; expected text in UTF-8, or one that begins with a byte order mark. "
                f"Convert it: iconv -f UTF-16{order} -t UTF-8 {name}"
            )


@dataclass(frozen=True)
class TextBlock:
    """A block of whole lines."""

    text: Text  #: the bytes of the lines, uint8; the last line ends with a newline too
    before: int  #: the number of lines before the block

    def line(self, at: int) -> int:
        """Return the line number of a position in the text, counted from 1."""
        return self.before + int(np.count_nonzero(self.text[:at] == _NEWLINE)) + 1

    def word(self, at: int) -> str:
        """Return the word at a position, quoted for an error message. At the end of a line, return "the line's end"."""
        words = bytes(self.text[at : at + 4 * MAX_SHOWN_CHARS]).split(b"\n")[0].split()
        return repr(self.shown(words[0])) if words else "the line's end"

    @staticmethod
    def shown(word: bytes) -> str:
        """Return a word for an error message: shortened, and without control characters."""
        text = printable(word.decode(errors="backslashreplace"))
        return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


_NEWLINE = ord("\n")
