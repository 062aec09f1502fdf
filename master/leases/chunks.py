"""Chunks of leases: cut from the graph on a grant, published for the worker, retracted when the lease ends.

Rows that the worker has cached are left out (`master.caching.known_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gridml.carriers.base import MasterMailboxes
from gridml.model.chunk import Borrowed, Chunk, cut
from gridml.model.graph import Graph
from gridml.model.order import Ids, Touched, ascending
from gridml.protocol import bundle
from gridml.protocol.messages import CACHED_DIGITS, Lease
from master.caching.known_rows import CarriedFiles, CarriedPayloads
from master.leases.epochs import Epochs
from master.state.lease_records import Footprint, LeaseState
from master.store.spec import RunSpec
from master.telemetry.measures import CopyCosts


class Chunks:
    """Cuts and publishes the chunk of each lease."""

    def __init__(
        self, spec: RunSpec, epochs: Epochs, mailboxes: MasterMailboxes, copying: CopyCosts, folder: Path
    ) -> None:
        self._spec = spec
        self._epochs = epochs
        self._mailboxes = mailboxes
        self._copying = copying  # measures seconds and bytes of each chunk, for chunk sizing
        # The index is in files, so that the next master knows which rows workers have cached.
        self._payloads = CarriedPayloads(spec.graph, CarriedFiles(folder))

    def publish(self, lease: LeaseState, cached: Sequence[str] | None = None) -> int:
        """Cut and publish the chunk of a lease; return its size in bytes.

        `cached` names the payloads in the worker's cache, whose rows are left out; None: the worker has no cache.
        """
        if not self._mailboxes.carries_chunks:
            lease.footprint = Footprint("", {}, {})
            return 0
        chunk = self._cut(lease, None if not cached else lambda name, ids: self._payloads.borrow(name, ids, cached)[0])
        payload = chunk.pieces()
        sha256 = bundle.digest(payload)
        self._mailboxes.publish(_name(lease), payload)
        # Borrowed rows count, too: the limit on a chunk bounds the memory that the worker needs for the whole chunk.
        self._copying.cut(chunk.count, len(payload) + _borrowed_bytes(chunk, self._spec.graph))
        if cached is not None:
            self._payloads.add(sha256, chunk)
        lease.footprint = Footprint(sha256, *_sides(chunk, self._spec.graph), _borrows(chunk))
        return len(payload)

    def refresh(self, lease: LeaseState, cached: Sequence[str] | None) -> int:
        """Publish the chunk of a lease again if it borrows from payloads that the worker no longer has; return its
        size in bytes, 0 if nothing was published."""
        if lease.footprint is None or lease.cut.borrows <= set(cached or ()):
            return 0
        return self.publish(lease, cached)

    def survey(self, lease: LeaseState) -> None:
        """Record the rows that a lease touches, without publishing its chunk: the worker has trained it already."""
        lease.footprint = Footprint("", *_sides(self._cut(lease), self._spec.graph))

    def retract(self, lease: LeaseState) -> None:
        self._mailboxes.retract(_name(lease))

    def describe(self, lease: LeaseState, *, afresh: bool = False) -> Lease:
        """Return the lease as a message for its worker."""
        place = lease.epoch, lease.start, lease.stop
        untrained = self._epochs.untrained(lease.stop)
        chunk = _name(lease), lease.cut.sha256
        fewest = self._epochs.min_batch if self._epochs.ticks is None else lease.stop - lease.start
        batches = fewest, untrained
        return Lease(lease.id, lease.term, *place, *chunk, afresh, *batches, self._modules(lease))

    def _modules(self, lease: LeaseState) -> dict[str, list[int]] | None:
        """Return the module vertices that a lease touches; None if the graph has fewer than two."""
        tables = [table for table in self._spec.graph.replicated if table.type.modules]
        if sum(table.count for table in tables) < 2:
            return None
        touched = lease.cut.touched
        return {table.type.name: touched[table.type.name].tolist() for table in tables if table.type.name in touched}

    def _cut(self, lease: LeaseState, held: Callable[[str, Ids], Borrowed | None] | None = None) -> Chunk:
        order = self._epochs.order(lease.epoch)
        whole = cut(
            self._spec.graph,
            self._epochs.driver,
            order.vertices(lease.start, lease.stop),
            order.ends(lease.start, lease.stop),
            self._epochs.components,
            bsp=self._spec.program.consistency.is_bsp,
            held=held,
            drawn=self._epochs.drawn(lease.epoch, lease.start),
        )
        return replace(whole, phase=self._epochs.phase(lease.epoch, lease.start))


def _name(lease: LeaseState) -> str:
    return f"lease-{lease.id:06d}"


def _borrows(chunk: Chunk) -> frozenset[str]:
    """Return the payloads that a chunk borrows from, by the digits that workers use to name them."""
    tables = [table.borrowed for table in chunk.tables.values() if table.borrowed is not None]
    return frozenset(sha256[:CACHED_DIGITS] for borrowed in tables for sha256 in borrowed.payloads)


def _borrowed_bytes(chunk: Chunk, graph: Graph) -> int:
    """Return the bytes of array fields that a chunk leaves out because its worker has them."""
    nbytes = 0
    for table in chunk.tables.values():
        if table.borrowed is not None:
            columns = graph.tables[table.type].columns
            missing = len(table.ids) - len(table.carried)
            nbytes += missing * sum(columns[name][:1].nbytes for name in table.lasting)
    return nbytes


def _sides(chunk: Chunk, graph: Graph) -> tuple[Touched, Touched]:
    """Return (replicated, local) vertices of a chunk by type. Rows that only hold the state at the beginning of a
    superstep are in neither."""
    replicated: dict[str, Ids] = {}
    local: dict[str, Ids] = {}
    for name, table in chunk.tables.items():
        if name == table.type:
            side = replicated if graph.tables[table.type].type.replicated else local
            side[table.type] = ascending(table.ids)
    return replicated, local
