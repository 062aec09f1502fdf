"""The restricted view of the run directory for a job's SFTP session, with a quota on writes.

A session sees only the mailboxes of its job's own attempts, the chunks, and the bundle that a fleet's workers need.
Paths are checked against an allowlist, so no path leads outside. No symbolic link below the run directory's own folders
is followed. The master creates all mailboxes; most jobs have one.

Whenever a file grows, the sizes of all files in its mailbox are added up and compared with the quota. So no counter is
kept, and space that the master frees is available at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import paramiko

from gridml.carriers.base import MAX_MAILBOX_FILES
from gridml.protocol.outbox import job_of

P = ParamSpec("P")
T = TypeVar("T")
# Number of messages of maximum size that must fit in a mailbox: a sync, the next sync half written, a reply, and
# leftovers of broken connections.
MAX_MESSAGES = 6


@dataclass(frozen=True)
class Quota:
    """The limits of a mailbox."""

    longest: int = 1 << 31  # maximum bytes of one file; a sparse file counts in full
    files: int = MAX_MAILBOX_FILES  # maximum number of files

    @property
    def bytes(self) -> int:
        return MAX_MESSAGES * self.longest


class QuotaUsage:
    """The disk usage of one job in all its sessions together.

    Call all methods with `lock` held, so that no other session of the job writes, opens or closes a file in between.
    They raise OSError, for example for a missing mailbox.
    """

    def __init__(self, mail: Path) -> None:
        self._mail = mail
        self.lock = threading.Lock()
        self._open: set[int] = set()  # descriptors of all open files of the job

    def can_add_file(self, quota: Quota, box: str, name: str) -> bool:
        """Return whether a file of this name exists or the quota allows one more file."""
        names = os.listdir(self._mail / box)
        return name in names or len(names) < quota.files

    def can_write(self, quota: Quota, box: str, file: int, end: int) -> bool:
        """Return whether the quota allows an open file to have `end` bytes."""
        size = os.fstat(file).st_size
        return end <= size or (end <= quota.longest and self._used(box) - size + end <= quota.bytes)

    def opened(self, file: int) -> None:
        self._open.add(file)

    def close(self, file: int) -> None:
        self._open.discard(file)
        os.close(file)

    def _used(self, box: str) -> int:
        """Return the bytes of the files in a mailbox, including unlinked files that are still open."""
        used = 0
        with os.scandir(self._mail / box) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed or renamed in between
                    used += entry.stat(follow_symlinks=False).st_size
        nameless = (file for file in map(os.fstat, self._open) if not file.st_nlink)
        return used + sum(file.st_size for file in nameless)


MAX_OPEN_FILES = 8  # per session
MAX_READ_BYTES = 1 << 20  # per request; bounded because paramiko copies the rest of an answer for each of its packets
_DENIED: int = paramiko.SFTP_PERMISSION_DENIED
_READ_ONLY = (("chunks",), ("bundle",))
# O_APPEND is left out: it makes the kernel ignore the offset of a write, and the quota is checked with that offset.
_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_EXCL
_STATUS = {
    errno.ENOENT: paramiko.SFTP_NO_SUCH_FILE,
    errno.ENOTDIR: paramiko.SFTP_NO_SUCH_FILE,
    errno.EACCES: paramiko.SFTP_PERMISSION_DENIED,
    errno.EPERM: paramiko.SFTP_PERMISSION_DENIED,
    errno.ELOOP: paramiko.SFTP_PERMISSION_DENIED,  # a symbolic link
}


def is_own_mailbox(job: str, box: str) -> bool:
    """Return whether a mailbox is one of the job's attempts: `w7`, `w7.1`, ..."""
    return job_of(box) == job


def allowed_path(job: str, path: str) -> tuple[str, ...]:
    """Return the parts of an allowed path: `mail`, `mail/BOX`, `mail/BOX/FILE`, `chunks/FILE` or `bundle/FILE`, where
    BOX belongs to the job. Return () for all other paths, which are denied."""
    parts = tuple(path.split("/"))
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        return ()
    match parts:
        case ("mail",) | ("chunks" | "bundle", _):
            return parts
        case ("mail", box) | ("mail", box, _) if is_own_mailbox(job, box):
            return parts
    return ()


@dataclass(frozen=True)
class Jail:
    """The access of one job to run directory `root`."""

    root: Path
    job: str
    quota: Quota
    usage: QuotaUsage


def _errno_to_status(call: Callable[P, T]) -> Callable[P, T | int]:
    """Return a function that returns an SFTP status instead of raising OSError."""

    @wraps(call)
    def answer(*args: P.args, **kwargs: P.kwargs) -> T | int:
        try:
            return call(*args, **kwargs)
        except OSError as error:
            return int(_STATUS.get(error.errno or 0, paramiko.SFTP_FAILURE))

    return answer


