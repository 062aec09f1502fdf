"""The versions of the replica that are kept: bases of pushes, tails of epochs, and versions to go back to.

All others are removed. A master that starts again does not know which worker stands on which version: it keeps all
that are there until the workers that live on have sent a message, and what was reserved for their next attempts has
come or expired.

The tail of an epoch is the versions before its end whose mean, with the one that ends it, is evaluated and kept.
Pushes of several workers are averaged as they come, and the replica goes on trembling around where it is heading,
the more the higher the rate is. The mean of a few versions trembles less, and lies as far back as they do (Polyak
and Juditsky 1992; Izmailov et al. 2018, arXiv:1803.05407; Kaddour 2022, arXiv:2209.14981). So a tail is short while
a run is young and still has a way to go, and where the rate has fallen to nothing there is none.
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

TAIL_SHARE = 0.25  # of a run, at the full rate
MAX_TAIL_VERSIONS = 8  # versions, with the one that ends the epoch
MAX_BYTES = 1 << 30  # that they may take on disk, each of all its tensors


def tail_width(credited: int, epoch: int, total: int, rate: float) -> int:
    """Return how many vertices are credited from the beginning of a tail to its end, where `credited` of `total` are,
    of which each epoch has `epoch`: a share of what is credited, the less the younger the run is, and the less is left
    of the learning rate; at most an epoch. `rate` (0 to 1) is that of the highest that the run has had."""
    return min(epoch, int(TAIL_SHARE * rate * credited * credited / total))


def tail_candidates(kept: Mapping[int, int], newest: int, width: int, nbytes: int) -> list[int]:
    """Return which versions to keep, oldest first, so that any that ends an epoch from `newest` on has its tail: of
    those that are `kept`, each with the vertices that are credited in it, and of `nbytes` bytes each.

    All that is credited is cut into pieces, a share of `width` each, and the first version in each of the last few is
    kept: what is of the tail of a later end, and is there already, is of this one's, too.
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
    """Return the versions of the tail that `end` ends, oldest first, without `end`; arguments as of `tail_candidates`.
    Together they take at most `MAX_BYTES`."""
    before = [version for version in tail_candidates(kept, end, width, nbytes) if kept[version] < kept[end]]
    return before[-(_max_versions(nbytes) - 1) :] if before else []


