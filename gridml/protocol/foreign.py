"""Input from elsewhere: text made printable and short, bounds on message fields, and files others can write.

The words of a worker, its log or a batch system may hold anything. The sender cuts such text before it travels, and
the receiver does so again. A bound returns a value as it is taken, or raises ValueError and says why not.

A file that others could put in place may be a link, a FIFO, a device, a folder, or a file of terabytes that takes
no room. It is read without following links, without waiting, and without taking in more than was agreed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import reprlib
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gridml.protocol.payload import Received

MAX_NAME_CHARS = 128  # characters at most: of a worker, a process, a kind of machine, a tensor's name in an error
MAX_MESSAGE_CHARS = 2_000  # of what went wrong, in words
MAX_TRACEBACK_CHARS = 20_000
_NOTE = 64  # of the words in place of what is left out


def printable(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    r"""Return `text` in at most `limit` characters, 64 or more, all of which print.

    What does not (terminal escapes, lone surrogates, what turns the direction of a line) becomes an escape such as
    `\x1b`; newlines and tabs stay. What is too long loses its middle, and says how much. Idempotent.
    """
    text = _shortened(text, limit)
    if text.isprintable():
        return text
    shown = "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
    return _shortened(shown, limit)


def described(error: BaseException) -> str:
    """Return the type and the words of an error, printable; of one that cannot be put into words the type alone."""
    try:
        words = str(error)
    except Exception as another:
        words = f"(what it says cannot be had: {type(another).__name__})"
    return printable(f"{type(error).__name__}: {words}")


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    kept = limit - _NOTE
    head = kept // 2
    return f"{text[:head]} [... {len(text) - kept:,} characters left out ...] {text[len(text) - (kept - head) :]}"


Bound = Callable[[Any], Any]

MAX_INTEGER = 2**53 - 1  # what JSON, SQLite and floats all hold exactly
MAX_DURATION_S = 1e9  # seconds, 31 years
MIN_VERTEX_S = 1e-12  # seconds to train a vertex: what claims less is not believed
TICK_S = 1e-9  # what a clock can measure; what is shorter took no time


def integer(least: int = 0) -> Bound:
    """Bound whole numbers from `least` on."""

    def take(value: Any) -> int:
        if type(value) is not int or not least <= value <= MAX_INTEGER:
            raise unexpected(value, f"a whole number from {least} to 2**53")
        return value

    return take


def seconds(value: Any) -> float:
    """Bound a duration: 0, or what a clock can measure."""
    if type(value) not in (int, float) or not 0 <= value <= MAX_DURATION_S:  # NaN neither
        raise unexpected(value, f"seconds from 0 to {MAX_DURATION_S:g}")
    return float(value) if value >= TICK_S else 0.0


def boolean(value: Any) -> bool:
    """Bound yes or no."""
    if type(value) is not bool:
        raise unexpected(value, "true or false")
    return value


def text(limit: int = MAX_NAME_CHARS) -> Bound:
    """Bound text, which is made printable and cut to `limit` characters."""

    def take(value: Any) -> str:
        if type(value) is not str:
            raise unexpected(value, "text")
        return printable(value, limit)

    return take


def list_of(each: Bound, most: int, what: str = "") -> Bound:
    """Bound lists of at most `most` values that `each` takes, `what` they are in an error."""

    def take(value: Any) -> tuple[Any, ...]:
        if type(value) not in (list, tuple) or len(value) > most:
            raise unexpected(value, f"a list of at most {most}{what}")
        return tuple(each(item) for item in value)

    return take


def optional(bound: Bound) -> Bound:
    """Bound what `bound` does, and null."""
    return lambda value: None if value is None else bound(value)


def object_of(make: Callable[..., Any], fields: Mapping[str, Bound]) -> Bound:
    """Bound objects with exactly these fields, of which `make` makes a value."""

    def take(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise unexpected(value, "an object")
        if differ := value.keys() ^ fields.keys():
            names = printable(reprlib.repr(sorted(differ, key=str)), MAX_NAME_CHARS)
            raise ValueError(f"it lacks, or has beyond what is expected, the fields {names}")
        taken = {}
        for name, bound in fields.items():
            try:
                taken[name] = bound(value[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        return make(**taken)

    return take


def unexpected(value: Any, expected: str) -> ValueError:
    """Return the error for a value that is not as expected."""
    return ValueError(f"got {printable(reprlib.repr(value), MAX_NAME_CHARS)}, expected {expected}")


_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_MOVED = itertools.count()  # folders, in this process's life
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
    with _opened(path) as (handle, size):
        if size > longest:
            raise ForeignFile(f"{path.name} has {size:,} bytes, expected at most {longest:,}")
        content = Received(size)
        content.read(handle)
        if os.read(handle, 1):
            raise ForeignFile(f"{path.name} grew while it was read")
        return content


def read_end(path: Path, longest: int) -> bytes:
    """Return the last `longest` bytes of a regular file, or all where it has fewer. Raises as `read_regular` does."""
    with _opened(path) as (handle, size):
        os.lseek(handle, max(0, size - longest), os.SEEK_SET)
        content = Received(min(size, longest))
        content.read(handle)
        return bytes(content)


def remove(path: Path) -> None:
    """Remove what lies there without following it; of a folder all that can be. Nothing there is no error.

    Raises OSError for what this machine or its disk refuses.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in FOREIGN_ERRNOS:
            raise
        with contextlib.suppress(OSError):
            _remove_tree(path)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int]]:
    """A handle of a regular file, which was neither followed nor waited for, and its bytes."""
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
