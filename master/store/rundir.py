"""The run directory: default name, paths of a run's files, lock of its master, code sent to workers, facts of events.

The facts of an event are the numbers and names in its text, for programs; docs/events.md lists them by topic.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import socket
import stat
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, count, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gridml.errors import DamagedError, RunError, SupersededError, UsageError
from gridml.model.own_modules import folder_of, own_files
from gridml.protocol import bundle
from gridml.protocol.foreign import FOREIGN_ERRNOS, MAX_NAME_CHARS, printable
from gridml.protocol.outbox import job_of
from master.store.saved_program import SavedProgram


def command(verb: str, root: Path) -> str:
    """Return the shell command that does `verb` to a run, for example `gridml resume 'my runs/first'`."""
    return f"gridml {verb} {shlex.quote(str(root))}"


def read_named(path: Path, sha256: str, what: str) -> bytes:
    """Read a file whose SHA-256 the ledger holds; `what` describes it in messages. Raises DamagedError if the file
    is missing or has another SHA-256, OSError if it cannot be read."""
    try:
        payload = path.read_bytes()
    except FileNotFoundError as error:
        raise DamagedError(f"{path}, {what}, is gone", path) from error
    if bundle.digest(payload) != sha256:
        raise DamagedError(f"{path} is damaged: its SHA-256 is not the one in the ledger", path)
    return payload


def version_name(version: int) -> str:
    """Return the file name of a version of the replica."""
    return f"v{version:08d}.safetensors"


def patch_name(version: int) -> str:
    """Return the file name of a version's patch of local fields."""
    return f"patch-{version:08d}.safetensors"


def base_name(field: str, version: int) -> str:
    """Return the file name of a field's base at the end of an epoch."""
    return f"{field}@{version:08d}.npy"


@dataclass(frozen=True)
class _Path:
    """A descriptor for a path inside the run directory."""

    name: str

    def __get__(self, run: RunDirectory, owner: type[RunDirectory]) -> Path:
        return run.root / self.name


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run. Every file can be read with standard tools; README.txt in the directory explains each."""

    root: Path
    ledger = _Path("ledger.db")
    ledger_copy = _Path("ledger.backup.db")
    settings = _Path("settings.json")
    settings_copy = _Path("settings.backup.json")
    versions = _Path("versions")
    fields = _Path("fields")
    #: the user's own ids of vertices, if there are any
    ids = _Path("ids.safetensors")
    logs = _Path("logs")
    events = _Path("events.log")
    final = _Path("final.safetensors")
    best = _Path("best.safetensors")
    #: a new best replica, renamed to `best` once the ledger names it
    next_best = _Path("best.next.safetensors")
    #: the part of each vertex, if vertices are placed
    placement = _Path("placement.safetensors")
    #: unacknowledged pushes that jobs left when they ended, one file per job
    recovered = _Path("recovered")

    @property
    def place(self) -> Path:
        """The directory with symbolic links resolved, by which other systems identify the run."""
        return self.root.resolve()

    def saved_program(self, original: Path) -> SavedProgram:
        """Return the run's own copy of a program."""
        return SavedProgram(self.root / "program", original)

    def newest_log(self) -> int:
        """Return the highest number of a job that has a log, 0 if there are no logs."""
        names = (re.fullmatch(r"w(\d{1,15})\.log", path.name) for path in self.logs.iterdir())
        return max((int(name[1]) for name in names if name is not None), default=0)

    def log(self, worker: str) -> Path:
        """Return the log of a worker's output. All attempts of one job share a file."""
        return self.logs / f"{job_of(worker)}.log"

    def create(self) -> None:
        """Create the directory. Raises UsageError if it holds a run already, or cannot be created."""
        if os.path.lexists(self.ledger):  # not Path.exists, which raises an error for a name that is too long
            raise UsageError(
                f"{self.root} holds a run already. Go on with it: {command('resume', self.root)}; or name another "
                f"--run-dir."
            )
        try:
            self._check_empty()
            self.logs.mkdir(parents=True, exist_ok=True)
            (self.root / "README.txt").write_text(_README)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the run directory {self.root} cannot be made: {error}. Name another with --run-dir."
            ) from error

    def _check_empty(self) -> None:
        """Raise UsageError if the directory holds anything but the remains of a failed start."""
        if not self.root.is_dir():
            return
        readme = self.root / "README.txt"
        began = readme.is_file() and readme.read_bytes()[:100].startswith(_README.partition("\n")[0].encode())
        if not began and (other := next(self.root.iterdir(), None)) is not None:
            raise UsageError(
                f"the run directory {self.root} holds other files, such as {other.name}, which a run would be mixed "
                f"with. Name another with --run-dir, a new or empty one."
            )


