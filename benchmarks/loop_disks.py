"""Disks in files whose power can be cut under a running master: a reflink clones their content at one instant.

A lasting disk keeps every block that its file system has sent: XFS > disk.img (ext4), which is cloned. A volatile disk
has a write cache that a power cut empties: XFS > shelf.img (ext4) > disk.img (ext4), and the shelf is cloned. A block
of disk.img only reaches the shelf when the inner file system requests a flush (or when the kernel writes it back), so
unflushed data is not in the clone. A clone of 100 MB takes a few milliseconds and is atomic.

Needs root, loop devices, XFS with reflinks (xfsprogs) and ext4. On SIGTERM and SIGHUP a process unmounts them first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

XFS_MB, SHELF_MB, DISK_MB = 1600, 96, 64


class NoDisks(Exception):
    """This machine cannot make such disks; the message says why."""


@dataclass(frozen=True)
class Disk:
    """A disk that can be cloned."""

    root: Path  #: the mount point
    image: Path  #: the file that is cloned
    volatile: bool

    def cut(self, name: str) -> Path:
        """Return a clone of what the disk would hold if its power failed now."""
        clone = self.image.with_name(f"{name}.img")
        _call("cp", "--reflink=always", self.image, clone)
        return clone

    @contextlib.contextmanager
    def after_cut(self, clone: Path) -> Iterator[Path]:
        """Mount a clone as a machine does after a power cut, and yield its mount point. The clone is removed at the
        end."""
        with contextlib.ExitStack() as stack:
            stack.callback(clone.unlink)
            place = clone.with_suffix(".mounted")
            if self.volatile:
                shelf = clone.with_suffix(".shelf")
                stack.enter_context(mounted(clone, shelf))
                clone = shelf / "disk.img"
            yield stack.enter_context(mounted(clone, place))


@contextlib.contextmanager
def disk(folder: Path, *, volatile: bool) -> Iterator[Disk]:
    """Make a disk below `folder`, and remove it in any case. Raises NoDisks."""
    check()
    folder.mkdir(parents=True, exist_ok=True)
    with unwound_when_asked_to_end(), contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        base, xfs = folder / "base.img", folder / "base"
        _sparse(base, XFS_MB)
        try:
            _call("mkfs.xfs", "-q", "-m", "reflink=1", base)
            stack.enter_context(mounted(base, xfs))
            holder, image = xfs, xfs / "disk.img"
            if volatile:
                image = xfs / "shelf.img"
                holder = stack.enter_context(_ext4(image, SHELF_MB, folder / "shelf"))
            root = stack.enter_context(_ext4(holder / "disk.img", DISK_MB, folder / "disk"))
            made = Disk(root, image, volatile)
            made.cut("try").unlink()
        except subprocess.CalledProcessError as error:
            raise NoDisks(f"{' '.join(map(str, error.cmd))} failed: {error.stderr.strip()}") from error
        yield made


def check() -> None:
    """Raise NoDisks if this machine cannot make them."""
    if os.geteuid() != 0:
        raise NoDisks("loop devices need root")
    if not Path("/dev/loop-control").exists():
        raise NoDisks("there are no loop devices")
    for tool, package in (("mkfs.xfs", "xfsprogs"), ("mkfs.ext4", "e2fsprogs"), ("mount", "mount")):
        if shutil.which(tool) is None:
            raise NoDisks(f"there is no {tool} (package {package})")


@contextlib.contextmanager
def small_disk(megabytes: int, place: Path) -> Iterator[Path]:
    """Mount a disk of a number of megabytes in memory at a new folder `place`. Raises NoDisks."""
    if os.geteuid() != 0:
        raise NoDisks("mounting a disk needs root")
    with unwound_when_asked_to_end(), _unmounted(place):
        if _fails("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", place):
            raise NoDisks("a tmpfs cannot be mounted")
        yield place


@contextlib.contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    """Mount an image at a new folder `place`."""
    with _unmounted(place):
        _call("mount", "-o", "loop", image, place)
        yield place


@contextlib.contextmanager
def unwound_when_asked_to_end() -> Iterator[None]:
    """Turn the first SIGTERM or SIGHUP into SystemExit, so that the context unmounts its disks. Must be called in the
    main thread."""
    asked = (signal.SIGTERM, signal.SIGHUP)

    def leave(number: int, frame: FrameType | None) -> None:
        for each in asked:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in asked}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _unmounted(place: Path) -> Iterator[None]:
    """Make a mount point; afterwards unmount it and remove it."""
    place.mkdir(parents=True)
    try:
        yield
    finally:
        # An open file would keep the device busy; a lazy unmount detaches it anyway.
        if place.is_mount() and _fails("umount", place):
            _call("umount", "--lazy", place)
        place.rmdir()


@contextlib.contextmanager
def _ext4(image: Path, megabytes: int, place: Path) -> Iterator[Path]:
    image.write_bytes(bytes(megabytes << 20))  # not sparse: later writes must not allocate blocks
    _call("mkfs.ext4", "-q", "-F", image)
    with mounted(image, place) as root:
        yield root


def _sparse(path: Path, megabytes: int) -> None:
    with path.open("wb") as file:
        file.truncate(megabytes << 20)


def _call(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)


def _fails(*words: str | Path) -> bool:
    return subprocess.run([str(word) for word in words], capture_output=True, check=False).returncode != 0
