"""The chunks of leases: cut from the graph when a lease is granted, published for its worker, gone with the lease."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.carriers.base import MasterMailboxes
from gridml.model.chunk import Chunk, cut
from gridml.model.graph import Graph
from gridml.model.ids import ascending
from gridml.protocol import bundle
from gridml.protocol.messages import Lease
from master.known_rows import Touched
from master.leases.epochs import Epochs
from master.records import Footprint, LeaseState
from master.store.spec import RunSpec
from master.telemetry.copying import Copying

Ids = NDArray[np.int64]


class Chunks:
    """Cuts and publishes the chunk of each lease; `copying` is told what each takes."""

    def __init__(self, spec: RunSpec, epochs: Epochs, mailboxes: MasterMailboxes, copying: Copying) -> None:
        self._spec = spec
        self._epochs = epochs
        self._mailboxes = mailboxes
        self._copying = copying

    def publish(self, lease: LeaseState) -> int:
        """Cut and publish the chunk of a lease; return its bytes."""
        if not self._mailboxes.carries_chunks:
            lease.footprint = Footprint("", {}, {})
            return 0
        chunk = self._cut(lease)
        payload = chunk.encode()
        self._mailboxes.publish(_name(lease), payload)
        self._copying.cut(chunk.count, len(payload))
        lease.footprint = Footprint(bundle.digest(payload), *_sides(chunk, self._spec.graph))
        return len(payload)

    def survey(self, lease: LeaseState) -> None:
        """Find what a lease touches whose chunk nobody will fetch (again)."""
        lease.footprint = Footprint("", *_sides(self._cut(lease), self._spec.graph))

    def retract(self, lease: LeaseState) -> None:
        self._mailboxes.retract(_name(lease))

    def describe(self, lease: LeaseState, *, afresh: bool = False) -> Lease:
        """Return the lease as its worker is told of it."""
        place = lease.epoch, lease.start, lease.stop
        untrained = self._epochs.untrained(lease.stop)
        chunk = _name(lease), lease.cut.sha256
        return Lease(lease.id, lease.term, *place, *chunk, afresh, self._epochs.fewest, untrained, self._modules(lease))

    def _modules(self, lease: LeaseState) -> dict[str, list[int]] | None:
        """The module vertices that a lease touches; None where there are no two of them in the graph."""
        tables = [table for table in self._spec.graph.replicated if table.type.modules]
        if sum(table.count for table in tables) < 2:
            return None
        touched = lease.cut.touched
        return {table.type.name: touched[table.type.name].tolist() for table in tables if table.type.name in touched}

    def _cut(self, lease: LeaseState) -> Chunk:
        order = self._epochs.order(lease.epoch)
        return cut(
            self._spec.graph,
            self._epochs.driver,
            order.vertices(lease.start, lease.stop),
            order.ends(lease.start, lease.stop),
            self._epochs.components,
            bsp=self._spec.program.bsp,
        )


def _name(lease: LeaseState) -> str:
    return f"lease-{lease.id:06d}"


def _sides(chunk: Chunk, graph: Graph) -> tuple[Touched, Touched]:
    """(replicated, local) vertices of a chunk by type; rows that only show a superstep's beginning are neither."""
    replicated: dict[str, Ids] = {}
    local: dict[str, Ids] = {}
    for name, table in chunk.tables.items():
        if name == table.type:
            side = replicated if graph.tables[table.type].type.replicated else local
            side[table.type] = ascending(table.ids)
    return replicated, local
