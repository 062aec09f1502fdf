"""Answers that bring a large replica name the newest version's file, which was written and hashed already.

To write a replica of 100 MB into an answer and to hash it there takes a third of what a push costs the master. The file
is published under a second name, as chunks are, so every carrier can fetch it, and it stays as long as an answer that
names it may be read, whatever becomes of the version. Where it cannot be published answers carry their tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import final

from gridml.carriers.base import MasterMailboxes
from gridml.protocol.messages import Stored
from gridml.protocol.push import ReplicaPart
from master.store.store import Store
from master.sync.version_use import VersionUse

LEAST = 1 << 20  # bytes: less is as soon written,
SHARE = 0.8  # as is a smaller part of the file, which is fetched whole


def by_name(brings: int, file_bytes: int, *, rows: bool, short: bool) -> tuple[bool, str]:
    """Whether an answer that brings so many bytes of module tensors, in their full length unless `short`, and perhaps
    `rows`, names the file of so many bytes that holds them; and why."""
    if rows or short:
        return False, "the file holds other values"
    if brings < LEAST:
        return False, f"{brings:,} bytes are as soon written"
    if brings < SHARE * file_bytes:
        return False, f"{brings:,} bytes are a small part of the file's {file_bytes:,}"
    return True, "the file is written and hashed already"


@final
class PublishedVersions:
    """The files that answers name, until nobody can want them any more."""

    def __init__(self, store: Store, versions: VersionUse, mailboxes: MasterMailboxes) -> None:
        self._store = store
        self._versions = versions
        self._mailboxes = mailboxes
        self._published: dict[int, str] = {}  # names, by version
        self._began = False

    def offer(self, lacking: ReplicaPart) -> tuple[Stored, int] | None:
        """Return what an answer with this part of the newest version says instead of carrying it, and the bytes that
        are fetched; None where it had better carry it."""
        newest = self._store.replica.whole_file if lacking.modules else None
        if newest is None:
            return None
        path, sha256 = newest
        names = [name for tensors in lacking.modules.values() for name in tensors]
        brings = sum(tensor.nbytes for tensors in lacking.modules.values() for tensor in tensors.values())
        file_bytes = _size(path) if brings >= LEAST else 0
        if not by_name(brings, file_bytes, rows=bool(lacking.rows), short=bool(lacking.short))[0]:
            return None
        version = self._store.replica.version
        self._begin()
        if not self._mailboxes.share(_name(version), path):
            return None
        self._published[version] = _name(version)
        return Stored(_name(version), sha256, names), file_bytes

    def _begin(self) -> None:
        """Retract what an earlier master left: who reads such an answer later asks again."""
        if not self._began:
            self._began = True
            for version in self._store.ledger.kept_versions:
                self._mailboxes.retract(_name(version))

    def tidy(self) -> None:
        """Retract what no worker can be on its way to."""
        self._retract([version for version in self._published if not self._versions.named(version)])

    def close(self) -> None:
        """Retract all: nobody trains any more."""
        self._retract([*self._published])

    def _retract(self, versions: Iterable[int]) -> None:
        for version in versions:
            self._mailboxes.retract(self._published.pop(version))


def _size(path: Path) -> int:
    """The bytes of a file; 0 where it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _name(version: int) -> str:
    return f"version-{version:08d}"
