"""Diagnosis of storage errors: from SQLite, the operating system or a digest to a message with the next step.

Restoring the copy of the ledger is advised only for damage, and only if the copy is whole.
"""

from __future__ import annotations

import errno
import os
import resource
import shlex
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path

import numpy as np

from gridml.errors import DamagedError, GridmlError, LedgerError, StorageError
from gridml.model.ragged import block_digests
from gridml.protocol import bundle
from master.store.credits import check_patches, count_credits
from master.store.rundir import RunDirectory, base_name, command, patch_name
from master.store.schema import check_tables, read_fact, verify_checksums
from master.store.spec import FACT
from master.store.version_chain import open_chain


class FileTrouble(StrEnum):
    """Kinds of failures of a run's files."""

    FULL = "full"  # the disk, or a quota
    LOCKED = "locked"  # by another process
    DESCRIPTORS = "descriptors"  # too many open files
    FORBIDDEN = "forbidden"  # permissions, or a read-only mount
    BROKEN = "broken"  # the device fails
    GONE = "gone"  # removed, renamed or unmounted
    MEMORY = "memory"  # none left on this machine
    UNREAD = "unread"  # the reader of a pipe has exited
    DAMAGED = "damaged"  # the content is not what was written
    OTHER = "other"


def _by_code(codes: Mapping[FileTrouble, Sequence[int]]) -> dict[int, FileTrouble]:
    return {code: trouble for trouble, each in codes.items() for code in each}


_BY_ERRNO = _by_code(
    {
        FileTrouble.FULL: (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        FileTrouble.DESCRIPTORS: (errno.EMFILE, errno.ENFILE),
        FileTrouble.FORBIDDEN: (errno.EACCES, errno.EPERM, errno.EROFS),
        FileTrouble.BROKEN: (errno.EIO, errno.ENXIO),
        FileTrouble.UNREAD: (errno.EPIPE,),
        FileTrouble.GONE: (errno.ESTALE, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENODEV),
        FileTrouble.LOCKED: (errno.EBUSY, errno.ENOLCK),
        FileTrouble.MEMORY: (errno.ENOMEM,),
    }
)
_BY_SQLITE = _by_code(
    {
        FileTrouble.FULL: (sqlite3.SQLITE_FULL,),
        FileTrouble.LOCKED: (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL),
        FileTrouble.FORBIDDEN: (sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY),
        FileTrouble.BROKEN: (sqlite3.SQLITE_IOERR,),
        FileTrouble.GONE: (sqlite3.SQLITE_CANTOPEN,),
        FileTrouble.MEMORY: (sqlite3.SQLITE_NOMEM,),
        FileTrouble.DAMAGED: (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR_SHORT_READ),
    }
)
# SQLite drops errno for these codes: a file that cannot be opened may be gone, forbidden, or one descriptor too many.
_WITHOUT_ERRNO = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


def explain(error: sqlite3.Error | OSError | DamagedError, root: Path, then: str | None = None) -> GridmlError:
    """Return the error to show for a failure of the run in `root`: LedgerError for damage, else StorageError.

    `then` is the command to run once the cause is fixed, by default the one that resumes the run.
    """
    trouble, said = diagnose(error, root)
    if trouble is FileTrouble.DAMAGED:
        problem = said if isinstance(error, DamagedError) else f"{RunDirectory(root).ledger} cannot be read: {said}"
        return LedgerError(f"{problem}. {restoring(root)}")
    what, advice = _problem_and_advice(trouble, _place(error, root))
    # No credit is lost in any of these cases: a transaction is committed as a whole or not at all.
    return StorageError(
        f"{what}: {said}. Nothing that was credited is lost: {advice}, then: {then or command('resume', root)}"
    )


@contextmanager
def translate_errors(root: Path, then: str | None = None) -> Iterator[None]:
    """Translate storage errors raised inside into those of `explain`."""
    try:
        yield
    except (sqlite3.Error, DamagedError, OSError) as error:
        raise explain(error, root, then) from error


def _place(error: Exception, root: Path) -> Path:
    """Return the file or folder that an error is about."""
    named = getattr(error, "filename", None)
    return RunDirectory(root).ledger if isinstance(error, sqlite3.Error) else Path(named) if named else root


def diagnose(error: sqlite3.Error | OSError | DamagedError, root: Path) -> tuple[FileTrouble, str]:
    """Return the kind of failure, and the message that reported it."""
    if isinstance(error, DamagedError):
        return FileTrouble.DAMAGED, str(error)
    if isinstance(error, OSError):
        return _BY_ERRNO.get(error.errno or 0, FileTrouble.OTHER), str(error)
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT if _undecodable(error) else 0)
    code = extended & 0xFF  # the primary code; the upper bits refine it
    if code in _WITHOUT_ERRNO and (reason := _probe(root)) is not None:
        return _BY_ERRNO.get(reason.errno or 0, FileTrouble.OTHER), f"{error} ({reason})"
    if extended == sqlite3.SQLITE_READONLY:
        # The file is writable, so SQLite itself refuses: the header names a future format.
        return FileTrouble.DAMAGED, str(error)
    return _BY_SQLITE.get(extended, _BY_SQLITE.get(code, FileTrouble.OTHER)), str(error)


