"""The copies that a run keeps of the files of `--send`: its jobs get these, whatever becomes of the originals.

Where the disk can share blocks between files (reflink) a copy costs nothing. Elsewhere a file above `LARGE` becomes a
second name of the same file (hard link): who deletes or replaces the original changes nothing, who writes into it
does. On another disk it is copied.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gridml.errors import StorageError, UsageError
from master.backends.condor.options import CondorOptions, is_url
from master.store.rundir import RunDirectory, command

FOLDER = "sent"
LARGE = 256 << 20  # bytes above which a file is not copied where that can be spared
_FICLONE = 0x40049409  # linux/fs.h


def keep(options: CondorOptions, directory: RunDirectory) -> None:
    """Keep the files as they are now, and no others. Killed meanwhile, it leaves the copies as they were, or none.

    Raises UsageError for a file that is not there, StorageError where it cannot be kept.
    """
    folder = directory.root / FOLDER
    new, old = (folder.with_name(f"{FOLDER}.{age}") for age in ("new", "old"))
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    files = _files(options)
    if files:
        new.mkdir()
    for path in files:
        if not path.exists():
            raise UsageError(f"{path} of --send is not there. Put it back, or go on with the run's own copy.")
        try:
            _copy(path, new / path.name)
        except OSError as error:
            raise StorageError(f"{path} of --send cannot be kept in {folder}: {error.strerror}") from error
    if folder.exists():
        folder.rename(old)
    if files:
        new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def sent(options: CondorOptions, directory: RunDirectory) -> list[str]:
    """Return what goes with the jobs: the copies, and the originals where there is no run yet, or it has none; URLs as
    they are."""
    copies = {str(path): directory.place / FOLDER / path.name for path in _files(options)}
    return [str(copies[name]) if name in copies and copies[name].exists() else name for name in options.send]


def news(options: CondorOptions, directory: RunDirectory) -> list[str]:
    """Return what a person should know: which files are no copies, and which are not any more what they were."""
    told, pairs = [], list(_pairs(options, directory))
    linked = [path for path, original, copy in pairs if _same(original, copy)]
    if linked:
        told.append(
            f"{_named(linked)} of --send: too large to copy, so the run holds a second name of the same file. Do not "
            "write into it while the run goes on; to delete or replace it does no harm"
        )
    altered = [path for path, original, copy in pairs if _differ(original, copy)]
    if altered:
        told.append(
            f"{_named(altered)} of --send changed since the run began, and it goes on with its own copy. To take what "
            f"is there now: {command('resume', directory.root)} --with-changes"
        )
    return told


def _files(options: CondorOptions) -> list[Path]:
    return [Path(name) for name in options.send if not is_url(name)]


def _named(paths: list[Path]) -> str:
    return ", ".join(map(str, dict.fromkeys(paths)))


def _pairs(options: CondorOptions, directory: RunDirectory) -> Iterator[tuple[Path, Path, Path]]:
    """(what was named, a file of it, the copy of that), of what has a copy."""
    for path in _files(options):
        kept = directory.root / FOLDER / path.name
        files = [copy.relative_to(kept) for copy in kept.rglob("*") if copy.is_file()] if kept.is_dir() else [Path()]
        if kept.exists():
            yield from ((path, path / file, kept / file) for file in files)


def _copy(path: Path, to: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, to, copy_function=lambda file, copy: _copy_file(Path(file), Path(copy)))
    else:
        _copy_file(path, to)


def _copy_file(path: Path, to: Path) -> None:
    with contextlib.suppress(OSError):
        with path.open("rb") as original, to.open("xb") as copy:  # what lies there may be a second name of an original
            fcntl.ioctl(copy, _FICLONE, original.fileno())
        shutil.copystat(path, to)
        return
    to.unlink(missing_ok=True)
    if path.stat().st_size > LARGE:
        with contextlib.suppress(OSError):  # it lies on another disk, or is somebody else's
            os.link(path.resolve(), to)
            return
    shutil.copy2(path, to)


def _same(original: Path, copy: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samefile(original, copy)
    return False


def _differ(original: Path, copy: Path) -> bool:
    """Whether an original is another one than when it was copied, as its size and time say."""
    try:
        then, now = copy.stat(), original.stat()
    except OSError:
        return True
    return (then.st_size, then.st_mtime_ns) != (now.st_size, now.st_mtime_ns)
