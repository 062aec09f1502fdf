"""Untrusted input: text made printable and short, bounds on message fields, and files that others can write.

Text from a worker, its log or a batch system can contain anything. Both the sender and the receiver truncate it.

A bound is a function that checks a value: it returns the checked value, or raises ValueError with the reason.

A path that others can write can be a link, a FIFO, a device, a folder, or a sparse file of terabytes. Such a file is
read without following links, without blocking, and only if its size is within a limit.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import reprlib
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from gridml.errors import advice
from gridml.protocol.payload import Received

MAX_NAME_CHARS = 128  # of the name of a worker, a process, a kind of machine, or a tensor in an error message
MAX_MESSAGE_CHARS = 2_000  # of an error message or a note
MAX_TRACEBACK_CHARS = 20_000
_NOTE = 64  # characters reserved for the note that replaces the middle of a long text


def printable(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    r"""Return `text` as at most `limit` printable characters; `limit` is at least 64.

    Characters that do not print (terminal escapes, lone surrogates, bidirectional controls) become escapes such as
    `\x1b`; newlines and tabs stay. Longer text loses its middle; a note gives the length of what is left out.
    Idempotent.
    """
    text = _shortened(text, limit)
    if text.isprintable():
        return text
    shown = "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
    return _shortened(shown, limit)


def one_line(text: str, limit: int = sys.maxsize) -> str:
    r"""Return `text` printable on one line, with newlines and tabs as `\n` and `\t`, so that no view shows a part of it
    as a line of the master's own. `limit` is as for `printable`, and applies before newlines and tabs are replaced."""
    return printable(text, limit).replace("\n", "\\n").replace("\t", "\\t")


def described(error: BaseException) -> str:
    """Return the type and the message of an error as printable text. For a known mistake in a program, the text also
    says what to write instead. An error whose `str` raises is described by its type."""
    try:
        message = str(error)
    except Exception as another:
        message = f"(its message is unavailable: {type(another).__name__})"
    text = printable(f"{type(error).__name__}: {message}")
    return text + advice(error, text)


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    kept = limit - _NOTE
    head = kept // 2
    return f"{text[:head]} [... {len(text) - kept:,} characters left out ...] {text[len(text) - (kept - head) :]}"


Bound = Callable[[Any], Any]

MAX_INTEGER = 2**53 - 1  # exact in JSON, SQLite and floats
MAX_DURATION_S = 1e9  # 31 years
MIN_VERTEX_S = 1e-12  # minimum training time of a vertex; a claim of less is rejected
TICK_S = 1e-9  # the resolution of a clock; anything shorter counts as 0


def integer(least: int = 0) -> Bound:
    """Bound integers of at least `least`."""

    def take(value: Any) -> int:
        if type(value) is not int or not least <= value <= MAX_INTEGER:
            raise unexpected(value, f"a whole number from {least} to 2**53")
        return value

    return take


def seconds(value: Any) -> float:
    """Bound a duration in seconds. A duration of less than one tick of a clock becomes 0."""
    if type(value) not in (int, float) or not 0 <= value <= MAX_DURATION_S:  # false for NaN
        raise unexpected(value, f"seconds from 0 to {MAX_DURATION_S:g}")
    return float(value) if value >= TICK_S else 0.0


def boolean(value: Any) -> bool:
    """Bound true and false."""
    if type(value) is not bool:
        raise unexpected(value, "true or false")
    return value


def text(limit: int = MAX_NAME_CHARS) -> Bound:
    """Bound text: make it printable and truncate it to `limit` characters."""

    def take(value: Any) -> str:
        if type(value) is not str:
            raise unexpected(value, "text")
        return printable(value, limit)

    return take


def list_of(each: Bound, most: int, what: str = "") -> Bound:
    """Bound lists of at most `most` values, each bounded by `each`. Error messages call the values `what`."""

    def take(value: Any) -> tuple[Any, ...]:
        if type(value) not in (list, tuple) or len(value) > most:
            raise unexpected(value, f"a list of at most {most}{what}")
        return tuple(each(item) for item in value)

    return take


def optional(bound: Bound) -> Bound:
    """Bound null, or a value of `bound`."""
    return lambda value: None if value is None else bound(value)


