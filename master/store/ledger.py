"""The ledger: a SQLite database of leases, credits, versions, workers and events. The source of truth of a run.

This module has the SQL statements; `ledger_file` has the file and its transactions. Everything that must change
together changes in one `with ledger.transaction()`. State that is read often (open leases, free spans, saved
versions) is mirrored in memory. Rows that change often are written once, at the end of the transaction. When a
transaction fails, file and mirror return to the last commit. The master then ends, because the rest of its state may be
ahead of the ledger.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from gridml.errors import DamagedError
from gridml.protocol.messages import Logged
from gridml.protocol.payload import network_disk
from master.state.failures import Failed, open_failures
from master.state.lease_records import LeaseState, LeaseTable
from master.state.spans import Borders, FreeSpans, Span
from master.store.credits import (
    Credited,
    RollbackPoint,
    Undone,
    check_patches,
    count_credits,
    rollback_points,
    uncredited_spans,
    undo_credits,
)
from master.store.diagnosis import translate_errors
from master.store.ledger_file import LedgerFile
from master.store.ledger_rows import WorkerRows, WriteBatch, failed_from
from master.store.local_fields import FieldsBase
from master.store.rundir import RunDirectory
from master.store.schema import (
    LoggedMean,
    decode_checksummed,
    encode_checksummed,
    read_evaluated_since,
    read_fact,
    read_since,
)
from master.store.tick_rows import TickRows

_KEPT = "SELECT version, sha256, credited FROM versions WHERE kept"
NO_METRICS = encode_checksummed({}).text  # marks an epoch that is never evaluated; NULL marks one still to be evaluated


class Ledger(LedgerFile, WorkerRows, TickRows):
    """One run's ledger, open for writing by one master."""

    def __init__(self, path: Path, *, shared_disk: bool, create: bool = False, durable: bool = True) -> None:
        self._borders: Borders | None = None  # positions at which parts meet, by epoch
        super().__init__(path, shared_disk=shared_disk, create=create, durable=durable)

    @classmethod
    def of(cls, directory: RunDirectory, *, durable: bool = True) -> Ledger:
        """Open the ledger of an existing run. Raises as `LedgerFile` does."""
        return cls(directory.ledger, shared_disk=network_disk(directory.root) is not None, durable=durable)

    def _read_mirror(self) -> None:
        # The mirror: all attributes below repeat rows of the file. Only methods of this class mutate it, inside a
        # transaction. When a transaction fails, the mirror is read again from the file.
        self.leases = LeaseTable(  # every open lease exactly once, and ended ones whose last push may still arrive
            self._leases("closed_s IS NULL"), self._leases("reserved_until_s > ?", self.last_activity_s())
        )
        spans = (
            Span(epoch, start, stop, failed_from(failed))
            for epoch, start, stop, failed in self._db.execute("SELECT epoch, start, stop, failed FROM spans")
        )
        self.free_spans = FreeSpans(spans, self._borders)
        self.credited = self._one("SELECT coalesce(sum(credited), 0) FROM epochs")  # vertices, over all epochs
        # Vertices still to be credited, by epoch.
        self._left: dict[int, int] = dict(self._db.execute("SELECT epoch, vertices - credited FROM epochs"))
        # By version: (SHA-256 of its file, vertices credited in it), for versions whose files exist.
        self._kept: dict[int, tuple[str | None, int]] = {row[0]: row[1:] for row in self._db.execute(_KEPT)}
        self._has_averaged = self._one("SELECT 1 FROM credits WHERE staleness > 0 LIMIT 1") is not None
        self._next_lease = self._one("SELECT coalesce(max(id), 0) FROM leases") + 1
        self._batch = WriteBatch()

    def _write_batch(self) -> None:
        self._batch.write(self._db, *self.free_spans.changes())
        self._batch = WriteBatch()

    def _drop_batch(self) -> None:
        self._batch = WriteBatch()
        self.free_spans.changes()  # discards them: they belong to the failed transaction

    @property
    def spans(self) -> list[Span]:
        """Ranges that no worker holds, in order. Not to be changed by the caller."""
        return self.free_spans.spans

    def _leases(self, where: str, *values: Any) -> list[LeaseState]:
        """Read leases, ordered by number."""
        rows = self._db.execute(
            "SELECT id, term, epoch, start, stop, upto, worker, sequence, trained, version, reserved_until_s, failed "
            f"FROM leases WHERE {where} ORDER BY id",
            values,
        )
        known = ((*row, failed_from(failed)) for *row, failed in rows)
        return [LeaseState(*row) for row in known]

    def count_credits(self, db: sqlite3.Connection | None = None) -> Credited:
        """Count credits row by row. Raises DamagedError if the rows contradict one another."""
        try:
            check_patches(db or self._db)
            return count_credits(db or self._db)
        except ValueError as error:
            raise DamagedError(f"{self.path} is damaged: {error}", self.path) from error

    def verify(self) -> Credited:
        """Count credits in the file as another process reads it. Raises LedgerError unless it has what was written."""
        uri = f"{self.path.absolute().as_uri()}?mode=ro"
        with translate_errors(self.path.parent), closing(sqlite3.connect(uri, uri=True)) as db:
            self._check(db)
            counted = self.count_credits(db)
            same = {row[0]: row[1:] for row in db.execute(_KEPT)} == self._kept and counted.vertices == self.credited
            if not same or read_fact(db, "undone", False):
                raise self._harmed(f"{self.path} was overwritten")
            return counted

    # --- masters

    def take_over(self, now: float, newest_file: int) -> None:
        """Take the ledger over from the previous master, which finds a new term in it and writes nothing more.

        `newest_file` is the newest version that has a file.
        """
        with self.transaction():
            self._read_mirror()
            # The term comes from the clock. A mere counter could repeat terms of a ledger that was lost and replaced by
            # its copy.
            term = max(int(now), self.term + 1)
            next_version = self.next_version
            self.set("term", term)
            # A worker may have a version that has a file but no row, so that number is not reused.
            self.set("next_version", max(next_version, newest_file + 1))
            # One extra file belongs to a commit that failed. More show that the ledger is older than its files: it was
            # restored from its copy, or the disk lost its last writes.
            if newest_file > next_version:
                self.set("undone", True)
        self.term = term

    @property
    def next_version(self) -> int:
        """The number of the next version of the replica, which no file and no worker has yet."""
        return int(max(self.newest_version()[0] + 1, self.get("next_version", 0)))

    def backup(self) -> None:
        """Copy the ledger atomically to ledger.backup.db, and retain the versions that the copy needs."""
        needed = {self.newest_version()[0], *(v for _, v in self.unevaluated() if v in self._kept)}
        with self.transaction():  # also the versions of the old copy, which remains the only one if copying fails
            self.set("copied_versions", sorted(needed.union(self.copied_versions)))
        self._copy()
        with self.transaction():
            self.set("copied_versions", sorted(needed))

    @property
    def copied_versions(self) -> list[int]:
        """Versions that the copy of the ledger needs."""
        return [int(version) for version in self.get("copied_versions", [])]

    # --- epochs and spans

    def open_epoch(self, epoch: int, vertices: int, at_s: float) -> None:
        self._db.execute("INSERT INTO epochs (epoch, vertices, opened_s) VALUES (?, ?, ?)", (epoch, vertices, at_s))
        self._left[epoch] = vertices
        self.free(Span(epoch, 0, vertices))

    def close_epoch(self, epoch: int, version: int, at_s: float) -> None:
        self._db.execute("UPDATE epochs SET closed_s = ?, version = ? WHERE epoch = ?", (at_s, version, epoch))

    def is_epoch_complete(self, epoch: int) -> bool:
        return self._left.get(epoch, 1) <= 0

    def epochs_to_close(self) -> list[int]:
        """Return the open epochs that are credited in full, up to the first that is not."""
        # Epochs may overlap. A later one that is complete first waits for the earlier, so that the version that ends an
        # epoch contains all work of the epochs before it.
        query = "SELECT epoch FROM epochs WHERE closed_s IS NULL ORDER BY epoch"
        return list(takewhile(self.is_epoch_complete, (epoch for (epoch,) in self._db.execute(query))))

    def uncredited(self, epoch: int) -> int:
        """Return the vertices of an epoch that are still to be credited."""
        return self._left[epoch]

    def newest_epoch(self) -> tuple[int, bool]:
        """Return the last epoch that was opened, and whether it is closed."""
        epoch, closed = self._db.execute(
            "SELECT epoch, closed_s IS NOT NULL FROM epochs ORDER BY epoch DESC LIMIT 1"
        ).fetchone()
        return epoch, bool(closed)

    def epochs_closed(self) -> int:
        return int(self._one("SELECT count(*) FROM epochs WHERE closed_s IS NOT NULL"))

    def epoch_ends(self) -> list[tuple[int, int]]:
        """Return (epoch, version) of closed epochs, oldest first."""
        return list(self._db.execute("SELECT epoch, version FROM epochs WHERE closed_s IS NOT NULL ORDER BY epoch"))

    def unevaluated(self) -> list[tuple[int, int]]:
        """Return (epoch, version) of closed epochs without metrics, oldest first."""
        return list(
            self._db.execute(
                "SELECT epoch, version FROM epochs WHERE closed_s IS NOT NULL AND metrics IS NULL ORDER BY epoch"
            )
        )

    def evaluated_since(self, credited: int) -> list[tuple[int, int, float, dict[str, Any]]]:
        """As `schema.read_evaluated_since`."""
        return read_evaluated_since(self._db, credited)

    def logged_since(self, credited: int) -> list[LoggedMean]:
        """As `schema.read_since`."""
        return read_since(self._db, credited)

    def epochs_without_metrics(self, upto: int) -> list[int]:
        """Return the epochs up to `upto` that have begun and have no metrics, in order."""
        query = "SELECT epoch FROM epochs WHERE metrics IS NULL AND epoch <= ? ORDER BY epoch"
        return [epoch for (epoch,) in self._db.execute(query, (upto,))]

    def newest_evaluation(self) -> tuple[int, int]:
        """Return the number of epochs with metrics, and the version of the newest, -1 without any."""
        query = "SELECT count(*), coalesce(max(version), -1) FROM epochs WHERE metrics IS NOT NULL AND metrics != ?"
        count, version = self._db.execute(query, (NO_METRICS,)).fetchone()
        return count, version

    def evaluations(self) -> list[tuple[int, int, dict[str, Any]]]:
        """Return (epoch, version, metrics) of the epochs that have metrics, oldest first."""
        query = (
            "SELECT epoch, version, metrics, metrics_crc32 FROM epochs WHERE metrics IS NOT NULL AND metrics != ? "
            "ORDER BY epoch"
        )
        rows = self._db.execute(query, (NO_METRICS,))
        return [(epoch, version, decode_checksummed(*cells)) for epoch, version, *cells in rows]

    def epoch_s(self, epoch: int) -> float:
        """Return for how many seconds a closed epoch was open, 0 for any other."""
        query = "SELECT closed_s - opened_s FROM epochs WHERE epoch = ? AND closed_s IS NOT NULL"
        return float(self._one(query, epoch) or 0.0)

    def epochs_evaluated(self) -> int:
        return int(self._one("SELECT count(*) FROM epochs WHERE metrics IS NOT NULL"))

    def set_metrics(self, epoch: int, metrics: dict[str, Any]) -> None:
        text, crc32 = encode_checksummed(metrics)
        self._db.execute("UPDATE epochs SET metrics = ?, metrics_crc32 = ? WHERE epoch = ?", (text, crc32, epoch))

    def clear_metrics(self, epoch: int) -> None:
        """Drop the metrics of an epoch, so that it is evaluated again."""
        self._db.execute("UPDATE epochs SET metrics = NULL, metrics_crc32 = NULL WHERE epoch = ?", (epoch,))

    def divide(self, borders: Borders) -> None:
        """Cut free spans, now and later, at the positions at which parts meet in an epoch. Call before the first
        transaction."""
        self._borders = borders
        self.free_spans = FreeSpans(self.spans, self._borders)

    def free(self, span: Span) -> None:
        """Free a range, and join it to neighbours with the same failures."""
        self.free_spans.join(span)

    # --- leases and credits

    def isolate(self, wanted: Span) -> Span | None:
        """Keep a free range as a span of its own, which is not joined to a neighbour until `rejoin`. Returns None if
        the range is not free, or is part of an isolated range. The isolation is not saved: it ends with this master."""
        span = self.free_spans.containing(wanted.epoch, wanted.start)
        if span is None or span.isolated or wanted.stop > span.stop:
            return None
        isolated = replace(wanted, failed=open_failures(span.failed, wanted.start), isolated=True)
        self.free_spans.remove(span)
        self.free_spans.add(replace(span, stop=wanted.start))
        self.free_spans.add(isolated)
        self.free_spans.add(replace(span, start=wanted.stop, failed=open_failures(span.failed, wanted.stop)))
        return isolated

    def rejoin(self, isolated: Span) -> None:
        """End the isolation of a range, if it is still free."""
        if self.is_free(isolated):
            self.free_spans.remove(isolated)
            self.free(replace(isolated, isolated=False))

    def is_free(self, span: Span) -> bool:
        """Return whether exactly this span is free."""
        return self.free_spans.containing(span.epoch, span.start) == span

    def lease(self, span: Span, stop: int, worker: str, at_s: float, reason: str) -> LeaseState:
        """Lease [span.start, stop) of a free span to a worker. The rest of the span stays free."""
        self.free_spans.remove(span)
        self.free_spans.add(replace(span, start=stop, failed=open_failures(span.failed, stop), isolated=False))
        number, self._next_lease = self._next_lease, self._next_lease + 1
        lease = LeaseState(number, self.term, span.epoch, span.start, stop, span.start, worker, failed=span.failed)
        self.leases.add(lease)
        self._batch.open(lease, at_s, reason)
        return lease

    def credit(
        self,
        lease: LeaseState,
        upto: int,
        version: int,
        staleness: float,
        at_s: float,
        logged: Sequence[Logged] = (),
    ) -> None:
        """Credit [lease.upto, upto) in version `version`, as the next push of the lease, and record f's logs of it."""
        start, lease.upto = lease.upto, upto
        lease.sequence += 1
        lease.failed = open_failures(lease.failed, upto)
        lease.trained, lease.version = upto - lease.start, version
        self.credited += upto - start
        self._left[lease.epoch] -= upto - start
        self._has_averaged = self._has_averaged or staleness > 0
        self._batch.credit(lease, start, staleness, at_s)
        self._batch.log(lease, logged)

    def logged_names(self) -> list[tuple[str, set[str], set[str]]]:
        """Return for each name that f logs: (name, workers credited in the first version that has a log of it, workers
        credited in the last such version)."""
        names = self._db.execute("SELECT name, min(version), max(version) FROM logged GROUP BY name").fetchall()
        workers: dict[int, set[str]] = {version: set() for _, *ends in names for version in ends}
        query = f"SELECT DISTINCT version, worker FROM credits WHERE version IN ({','.join('?' * len(workers))})"
        for version, worker in self._db.execute(query, [*workers]):
            workers[version].add(worker)
        return [(name, workers[first], workers[last]) for name, first, last in names]

    def credited_to(self, worker: str) -> tuple[int, int]:
        """Return (first version that contains a push of a worker, the worker's credited vertices). Credits of the open
        transaction are still batched and do not count."""
        query = "SELECT min(version), sum(stop - start) FROM credits WHERE worker = ?"
        first, vertices = self._db.execute(query, (worker,)).fetchone()
        return first or 0, vertices or 0

    def cut(self, lease: LeaseState, stop: int) -> None:
        """Shorten a lease to end at `stop`, and free the rest."""
        cut_off = Span(lease.epoch, stop, lease.stop, open_failures(lease.failed, stop))
        lease.stop = stop
        self._batch.change(lease)
        self.free(cut_off)

    def end_lease(
        self, lease: LeaseState, at_s: float, because: str, *, failed: Failed | None = None, reassigned: bool = False
    ) -> None:
        """Close a lease and free its uncredited rest. Records that f `failed` in it, or that its rest is `reassigned`
        because the worker is a straggler."""
        self.leases.end(lease)
        lease.times_reassigned += reassigned
        self._batch.close(lease, at_s, because, times_reassigned=lease.times_reassigned if reassigned else 0)
        self.free(lease.rest if failed is None else replace(lease.rest, failed=(*lease.failed, failed)))

    def uncredited_rest(self, lease: LeaseState, stop: int) -> Span | None:
        """Return the free span that contains [lease.upto, stop) of an ended lease; None if any of it was leased again,
        or f has failed in it since."""
        span = self.free_spans.containing(lease.epoch, lease.upto)
        untried = span is not None and span.failed == lease.failed
        return span if span is not None and untried and lease.upto < stop <= span.stop else None

    def reopen(self, lease: LeaseState, stop: int, worker: str) -> None:
        """Lease the rest of an ended lease, up to `stop`, to `worker` under its old number. The rest must be free."""
        span = self.uncredited_rest(lease, stop)
        assert span is not None, "the rest of the lease is free"
        self.free_spans.remove(span)
        self.free_spans.add(replace(span, stop=lease.upto, isolated=False))
        self.free_spans.add(replace(span, start=stop, isolated=False))
        lease.stop, lease.worker, lease.reserved_until_s = stop, worker, None
        self.leases.add(lease)
        self._batch.change(lease)

    def closed_lease(self, number: int) -> tuple[LeaseState, str] | None:
        """Return an ended lease and the reason of its end, None for any other number."""
        self._write_batch()  # its end may be in the batch of the open transaction
        leases = self._leases("id = ? AND closed_s IS NOT NULL", number)
        return (leases[0], self._one("SELECT closed_because FROM leases WHERE id = ?", number)) if leases else None

    def drop_reservations(self) -> None:
        """Accept no more pushes for ended leases."""
        self._db.execute("UPDATE leases SET reserved_until_s = NULL WHERE reserved_until_s IS NOT NULL")
        self.leases.drop_reservations()

    def reassigned_ranges(self) -> list[tuple[Span, int]]:
        """Return (range, times reassigned) of ranges taken from stragglers in open epochs, oldest first."""
        rows = self._db.execute(
            "SELECT leases.epoch, upto, stop, overtaken FROM leases JOIN epochs USING (epoch) WHERE overtaken > 0 AND "
            "epochs.closed_s IS NULL ORDER BY leases.closed_s, id"
        )
        return [(Span(epoch, start, stop), times) for epoch, start, stop, times in rows]

    # --- versions of the master replica and patches of local fields

    def add_version(self, version: int, sha256: str | None, pushes: int, at_s: float) -> None:
        self._db.execute(
            "INSERT INTO versions (version, sha256, credited, pushes, at_s) VALUES (?, ?, ?, ?, ?)",
            (version, sha256, self.credited, pushes, at_s),
        )
        self._kept[version] = sha256, self.credited

    def newest_version(self) -> tuple[int, str | None]:
        row = self._db.execute("SELECT version, sha256 FROM versions ORDER BY version DESC LIMIT 1").fetchone()
        if row is None:
            raise DamagedError(f"{self.path} names no version of the replica", self.path)
        return row[0], row[1]

    def has_version(self, version: int) -> bool:
        """Return whether the version exists or has existed. False for an undone one, which a worker may still name."""
        return version in self._kept or self._one("SELECT 1 FROM versions WHERE version = ?", version) is not None

    def roll_back(self, to: int, version: int, sha256: str | None, at_s: float, because: str) -> Undone:
        """Undo all credits after version `to`, whose replica becomes `version`. All leases end."""
        self._write_batch()
        undone = undo_credits(self._db, to, at_s, because)
        self._read_mirror()
        for span in uncredited_spans(self._db):
            self.free(span)
        self.add_version(version, sha256, 0, at_s)
        self.set("undone_to", to)
        return undone

    def rollback_points(self) -> list[RollbackPoint]:
        """Return the versions that a rollback can return to, newest first."""
        return rollback_points(self._db)

    def credited_at(self, version: int) -> int | None:
        """Return the vertices credited in a version, None if it is no longer saved."""
        kept = self._kept.get(version)
        return None if kept is None else kept[1]

    def has_averaged(self) -> bool:
        """Return whether any push was merged with changes of others since its base."""
        return self._has_averaged

    def sha256_of(self, version: int) -> str | None:
        """Return the SHA-256 of a version's file, even if the version is no longer saved."""
        kept = self._kept.get(version)
        sha256: str | None
        sha256 = self._one("SELECT sha256 FROM versions WHERE version = ?", version) if kept is None else kept[0]
        return sha256

    @property
    def saved_versions(self) -> Collection[int]:
        return self._kept.keys()

    @property
    def saved_credits(self) -> dict[int, int]:
        """Vertices of the run credited in each saved version."""
        return {version: credited for version, (_, credited) in self._kept.items()}

    def drop_version(self, version: int) -> None:
        self._db.execute("UPDATE versions SET kept = 0 WHERE version = ?", (version,))
        self._kept.pop(version, None)

    def add_patch(self, version: int, epoch: int, sha256: str) -> None:
        self._db.execute("INSERT INTO patches VALUES (?, ?, ?)", (version, epoch, sha256))

    def patches(self) -> list[tuple[int, int, str]]:
        """Return (version, epoch, sha256) of the patches that are not yet part of the base, oldest first."""
        return list(self._db.execute("SELECT version, epoch, sha256 FROM patches ORDER BY version"))

    def base(self) -> FieldsBase | None:
        """Return the base of the local fields: their values at the start of the open epochs. None: the graph's own."""
        base = self.get("base")
        return None if base is None else FieldsBase(**base)

    def set_base(self, base: FieldsBase, patches: Sequence[tuple[int, int, str]]) -> None:
        """Record a base that contains these patches, and drop the patches."""
        self.set("base", asdict(base))
        self._db.executemany("DELETE FROM patches WHERE version = ?", [(version,) for version, _, _ in patches])

    def clear_failures(self) -> None:
        """Clear the failures counted against ranges, workers and machines. The rows of `failures` remain."""
        for lease in [*self.leases, *self.leases.reserved.values()]:
            lease.failed = ()
        for span in [span for span in self.spans if span.failed]:
            self.free_spans.remove(span)
            self.free(replace(span, failed=()))
        self._db.execute("UPDATE leases SET failed = '' WHERE failed != ''")
        self._db.execute("UPDATE workers SET failed = 0, avoided_until_s = NULL, avoided_because = NULL")
        self._db.execute("DELETE FROM machines")
