"""Retention of replica versions: keeps bases of pushes, tails of epochs, and versions to roll back to.

All other versions are removed. A worker stands on the version that it trains from. A restarted master does not know
which versions workers stand on. It keeps all versions until every surviving worker has sent a message, and until the
reserved last pushes of ended attempts have arrived or expired.

The tail of an epoch is a series of versions before its end. The mean of the tail and of the version that ends the epoch
is evaluated and saved. Averaging the pushes of several workers makes the replica fluctuate around its course,
especially at a high learning rate. The mean of a few versions fluctuates less, but lags behind the newest of them
(Polyak and Juditsky 1992; Izmailov et al. 2018, arXiv:1803.05407; Kaddour 2022, arXiv:2209.14981). A tail is therefore
short while a run is young and its replica still moves far, and empty once the rate has fallen to zero.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from gridml.model.schedule import Progress, TorchSchedule
from gridml.protocol.outbox import job_of
from master.leases.epochs import Epochs
from master.state.worker_records import WorkerRecord
from master.store.ledger import Ledger
from master.store.replica import Replica
from master.store.spec import RunSpec
from master.store.store import Store
from master.trust.trust import Trust

#: Share of a run that the last tail covers at the full learning rate.
TAIL_SHARE = 0.25
#: Maximum number of versions in a tail, including the version that ends the epoch.
MAX_TAIL_VERSIONS = 8
#: Maximum bytes on disk of a tail, and maximum bytes of the versions to roll back to.
MAX_BYTES = 1 << 30


def tail_width(credited: int, epoch: int, total: int, rate: float) -> int:
    """Return the number of vertices credited between the start and the end of a tail, at most those of an epoch.

    The tail ends at `credited` of `total` vertices. An epoch has `epoch` vertices. `rate` is the learning rate as a
    share of the highest one so far.
    """
    return min(epoch, int(TAIL_SHARE * rate * credited * credited / total))


def tail_candidates(kept: Mapping[int, int], newest: int, width: int, nbytes: int) -> list[int]:
    """Return the versions to keep, oldest first, so that an epoch that ends with `newest` or later has its tail.

    `kept` maps the versions that exist to the number of vertices credited in them; each takes `nbytes`. The credited
    vertices are divided into equal pieces, several per `width`, and the first version in each of the last few pieces is
    kept. The choice does not depend on the end of the epoch, so it includes all existing versions that a later end
    needs.
    """
    most = _max_versions(nbytes)
    if width == 0 or most < 2 or newest not in kept:
        return []
    piece, firsts = max(1, width // most), dict[int, int]()
    for version in sorted(kept):
        if version <= newest:
            firsts.setdefault(kept[version] // piece, version)
    return [version for place, version in firsts.items() if place > kept[newest] // piece - most]


def tail_of(kept: Mapping[int, int], end: int, width: int, nbytes: int) -> list[int]:
    """Return the versions of the tail that ends with version `end`, oldest first and without `end`. The other arguments
    are those of `tail_candidates`. The versions and `end` together take at most `MAX_BYTES`."""
    before = [version for version in tail_candidates(kept, end, width, nbytes) if kept[version] < kept[end]]
    return before[-(_max_versions(nbytes) - 1) :] if before else []


def _max_versions(nbytes: int) -> int:
    return min(MAX_TAIL_VERSIONS, MAX_BYTES // max(1, nbytes))


#: Number of points of a run at which the learning rate is sampled to find its maximum.
RATE_SAMPLES = 16
#: Maximum number of epochs that wait for their evaluation and whose tails are kept.
MAX_WAITING = 2
_Choose = Callable[[Mapping[int, int], int, int, int], list[int]]


class Tails:
    """Chooses the tail of each epoch.

    An epoch has no tail if nothing was averaged, because one worker's replica is that of a plain loop; if replicated
    types have array fields, because a version's file can hold only the rows that changed; or if torch computes the
    learning rate.
    """

    def __init__(self, spec: RunSpec, ledger: Ledger, replica: Replica) -> None:
        self._program = spec.program
        self._ledger = ledger
        self._replica = replica
        self._vertices = spec.program.positions(spec.graph)
        self._epochs = spec.epochs
        self._steps = spec.program.shape.steps(self._vertices)
        whole = bool(spec.graph.replicated) and all(table.type.modules for table in spec.graph.replicated)
        self._possible = whole and not isinstance(spec.program.schedule, TorchSchedule)
        self._widths: dict[int, int] = {}

    def end_of(self, epoch: int) -> Progress:
        """Return the progress of the run at the end of an epoch, counted from 0."""
        return self._at(min(epoch + 1, self._epochs) * self._vertices, epoch)

    def tail(self, epoch: int, end: int) -> list[int]:
        """Return the versions in the tail of an epoch that ends with version `end`, without `end`. Versions that are
        not kept are left out."""
        return self._chosen(tail_of, epoch, end)

    def wanted(self, closed: Mapping[int, int]) -> set[int]:
        """Return the versions to keep for the tails of unfinished epochs, of the last epoch, and of the first epochs
        that wait for their evaluation. `closed` maps finished epochs to the versions that ended them."""
        newest, _ = self._ledger.newest_epoch()
        last = [epoch for epoch in (newest - 1, newest) if epoch >= 0 and (epoch == newest or epoch not in closed)]
        ends = {epoch: closed.get(epoch, self._replica.version) for epoch in last}
        if self._program.evaluate is not None:
            ends |= dict(self._ledger.unevaluated()[:MAX_WAITING])
        return {version for epoch, end in ends.items() for version in self._chosen(tail_candidates, epoch, end)}

    def _chosen(self, choose: _Choose, epoch: int, end: int) -> list[int]:
        if not self._possible or not self._ledger.has_averaged():
            return []
        return choose(self._ledger.saved_credits, end, self._width(epoch), self._replica.state.nbytes)

    def _width(self, epoch: int) -> int:
        if epoch not in self._widths:
            total, end = self._epochs * self._vertices, min(epoch + 1, self._epochs) * self._vertices
            places = [end * place // RATE_SAMPLES for place in range(RATE_SAMPLES + 1)]
            rates = [self._rate(self._at(credited, min(epoch, credited // self._vertices))) for credited in places]
            rate = rates[-1] / max(rates) if any(rates) else 0.0
            self._widths[epoch] = tail_width(end, self._vertices, total, rate)
        return self._widths[epoch]

    def _at(self, credited: int, epoch: int) -> Progress:
        step, steps = self._steps.at(credited, self._epochs), self._epochs * self._steps.per_epoch
        return Progress(epoch, share=credited / (self._epochs * self._vertices), step=step, steps=steps)

    def _rate(self, at: Progress) -> float:
        try:
            factor = self._program.factor(at)
        except Exception:  # an error in the user's schedule, which also fails at workers, and is reported by them
            return 0.0
        return max(0.0, factor) if math.isfinite(factor) else 0.0


#: Number of versions to roll back to that are kept whatever their size.
MIN_ROLLBACK_VERSIONS = 4
#: A version is kept until it is older than this many times the largest power of two that divides its number.
SERIES_DENSITY = 2


def rollback_versions(kept: Collection[int], ends: Collection[int], newest: int, nbytes: int) -> set[int]:
    """Return the kept versions that a rollback may need: the ends of epochs, and a series that thins out with age.

    A version stays in the series while it is no older than `SERIES_DENSITY` times the largest power of two that divides
    its number. So gaps grow with age, and about 2·log2 n of n versions are kept. Of these, at most
    `MIN_ROLLBACK_VERSIONS` or `MAX_BYTES` are returned, whichever is more; each version takes `nbytes`. The end of the
    last epoch has priority, then the newest versions.
    """
    series = {v for v in kept if newest - v <= SERIES_DENSITY * (v & -v if v else newest)}
    closed = sorted(set(ends) & set(kept), reverse=True)
    order = dict.fromkeys([*closed[:1], *sorted(series.union(closed), reverse=True)])
    return set(list(order)[: max(MIN_ROLLBACK_VERSIONS, MAX_BYTES // max(1, nbytes))])


#: Maximum number and bytes of old versions that pile up before they are removed together, in one transaction.
SPARE_VERSIONS, SPARE_BYTES = 16, 1 << 28


class VersionUse:
    """Reference counts of versions.

    The versions of each worker are in its record; `_users` is always the sum of their references over all records.
    Versions that are reserved for a later attempt of a job are in the leases.
    """

    def __init__(self, ledger: Ledger) -> None:
        #: workers that have sent a message and have not ended
        self.active_workers = 0
        self._ledger = ledger
        #: number of workers that may stand on each version; no zeros
        self._users: Counter[int] = Counter()
        #: versions that workers of an earlier master may use; kept while `_awaited`, or until `_inherited_until_s`
        self._inherited: frozenset[int] = frozenset()
        #: workers of an earlier master that have sent no message yet
        self._awaited = 0
        #: time at which reservations for these workers end
        self._inherited_until_s = 0.0

    def handle(self, record: WorkerRecord, version: int, number: int) -> None:
        """Record that a worker's message `number` reports version `version`. With its first message the reservations
        for its job end, because a reserved push arrives no later."""
        self._stop_waiting_for(record)
        held = record.held
        if held.number < 0:
            self._drop_reserved(record)
            self.active_workers += 1
        if number != held.number:
            self._release(held.answered_with)
            held.number, held.answered_with = number, []
        if version != held.base:
            self._release([held.base])
            self._users[version] += 1
        held.base = version

    def record_reply(self, record: WorkerRecord, version: int) -> None:
        """Record that a reply with a version is under way to a worker."""
        record.held.answered_with.append(version)
        self._users[version] += 1

    def forget(self, record: WorkerRecord) -> tuple[int, ...]:
        """Drop a worker that has ended; return the versions on which it may have stood last."""
        self._stop_waiting_for(record)
        held = record.held
        if held.number < 0:
            return (*self._inherited,)
        versions = (held.base, *held.answered_with)
        self._release(versions)
        self.active_workers -= 1
        held.number, held.base, held.answered_with, held.replicas_of = -1, -1, [], {}
        held.rows.clear()
        return versions

    def inherit(self, records: Collection[WorkerRecord], versions: Collection[int], until_s: float) -> None:
        """Take over the workers of an earlier master. These workers, and the pushes that are reserved until `until_s`,
        are based on some of `versions`."""
        for record in records:
            record.held.is_awaited = True
        self._awaited, self._inherited, self._inherited_until_s = len(records), frozenset(versions), until_s

    def is_referenced(self, version: int) -> bool:
        """Return whether a worker stands on a version, or a reply with it is under way."""
        return self._users[version] > 0

    def in_use(self, version: int, now: float) -> bool:
        """Return whether any worker can still push with a version as base."""
        if self.is_referenced(version):
            return True
        if version in self._inherited and (self._awaited or now < self._inherited_until_s):
            return True
        self._ledger.leases.expire(now)
        return any(version in lease.reserved_versions for lease in self._ledger.leases.reserved.values())

    def _stop_waiting_for(self, record: WorkerRecord) -> None:
        """Count a worker of an earlier master as no longer awaited."""
        self._awaited -= record.held.is_awaited
        record.held.is_awaited = False

    def _drop_reserved(self, record: WorkerRecord) -> None:
        """Release the versions reserved for a worker's job. Reserved pushes arrive no later than its first message."""
        job = job_of(record.name)
        for lease in self._ledger.leases.reserved.values():
            if lease.reserved_versions and job_of(lease.worker) == job:
                lease.reserved_versions = ()

    def _release(self, versions: Iterable[int]) -> None:
        """Drop one reference to each of these versions."""
        for version in versions:
            self._users[version] -= 1
            if self._users[version] <= 0:
                del self._users[version]


