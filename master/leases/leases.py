"""What is leased to whom: the epochs' orders, the chunks cut from the graph, and the leases that cover them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gridml.carriers.base import MasterMailboxes
from gridml.engine.pace import batch_size
from gridml.errors import ProgramError
from gridml.model.chunk import Chunk, cut
from gridml.model.graph import Graph, components
from gridml.model.order import EpochOrder, Shuffle
from gridml.model.program import Program
from gridml.protocol import bundle
from gridml.protocol.messages import Lease, Sync
from master.decisions import leasing
from master.decisions.leasing import Delay, Holding, LeaseRow, Span, choose_span, chunk_size
from master.leases.chunk_sizing import Sizing
from master.leases.stragglers import Expected, Overtaken
from master.store.ledger import Ledger
from master.store.replica import Touched, union
from master.store.settings import Settings

Ids = NDArray[np.int64]
# Between two looks for a straggler that find nothing. One costs a few tenths of a millisecond however many leases there
# are, so all that idle together, 10,000 or more, take a few hundredths of the master's time.
LOOK_S = 0.01


@dataclass(frozen=True)
class Cut:
    """A published chunk: its digest, the replicated vertices it touches, and the local ones its lease may change."""

    sha256: str
    touched: Touched
    local: Touched


class Grants:
    """Leases of one run. Methods that change the ledger must be called inside its transaction."""

    def __init__(
        self, program: Program, graph: Graph, settings: Settings, ledger: Ledger, mailboxes: MasterMailboxes
    ) -> None:
        self.program = program
        self.driver = program.update.driver.__name__
        if self.driver not in graph.tables or not graph.tables[self.driver].count:
            raise ProgramError(
                f"the graph has no {self.driver} vertices; f has nothing to run on. Add them in graph()."
            )
        self._graph = graph
        self._settings = settings
        self._ledger = ledger
        self._mailboxes = mailboxes
        self._count = graph.tables[self.driver].count
        self._epochs = settings.epochs or program.epochs
        self._components = None if program.bsp else components(graph)
        self._units = None if self._components is None else self._components.units[self.driver]
        self._shuffle = _shuffle(program, graph)
        self._orders: dict[int, EpochOrder] = {}
        self._cuts: dict[int, Cut] = {}
        self._hoped: dict[int, tuple[Span, float]] = {}  # by lease: what may still be recovered, and until when
        self.sizing = Sizing(settings, self._count, program.update.batch or 1)
        self._push_every: dict[str, int] = {}  # by worker: the interval it was last told
        self._since: dict[int, float] = {}  # by lease: its worker's last credit, or when it was granted
        # Who trains at the rate that was expected has less left by as much as time has passed: a lease that is on
        # schedule stays in its place, and credits need not move it. The others come to one of the ends in time.
        self._expected = Expected()
        # By kind of worker, as measured at a moment: what passes until a lease is credited, and around a chunk.
        self._delays: tuple[float, dict[str, tuple[Delay, float]]] = 0.0, {}
        self._again = Overtaken()
        self._overtaken: dict[int, int] = {}  # by lease: how often its range was; not if never
        self._look_again_s = 0.0  # when it is worth asking again whether a lease can be had from another worker
        if self._units is not None and settings.chunk is not None and self._units.largest > settings.chunk:
            raise ProgramError(
                f"a connected component has {self._units.largest:,} {self.driver} vertices, more than the chunk of "
                f"{settings.chunk:,}; components are never cut. Make chunks larger, or replicate what connects them."
            )

    @property
    def total(self) -> int:
        """Vertices to credit in the whole run."""
        return self._count * self._epochs

    @property
    def ahead(self) -> bool:
        """Whether a worker may get its next lease while it works on one.

        Rows of array fields start each chunk from the master's values, so those must not be sent before it begins.
        """
        return not self.program.bsp and all(not t.type.arrays for t in self._graph.replicated)

    def order(self, epoch: int) -> EpochOrder:
        if epoch not in self._orders:
            self._orders = {e: o for e, o in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = EpochOrder(self._count, self._settings.seed, epoch, self._shuffle, self._units)
        return self._orders[epoch]

    def finished(self) -> bool:
        return bool(self._ledger.credited >= self.total)

    def complete(self, epoch: int) -> bool:
        return self._ledger.epoch_complete(epoch)

    def unevaluated(self) -> list[int]:
        """Versions at the ends of epochs that evaluate has not seen yet."""
        return [] if self.program.evaluate is None else [version for _, version in self._ledger.unevaluated()]

    def open_first(self, now: float) -> None:
        self._ledger.open_epoch(0, self._count, now)

    def grant(self, sync: Sync, live: int, now: float) -> LeaseRow | None:
        """A lease for a worker that wants one, None when there is none for it; leases it has let go of are ended."""
        again = None
        held = self._ledger.held.get(sync.worker, {})
        for row in [r for r in held.values() if r.id not in sync.holds]:
            if sync.push is not None and row.id == sync.push.lease:
                continue
            if sync.wants and row.sequence == 0 and again is None:
                again = row  # the answer that granted it was lost
            else:
                self.end(row, now, "the worker let go of it")
        if again is not None or not sync.wants or sync.leaving or (sync.holds and not self.ahead):
            return again
        span, _ = self._span(now)
        if span is None and not sync.holds and now >= self._look_again_s:
            if self._reclaim(sync, live, now):
                span, _ = self._span(now)
            else:
                self._look_again_s = now + LOOK_S
        return None if span is None else self._lease(span, sync.worker, live, now)

    def credited(self, row: LeaseRow, now: float) -> None:
        """A push of a lease was merged; what its worker holds besides could not come before."""
        self._since.update(dict.fromkeys(self._ledger.held.get(row.worker, ()), now))

    def told(self, worker: str, push_every: int) -> None:
        """A worker hears how often to push."""
        self._push_every[worker] = push_every

    def gone(self, worker: str) -> None:
        """A worker has ended."""
        self.sizing.measures.gone(worker)
        self._push_every.pop(worker, None)

    def end(self, row: LeaseRow, now: float, because: str, *, failed: bool = False) -> None:
        """End a lease; what is not credited is free again."""
        heartbeat = self._mailboxes.heartbeat(row.worker)
        trained = heartbeat[1] - row.start if heartbeat is not None and heartbeat[0] == row.id else 0
        self._ledger.end_lease(row, now, because, trained=trained, failed=failed)
        self._mailboxes.retract(_chunk_name(row))
        self._cuts.pop(row.id, None)
        self._since.pop(row.id, None)
        self._overtaken.pop(row.id, None)
        self._expected.drop(row.id)

    def hope(self, row: LeaseRow, until_s: float) -> None:
        """What an ended lease left may still be recovered, trained, by the worker that its holder is started again as.

        Only where its holder was told nothing since: an answer without this lease's vertices would be taken for a base.
        """
        self._hoped[row.id] = Span(row.epoch, row.upto, row.stop), until_s

    def hoped_for(self, row: LeaseRow, now: float) -> bool:
        return row.id in self._hoped and self._hoped[row.id][1] > now

    def take_over(self, row: LeaseRow) -> None:
        """Answer for an open lease that an earlier master granted."""
        self._publish(row)
        self._expected.add(row.id)

    def reopen(self, row: LeaseRow, upto: int, worker: str) -> LeaseRow:
        """An ended lease whose work up to `upto` has come after all, by `worker`, and was given to nobody else."""
        opened = self._ledger.reopen(row, upto, worker)
        chunk = self._chunk(opened)
        self._cuts[opened.id] = Cut("", *_sides(chunk, self._graph))
        self._expected.add(opened.id)
        return opened

    def describe(self, row: LeaseRow) -> Lease:
        return Lease(row.id, row.term, row.epoch, row.start, row.stop, _chunk_name(row), self._cuts[row.id].sha256)

    def touched(self, worker: str) -> Touched:
        """The replicated vertices that a worker's leases touch."""
        return union(self._cuts[lease].touched for lease in self._ledger.held.get(worker, {}))

    def touched_by(self, row: LeaseRow) -> Touched:
        return self._cuts[row.id].touched

    def allowed(self, row: LeaseRow) -> Touched:
        """The local vertices that f may change under a lease."""
        return self._cuts[row.id].local

    def trained(self, row: LeaseRow, upto: int) -> tuple[str, Ids]:
        """The driving type and its vertices that a push up to `upto` would credit, in the order of training."""
        return self.driver, self.order(row.epoch).vertices(row.upto, upto)

    def cuts_component(self, epoch: int, position: int) -> str | None:
        """Why credit must not end at a position."""
        whole = self.order(epoch).boundary(position)
        return None if whole == position else f"a push up to {position} cuts the component that ends at {whole}"

    def _span(self, now: float) -> tuple[Span | None, str]:
        """The span to lease from; the next epoch opens when this one is leased and nothing must end first."""
        newest, closed = self._ledger.newest_epoch()
        if not self._ledger.spans and newest + 1 < self._epochs and self._may_open_next(newest, closed):
            newest += 1
            self._ledger.open_epoch(newest, self._count, now)
        self._hoped = {lease: hope for lease, hope in self._hoped.items() if hope[1] > now}
        return choose_span(self._ledger.spans, newest, [span for span, _ in self._hoped.values()])

    def _may_open_next(self, newest: int, closed: bool) -> bool:
        """At most two epochs are under way at once; only one where f changes local vertices.

        There the next epoch's chunks must hold what this one makes of them (with BSP that shows once its patches are in
        the files), and evaluate must see them before they change again.
        """
        if any(table.type.mutable for table in self._graph.local):
            return closed and not self.unevaluated() and not (self.program.bsp and self._ledger.patches())
        if self.program.bsp:
            return closed
        return newest == 0 or self.complete(newest - 1)

    def _reclaim(self, sync: Sync, live: int, now: float) -> bool:
        """Take a part of a straggler's lease, or all of it, for a worker that would idle. Returns whether anything came
        free."""
        holdings = self._look(sync.worker, now)
        return self._cut(holdings, sync.worker, live, now) or self._overtake(holdings, sync.worker, now)

    def _cut(self, holdings: Sequence[Holding], worker: str, live: int, now: float) -> bool:
        chosen, _ = leasing.cut(holdings, self._batch(1), self._batch(live), self.sizing.rate(worker))
        if chosen is None:
            return False
        row = self._ledger.leases[chosen[0]]
        stop = self.order(row.epoch).boundary(chosen[1])
        if stop >= row.stop:
            return False
        self._place(self._holding(self._ledger.cut(row, stop), now), now)
        return True

    def _overtake(self, holdings: Sequence[Holding], worker: str, now: float) -> bool:
        rate, delay = self.sizing.rate(worker), self.sizing.delay(worker)
        if rate is None:
            return False
        chosen, _ = leasing.overtake(holdings, rate, delay)
        if chosen is None:
            return False
        row = self._ledger.leases[chosen]
        heartbeat = self._mailboxes.heartbeat(row.worker)  # only of this one: it may be a file far away
        at = heartbeat[1] if heartbeat is not None and heartbeat[0] == row.id else None
        known = [replace(h, at=at) for h in holdings if h.lease == chosen]
        chosen, reason = leasing.overtake(known, rate, delay)
        if chosen is None:
            return False
        self._ledger.event(now, "straggler", f"{row.worker}: lease {row.id} is {reason}")
        self._count_overtaking(row)
        self.end(row, now, reason)
        return True

    def _count_overtaking(self, row: LeaseRow) -> None:
        """Leases of what this one leaves will have been overtaken once more than it."""
        for epoch in self._again.epochs:
            if self.complete(epoch):
                self._again.drop(epoch)
        self._again.add(Span(row.epoch, row.upto, row.stop), self._overtaken.get(row.id, 0) + 1)

    def _look(self, but: str, now: float) -> list[Holding]:
        """A few leases of other workers, those that are most overdue or far from done among them; each of them that is
        in the wrong place goes to its own, so that the next look sees others."""
        found = self._expected.ends(self._ledger.held.get(but, {}))
        holdings = [self._holding(self._ledger.leases[lease], now) for lease in found]
        for held in holdings:
            self._place(held, now)
        return holdings

    def _place(self, held: Holding, now: float) -> None:
        self._expected.add(held.lease, now + leasing.expected_s(held))

    def _holding(self, row: LeaseRow, now: float) -> Holding:
        """What is known of an open lease; its worker trains what it was given before it first."""
        worker, before = row.worker, 0
        for other in self._ledger.held[worker].values():
            if other.id == row.id:
                break
            before += other.left
        rate, every = self.sizing.rate(worker) or 1.0, self._push_every.get(worker, 0)
        since_s = now - self._since.setdefault(row.id, now)
        delay = self._delay(worker, now)[0]
        return Holding(
            row.id,
            row.upto,
            row.stop,
            rate,
            every,
            since_s,
            before=before,
            delay_s=delay.of(before + row.left, rate, every),
            overtaken=self._overtaken.get(row.id, 0),
            travel_s=delay.travel_s,
        )

    def _delay(self, worker: str, now: float) -> tuple[Delay, float]:
        """What passes until a lease is credited, and the seconds around a chunk: alike for all workers of a kind, and
        worked out once for all that ask at a moment, because it costs more than the rest of a holding."""
        if self._delays[0] != now:
            self._delays = now, {}
        kind, delays = self.sizing.measures.kind_of(worker), self._delays[1]
        found = delays.get(kind)
        if found is None:
            found = delays[kind] = self.sizing.delay(worker), self.sizing.around_s(worker)
        return found

    def _batch(self, live: int) -> int:
        update = self.program.update
        return batch_size(update.batch or 1, update.min_batch, live)

    def _lease(self, span: Span, worker: str, live: int, now: float) -> LeaseRow | None:
        """Lease from a span as much as the worker should have, None where that is nothing."""
        left = self._ledger.free_spans.count(span.epoch)
        # Chunks are whole batches of the program's own size: a batch made smaller for many workers never ends short of
        # it.
        batch = self.program.update.batch or 1
        rate, mean = self.sizing.rate(worker), self.sizing.measures.speeds.mean
        delay, around_s = self._delay(worker, now)
        size, reason = chunk_size(
            left,
            max(live, self._settings.workers),
            batch,
            wanted=self._settings.chunk,
            per_epoch=self._count,
            speed=rate / mean if rate and mean else 1.0,
            sized=self.sizing.chunk(worker),
            around=round(around_s / (delay.copy_s + 1 / rate)) if rate else 0,
        )
        most, slow = self._most(span.epoch, worker, batch)
        if most is not None and most < size:
            size, reason = most, slow
        if size < 1:
            return None
        order = self.order(span.epoch)
        stop = order.boundary(min(span.start + size, span.stop))
        row = self._ledger.lease(span, stop, worker, now, reason)
        self._since[row.id] = now
        if times := self._again.times(Span(row.epoch, row.start, row.stop)):
            self._overtaken[row.id] = times
        self._place(self._holding(row, now), now)
        self._ledger.worker_sent(worker, self._publish(row))
        return row

    def _most(self, epoch: int, worker: str, batch: int) -> tuple[int | None, str]:
        """What a worker can train of an epoch while the others train the rest of it; None for no limit."""
        held = self._ledger.held.get(worker, {})
        if len(self._ledger.held) == (1 if held else 0):
            return None, "nobody else is at work"
        speeds, rate = self.sizing.measures.speeds, self.sizing.rate(worker)
        if rate is None:
            return None, "it has not trained yet"
        own = sum(row.left for row in held.values() if row.epoch == epoch)
        uncredited = self._ledger.uncredited(epoch) - own
        measured = speeds[worker]
        others = len(speeds) - (measured is not None)
        return leasing.most(uncredited, rate, others, speeds.total - (measured or 0.0), batch, held=own)

    def _publish(self, row: LeaseRow) -> int:
        """Cut and publish the chunk of a lease; returns its bytes."""
        if not self._mailboxes.carries_chunks:
            self._cuts[row.id] = Cut("", {}, {})
            return 0
        chunk = self._chunk(row)
        payload = chunk.encode()
        self._mailboxes.publish(_chunk_name(row), payload)
        self._cuts[row.id] = Cut(bundle.digest(payload), *_sides(chunk, self._graph))
        return len(payload)

    def _chunk(self, row: LeaseRow) -> Chunk:
        order = self.order(row.epoch)
        return cut(
            self._graph,
            self.driver,
            order.vertices(row.start, row.stop),
            order.ends(row.start, row.stop),
            self._components,
            bsp=self.program.bsp,
        )


def _chunk_name(row: LeaseRow) -> str:
    return f"lease-{row.id:06d}"


def _shuffle(program: Program, graph: Graph) -> Shuffle:
    if program.shuffle is not None:
        return program.shuffle
    if program.bsp:
        return "none"
    return "all" if all(table.type.modules for table in graph.replicated) else "block"


def _sides(chunk: Chunk, graph: Graph) -> tuple[Touched, Touched]:
    """(replicated, local) vertices of a chunk by type; rows that only show a superstep's beginning are neither."""
    replicated: dict[str, Ids] = {}
    local: dict[str, Ids] = {}
    for name, table in chunk.tables.items():
        if name == table.type:
            side = replicated if graph.tables[table.type].type.replicated else local
            side[table.type] = np.unique(table.ids)
    return replicated, local
