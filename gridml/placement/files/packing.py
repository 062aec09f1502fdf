"""Packed files: gzip, bzip2 and xz are unpacked as they are read, other packings and archives are recognised."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from typing import IO, Any

HEAD = 512  # bytes by which a file is recognised: a header of tar's
PIECE = 64 << 10  # bytes that are unpacked at once
GZIP, BZIP2, XZ, LZMA, ZIP = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"]\x00\x00", b"PK\x03\x04"

# What a packed file begins with: its packing, and the command that unpacks it.
PACKINGS = {
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


class TornPackingError(Exception):
    """A packed file ends too early, or holds something else."""


class Raw(io.RawIOBase):
    """A file whose `head` can be looked at before it is read; it may be a pipe. `count` bytes of it were read."""

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


class _Streams(io.RawIOBase):
    """What a file unpacks to that holds one stream after the other, to its last byte.

    bz2.BZ2File and lzma.LZMAFile end without a word where a later stream is damaged.
    """

    def __init__(self, packed: io.BufferedIOBase, decoder: Callable[[], Any]) -> None:
        super().__init__()
        self._packed, self._new, self._decoder = packed, decoder, decoder()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        unpacked = b""
        while not unpacked:
            more = b""
            if self._decoder.eof:
                more = self._decoder.unused_data.lstrip(b"\0")  # which fills up a tape's, or a stream's, last block
                while not more:
                    if not (read := self._packed.read(PIECE)):
                        return 0
                    more = read.lstrip(b"\0")
                self._decoder = self._new()
            elif self._decoder.needs_input and not (more := self._packed.read(PIECE)):
                raise TornPackingError("it ends before its end was reached")
            try:
                unpacked = self._decoder.decompress(more, len(buffer))
            except (OSError, ValueError, lzma.LZMAError) as error:
                raise TornPackingError(str(error)) from error
        buffer[: len(unpacked)] = unpacked
        return len(unpacked)


def unpacked(raw: Raw) -> io.BufferedIOBase:
    """A file's content: unpacked where it begins as gzip, bzip2 or xz do, otherwise as it is."""
    packed = io.BufferedReader(raw, PIECE)
    if raw.head.startswith(GZIP):
        return gzip.GzipFile(fileobj=packed)
    if raw.head.startswith(BZIP2):
        return io.BufferedReader(_Streams(packed, bz2.BZ2Decompressor), PIECE)
    if raw.head.startswith((XZ, LZMA)):
        return io.BufferedReader(_Streams(packed, lzma.LZMADecompressor), PIECE)
    return packed


def packing_of(head: bytes) -> tuple[str, str] | None:
    """The name of the packing that a file's first bytes tell, and the command that unpacks it; None if it has none."""
    return next((known for magic, known in PACKINGS.items() if head.startswith(magic)), None)


def is_tar(head: bytes) -> bool:
    """Whether the first `HEAD` bytes of a file are a tar archive's."""
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True