class VersionKeeper:
    """Removes old versions. The newest version stays, and versions that are in use or needed to evaluate, average or
    roll back to."""

    def __init__(self, store: Store, epochs: Epochs, tails: Tails, use: VersionUse, trust: Trust) -> None:
        self._store = store
        self._epochs = epochs
        self._tails = tails
        self._use = use
        self._trust = trust
        #: with fewer kept versions than this, not enough of them can be old to be removed
        self._enough = 0

    def tidy(self, now: float) -> None:
        """Remove old versions, if there are enough of them."""
        ledger, replica = self._store.ledger, self._store.replica
        kept = ledger.saved_versions
        if len(kept) < self._enough:
            return
        needed = {replica.version, *ledger.copied_versions, *self._epochs.unevaluated(), *self._trust.versions}
        ends = dict(ledger.epoch_ends())
        needed |= self._tails.wanted(ends)
        needed |= rollback_versions(kept, ends.values(), replica.version, replica.state.nbytes)
        old = [v for v in kept if v not in needed and not self._use.in_use(v, now)]
        spare = max(1, min(SPARE_VERSIONS, SPARE_BYTES // max(1, replica.file_bytes)))
        if len(old) >= spare:
            with ledger.transaction():
                for version in old:
                    ledger.drop_version(version)
            for version in old:
                replica.drop(version)
            old = []
        self._enough = len(kept) + max(1, spare - len(old))
