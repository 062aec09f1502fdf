"""Diagnosis of storage errors: turns an error of SQLite, of the operating system or of a digest check into a message
that names the next step.

Only a message about damage advises to restore the copy of the ledger, and only if the copy is whole.
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

from gridml.errors import DamagedError, GridmlError, LedgerError, StorageError
from gridml.model.ragged import block_digests
from gridml.protocol import bundle
from gridml.protocol.foreign import map_array
from master.store.credits import check_patches, count_credits
from master.store.rundir import RunDirectory, base_name, command, patch_name
from master.store.schema import read_fact, verify_file
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
# SQLite does not report errno with these codes. SQLITE_CANTOPEN, for example, can mean that the file is gone or
# forbidden, or that too many files are open. So `_probe` finds the errno.
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
    return StorageError(f"{what}: {said}. No credit is lost. First {advice}, then: {then or command('resume', root)}")


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
        # The file is writable, so SQLite itself refuses to write, because the header names a future format.
        return FileTrouble.DAMAGED, str(error)
    return _BY_SQLITE.get(extended, _BY_SQLITE.get(code, FileTrouble.OTHER)), str(error)


def _undecodable(error: sqlite3.Error) -> bool:
    """Return whether the error reports damaged text (not UTF-8), for which Python sets no SQLite code."""
    return isinstance(error, sqlite3.OperationalError) and "decode" in str(error)


def _probe(root: Path) -> OSError | None:
    """Check the permissions of the ledger, and write a temporary file beside it. Return the operating system's error,
    None if there is none."""
    # The ledger is not opened here, because closing a descriptor of it would release this process's POSIX locks on it.
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
        FileTrouble.DESCRIPTORS: (f"{place} cannot be opened", f"allow more open files than {files} (ulimit -n)"),
        FileTrouble.FORBIDDEN: (
            f"{place} may not be written",
            f"check its permissions, and how its disk is mounted (ls -ld {quoted})",
        ),
        FileTrouble.BROKEN: (f"the disk of {place} fails", "look for the failure in the system log (dmesg)"),
        FileTrouble.GONE: (f"{place}, or part of it, is gone", "bring back what was moved, removed or unmounted"),
        FileTrouble.MEMORY: (f"there is no memory left for {place}", "free some on this machine"),
        FileTrouble.UNREAD: (f"the reader of the output of {place}'s master has exited", "redirect its output"),
        FileTrouble.OTHER: (f"the master cannot use {place}", "fix the cause"),
    }[trouble]


def restoring(root: Path) -> str:
    """Return the advice for a damaged run: restore the copy of the ledger, if the copy is whole."""
    run = RunDirectory(root)
    if not run.ledger_copy.exists():
        return "There is no copy of the ledger; start the run again with gridml run."
    if not is_whole(run):
        return (
            "The copy of the ledger is of no use either, because it, or a file that it needs, is damaged. If you have "
            "a copy of the whole run, put it back; else start the run again with gridml run."
        )
    ledger, copy = shlex.quote(str(run.ledger)), shlex.quote(str(run.ledger_copy))
    return (
        f"A copy of the ledger, made at the end of an epoch or when a master began, is beside it. Restore it: "
        f"rm -f {ledger}-wal {ledger}-shm {ledger}-journal && cp {copy} {ledger} && {command('resume', root)}  (what "
        f"was credited after the copy was made is trained again; all else stays exact)"
    )


def is_whole(run: RunDirectory) -> bool:
    """Return whether the copy of the ledger and every file that it names are undamaged. Reads all these files."""
    try:
        with closing(sqlite3.connect(f"{run.ledger_copy.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            verify_file(db)
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
            block_digests(map_array(run.fields / base_name(field, base["version"]))) == digests
            for field, digests in base["digests"].items()
        )
    except Exception:  # parsers of damaged files, NumPy's among them, raise many types
        return False
