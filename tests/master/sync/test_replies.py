"""Module vertices that an answer contains completely: those that are not in the leases that the worker names; and the
push interval of a worker."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gridml.carriers.base import Message
from gridml.model.order import Touched
from gridml.protocol.messages import MAX_PUSH_INTERVAL_S, NO_PUSH, Push, Sync
from gridml.protocol.push import NOTHING
from master.leases.sizing import ASSUMED_MERGE_S, MERGING
from master.state.lease_records import Footprint, LeaseState, LeaseTable
from master.state.worker_records import WorkerRecord
from master.sync.replies import PushPace, Replies
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
        """Return the networks that an answer contains completely."""
        return [int(network) for network in self.lacking(*holds, pushes=pushes, grant=grant)[0].get("Network", ())]

    def inherited(self, *holds: int, pushes: int | None = None, grant: LeaseState | None = None) -> list[int]:
        """Return the networks for whose optimisers an answer contains moments."""
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
    """Answers omit it from then on, so the worker's copy becomes stale."""
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


def test_a_tainted_worker_gets_no_moments_of_others() -> None:
    desk = Desk()
    desk.record.moments.tainted = True
    assert desk.inherited(grant=desk.lease(1, 0, 1)) == []


class PaceDesk:
    """A PushPace among `live` workers, of which one trains `speed` vertices a second."""

    def __init__(
        self, live: int, speed: float = 300.0, push_s: float = 0.4, lives_s: float = math.inf, *, adds: bool = True
    ) -> None:
        of: Any = SimpleNamespace
        self.reasons: list[tuple[Any, ...]] = []
        self.speed, self.chosen = speed, 0
        shape = of(batch=64, keeps_rate=False, trained_by_edge=())
        program = of(shape=shape, min_target_batch=1, adds_steps=lambda graph: adds)
        self.costs = {"pushes": push_s, "travels": 0.1}
        sizing = of(
            measures=of(typical=self.costs.get, speeds=of(mean=speed)),
            push_s=lambda record: push_s,
            rate=self._rate,
            max_interval_s=lambda record: lives_s,
        )
        ledger = of(worker_push_interval=lambda *row: self.reasons.append(row), credited=0)
        spec = of(program=program, graph=None)
        sizes = of(push_every=None, push_budget=0.03, compress="")
        self.leases = of(live=live, sizing=sizing, epochs=of(total=1_000, vertex_count=1_000))
        rounds: Any = of(used=False, interval_s=0.0, set_interval=lambda *seconds: None, number=0)
        self.pace = PushPace(spec, sizes, ledger, self.leases, of(drift=0.0), rounds)
        self.record = WorkerRecord("w1")

    def _rate(self, record: WorkerRecord) -> float:
        self.chosen += 1
        return self.speed

    def pending(self) -> PendingReply:
        empty: Any = None
        return PendingReply(empty, empty, empty, self.record)


def test_what_is_measured_of_a_worker_decides_its_push_interval() -> None:
    desk = PaceDesk(live=4)
    desk.pace.choose(desk.pending())
    assert desk.pace.of(desk.pending()).push_every == desk.record.assignment.push_every == 4_000
    assert desk.reasons == [("w1", 4_000, "a push costs 400.0 ms and may take 3% of the time")]


@pytest.mark.parametrize(("live", "push_s"), [(150, MAX_PUSH_INTERVAL_S), (3_000, 600.0)])
def test_until_a_push_was_merged_many_workers_push_by_the_clock_as_if_merging_took_a_tenth_of_a_second(
    live: int, push_s: float
) -> None:
    desk = PaceDesk(live, adds=False)
    first = desk.pace.of(desk.pending())
    assert first.push_s == push_s == max(MAX_PUSH_INTERVAL_S, live * ASSUMED_MERGE_S / MERGING)
    assert (first.push_every == NO_PUSH - 1) == (push_s > MAX_PUSH_INTERVAL_S)
    desk.pace.merged(1, 0.01)
    measured = desk.pace.of(desk.pending())
    assert measured.push_s == max(MAX_PUSH_INTERVAL_S, live * 0.01 / MERGING) and measured.push_every < NO_PUSH - 1


def test_a_pace_is_chosen_once_for_a_message_unless_workers_came_or_went() -> None:
    desk = PaceDesk(live=4)
    pending = desk.pending()
    desk.pace.choose(pending)
    desk.pace.of(pending)
    assert desk.chosen == 1
    desk.leases.live = 5
    assert desk.pace.of(pending).live == 5
    assert desk.chosen == 2


def test_another_way_of_merging_at_the_same_interval_is_recorded_with_its_reason() -> None:
    """A run whose workers live for 16 vertices: averaged pushes are no longer than that, either."""
    desk = PaceDesk(live=4, speed=16.0, push_s=10.0, lives_s=1.0)
    assert desk.pace.of(desk.pending()).added == 0
    assert desk.record.assignment.max_added == 0
    desk.costs["pushes"] = 0.1
    desk.pace.merged(1, 0.0)
    assert desk.pace.of(desk.pending()).added == 16
    assert desk.record.assignment.max_added == 64
    assert [every for _, every, _ in desk.reasons] == [16, 16]
    assert [reason.partition(":")[0] for *_, reason in desk.reasons] == ["16 vertices", "steps are added"]
