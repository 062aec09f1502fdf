"""Taking a run back while it goes on: from a replica on which several workers fail to the newest one before it."""

from __future__ import annotations

from gridml.errors import DamagedError
from gridml.protocol.messages import Push
from master.decisions.recovery import FailedOn, go_back
from master.leases.leases import Leases
from master.records import LeaseState
from master.store.journal import Events
from master.store.store import Store
from master.sync.conduct import Conduct
from master.sync.failures import Failures
from master.sync.kept_moments import KeptMoments


class Recovery:
    """What fails and what succeeds on which version, and what follows from it."""

    def __init__(
        self,
        store: Store,
        leases: Leases,
        failures: Failures,
        conduct: Conduct,
        moments: KeptMoments,
        events: Events,
    ) -> None:
        self._store = store
        self._leases = leases
        self.failures = failures
        self.conduct = conduct
        self.moments = moments
        self._events = events
        self._failed: list[FailedOn] = []
        self._succeeded_on: int | None = None

    def fail(self, lease: LeaseState, version: int) -> None:
        """A worker failed on the next range of its lease, with a replica of a version."""
        self._failed.append(FailedOn(lease.worker, lease.epoch, lease.upto, version))

    def succeed(self, push: Push) -> None:
        """A push was merged."""
        self._succeeded_on = max(push.base, -1 if self._succeeded_on is None else self._succeeded_on)
        self._failed = [each for each in self._failed if each.version > self._succeeded_on]

    def step(self, now: float) -> bool:
        """Take the run back if that is due; return whether it was. Must be called outside a transaction."""
        if not self._failed:
            return False
        ledger, replica = self._store.ledger, self._store.replica
        restored, copied_from = ledger.get("restored", (-1, -1))  # the newest version of those that were gone back to
        failed = [
            FailedOn(each.worker, each.epoch, each.start, copied_from if each.version == restored else each.version)
            for each in self._failed
        ]
        succeeded = copied_from - 1 if self._succeeded_on == restored else self._succeeded_on
        base = ledger.base()  # fields can be shown as they were since that, and not before
        oldest = 0 if base is None else base.version
        kept = [version for version in ledger.kept_versions if version != restored and version >= oldest]
        to, reason = go_back(failed, succeeded, kept, ledger.get("taken_back", 0))
        if to is None:
            return False
        victims = {each.worker for each in failed}
        newest, gone = replica.next_version, [version for version in ledger.kept_versions if version > to]
        try:
            sha256 = self._store.versions.copy(to, ledger.sha256_of(to), newest, ledger.credited_at(to) or 0)
        except DamagedError:  # it is damaged: the run ends with what failed
            return False
        because = f"taken back to version {to}: {reason}"
        with ledger.transaction():
            for lease in [*ledger.leases]:
                self._leases.end(lease, now, because)
            undone = ledger.go_back(to, newest, sha256, now, because)
            ledger.set("restored", (newest, to))
            ledger.set("taken_back", ledger.get("taken_back", 0) + 1)
            again = f"{undone.vertices:,} vertices are trained again"
            facts = {"version": to, "vertices": undone.vertices}
            self._events.record("rollback", facts, f"back to version {to}, as {reason}; {again}")
            for worker in undone.workers:
                if worker not in victims:
                    self.conduct.quarantine(worker, f"its pushes after version {to} were undone", now)
        ledger.backup()  # the copy there was may need a version that is undone
        replica.load(newest, sha256)
        self.moments.clear()
        self._store.fields.show(base, ledger.patches())
        for version in gone:
            replica.forget(version)
        self._failed, self._succeeded_on, self.failures.stop_because = [], to, None
        return True
