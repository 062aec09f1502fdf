"""How much a job may keep in a mailbox: what lies there is counted whenever it is to become more, so nothing is to be
remembered, and what the master removes makes room at once.

A job's key opens the mailboxes of its own attempts, each of which the master made: one, for the most part.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gridml.carriers.mailbox_files import QUOTA

MESSAGES = 6  # of the longest, in bytes: one, the next half written, an answer, and what a broken line leaves behind


@dataclass(frozen=True)
class Quota:
    """Bytes of the `longest` file, which a sparse one would have as well; and for each mailbox bytes and files."""

    longest: int = 1 << 31
    files: int = QUOTA

    @property
    def bytes(self) -> int:
        return MESSAGES * self.longest


class Room:
    """What one job may still write, in all its sessions together. Methods but `turn` must be called in a turn, and
    raise OSError, as where the mailbox is gone."""

    def __init__(self, mail: Path) -> None:
        self._mail = mail
        self._lock = threading.Lock()
        self._open: set[int] = set()  # descriptors of files that are open for writing

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Keep the job's other sessions from writing, opening and closing files meanwhile."""
        with self._lock:
            yield

    def holds_file(self, quota: Quota, box: str, name: str) -> bool:
        """Whether a file of this name may lie in a mailbox: it does, or there are few."""
        names = os.listdir(self._mail / box)
        return name in names or len(names) < quota.files

    def holds_bytes(self, quota: Quota, box: str, file: int, end: int) -> bool:
        """Whether an open file may reach up to byte `end`."""
        size = os.fstat(file).st_size
        return end <= size or (end <= quota.longest and self._used(box) - size + end <= quota.bytes)

    def opened(self, file: int) -> None:
        self._open.add(file)

    def close(self, file: int) -> None:
        self._open.discard(file)
        os.close(file)

    def _used(self, box: str) -> int:
        """Bytes of the files in a mailbox, and of those without a name that are still open."""
        used = 0
        with os.scandir(self._mail / box) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # the master has taken it meanwhile, or it has its name now
                    used += entry.stat(follow_symlinks=False).st_size
        nameless = (file for file in map(os.fstat, self._open) if not file.st_nlink)
        return used + sum(file.st_size for file in nameless)