def object_of(make: Callable[..., Any], fields: Mapping[str, Bound]) -> Bound:
    """Bound objects with exactly these fields, which are passed to `make`."""

    def take(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise unexpected(value, "an object")
        if differ := value.keys() ^ fields.keys():
            names = printable(reprlib.repr(sorted(differ, key=str)), MAX_NAME_CHARS)
            raise ValueError(f"missing or unexpected fields: {names}")
        taken = {}
        for name, bound in fields.items():
            try:
                taken[name] = bound(value[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        return make(**taken)

    return take


def unexpected(value: Any, expected: str) -> ValueError:
    """Return the error for an unexpected value."""
    return ValueError(f"got {printable(reprlib.repr(value), MAX_NAME_CHARS)}, expected {expected}")


_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
FOREIGN_ERRNOS = frozenset(
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
"""Errors that a file put there by another user can cause. All other errors are faults of this machine or its disk."""


class ForeignFile(ValueError):
    """The file is unusable: not a regular file, too long, or cannot be opened."""


def read_regular(path: Path, longest: int) -> bytes:
    """Return the content of a regular file of at most `longest` bytes.

    Raises FileNotFoundError if there is no file, ForeignFile for an unusable file, which is not read, and OSError for a
    fault of this machine or its disk.
    """
    return bytes(receive_regular(path, longest))


def receive_regular(path: Path, longest: int) -> Received:
    """Return the content as `read_regular` does, but hashed while it is read. Raises the same errors."""
    with _opened(path) as (handle, size):
        if size > longest:
            raise ForeignFile(f"{path.name} has {size:,} bytes, expected at most {longest:,}")
        content = Received(size)
        content.read(handle)
        if os.read(handle, 1):
            raise ForeignFile(f"{path.name} grew while it was read")
        return content


def read_end(path: Path, longest: int) -> bytes:
    """Return the last `longest` bytes of a regular file, or all of a shorter one. Raises as `read_regular` does."""
    with _opened(path) as (handle, size):
        os.lseek(handle, max(0, size - longest), os.SEEK_SET)
        content = Received(min(size, longest))
        content.read(handle)
        return bytes(content)


def read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the header of a .npy file: (shape, dtype). A damaged one raises ValueError, or whatever else numpy's parser
    raises."""
    version = npy.read_magic(file)
    shape, _, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(file)
    if dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise ValueError(f"its header says {dtype} of shape {shape}; expected lengths from 0, and items of some bytes")
    return shape, dtype


def map_array(path: Path) -> NDArray[Any]:
    """Return the array of a .npy file, memory-mapped read-only.

    The header is read before the file is mapped: numpy divides by zero for a negative length with items of no bytes,
    which ends the process. Raises OSError if the file cannot be read; a damaged header raises ValueError, or whatever
    else numpy's parser raises.
    """
    with path.open("rb") as file:
        read_npy_header(file)
    mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped


def remove(path: Path) -> None:
    """Remove a file, a link (not its target) or, as far as possible, a folder. A missing path is no error.

    Raises OSError for a fault of this machine or its disk.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in FOREIGN_ERRNOS:
            raise
        for _ in removal(path, path.parent):
            pass


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int]]:
    """Yield (descriptor, size in bytes) of a regular file, opened without following a link and without blocking."""
    try:
        handle = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno not in FOREIGN_ERRNOS:
            raise
        raise ForeignFile(f"{path.name} cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ForeignFile(f"{path.name} is no regular file")
        yield handle, status.st_size
    finally:
        os.close(handle)


def removal(path: Path, into: Path) -> Iterator[None]:
    """Remove a folder with its content, as far as possible: one entry in each step, so that a caller can go on later.

    Before the first step the folder is moved into `into`, a folder on the same disk. Subfolders are moved there when
    they are found, so that a deep tree exhausts neither the stack nor the descriptors.
    """
    with contextlib.suppress(OSError):
        parent = os.open(into, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            names = [_moved_name()]
            os.rename(path, names[0], dst_dir_fd=parent)
            while names:
                name = names.pop()
                folder = os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=parent)
                try:
                    while entries := _some_entries(folder):
                        for entry in entries:
                            if entry.is_dir(follow_symlinks=False):
                                names.append(_moved_name())
                                os.rename(entry.name, names[-1], src_dir_fd=folder, dst_dir_fd=parent)
                            else:
                                os.unlink(entry.name, dir_fd=folder)
                            yield
                finally:
                    os.close(folder)
                os.rmdir(name, dir_fd=parent)
        finally:
            os.close(parent)


def _moved_name() -> str:
    return f".removed.{secrets.token_hex(8)}"  # random, because another process may have left such folders


def _some_entries(folder: int) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [*itertools.islice(entries, 1024)]  # a folder can have more entries than fit into memory
