"""Which versions of the replica workers may still name as the base of a push; the others are removed.

A master that starts again does not know who stands on which version: it keeps all that are there until the workers
that live on have spoken, and what was reserved for their next attempts has come or expired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from gridml.protocol.attempts import job_of
from master.leases.epochs import Epochs
from master.records import WorkerRecord
from master.store.store import Store

SPARE_VERSIONS, SPARE_BYTES = 16, 1 << 28  # old versions are removed a few at a time: each time is a transaction


class VersionUse:
    """Counts who stands on which version, by the workers' records."""

    def __init__(self) -> None:
        self.speakers = 0  # workers that were heard, and have not ended
        self._users: Counter[int] = Counter()  # versions, by how many workers may stand on each
        self._reserved: dict[str, tuple[list[int], float]] = {}  # by job: its last attempt's versions, and until when
        self._inherited: frozenset[int] = frozenset()  # versions that workers of an earlier master may stand on,
        self._awaited: set[str] = set()  # while these have not spoken,
        self._inherited_until_s = 0.0  # and as long as their pushes are reserved

    def hear(self, record: WorkerRecord, version: int, number: int) -> None:
        """A worker says in its message `number` that it holds `version`."""
        self._awaited.discard(record.name)
        self._reserved.pop(job_of(record.name), None)
        self.speakers += record.number < 0
        if number != record.number:
            self._release(record.answered_with)
            record.number, record.answered_with = number, []
        if version != record.base:
            self._release([record.base])
            self._users[version] += 1
        record.base = version

    def answer(self, record: WorkerRecord, version: int) -> None:
        """An answer that names a version is on its way to a worker."""
        record.answered_with.append(version)
        self._users[version] += 1

    def forget(self, record: WorkerRecord, reserved_until_s: float | None = None) -> None:
        """A worker has ended. A later attempt of its job may bring what stands on an old version, until then."""
        self._awaited.discard(record.name)
        versions = [record.base, *record.answered_with] if record.number >= 0 else [*self._inherited]
        if reserved_until_s is not None:
            self._reserved[job_of(record.name)] = versions, reserved_until_s
        if record.number >= 0:
            self._release(versions)
            self.speakers -= 1
        record.number, record.base, record.answered_with, record.replicas_of = -1, -1, [], {}

    def inherit(self, workers: Collection[str], versions: Collection[int], until_s: float) -> None:
        """`workers` go on from an earlier master's time and stand on some of `versions`; so may what is reserved until
        `until_s`."""
        self._awaited, self._inherited, self._inherited_until_s = set(workers), frozenset(versions), until_s

    def in_use(self, version: int, now: float) -> bool:
        """Whether somebody may name a version as the base of a push."""
        if self._users[version] > 0:
            return True
        if version in self._inherited and (self._awaited or now < self._inherited_until_s):
            return True
        self._reserved = {job: kept for job, kept in self._reserved.items() if kept[1] > now}
        return any(version in versions for versions, _ in self._reserved.values())

    def _release(self, versions: Iterable[int]) -> None:
        """One worker less stands on each of these."""
        for version in versions:
            self._users[version] -= 1
            if self._users[version] <= 0:
                del self._users[version]


class VersionKeeper:
    """Removes versions that nobody needs: the newest, those to be evaluated and those in use stay."""

    def __init__(self, store: Store, epochs: Epochs, use: VersionUse) -> None:
        self._store = store
        self._epochs = epochs
        self._use = use
        self._enough = 0  # how many are kept before any is removed

    def tidy(self, now: float) -> None:
        ledger, replica = self._store.ledger, self._store.replica
        kept = ledger.kept_versions
        if len(kept) < self._enough:
            return
        needed = {replica.version, ledger.get("backup_version"), *self._epochs.unevaluated()}
        old = [v for v in kept if v not in needed and not self._use.in_use(v, now)]
        spare = max(1, min(SPARE_VERSIONS, SPARE_BYTES // max(1, replica.state.nbytes)))
        if len(old) >= spare:
            with ledger.transaction():
                for version in old:
                    ledger.forget_version(version)
            for version in old:
                replica.forget(version)
            old = []
        self._enough = len(kept) + max(1, spare - len(old))