def _undecodable(error: sqlite3.Error) -> bool:
    """Return whether a text is not UTF-8. Python raises that without an SQLite code, though it is damage."""
    return isinstance(error, sqlite3.OperationalError) and "decode" in str(error)


def _probe(root: Path) -> OSError | None:
    """Write a file in the run, and return the error of the operating system, None without one."""
    # The ledger is not opened here: closing any descriptor of it would release the POSIX locks of this process.
    ledger = RunDirectory(root).ledger
    try:
        ledger.stat()
        if not os.access(ledger, os.R_OK | os.W_OK):
            return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(ledger))
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as reason:
        return reason
    return None


def _problem_and_advice(trouble: FileTrouble, place: Path) -> tuple[str, str]:
    """Return (what is wrong with `place`, what to do about it)."""
    quoted, files = shlex.quote(str(place)), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return {
        FileTrouble.FULL: (
            f"{place} cannot be written",
            f"make room on its disk, or in your quota there (df -h {quoted})",
        ),
        FileTrouble.LOCKED: (f"{place} is locked by another process", f"wait for it, or end it (fuser -v {quoted})"),
        FileTrouble.DESCRIPTORS: (f"{place} is one open file too many", f"allow more of them than {files} (ulimit -n)"),
        FileTrouble.FORBIDDEN: (
            f"{place} may not be written",
            f"see who may, and how it is mounted (ls -ld {quoted})",
        ),
        FileTrouble.BROKEN: (f"the disk of {place} fails", "look for it in the log of the system (dmesg)"),
        FileTrouble.GONE: (f"{place} is gone, or part of it", "bring back what was moved, removed or unmounted"),
        FileTrouble.MEMORY: (f"there is no memory left for {place}", "free some on this machine"),
        FileTrouble.UNREAD: (f"the reader of the output of {place}'s master has exited", "redirect its output"),
        FileTrouble.OTHER: (f"the master cannot use {place}", "fix that"),
    }[trouble]


def restoring(root: Path) -> str:
    """Return the advice for a damaged run: restore the copy of the ledger if that is whole."""
    run = RunDirectory(root)
    if not run.ledger_copy.exists():
        return "There is no copy of the ledger; start the run again with gridml run."
    if not is_whole(run):
        return (
            "The copy of the ledger is of no use, either: it is damaged, or a file that it needs. If you have the run "
            "elsewhere, bring it back; else start it again with gridml run."
        )
    ledger, copy = shlex.quote(str(run.ledger)), shlex.quote(str(run.ledger_copy))
    return (
        f"A copy of the ledger, from the end of an epoch or from when its master began, is beside it. Restore it: "
        f"rm -f {ledger}-wal {ledger}-shm {ledger}-journal && cp {copy} {ledger} && {command('resume', root)}  (what "
        f"was credited since is trained again, all else stays exact)"
    )


def is_whole(run: RunDirectory) -> bool:
    """Return whether the copy of the ledger, and every file that it names, are undamaged. Reads all of them."""
    try:
        with closing(sqlite3.connect(f"{run.ledger_copy.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            if db.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
                return False
            check_tables(db)
            verify_checksums(db)
            count_credits(db)
            check_patches(db)
            newest = db.execute("SELECT version, sha256 FROM versions ORDER BY version DESC LIMIT 1").fetchall()
            patches = db.execute("SELECT version, sha256 FROM patches").fetchall()
            base = read_fact(db, "base", {"version": 0, "digests": {}})
            placed = read_fact(db, FACT, {}).get("sha256")
        for version, sha256 in newest:
            open_chain(run.versions, version, str(sha256), mapped=True)
        files = [(run.fields / patch_name(version), sha256) for version, sha256 in patches]
        files += [(run.placement, placed)] if placed is not None else []
        whole = bool(newest) and all(bundle.digest(path.read_bytes()) == sha256 for path, sha256 in files)
        return whole and all(
            block_digests(np.load(run.fields / base_name(field, base["version"]), mmap_mode="r")) == digests
            for field, digests in base["digests"].items()
        )
    except (sqlite3.Error, DamagedError, OSError, ValueError, TypeError, EOFError, SyntaxError):  # NumPy parses headers
        return False
