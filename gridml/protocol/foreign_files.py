"""Files in places where others can write: read without following, waiting, or taking in more than was agreed.

What somebody puts there may be a link, a FIFO, a device, a folder, or a file of terabytes that takes no room.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from pathlib import Path

from gridml.protocol.payload import Received

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_MOVED = itertools.count()  # folders, in this process's life
THEIRS = frozenset(
    {
        errno.ELOOP,
        errno.ENXIO,
        errno.ENODEV,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.EACCES,
        errno.EPERM,
        errno.EAGAIN,
        errno.ENAMETOOLONG,
    }
)
"""Errors that say something of a file that others could put there, and nothing of this machine or its disk."""


class ForeignFile(ValueError):
    """What lies there is nothing that was agreed: no regular file, too long, or not to be opened."""


def read_regular(path: Path, longest: int) -> bytes:
    """Return the content of a regular file of at most `longest` bytes.

    Raises FileNotFoundError where there is nothing, ForeignFile for anything else, and OSError for what this machine or
    its disk refuses. Reads nothing of what is too long.
    """
    return bytes(receive_regular(path, longest))


def receive_regular(path: Path, longest: int) -> Received:
    """Return what `read_regular` does, hashed while it is read. Raises as that does."""
    handle = _open(path)
    try:
        size = _size(handle, path)
        if size > longest:
            raise ForeignFile(f"{path.name} has {size:,} bytes, expected at most {longest:,}")
        content = Received(size)
        content.read(handle)
        if os.read(handle, 1):
            raise ForeignFile(f"{path.name} grew while it was read")
        return content
    finally:
        os.close(handle)


def read_end(path: Path, longest: int) -> bytes:
    """Return the last `longest` bytes of a regular file, or all where it has fewer. Raises as `read_regular` does."""
    handle = _open(path)
    try:
        os.lseek(handle, max(0, _size(handle, path) - longest), os.SEEK_SET)
        return _read(handle, longest)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove what lies there without following it; of a folder all that can be. Nothing there is no error.

    Raises OSError for what this machine or its disk refuses.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in THEIRS:
            raise
        with contextlib.suppress(OSError):
            _remove_tree(path)


def _open(path: Path) -> int:
    """A handle of whatever lies there, which was neither followed nor waited for."""
    try:
        return os.open(path, _FLAGS)
    except OSError as error:
        if error.errno not in THEIRS:
            raise
        raise ForeignFile(f"{path.name} cannot be opened: {error.strerror}") from error


def _size(handle: int, path: Path) -> int:
    """The bytes of a regular file."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise ForeignFile(f"{path.name} is no regular file")
    return status.st_size


def _remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it. Folders in it are moved beside it first, so that however deep they lie
    takes neither stack nor handles."""
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        names = [path.name]
        while names:
            name = names.pop()
            folder = os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=parent)
            try:
                with os.scandir(folder) as entries:
                    for entry in [*entries]:
                        if entry.is_dir(follow_symlinks=False):
                            names.append(f".removed.{os.getpid()}.{next(_MOVED)}")
                            os.rename(entry.name, names[-1], src_dir_fd=folder, dst_dir_fd=parent)
                        else:
                            os.unlink(entry.name, dir_fd=folder)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=parent)
    finally:
        os.close(parent)


def _read(handle: int, longest: int) -> bytes:
    """Read up to the end, or to `longest` bytes: one call may give less than was asked for."""
    parts = []
    while longest > 0 and (part := os.read(handle, longest)):
        parts.append(part)
        longest -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
