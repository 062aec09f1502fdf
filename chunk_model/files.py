"""Read a file that a user names: whatever it is, reading ends."""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_BYTES = 256 << 20
GZIP, BZIP2, XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"
_PIPES = ("/dev/fd", "/proc/self/fd", "/dev/stdin")  # what a shell hands over is open already
_MARKS = {  # the longer ones first: that of UTF-32 begins as that of UTF-16 does
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class UnreadableError(ValueError):
    """A file is packed and damaged, or is no text: says what to do."""


def read_text(path: Path) -> str:
    """Return the text of a file, unpacked if gzip, bzip2 or xz packed it, in UTF-8 or what its byte order mark says.

    Raises OSError when it cannot be read, is no regular file (of which nobody knows when it ends), or holds more than
    `MOST_BYTES`; UnreadableError when it is packed and damaged, or no text.
    """
    try:
        content = _read_bytes(path)
        return content.decode(next((each for mark, each in _MARKS.items() if content.startswith(mark)), "utf-8-sig"))
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UnreadableError(f"{path} is damaged ({error}): fetch or pack it again") from None
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{path} is not text ({error.reason} at byte {error.start}): give it as text") from None


def _read_bytes(path: Path) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode) and not str(path).startswith(_PIPES):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        os.set_blocking(file.fileno(), True)
        content = _bounded(file.read(MOST_BYTES + 1), path)
    if content.startswith(GZIP):
        with gzip.open(io.BytesIO(content)) as unpacked:
            return _bounded(unpacked.read(MOST_BYTES + 1), path)
    if content.startswith(BZIP2):
        return _bounded(_streams(content, bz2.BZ2Decompressor), path)
    if content.startswith(XZ):
        return _bounded(_streams(content, lzma.LZMADecompressor), path)
    return content


def _streams(content: bytes, decoder: Callable[[], Any]) -> bytes:
    """What streams one after the other unpack to, up to a byte more than the bound; bz2.open and lzma.open pass over
    what is damaged after the first."""
    unpacked = bytearray()
    while content and len(unpacked) <= MOST_BYTES:
        stream = decoder()
        try:
            unpacked += stream.decompress(content, MOST_BYTES + 1 - len(unpacked))
        except (OSError, ValueError) as error:
            raise EOFError(str(error)) from error
        if not stream.eof and len(unpacked) <= MOST_BYTES:
            raise EOFError("it ends before its end was reached")
        content = stream.unused_data.lstrip(b"\0")
    return bytes(unpacked)


def _bounded(content: bytes, path: Path) -> bytes:
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it holds more than {MOST_BYTES >> 20} MiB", str(path))
    return content