def _max_versions(nbytes: int) -> int:
    return min(MAX_TAIL_VERSIONS, MAX_BYTES // max(1, nbytes))


RATE_SAMPLES = 16  # of a run before an epoch's end, at which its rate is looked at
MAX_WAITING = 2  # epochs that wait for their evaluation, whose tails are kept
_Choose = Callable[[Mapping[int, int], int, int, int], list[int]]


class Tails:
    """An epoch has no tail where nothing was averaged: one worker's replica is that of a loop. Nor where rows travel
    apart, of which a version's file holds those that changed, or where the rate is torch's to know."""

    def __init__(self, spec: RunSpec, ledger: Ledger, replica: Replica) -> None:
        self._program = spec.program
        self._ledger = ledger
        self._replica = replica
        self._vertices = spec.graph.tables[spec.program.driving(spec.graph)].count
        self._epochs = spec.settings.epochs or spec.program.epochs
        self._steps = spec.program.update.steps(self._vertices)
        whole = bool(spec.graph.replicated) and all(table.type.modules for table in spec.graph.replicated)
        self._possible = whole and not isinstance(spec.program.schedule, TorchSchedule)
        self._widths: dict[int, int] = {}

    def end_of(self, epoch: int) -> Progress:
        """How far the run is when an epoch ends, counted from 0."""
        return self._at(min(epoch + 1, self._epochs) * self._vertices, epoch)

    def tail(self, epoch: int, end: int) -> list[int]:
        """The versions of the tail of an epoch that version `end` ends, as far as they are kept, without that one."""
        return self._chosen(tail_of, epoch, end)

    def wanted(self, closed: Mapping[int, int]) -> set[int]:
        """The versions to keep for epochs that are under way, for the last one, and for the first that wait for their
        evaluation. `closed` are the epochs that have ended, and the versions that they ended with."""
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
        except Exception:  # the user's: workers fail by it, too, and that is told
            return 0.0
        return max(0.0, factor) if math.isfinite(factor) else 0.0


MIN_ROLLBACK_VERSIONS = 4  # of them do
SERIES_DENSITY = 2  # of any age so many versions at least are kept within that age


def rollback_versions(kept: Collection[int], ends: Collection[int], newest: int, nbytes: int) -> set[int]:
    """Return the kept versions that a rollback may need: the ends of epochs, and a series that thins out with age.

    A version stays in the series while it is no older than `SERIES_DENSITY` times the largest power of two that divides
    it, so the gaps grow with age, and of n versions about 2·log2 n are kept. With `nbytes` bytes each they take at most
    `MAX_BYTES`. The end of the last epoch has priority, then the newest versions.
    """
    series = {v for v in kept if newest - v <= SERIES_DENSITY * (v & -v if v else newest)}
    closed = sorted(set(ends) & set(kept), reverse=True)
    order = dict.fromkeys([*closed[:1], *sorted(series.union(closed), reverse=True)])
    return set(list(order)[: max(MIN_ROLLBACK_VERSIONS, MAX_BYTES // max(1, nbytes))])


SPARE_VERSIONS, SPARE_BYTES = 16, 1 << 28  # old versions are removed a few at a time: each time is a transaction


class VersionUse:
    """Counts who stands on which version. What each worker stands on is in its record, and what was reserved for a
    later attempt of its job in those of the leases."""

    def __init__(self, ledger: Ledger) -> None:
        self.active_workers = 0  # workers that were heard, and have not ended
        self._ledger = ledger
        self._users: Counter[int] = Counter()  # versions, by how many workers may stand on each
        self._inherited: frozenset[int] = frozenset()  # versions that workers of an earlier master may stand on,
        self._awaited = 0  # while so many of them have not spoken,
        self._inherited_until_s = 0.0  # and as long as their pushes are reserved

    def handle(self, record: WorkerRecord, version: int, number: int) -> None:
        """A worker says in its message `number` that it holds `version`: it has brought what was reserved for it."""
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
        """An answer that names a version is on its way to a worker."""
        record.held.answered_with.append(version)
        self._users[version] += 1

    def forget(self, record: WorkerRecord) -> tuple[int, ...]:
        """A worker has ended; return the versions on which it may have stood."""
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
        """These workers go on from an earlier master's time and stand on some of `versions`; so may what is reserved
        until `until_s`."""
        for record in records:
            record.held.is_awaited = True
        self._awaited, self._inherited, self._inherited_until_s = len(records), frozenset(versions), until_s

    def is_referenced(self, version: int) -> bool:
        """Whether a worker that was heard stands on a version, or an answer that names it is on its way to one."""
        return self._users[version] > 0

    def in_use(self, version: int, now: float) -> bool:
        """Whether somebody may name a version as the base of a push."""
        if self.is_referenced(version):
            return True
        if version in self._inherited and (self._awaited or now < self._inherited_until_s):
            return True
        self._ledger.leases.expire(now)
        return any(version in lease.reserved_versions for lease in self._ledger.leases.reserved.values())

    def _stop_waiting_for(self, record: WorkerRecord) -> None:
        """Stop waiting for the word of a worker of an earlier master."""
        self._awaited -= record.held.is_awaited
        record.held.is_awaited = False

    def _drop_reserved(self, record: WorkerRecord) -> None:
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

    def __init__(self, store: Store, epochs: Epochs, tails: Tails, use: VersionUse, trust: Trust) -> None:
        self._store = store
        self._epochs = epochs
        self._tails = tails
        self._use = use
        self._trust = trust
        self._enough = 0  # how many are kept before any is removed

    def tidy(self, now: float) -> None:
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
