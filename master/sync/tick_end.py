"""The end of a tick: the pushes of all parts are merged in the order of parts, then stages at the owner run.

With slack 0, or stages at the owner, a push is credited when it arrives, and held in the ledger
(`master.store.tick_rows`). The push that completes a tick is committed in one transaction with the merge of the whole
tick. So a replica always has whole ticks, and depends neither on the number of workers nor on the order in which they
push. With more slack a push is merged as it arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Merge, VertexState
from gridml.model.order import Touched, union
from gridml.model.ticks import Ticks
from gridml.protocol.messages import Push
from gridml.protocol.push import Ids, ReplicaPart, RowValues, VertexKey
from master.leases.epochs import Epochs
from master.state.lease_records import LeaseState
from master.store.ledger import Ledger
from master.store.replica import Replica
from master.store.tick_rows import Tick, TickPush
from master.store.versions import Base
from master.sync.contraction import Contractions
from master.sync.merger import Merger
from master.sync.own_rules import PushMerge
from master.sync.owner_work import OwnerWork

Array = NDArray[Any]


@dataclass(frozen=True)
class HeldBase:
    """The rows of a held push in the version from which it was trained."""

    began: Mapping[str, RowValues]
    modules: Mapping[VertexKey, VertexState]

    def rows(self, type_name: str, ids: Ids) -> dict[str, Array]:
        """Return the fields of rows that the push has."""
        held = self.began[type_name]
        order = np.argsort(held.ids)
        at = order[np.searchsorted(held.ids, ids, sorter=order)]
        return {name: values[at] for name, values in held.fields.items()}

    def part(self, wanted: Mapping[str, Ids]) -> ReplicaPart:
        return ReplicaPart({}, {name: RowValues(ids, self.rows(name, ids)) for name, ids in wanted.items()})


@final
class TickEnds:
    """Records the ticks of one run and, if `holds`, keeps their pushes until they are complete.

    Methods must be called inside the ledger's transaction, whose new version is `version`.
    """

    def __init__(
        self,
        epochs: Epochs,
        work: OwnerWork,
        ledger: Ledger,
        replica: Replica,
        merger: Merger,
        pulls: Contractions | None,
    ) -> None:
        """`pulls` measures how strongly parts pull rows, if pushes are held; None: they are merged as they come."""
        self.holds = pulls is not None
        self.enough: list[str] = []  #: the functions that ended the run at the last merge
        self._pulls = pulls
        self._measured: tuple[Tick, int] | None = None  # the tick, and its version, after which `_pulls` was left
        self._epochs = epochs
        self._work = work
        self._ledger = ledger
        self._replica = replica
        self._merger = merger
        self._is_ready = False

    @property
    def _ticks(self) -> Ticks:
        assert self._epochs.ticks is not None, "only ticks end"
        return self._epochs.ticks

    def others(self, base: int) -> int:
        """Return the vertices that were merged after version `base`."""
        self._prepare()
        return self._ledger.merged_since(base)

    def take(
        self, lease: LeaseState, push: Push, rows: Mapping[str, RowValues], base: Base, scale: float, version: int
    ) -> Touched:
        """Record a push that is credited now, with its rows and their `base` if it is held. Its steps count by `scale`
        (the gate's decision). Return the ids of the rows that are held, by type."""
        self._prepare()
        part, tick = self._epochs.mini_batches(lease.epoch).place(lease.start)
        rows = dict(rows) if self.holds else {}
        before = {name: RowValues(each.ids, base.rows(name, each.ids)) for name, each in rows.items()}
        taken = TickPush(push.base, push.vertices, scale, rows, before)
        self._ledger.add_to_tick(Tick(lease.epoch, tick), part, taken, version, None if self.holds else version)
        return {name: np.sort(each.ids) for name, each in rows.items()}

    def merge(self, version: int, oldest: int) -> list[str]:
        """Merge the ticks that are complete; return what was left out of them, as texts. `oldest` is the oldest version
        that is kept. Raises NotFiniteError if a stage at the owner computes NaN or infinity."""
        left_out: list[str] = []
        self.enough = []
        if self._pulls is None:
            return left_out  # pushes are merged as they come
        self._prepare()
        for tick in self._ledger.whole_ticks(self._ticks.parts):
            if (last := self._ledger.last_merged()) != self._measured:  # of an earlier master, or before a rollback
                self._pulls.restore({} if last is None else self._ledger.pulls_after(last[0]))
            left_out += self._merge(tick, version, self._pulls)
            if tick.number == self._ticks.count - 1:
                self._pulls.end_pass()
            self._ledger.merged_tick(tick, version, oldest, self._pulls.state())
            self._measured = tick, version
        return left_out

    def _merge(self, tick: Tick, version: int, pulls: Contractions) -> list[str]:
        left_out: list[str] = []
        done, pushes = 0, self._ledger.pushes_of(tick)
        for part, push in enumerate(pushes):
            others = self._ledger.merged_since(push.base) + done
            # The number of workers must not matter, so that of parts stands for it.
            merge = Merge(version, push.base, push.vertices, others, self._ticks.parts)
            base = HeldBase(push.began, self._replica.state.modules)
            judged = PushMerge(ReplicaPart({}, push.trained), base, merge, push.scale, pulls)
            merged = self._merger.take_judged(judged, f"part {part}")
            done += push.vertices
            if merged.not_finite is None:
                self._replica.put(merged.modules, merged.rows, version)
            else:
                left_out.append(
                    f"epoch {tick.epoch + 1}, mini-batch {tick.number + 1} of part {part + 1}: left out, because "
                    f"{merged.not_finite} would not be finite after the pushes of all parts, each of which was. Let "
                    f"stages add smaller numbers, or declare the field as float64."
                )
        touched = union({name: each.ids for name, each in push.trained.items()} for push in pushes)
        changes = self._work.end_tick(tick.number, touched, self._replica.state)
        self._replica.put({}, changes.rows, version)
        self.enough += changes.enough
        return left_out

    def _prepare(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._ledger.keep_ticks()
