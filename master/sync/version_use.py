"""Which versions of the replica workers may still name as the base of a push; the others are removed.

A master that starts again does not know who stands on which version: it keeps all that are there until the workers
that live on have spoken, and what was reserved for their next attempts has come or expired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from gridml.protocol.attempts import job_of
from master.decisions.keeping import to_go_back_to
from master.leases.epochs import Epochs
from master.records import WorkerRecord
from master.store.ledger import Ledger
from master.store.store import Store
from master.sync.spot_checks import SpotChecks
from master.sync.tails import Tails

SPARE_VERSIONS, SPARE_BYTES = 16, 1 << 28  # old versions are removed a few at a time: each time is a transaction


class VersionUse:
    """Counts who stands on which version. What each worker stands on is in its record, and what was reserved for a
    later attempt of its job in those of the leases."""

    def __init__(self, ledger: Ledger) -> None:
        self.speakers = 0  # workers that were heard, and have not ended
        self._ledger = ledger
        self._users: Counter[int] = Counter()  # versions, by how many workers may stand on each
        self._inherited: frozenset[int] = frozenset()  # versions that workers of an earlier master may stand on,
        self._awaited = 0  # while so many of them have not spoken,
        self._inherited_until_s = 0.0  # and as long as their pushes are reserved

    def hear(self, record: WorkerRecord, version: int, number: int) -> None:
        """A worker says in its message `number` that it holds `version`: it has brought what was reserved for it."""
        self._speak(record)
        if record.number < 0:
            self._bring(record)
            self.speakers += 1
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

    def forget(self, record: WorkerRecord) -> tuple[int, ...]:
        """A worker has ended; return the versions on which it may have stood."""
        self._speak(record)
        if record.number < 0:
            return (*self._inherited,)
        versions = (record.base, *record.answered_with)
        self._release(versions)
        self.speakers -= 1
        record.number, record.base, record.answered_with, record.replicas_of = -1, -1, [], {}
        record.rows.clear()
        return versions

    def inherit(self, records: Collection[WorkerRecord], versions: Collection[int], until_s: float) -> None:
        """These workers go on from an earlier master's time and stand on some of `versions`; so may what is reserved
        until `until_s`."""
        for record in records:
            record.awaited = True
        self._awaited, self._inherited, self._inherited_until_s = len(records), frozenset(versions), until_s

    def named(self, version: int) -> bool:
        """Whether a worker that was heard stands on a version, or an answer that names it is on its way to one."""
        return self._users[version] > 0

    def in_use(self, version: int, now: float) -> bool:
        """Whether somebody may name a version as the base of a push."""
        if self.named(version):
            return True
        if version in self._inherited and (self._awaited or now < self._inherited_until_s):
            return True
        self._ledger.leases.expire(now)
        return any(version in lease.reserved_versions for lease in self._ledger.leases.reserved.values())

    def _speak(self, record: WorkerRecord) -> None:
        """Stop waiting for the word of a worker of an earlier master."""
        self._awaited -= record.awaited
        record.awaited = False

    def _bring(self, record: WorkerRecord) -> None:
        """A worker has said its first word: what was reserved for it has come with it, or never will."""
        job = job_of(record.name)
        for lease in self._ledger.leases.reserved.values():
            if lease.reserved_versions and job_of(lease.worker) == job:
                lease.reserved_versions = ()

    def _release(self, versions: Iterable[int]) -> None:
        """One worker less stands on each of these."""
        for version in versions:
            self._users[version] -= 1
            if self._users[version] <= 0:
                del self._users[version]


class VersionKeeper:
    """Removes versions that nobody needs: the newest, those to be evaluated, averaged or gone back to and those in use
    stay."""

    def __init__(self, store: Store, epochs: Epochs, tails: Tails, use: VersionUse, checks: SpotChecks) -> None:
        self._store = store
        self._epochs = epochs
        self._tails = tails
        self._use = use
        self._checks = checks
        self._enough = 0  # how many are kept before any is removed

    def tidy(self, now: float) -> None:
        ledger, replica = self._store.ledger, self._store.replica
        kept = ledger.kept_versions
        if len(kept) < self._enough:
            return
        needed = {replica.version, *ledger.copied_versions, *self._epochs.unevaluated(), *self._checks.versions}
        ends = dict(ledger.epoch_ends())
        needed |= self._tails.wanted(ends)
        needed |= to_go_back_to(kept, ends.values(), replica.version, replica.state.nbytes)
        old = [v for v in kept if v not in needed and not self._use.in_use(v, now)]
        spare = max(1, min(SPARE_VERSIONS, SPARE_BYTES // max(1, replica.file_bytes)))
        if len(old) >= spare:
            with ledger.transaction():
                for version in old:
                    ledger.forget_version(version)
            for version in old:
                replica.forget(version)
            old = []
        self._enough = len(kept) + max(1, spare - len(old))