class View(paramiko.SFTPServerInterface):  # type: ignore[misc]
    """The files that a job may see. paramiko refuses all operations that are not overridden here."""

    def __init__(self, server: Any, jail: Jail) -> None:
        super().__init__(server)
        self._jail, self._root, self._job = jail, jail.root, jail.job
        self._open: set[_File] = set()

    @_errno_to_status
    def list_folder(self, path: str) -> Any:
        parts = allowed_path(self._job, path)
        if not parts or parts[0] != "mail" or len(parts) == 3:
            return _DENIED
        with self._folder(parts) as folder:
            names = os.listdir(folder)
        return [_named(name) for name in names if len(parts) == 2 or is_own_mailbox(self._job, name)]

    def canonicalize(self, path: str) -> str:
        """Return the path unchanged, because all paths are relative to the run directory. Only ".", which OpenSSH's
        sftp asks for, becomes ""."""
        return "" if path == "." else path

    @_errno_to_status
    def lstat(self, path: str) -> Any:
        parts = allowed_path(self._job, path)
        if not parts:
            return _DENIED
        is_folder = parts[0] == "mail" and len(parts) < 3
        with self._folder(parts if is_folder else parts[:-1]) as folder:
            found = os.fstat(folder) if is_folder else os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        return paramiko.SFTPAttributes.from_stat(found)

    stat = lstat  # no link is followed

    @_errno_to_status
    def open(self, path: str, flags: int, attr: Any) -> Any:
        parts = allowed_path(self._job, path)
        is_readable = parts[:1] in _READ_ONLY and flags & _FLAGS == os.O_RDONLY
        if not (len(parts) == 3 or is_readable) or len(self._open) >= MAX_OPEN_FILES:
            return _DENIED
        usage, quota = self._jail.usage, self._jail.quota
        with usage.lock, self._folder(parts[:-1]) as folder:
            if flags & os.O_CREAT and not usage.can_add_file(quota, parts[1], parts[2]):
                return paramiko.SFTP_FAILURE
            extra = os.O_NOFOLLOW | os.O_NONBLOCK  # opening a FIFO would block
            number = os.open(parts[-1], flags & _FLAGS | extra, 0o600, dir_fd=folder)
            if not stat.S_ISREG(os.fstat(number).st_mode):
                os.close(number)
                return _DENIED
            usage.opened(number)
        file = _File(number, self._jail, parts[1], self._open)
        self._open.add(file)
        return file

    @_errno_to_status
    def remove(self, path: str) -> int:
        parts = allowed_path(self._job, path)
        if len(parts) != 3:
            return _DENIED
        with self._folder(parts[:-1]) as folder:
            os.unlink(parts[-1], dir_fd=folder)
        return int(paramiko.SFTP_OK)

    def rename(self, oldpath: str, newpath: str) -> int:
        """Rename without replacing an existing file, as plain SFTP demands."""
        taken = isinstance(self.lstat(newpath), paramiko.SFTPAttributes)
        return int(paramiko.SFTP_FAILURE) if taken else self.posix_rename(oldpath, newpath)

    @_errno_to_status
    def posix_rename(self, oldpath: str, newpath: str) -> int:
        old, new = allowed_path(self._job, oldpath), allowed_path(self._job, newpath)
        if len(old) != 3 or len(new) != 3 or old[1] != new[1]:  # a move between mailboxes would bypass the quota
            return _DENIED
        with self._folder(old[:-1]) as folder:
            os.replace(old[-1], new[-1], src_dir_fd=folder, dst_dir_fd=folder)
        return int(paramiko.SFTP_OK)

    @contextlib.contextmanager
    def _folder(self, parts: tuple[str, ...]) -> Iterator[int]:
        """Yield the descriptor of a folder. Only the first part of its path is allowed to be a symbolic link, for
        example to a larger disk."""
        folder = os.open(self._root / parts[0], os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in parts[1:]:
                outer, folder = folder, os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                os.close(outer)
            yield folder
        finally:
            os.close(folder)


class _File(paramiko.SFTPHandle):  # type: ignore[misc]
    """An open file in mailbox `box`; `among` is the set of the session's open files."""

    def __init__(self, number: int, jail: Jail, box: str, among: set[_File]) -> None:
        super().__init__()
        self._number, self._jail, self._box, self._among = number, jail, box, among

    def close(self) -> None:
        if self in self._among:
            self._among.remove(self)
            with self._jail.usage.lock:
                self._jail.usage.close(self._number)

    @_errno_to_status
    def read(self, offset: int, length: int) -> Any:
        """Return the bytes at an offset, or EOF at the end. Without EOF, paramiko's hash of a file loops forever."""
        return os.pread(self._number, min(length, MAX_READ_BYTES), offset) or paramiko.SFTP_EOF

    @_errno_to_status
    def write(self, offset: int, data: bytes) -> int:
        usage, rest = self._jail.usage, memoryview(data)
        with usage.lock:
            if not usage.can_write(self._jail.quota, self._box, self._number, offset + len(rest)):
                return int(paramiko.SFTP_FAILURE)
            while rest:
                written = os.pwrite(self._number, rest, offset)
                rest, offset = rest[written:], offset + written
        return int(paramiko.SFTP_OK)

    def stat(self) -> Any:
        return paramiko.SFTPAttributes.from_stat(os.fstat(self._number))

    def chattr(self, attr: Any) -> int:
        """Accept but ignore modes and times, which OpenSSH's scp sets, and a size that equals the file's. Deny any
        other size, because the change would bypass the quota."""
        size = os.fstat(self._number).st_size
        return int(paramiko.SFTP_OK) if attr.st_size in (None, size) else _DENIED


def _named(name: str) -> Any:
    attributes = paramiko.SFTPAttributes()
    attributes.filename = name
    return attributes
