"""The epochs of a run: the order of the vertices in each, when one opens, and when it is complete."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.model.graph import components
from gridml.model.order import EpochOrder
from master.leases.stopping import Stopping
from master.store.ledger import Ledger
from master.store.spec import RunSpec

Ids = NDArray[np.int64]


class Epochs:
    """Epochs of one run. Raises ProgramError where f has nothing to run on, or a component is larger than a chunk."""

    def __init__(self, spec: RunSpec, ledger: Ledger) -> None:
        program, graph, settings = spec.program, spec.graph, spec.settings
        self.driver = program.driving(graph)
        self.count = graph.tables[self.driver].count  # vertices of an epoch
        self.components = None if program.bsp else components(graph)
        self._units = None if self.components is None else self.components.units[self.driver]
        self._parts = None if spec.placement is None else spec.placement.parts
        if spec.placement is not None:
            ledger.divide(spec.placement.borders)
        self._spec = spec
        self._ledger = ledger
        self.asked = settings.epochs or program.epochs  # epochs, unless the run has trained enough before
        self._stopping = None if program.early_stopping is None else Stopping(program.early_stopping, ledger)
        # Of each epoch positions up to this are trained, in batches of at least so many vertices.
        self.trained, self.fewest = self._batches()
        self._orders: dict[int, EpochOrder] = {}
        self._changes = any(table.type.mutable for table in graph.local)  # whether f changes local vertices
        if self._units is not None and settings.chunk is not None and self._units.largest > settings.chunk:
            raise ProgramError(
                f"a connected component has {self._units.largest:,} {self.driver} vertices, more than the chunk of "
                f"{settings.chunk:,}; components are never cut. Make chunks larger, or replicate what connects them."
            )

    def _batches(self) -> tuple[int, int]:
        program, batch = self._spec.program, self._spec.program.update.batch or 1
        connected = self._units is not None
        if not program.update.drop_last:
            return self.count, 1 if connected else program.fewest
        if connected or self.count < batch:
            why = "they are connected" if connected else f"there are {self.count:,}, and a batch has {batch:,}"
            raise ProgramError(
                f"drop_last credits an epoch's last, incomplete batch of {self.driver} vertices without training it; "
                f"got a graph in which {why}, where it makes no sense. Leave it out."
            )
        return self.count - self.count % batch, program.fewest

    @property
    def number(self) -> int:
        """Epochs of the run: those that were asked for, or that had begun when it had trained enough."""
        if self.enough is None:
            return self.asked
        return min(self.asked, self._ledger.newest_epoch()[0] + 1)

    @property
    def enough(self) -> str | None:
        """Why the run has trained enough before all epochs that were asked for; None where it has not."""
        return None if self._stopping is None else self._stopping.enough

    def due(self, epoch: int) -> bool:
        """Whether the replica at the end of an epoch is to be evaluated."""
        every = self._spec.program.evaluate_every
        return self._spec.program.evaluate is not None and ((epoch + 1) % every == 0 or epoch + 1 == self.asked)

    def skips(self, epoch: int) -> bool:
        """Whether the replica at the end of an epoch is not evaluated though the program evaluates."""
        return self._spec.program.evaluate is not None and not self.due(epoch)

    def untrained(self, stop: int) -> int:
        """How many of the positions before `stop` are credited without being trained."""
        return max(0, stop - self.trained)

    def too_few(self, start: int, stop: int) -> bool:
        """Whether a range that is not empty is less than a batch may have."""
        return start < stop and min(stop, self.trained) - start < self.fewest

    @property
    def total(self) -> int:
        """Vertices to credit in the whole run."""
        return self.count * self.number

    def order(self, epoch: int) -> EpochOrder:
        if epoch not in self._orders:
            self._orders = {e: o for e, o in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = EpochOrder(
                self.count, self._spec.settings.seed, epoch, self._spec.shuffle, self._units, self._parts
            )
        return self._orders[epoch]

    def vertices(self, epoch: int, start: int, stop: int) -> Ids:
        """Return the driving vertices of a range, in the order of training."""
        return self.order(epoch).vertices(start, stop)

    def cuts_component(self, epoch: int, position: int) -> str | None:
        """Return why credit must not end at a position, None if it may."""
        whole = self.order(epoch).boundary(position)
        return None if whole == position else f"a push up to {position} cuts the component that ends at {whole}"

    def finished(self) -> bool:
        """Whether every vertex of the run is credited."""
        return bool(self._ledger.credited >= self.total)

    def unevaluated(self) -> list[int]:
        """Return the versions at the ends of epochs that evaluate has not seen yet."""
        return [] if self._spec.program.evaluate is None else [version for _, version in self._ledger.unevaluated()]

    def open_first(self, now: float) -> None:
        self._ledger.open_epoch(0, self.count, now)

    def open_next(self, now: float) -> int:
        """Open the next epoch if this one is leased and nothing must end first; return the newest."""
        newest, closed = self._ledger.newest_epoch()
        if not self._ledger.spans and newest + 1 < self.number and self._may_open(newest, closed=closed):
            newest += 1
            self._ledger.open_epoch(newest, self.count, now)
        return newest

    @property
    def in_turn(self) -> bool:
        """Whether an epoch opens only when the one before is closed: credited in full, and what its rules held back
        merged. An answer that brings the first lease of an epoch brings that version or a later one with it."""
        return self._spec.program.bsp or self._changes or not self._spec.program.overlap

    def followed(self, epoch: int) -> bool:
        """Whether vertices of another epoch may be trained before the end of this one."""
        if epoch + 1 >= self.number or self.in_turn:
            return False
        return self._stopping is None or self._stopping.may_follow(epoch, self.due)

    def _may_open(self, newest: int, *, closed: bool) -> bool:
        """At most two epochs are under way at once; only one where they come in turn.

        Where f changes local vertices the next epoch's chunks must hold what this one makes of them (with BSP that
        shows once its patches are in the files), and evaluate must see them before they change again.
        """
        if self._stopping is not None and not self._stopping.may_follow(newest, self.due):
            return False
        bsp = self._spec.program.bsp
        if self._changes:
            return closed and not self.unevaluated() and not (bsp and self._ledger.patches())
        if self.in_turn:
            return closed
        return newest == 0 or self._ledger.epoch_complete(newest - 1)
