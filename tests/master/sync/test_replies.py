"""Which module vertices an answer brings whole: those that the leases which a worker names do not stand for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from gridml.carriers.base import Message
from gridml.model.order import Touched
from gridml.protocol.messages import Push, Sync
from gridml.protocol.push import NOTHING
from master.state.lease_records import Footprint, LeaseState, LeaseTable
from master.state.worker_records import WorkerRecord
from master.sync.replies import Replies
from master.sync.rows import PendingReply


class Desk:
    """The master's side of one worker, at version 7."""

    def __init__(self) -> None:
        self.table, self.record = LeaseTable(), WorkerRecord("w1")
        replica = SimpleNamespace(version=7, state=SimpleNamespace(arrays={}))
        ledger = SimpleNamespace(leases=self.table, has_version=lambda version: version >= 0)
        store = cast(Any, SimpleNamespace(replica=replica, ledger=ledger))
        nothing = cast(Any, None)
        moments = cast(Any, SimpleNamespace(of=lambda keys: dict.fromkeys(keys)))
        self.replies = Replies(nothing, store, nothing, nothing, moments, nothing, nothing)

    def lease(self, number: int, *networks: int) -> LeaseState:
        touched = {"Network": np.array(networks)}
        lease = LeaseState(number, 1, 0, 0, 10, 0, "w1", footprint=Footprint("", touched, {}))
        self.table.add(lease)
        return lease

    def whole(self, *holds: int, pushes: int | None = None, grant: LeaseState | None = None) -> list[int]:
        """The networks that an answer brings whole."""
        return [int(network) for network in self.lacking(*holds, pushes=pushes, grant=grant)[0].get("Network", ())]

    def inherited(self, *holds: int, pushes: int | None = None, grant: LeaseState | None = None) -> list[int]:
        """The networks whose optimisers an answer brings moments for."""
        return [network for _, network in self.lacking(*holds, pushes=pushes, grant=grant)[1]]

    def lacking(self, *holds: int, pushes: int | None, grant: LeaseState | None) -> tuple[Touched, dict[Any, Any]]:
        push = None if pushes is None else Push(pushes, 1, 1, 6, 5, 5)
        sync = Sync("w1", have=6, holds=holds, push=push)
        pending = PendingReply(Message("w1", 1, b""), sync, NOTHING, self.record, grant=grant)
        lacking = self.replies._lacking(pending)
        return lacking.fresh, self.replies._new_moments(pending, lacking)


def test_what_leases_touch_that_are_named_is_there() -> None:
    desk = Desk()
    assert desk.whole(grant=desk.lease(1, 0, 1)) == [0, 1]
    assert desk.whole(1, pushes=1, grant=desk.lease(2, 1, 2)) == [2]
    assert desk.whole(1, 2, pushes=1) == []
    desk.table.end(desk.table[1])  # by this push,
    last = desk.whole(2, pushes=1, grant=desk.lease(3, 0, 4))
    assert last == [4]
    desk.table.end(desk.table[3])  # whose answer was lost
    assert desk.whole(2, pushes=1, grant=desk.lease(4, 0, 4)) == [4]
    assert desk.whole(2, 4, pushes=2, grant=desk.lease(5, 1, 3)) == [3]  # network 1 of lease 2; lease 1 has gone


def test_what_only_a_lease_touches_that_ended_behind_its_workers_back_is_brought_whole() -> None:
    """Answers bring nothing of it any more, so what the worker has of it grows old."""
    desk = Desk()
    assert desk.whole(grant=desk.lease(1, 0)) == [0]
    assert desk.whole(1, pushes=1, grant=desk.lease(2, 1)) == [1]
    desk.table.end(desk.table[2])
    assert desk.whole(1, 2, pushes=1) == []
    assert desk.whole(1, 2, pushes=1, grant=desk.lease(3, 0, 1)) == [1]


def test_moments_come_with_networks_that_a_worker_never_had() -> None:
    desk = Desk()
    assert desk.inherited(grant=desk.lease(1, 0, 1)) == [0, 1]
    assert desk.inherited(1, pushes=1, grant=desk.lease(2, 1, 2)) == [2]


def test_who_spoilt_work_is_given_nobodys_moments() -> None:
    desk = Desk()
    desk.record.moments.tainted = True
    assert desk.inherited(grant=desk.lease(1, 0, 1)) == []