def open_lock(root: Path, flags: int) -> int:
    """Open the lock file of a run's master. Raises FileNotFoundError if it is missing, RunError if it is not a regular
    file."""
    path = root / "master.lock"
    try:
        handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)  # O_NONBLOCK: a FIFO would block
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        why = "it is no regular file"
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
        if flags & os.O_RDWR and error.errno not in FOREIGN_ERRNOS:
            raise  # the caller translates errors of the disk into errors with advice
        why = error.strerror or str(error)
    raise RunError(f"{path} cannot be opened: {why}. Make it a file of the user who runs gridml, or remove it.")


class MasterLock:
    """The exclusive lock of a run's master. Raises RunError, naming the holder, if another process has it."""

    def __init__(self, run: RunDirectory) -> None:
        self._file = os.fdopen(open_lock(run.root, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+", errors="replace")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown process"
            self._file.close()
            raise RunError(
                f"another master holds {run.root}: {holder}. Follow it with {command('watch', run.root)}, or end it "
                f"with {command('cancel', run.root)}."
            ) from error
        self._file.truncate(0)
        self._file.write(f"pid {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def __enter__(self) -> MasterLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock. Idempotent; the end of the process does the same."""
        self._file.close()


def superseded(root: Path) -> SupersededError:
    """Return the error of a master whose run was taken over by another one."""
    try:
        holder = (root / "master.lock").read_text(errors="replace").strip() or "an unknown process"
    except OSError:
        holder = "an unknown process"
    return SupersededError(
        f"another master has taken {root} over ({holder}); this one has ended, and has written nothing since. Follow "
        f"the run with {command('watch', root)}. Where file locks work, the second master would have been refused; so "
        f"make sure that only one is started."
    )


_README = """A gridml run.

settings.json        the settings of the run; settings.backup.json is a copy
program/             a copy of the program and its own modules, which workers get. It was made when the run began, or
                     was last resumed with changes
events.log           the events of the run, one a line
ledger.db            leases, credits, versions, workers (SQLite): the source of truth
ledger.backup.db     a copy of the ledger, made at the end of the last epoch or when a master began
versions/            the master replica, one file per version (safetensors). A file has all rows of array fields, or
                     only the rows that changed since another version, which it names
placement.safetensors  the part of each vertex, if vertices are placed
fields/              fields of local vertices that f changed: their current values (Type.field.npy), their values at the
                     end of the last epoch (Type.field@version.npy), and patches with the changes since then
ids.safetensors      the ids that the program gave vertices, as numbers or UTF-8
first.safetensors    the initial values that a Python call gave to the run
final.safetensors    the trained replica, once the run has ended
best.safetensors     the replica with the best value of a metric, if the program keeps one
logs/                the output of each worker, and of the program's evaluate
mail/, chunks/       files that travel between master and workers
carried/             a record of the rows that workers cache, so that a later master does not send them again
moments/             optimiser moments of workers, for new ones to start from
sftp/                keys of jobs whose messages travel by SFTP, and the server's own
sent/                copies of the files of --send, which go with the jobs; large ones can be hard links to originals
recovered/           pushes that jobs could not send in time, transferred when they ended
set-aside/           the last messages of workers that could not be processed, and the reasons

gridml report DIR    progress, speed, losses, and quarantined workers
gridml resume DIR    continue from the last credit
gridml rollback DIR  return to a saved version, and train again from there
"""


class RunStatus(StrEnum):
    """The status of a run. STOPPED is never stored: a master that was killed cannot write it."""

    SUBMITTED = "submitted"  # its master has not started
    RUNNING = "running"
    STOPPED = "stopped"  # stored as running, but no master holds the lock
    FINISHED = "finished"  # every vertex is credited
    CANCELLED = "cancelled"  # by a person
    FAILED = "failed"  # the fact `stopped_because` has the reason


ORPHANED = "its master ended"  # the detail of workers that were alive when an earlier master ended


CODE = "gridml.pyz"
_SENT = ("gridml", "remote")  # the packages that a worker imports
_MAIN = "import sys\nfrom remote.worker import main\nsys.exit(main())\n"


def write_code(path: Path) -> None:
    """Write the packages that a worker imports as one executable zip file. It runs on Python with numpy."""
    temporary = path.with_name(f".{path.name}.tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", _MAIN)
        for package in _SENT:
            spec = importlib.util.find_spec(package)
            assert spec is not None and spec.submodule_search_locations
            folder = Path(next(iter(spec.submodule_search_locations)))
            for file in sorted(folder.rglob("*.py")):
                archive.write(file, f"{package}/{file.relative_to(folder)}")
    temporary.replace(path)


def program_entries(program: Path, directory: RunDirectory) -> list[Path]:
    """Return the files and folders to send as the program, its own file first. They are the run's copies, or the
    originals if the run does not exist yet."""
    kept = directory.saved_program(program)
    if kept.program.is_file():
        return [path.absolute() for path in kept.entries]
    inside = (folder_of(program) / name.split("/")[0] for name in own_files(program).files)
    return list(dict.fromkeys([program, *(path for path in inside if path.name != program.name)]))


EventFacts = Mapping[str, Any]  # JSON values by name
NO_FACTS: EventFacts = MappingProxyType({})
MAX_PARTS = 64  # entries of a mapping or list; the rest is cut
MAX_TEXT_CHARS = 500


def bounded(facts: EventFacts) -> dict[str, Any]:
    """Return facts in the form that all readers get: texts are printable and short, long lists and mappings are
    cut, and NaN and infinity, which JSON lacks, are replaced by None. Idempotent."""
    return {printable(name, MAX_NAME_CHARS): _bounded(value) for name, value in islice(facts.items(), MAX_PARTS)}


def facts_text(facts: EventFacts) -> str:
    """Encode facts for a column of the ledger."""
    return json.dumps(bounded(facts), allow_nan=False)


def facts_from(text: str) -> EventFacts:
    """Decode the facts in a column. Raises ValueError for JSON that is not an object."""
    facts = json.loads(text)
    if not isinstance(facts, dict):
        raise ValueError(f"the facts of an event are {type(facts).__name__}, expected an object")
    return facts


def _bounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return bounded(value)
    if isinstance(value, list | tuple):
        return [_bounded(part) for part in value[:MAX_PARTS]]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, int) else printable(str(value), MAX_TEXT_CHARS)


def default_root(program_name: str) -> Path:
    """Return the default directory for a new run of a program, which does not exist yet."""
    return next(root for root in _names(program_name) if not root.exists())


@contextmanager
def claim_root(named: Path | None, program_name: str) -> Iterator[Path]:
    """Create a directory for a new run, or use the one that the user `named`. Raises UsageError.

    Creation is atomic, so runs that begin in the same second get different directories. A new directory that is empty
    on exit is removed. If an error occurs before the run has a ledger, the directory is removed with its content,
    unless the user `named` it and it existed before.
    """
    if named is not None:
        there = os.path.lexists(named)
        try:
            yield named
        except BaseException:
            if not there:
                _remove_unbegun(named)
            raise
        return
    first = not Path("runs").exists()
    root = _made(program_name)
    try:
        yield root
    except BaseException:
        _remove_unbegun(root)
        raise
    finally:
        with contextlib.suppress(OSError):  # in most cases it is not empty: it contains a run
            root.rmdir()
        with contextlib.suppress(OSError):
            if first:
                root.parent.rmdir()


def _remove_unbegun(root: Path) -> None:
    """Remove a directory without a ledger in which no other process is starting a run."""
    with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as held:
        if (
            lock := root / "master.lock"
        ).is_file():  # if another process holds it: BlockingIOError, which is suppressed
            fcntl.flock(held.enter_context(lock.open()), fcntl.LOCK_EX | fcntl.LOCK_NB)
        run = RunDirectory(root)
        if root.is_dir() and not any(map(os.path.lexists, (run.ledger, run.ledger_copy))):
            shutil.rmtree(root)


def _made(program_name: str) -> Path:
    for root in _names(program_name):
        try:
            while True:
                root.parent.mkdir(exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # another run has just removed the parent
                    root.mkdir()
                    return root
        except FileExistsError as error:
            if root.parent.is_dir():
                continue
            raise _not_made(root, error) from error
        except (OSError, ValueError) as error:
            raise _not_made(root, error) from error
    raise AssertionError  # `_names` is endless


def _not_made(root: Path, error: Exception) -> UsageError:
    return UsageError(f"the run directory {root} cannot be made: {error}. Name another with --run-dir.")


def _names(program_name: str) -> Iterator[Path]:
    usual = Path("runs") / f"{program_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return chain([usual], (usual.with_name(f"{usual.name}-{number}") for number in count(2)))
