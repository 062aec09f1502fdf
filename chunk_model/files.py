"""Read a file that a user names: whatever it is, reading ends."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
from pathlib import Path

MOST_BYTES = 256 << 20
GZIP = b"\x1f\x8b"
_PIPES = ("/dev/fd", "/proc/self/fd", "/dev/stdin")  # what a shell hands over is open already


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, unpacked if gzip packed it.

    Raises OSError when it cannot be read, is no regular file (of which nobody knows when it ends), or holds more than
    `MOST_BYTES`; gzip.BadGzipFile, EOFError or zlib.error when it is packed and damaged.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode) and not str(path).startswith(_PIPES):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        os.set_blocking(file.fileno(), True)
        content = _bounded(file, path)
    if not content.startswith(GZIP):
        return content
    with gzip.open(io.BytesIO(content)) as unpacked:
        return _bounded(unpacked, path)


def _bounded(file: io.BufferedIOBase | gzip.GzipFile, path: Path) -> bytes:
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it holds more than {MOST_BYTES >> 20} MiB", str(path))
    return content
