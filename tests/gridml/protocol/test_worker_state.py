"""The worker's protocol without engine, carrier or clock: its actions, messages and state."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridml.protocol.messages import (
    MAX_PUSH_INTERVAL_S,
    NO_PUSH,
    Copies,
    Failure,
    Lease,
    Pace,
    Push,
    Reply,
    Sync,
    Verdict,
)
from gridml.protocol.worker_actions import (
    Action,
    Adopt,
    Began,
    BeginChunk,
    ChunkFailed,
    Content,
    Copied,
    EndChunk,
    Evicted,
    KeepOnly,
    Leave,
    MailboxClosed,
    Reason,
    Replied,
    Send,
    TakeSnapshot,
    Train,
    Trained,
    TrainingFailed,
    Use,
    Wait,
)
from gridml.protocol.worker_state import GOODBYE_TIMEOUT_S, MAX_WAIT_S, WorkerOptions, WorkerState
from tests.support.effort import examples

LEASE = Lease(1, 1, 0, 100, 120, "lease-1", "")
NEXT = Lease(2, 1, 0, 120, 140, "lease-2", "")
PUSH = Push(lease=9, term=1, sequence=3, base=4, upto=50, vertices=10)
OPTIONS = WorkerOptions("w1", "x86_64")
MERGED = Reply(1, Pace(push_every=10), Verdict.MERGED)


class Life:
    """A worker state that a test drives: training takes `vertex_s` seconds per row, all else no time."""

    def __init__(
        self,
        options: WorkerOptions = OPTIONS,
        undelivered: Push | None = None,
        vertex_s: float = 0.1,
        batch: int = 5,
    ) -> None:
        self.now_s = 1000.0
        self.vertex_s = vertex_s
        self.batch = batch
        self.chunks = True  # False: none can be fetched
        self.is_accumulating = False  # True: an optimiser step is pending
        self.state = WorkerState(options, self.now_s, undelivered)
        self.syncs: list[Sync] = []
        self.actions: list[Action] = []

    def step(self) -> Action:
        """Perform the next action."""
        return self.perform(self.state.next_action(self.now_s))

    def perform(self, action: Action) -> Action:
        self.actions.append(action)
        if isinstance(action, Train):
            stop = min(action.stop, action.start + self.batch)
            self.now_s += (stop - action.start) * self.vertex_s
            self.state.handle(Trained(stop, is_accumulating=self.is_accumulating), self.now_s)
        elif isinstance(action, BeginChunk):
            self.state.handle(Began() if self.chunks else ChunkFailed(), self.now_s)
        elif isinstance(action, TakeSnapshot):
            self.state.handle(Copied(), self.now_s)
        elif isinstance(action, Send):
            self.syncs.append(action.sync)
        return action

    def until(self, *kinds: type[Action]) -> Action:
        """Continue to the first action of one of these kinds."""
        for _ in range(1000):
            action = self.step()
            if isinstance(action, kinds):
                return action
        raise AssertionError(f"there is no {kinds} in {self.actions[-5:]}")

    def reply(self, reply: Reply, *, brings: bool = False) -> None:
        self.state.handle(Replied(reply, brings, carry_s=0.5, travel_s=2.0), self.now_s)

    def lease(self, lease: Lease = LEASE, push_every: int = 10, push_s: float = MAX_PUSH_INTERVAL_S) -> None:
        """Request a lease, and receive it."""
        self.until(Send)
        self.reply(Reply(0, Pace(push_every=push_every, push_s=push_s), lease=lease))

    @property
    def pushes(self) -> list[Push]:
        return [sync.push for sync in self.syncs if sync.push is not None]


def test_it_asks_begins_trains_and_pushes() -> None:
    life = Life()
    first = life.step()
    assert first == Send(Sync("w1", wants=True, kind="x86_64"), Content.NOTHING)
    life.reply(Reply(0, Pace(live=3, credited=40, total=100, push_every=10), lease=LEASE), brings=True)
    assert life.step() == Adopt(Use.KEEP, 3)
    assert life.step() == BeginChunk(LEASE)
    assert life.step() == Train(LEASE, 0, 20, 10, 1030.0, False, 3, 40, 100, 100, 0)
    assert life.step() == Train(LEASE, 5, 20, 10, 1030.0, False, 3, 45, 100, 100, 0)
    assert life.step() == TakeSnapshot(LEASE, 0, 10)
    sent = life.step()
    assert isinstance(sent, Send)
    assert sent.content is Content.SNAPSHOT
    assert sent.sync.push == Push(lease=1, term=1, sequence=1, base=0, upto=110, vertices=10)
    assert (sent.sync.have, sent.sync.holds, sent.sync.wants, sent.sync.trained) == (0, (1,), True, 10)
    assert (sent.sync.begun, sent.sync.begun_vertices, sent.sync.train_s) == (1, 20, pytest.approx(1.0))
    assert sent.sync.push_s == 0.5  # what the courier had needed


def test_while_a_push_travels_it_trains_and_at_the_end_it_waits() -> None:
    life = Life()
    life.lease()
    life.until(Send)
    life.until(Wait)
    assert [type(action) for action in life.actions[-3:]] == [Train, Train, Wait]
    life.reply(MERGED, brings=True)
    assert life.step() == Adopt(Use.REBASE, 1)
    assert life.step() == EndChunk(LEASE)
    assert life.step() == TakeSnapshot(LEASE, 10, 20)
    life.until(Send)
    assert life.pushes[-1] == Push(lease=1, term=1, sequence=2, base=1, upto=120, vertices=10)
    assert (life.syncs[-1].holds, life.syncs[-1].travel_s) == ((), 2.0)


def test_steps_that_are_added_are_pushed_one_by_one() -> None:
    life = Life()
    life.until(Send)
    pace = Pace(4, push_every=5, added=5)
    life.reply(Reply(0, pace, lease=LEASE))
    for sequence in (1, 2):
        life.until(Send)
        assert life.pushes[-1].vertices == 5 and life.pushes[-1].added
        train = life.step()  # while the push travels
        assert isinstance(train, Train) and (train.start, train.added) == (5 * sequence, 5)
        life.reply(Reply(sequence, pace, Verdict.MERGED), brings=True)
    life.until(Send)
    life.reply(Reply(3, Pace(4, push_every=10), Verdict.MERGED), brings=True)  # pushes have become dear
    life.until(Send)
    assert life.pushes[-1].vertices == 5 and not life.pushes[-1].added


def test_a_push_of_rows_that_were_trained_to_be_averaged_is_not_added() -> None:
    life = Life()
    life.lease()
    life.until(Send)
    life.until(Train)  # while the push travels
    life.reply(Reply(1, Pace(4, push_every=5, added=5), Verdict.MERGED), brings=True)
    life.until(Send)
    assert not life.pushes[-1].added


def test_a_slow_f_pushes_by_the_clock() -> None:
    life = Life(vertex_s=4.0, batch=1)
    life.lease(push_every=1000)
    life.until(Send)
    assert life.pushes[-1].vertices == 8
    assert life.now_s == 1032.0 >= 1000.0 + MAX_PUSH_INTERVAL_S
    life.reply(MERGED)
    life.until(Send)
    assert life.pushes[-1].vertices == 8


def test_a_slow_f_pushes_as_rarely_as_a_busy_master_wants() -> None:
    life = Life(vertex_s=4.0, batch=1)
    life.lease(push_every=1000, push_s=50.0)
    life.until(Send)
    assert (life.pushes[-1].vertices, life.now_s) == (13, 1052.0)


def test_a_slow_f_waits_for_the_end_of_a_lease_that_ends_soon_after_the_push_is_due() -> None:
    life = Life(vertex_s=4.0, batch=1)
    life.lease(push_every=1000, push_s=60.0)  # due at 60 s; the lease ends at 80 s
    life.until(Send)
    assert (life.pushes[-1].vertices, life.now_s) == (20, 1080.0)


def test_where_no_push_is_wanted_there_is_one_at_the_end() -> None:
    life = Life(vertex_s=4.0, batch=1)
    life.lease(push_every=NO_PUSH)
    life.until(Send)
    assert life.pushes[-1].vertices == 20


def test_nearly_done_it_waits_for_the_end_of_the_lease() -> None:
    life = Life()
    life.lease(push_every=18)
    life.until(Send)
    assert life.pushes[-1].vertices == 20


def next_lease(number: int) -> Reply:
    return MERGED._replace(lease=replace(NEXT, id=number), pace=Pace(push_every=100))


def test_after_a_wait_for_a_lease_it_pushes_at_half_of_it_and_asks_for_the_next() -> None:
    life = Life()
    life.lease(push_every=100)
    life.until(Send)
    assert life.pushes[-1].vertices == 20, "nothing is known of waits yet"
    life.now_s += 0.3  # of 2 that the lease took
    life.reply(next_lease(2))
    life.until(Send)
    assert (life.pushes[-1].lease, life.pushes[-1].vertices, life.syncs[-1].wants) == (2, 10, True)
    life.reply(next_lease(3))
    life.until(Send)
    assert (life.pushes[-1].lease, life.pushes[-1].vertices) == (2, 10)
    assert isinstance(life.step(), BeginChunk), "the next lease begins while the push is under way"
    life.reply(next_lease(4))
    life.until(Send)
    assert (life.pushes[-1].lease, life.pushes[-1].vertices) == (3, 20), "another is ahead already"


def test_a_busy_master_gets_no_push_at_half_of_a_lease() -> None:
    busy = Pace(push_every=100, push_s=2 * MAX_PUSH_INTERVAL_S)
    life = Life()
    life.lease(push_every=100)
    life.until(Send)
    life.now_s += 0.3
    life.reply(next_lease(2)._replace(pace=busy))
    life.until(Send)
    assert (life.pushes[-1].lease, life.pushes[-1].vertices) == (2, 20)


def test_after_a_short_wait_it_pushes_at_the_end() -> None:
    life = Life()
    life.lease(push_every=100)
    life.until(Send)
    life.now_s += 0.1
    life.reply(next_lease(2))
    life.until(Send)
    assert life.pushes[-1].vertices == 20


def test_where_the_master_grants_none_ahead_it_pushes_at_half_only_once() -> None:
    life = Life()
    life.lease(push_every=100)
    life.until(Send)
    for number in (2, 3):
        life.now_s += 5.0
        life.reply(next_lease(number))
        life.until(Send)
        if number == 2:
            life.reply(MERGED._replace(pace=Pace(push_every=100)))
            life.until(Send)
    assert [push.vertices for push in life.pushes] == [20, 10, 10, 20]


def test_time_in_which_the_device_still_trains_is_no_cost_of_a_push() -> None:
    life = Life()
    life.lease()
    life.until(Send)
    before = life.syncs[-1]
    life.reply(MERGED)
    for _ in range(100):
        action = life.state.next_action(life.now_s)
        if isinstance(action, TakeSnapshot):
            life.now_s += 4.0  # in 3 of which the device computes batches that it was given before
            life.state.handle(Copied(3.0), life.now_s)
            break
        life.perform(action)
    life.until(Send)
    after = life.syncs[-1]
    assert after.push_s == pytest.approx(0.5 + 1.0)
    assert after.train_s - before.train_s == pytest.approx(1.0 + 3.0)


def test_overdue_it_trains_until_the_answer_is_there() -> None:
    life = Life()
    life.lease(replace(LEASE, stop=200))
    life.until(Send)
    life.step()
    assert not isinstance(life.actions[-1], Train) or not life.actions[-1].overdue
    life.step()
    assert life.step() == Train(replace(LEASE, stop=200), 20, 100, 100, math.inf, True, 1, 1, 1, 1, 0)


@pytest.mark.parametrize(("live", "vertices", "end_s"), [(2, 15, 1060.0), (1, 20, 1080.0)], ids=["of two", "alone"])
def test_a_push_waits_for_an_optimiser_step_but_not_for_ever(live: int, vertices: int, end_s: float) -> None:
    life = Life(vertex_s=4.0, batch=1)
    life.is_accumulating = True
    life.until(Send)
    life.reply(Reply(0, Pace(live=live, push_every=1000), lease=LEASE))
    life.until(Send)
    assert (life.pushes[-1].vertices, life.now_s) == (vertices, end_s)


def test_a_push_leaves_where_an_optimiser_step_was_taken() -> None:
    life = Life(batch=1)
    life.is_accumulating = True
    life.lease(push_every=4)
    for _ in range(7):
        life.until(Train)
    life.is_accumulating = False
    life.until(Send)
    assert life.pushes[-1].vertices == 8


def test_an_eviction_pushes_what_is_gathered() -> None:
    life = Life()
    life.is_accumulating = True
    life.lease()
    life.until(Train)
    life.state.handle(Evicted(), life.now_s)
    said = life.until(Send)
    assert isinstance(said, Send) and said.sync.leaving and said.sync.push is not None


def test_a_component_is_not_cut() -> None:
    life = Life()
    life.lease()
    life.until(Train)
    life.state.handle(Trained(12, whole=False), life.now_s)
    assert isinstance(life.step(), Train)
    life.state.handle(Trained(18, whole=False), life.now_s)
    life.state.handle(Evicted(), life.now_s)
    said = life.until(Send)
    assert isinstance(said, Send) and said.sync.leaving and said.sync.push is None


@pytest.mark.parametrize("drop_optimiser", [False, True])
def test_what_a_refused_push_held_is_dropped(drop_optimiser: bool) -> None:
    life = Life()
    life.lease()
    life.until(Send)
    refused = Reply(7, Pace(), Verdict.REFUSED, lease=NEXT, drop_optimiser=drop_optimiser)
    life.reply(refused, brings=True)
    assert life.step() == Adopt(Use.DROP, 1, drop_optimiser)
    life.until(Send)
    assert (life.syncs[-1].have, life.syncs[-1].holds, life.syncs[-1].wants) == (-1, (), True)


def test_a_cut_lease_ends_where_it_was_cut_and_what_lies_beyond_is_dropped() -> None:
    for stop_at, pushed in ((115, 15), (112, 10)):
        life = Life()
        life.lease()
        life.until(Send)
        life.step()  # five rows more
        life.reply(MERGED._replace(stop_at=stop_at))
        life.until(Send)
        assert sum(push.vertices for push in life.pushes) == pushed
        assert life.syncs[-1].holds == ()
        assert life.syncs[-1].have == (1 if stop_at == 115 else -1)


@pytest.mark.parametrize(("fewest", "stays"), [(1, True), (3, True), (4, False)])
def test_a_worker_left_with_less_than_a_batch_by_a_cut_restarts_its_chunk(fewest: int, stays: bool) -> None:
    life = Life()
    life.lease(replace(LEASE, fewest=fewest))
    life.until(Send)
    life.step()  # five rows more, to 15
    life.reply(MERGED._replace(stop_at=118))
    life.until(Send)
    assert sum(push.vertices for push in life.pushes) == (18 if stays else 10)
    assert life.syncs[-1].have == (1 if stays else -1)


def test_a_lease_ahead_is_begun_while_the_last_push_travels() -> None:
    life = Life()
    life.lease()
    life.until(Send)
    life.reply(MERGED._replace(lease=NEXT))
    life.until(EndChunk)
    life.until(Send)
    assert life.syncs[-1].holds == (2,)
    assert life.step() == BeginChunk(NEXT)
    life.until(Train)
    life.reply(MERGED, brings=True)
    assert life.step() == Adopt(Use.REBASE, 1)


@pytest.mark.parametrize("chunks", [None, 2, 3])
def test_a_push_that_ends_its_lease_asks_for_the_one_after_the_next(chunks: int | None) -> None:
    """Otherwise a worker would have no chunk ahead at the end of a lease of one push, and wait for the answer."""
    life = Life(replace(OPTIONS, chunks=chunks))
    life.lease()
    life.until(Send)
    life.reply(MERGED._replace(lease=NEXT))
    life.until(EndChunk)
    life.until(Send)
    assert life.syncs[-1].wants is (chunks != 2)
    life.reply(MERGED._replace(lease=None if chunks == 2 else replace(NEXT, id=3, start=140, stop=160)))
    life.until(Send)  # within the second, while the third lies ahead
    assert life.syncs[-1].holds == ((2,) if chunks == 2 else (2, 3))
    assert not life.syncs[-1].wants


def test_a_chunk_that_cannot_be_had_is_not_held() -> None:
    life = Life()
    life.lease()
    assert life.state.next_action(life.now_s) == BeginChunk(LEASE)
    life.state.handle(ChunkFailed(), life.now_s)
    life.until(Send)
    assert (life.syncs[-1].holds, life.syncs[-1].wants, life.syncs[-1].begun) == ((), True, 0)


def test_a_failure_is_reported_after_the_push_under_way_and_the_work_dropped() -> None:
    failure = Failure(1, 1, "ValueError: no", "", 3, 4)
    life = Life()
    life.lease()
    life.until(Send)
    life.state.next_action(life.now_s)
    life.state.handle(TrainingFailed(failure), life.now_s)
    assert isinstance(life.step(), Wait)
    life.reply(MERGED)
    life.until(Send)
    assert (life.syncs[-1].failure, life.syncs[-1].push) == (failure, None)
    life.reply(Reply(2), brings=True)
    assert life.step() == Adopt(Use.DROP, 1, True)
    life.until(Send)
    assert (life.syncs[-1].have, life.syncs[-1].holds, life.syncs[-1].failure) == (-1, (), None)


def test_evicted_it_pushes_what_there_is_and_waits_for_its_last_words_only() -> None:
    life = Life()
    life.lease()
    life.until(Train)
    life.state.handle(Evicted(), life.now_s)
    assert life.step() == TakeSnapshot(LEASE, 0, 5)
    life.until(Send)
    assert (life.syncs[-1].leaving, life.syncs[-1].wants, life.pushes[-1].vertices) == (True, False, 5)
    assert life.step() == Wait(GOODBYE_TIMEOUT_S)
    life.now_s += GOODBYE_TIMEOUT_S
    assert life.step() == Leave(Reason.EVICTED)


def test_evicted_while_it_begins_it_trains_nothing() -> None:
    life = Life()
    life.lease()
    life.step()
    life.state.handle(Evicted(), life.now_s)
    life.until(Send)
    assert life.syncs[-1] == Sync("w1", have=0, holds=(1,), leaving=True, kind="x86_64", begun=1, begun_vertices=20,
                                  push_s=0.5, travel_s=2.0)  # fmt: skip
    life.reply(Reply(0))
    assert life.step() == Leave(Reason.EVICTED)


def test_it_leaves_after_its_chunks() -> None:
    life = Life(WorkerOptions("w1", chunks=1))
    life.lease()
    life.until(Send)
    assert not life.syncs[-1].wants
    life.reply(MERGED)
    life.until(EndChunk)
    life.until(Send)
    life.reply(MERGED)
    life.until(Send)
    assert (life.syncs[-1].leaving, life.syncs[-1].push) == (True, None)
    life.reply(Reply(3))
    assert life.step() == Leave(Reason.CHUNKS_DONE)


def test_it_leaves_when_it_is_dismissed_and_when_its_mailbox_is_closed() -> None:
    life = Life()
    life.until(Send)
    life.reply(Reply(0, leave=True))
    assert life.step() == Leave(Reason.DISMISSED)
    life = Life()
    life.lease()
    life.until(Train)
    life.state.handle(MailboxClosed(), life.now_s)
    assert life.step() == life.step() == Leave(Reason.MAILBOX_CLOSED)


def test_without_work_it_asks_again_when_it_may() -> None:
    life = Life()
    life.until(Send)
    life.reply(Reply(0, wait_s=3.0))
    assert life.step() == Wait(3.0)
    life.now_s += 3.0
    assert isinstance(life.step(), Send)


def test_a_push_without_an_answer_is_saved_and_waiting_ends() -> None:
    for patience_s, reason in ((60.0, Reason.SAVING), (math.inf, Reason.NO_ANSWER)):
        life = Life(WorkerOptions("w1", patience_s=patience_s))
        life.lease()
        life.until(Send)
        life.until(Wait)
        assert life.actions[-1] == Wait(min(patience_s, MAX_WAIT_S))
        life.now_s += min(patience_s, MAX_WAIT_S)
        assert life.step() == Leave(reason)


def test_a_push_of_an_earlier_process_is_delivered_first_and_not_saved_again() -> None:
    life = Life(WorkerOptions("w1", patience_s=60.0), PUSH)
    assert life.step() == Send(Sync("w1", push=PUSH), Content.OUTBOX)
    assert life.step() == Wait(MAX_WAIT_S)
    assert life.state.undelivered == PUSH
    life.reply(Reply(9, verdict=Verdict.MERGED, lease=NEXT), brings=True)
    assert life.state.undelivered is None
    assert life.step() == Adopt(Use.DROP, 1)
    life.until(Send)
    assert (life.syncs[-1].have, life.syncs[-1].holds, life.syncs[-1].wants) == (-1, (), True)


REPLIES = st.builds(
    lambda version, every, verdict, leave: Reply(version, Pace(push_every=every), verdict, leave=leave),
    st.integers(0, 9),
    st.sampled_from([1, 4, 7, NO_PUSH]),
    st.sampled_from([Verdict.MERGED, Verdict.MERGED, Verdict.REPEATED, Verdict.REFUSED]),
    st.sampled_from([False] * 9 + [True]),
)
HAPPENINGS = st.lists(
    st.one_of(
        st.integers(1, 8),  # number of actions
        st.tuples(REPLIES, st.booleans(), st.integers(0, 6)),  # (reply, with a lease, rows by which the lease is cut)
        st.sampled_from(["evict", "fail", "no chunk", "time", "component"]),
    ),
    max_size=60,
)


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(HAPPENINGS, st.sampled_from([None, 1, 2]), st.sampled_from([None, PUSH]), st.integers(1, 6))
def test_whatever_happens_the_invariants_hold(
    happenings: list[object], chunks: int | None, undelivered: Push | None, batch: int
) -> None:
    life = Life(WorkerOptions("w1", chunks=chunks, patience_s=40.0), undelivered, vertex_s=1.5, batch=batch)
    leases, under_way, refused, left = 1, False, False, False
    ends: dict[int, int] = {}  # where the last push of each lease ended

    def check(sync: Sync) -> None:
        nonlocal under_way, refused
        assert not under_way, "at most one is under way"
        assert not left, "nothing is sent after Leave"
        under_way = True
        if refused:
            assert (sync.have, sync.holds) == (-1, ())
        refused = False
        if sync.push is not None and sync.push != undelivered:
            assert sync.push.upto - sync.push.vertices == ends.get(sync.push.lease, 100 * sync.push.lease)
            assert sync.push.vertices > 0
            ends[sync.push.lease] = sync.push.upto

    def step() -> None:
        nonlocal left
        action = life.step()
        if isinstance(action, Send):
            check(action.sync)
        left = left or isinstance(action, Leave)

    for happening in happenings:
        if isinstance(happening, int):
            for _ in range(happening):
                step()
        elif isinstance(happening, tuple):
            reply, with_lease, cut = happening
            if not under_way:
                continue
            under_way, push = False, life.syncs[-1].push
            if with_lease and life.syncs[-1].wants:
                leases += 1
                reply = reply._replace(lease=Lease(leases, 1, 0, 100 * leases, 100 * leases + 20, "", ""))
            if push is None or push == undelivered:
                reply = reply._replace(verdict=None if push is None else reply.verdict)
            elif cut:
                reply = reply._replace(stop_at=max(push.upto, 100 * push.lease + 20 - cut))
            refused = reply.verdict is Verdict.REFUSED
            life.reply(reply, brings=with_lease)
        elif happening == "evict":
            life.state.handle(Evicted(), life.now_s)
        elif happening == "time":
            life.now_s += 20.0
        else:
            action = life.state.next_action(life.now_s)
            if isinstance(action, Train) and happening == "component":
                life.state.handle(Trained(min(action.stop, action.start + batch), whole=False), life.now_s)
            elif isinstance(action, Train) and happening == "fail":
                life.state.handle(TrainingFailed(Failure(action.lease.id, 1, "no", "", -1, -1)), life.now_s)
            elif isinstance(action, BeginChunk):
                life.state.handle(ChunkFailed() if happening == "no chunk" else Began(), life.now_s)
            elif isinstance(action, TakeSnapshot):
                life.state.handle(Copied(), life.now_s)
            elif isinstance(action, Send):
                life.syncs.append(action.sync)
                check(action.sync)


@pytest.mark.parametrize("fast_forward", [False, True])
def test_without_a_lease_it_says_what_it_has_copies_of(fast_forward: bool) -> None:
    life = Life()
    life.lease(push_every=NO_PUSH)
    life.until(Send)
    assert (life.syncs[-1].holds, life.syncs[-1].copies) == ((), None)  # the push says it
    life.reply(MERGED._replace(version=6, fast_forward=fast_forward))
    for version in (7, 8):  # a merge in between does not cause another message
        life.until(Send)
        assert life.syncs[-1].copies == Copies(lease=1, version=6 if fast_forward else 0)
        life.reply(Reply(version, lease=None if version == 7 else NEXT))
        life.now_s += 10.0
    life.until(Send)
    assert life.syncs[-1].push is not None and life.syncs[-1].copies is None


def of(lease: Lease, *networks: int) -> Lease:
    """A lease that touches some networks of several."""
    return replace(lease, modules={"Network": [*networks]})


def networks(*indices: int) -> KeepOnly:
    return KeepOnly(frozenset(("Network", index) for index in indices))


def test_it_keeps_the_networks_of_the_leases_in_hand_and_ahead() -> None:
    life = Life()
    life.until(Send)
    life.reply(Reply(0, Pace(push_every=10), lease=of(LEASE, 3, 4)), brings=True)
    assert [life.step(), life.step()] == [Adopt(Use.KEEP, 1), networks(3, 4)]
    life.until(Send)
    life.reply(MERGED._replace(lease=of(NEXT, 4, 5)))
    assert life.step() == networks(3, 4, 5)
    life.until(BeginChunk)
    assert life.pushes[-1].upto == LEASE.stop  # it travels while the next chunk begins,
    assert not [action for action in life.actions[-4:] if isinstance(action, KeepOnly)]
    life.reply(MERGED)  # and what it carries is the master's
    assert life.until(KeepOnly) == networks(4, 5)


def test_who_holds_no_lease_keeps_the_networks_of_the_last() -> None:
    life = Life()
    life.lease(of(LEASE, 3), push_every=NO_PUSH)
    life.until(Send)
    life.reply(MERGED)
    life.until(Send)
    assert life.syncs[-1].copies == Copies(lease=1, version=0)
    assert [action for action in life.actions if isinstance(action, KeepOnly)] == [networks(3)]
    life.reply(Reply(2, lease=of(NEXT, 4)))
    assert life.until(KeepOnly) == networks(4)
    life.chunks = False
    life.until(Send)
    assert (life.syncs[-1].holds, life.syncs[-1].push, life.syncs[-1].copies) == ((), None, None)  # they are gone


def test_it_keeps_all_where_it_is_not_known_what_a_lease_touches_and_what_was_refused() -> None:
    life = Life()
    life.lease(of(LEASE, 3))
    life.until(Send)
    life.reply(MERGED._replace(lease=NEXT))
    life.until(Send)
    life.reply(Reply(3, Pace(), Verdict.REFUSED))
    life.until(Send)
    assert [action for action in life.actions if isinstance(action, KeepOnly)] == [networks(3)]


def test_who_drops_its_replica_has_copies_of_nothing() -> None:
    life = Life()
    life.lease(push_every=NO_PUSH)
    life.until(Send)
    life.reply(MERGED)
    life.until(Send)
    assert life.syncs[-1].copies is not None
    life.reply(Reply(2, lease=NEXT))
    life.until(Send)
    life.reply(Reply(3, Pace(), Verdict.REFUSED))
    life.until(Send)
    assert (life.syncs[-1].have, life.syncs[-1].copies) == (-1, None)


def test_what_comes_afresh_is_no_copy_of_what_was_pushed() -> None:
    life = Life()
    life.lease(push_every=NO_PUSH)
    life.until(Send)
    life.reply(Reply(5, verdict=Verdict.MERGED, fast_forward=True, lease=replace(NEXT, afresh=True)), brings=True)
    life.chunks = False
    life.until(Send)
    assert (life.syncs[-1].holds, life.syncs[-1].push, life.syncs[-1].copies) == ((), None, None)


def test_a_lease_to_be_trained_afresh_forgets_optimisers() -> None:
    life = Life()
    life.until(Send)
    life.reply(Reply(4, Pace(push_every=NO_PUSH), lease=replace(LEASE, afresh=True)), brings=True)
    assert life.step() == Adopt(Use.KEEP, 1, forget_optimisers=True)
    life.until(Send)
    assert [(push.base, push.upto, push.vertices) for push in life.pushes] == [(4, 120, 20)], "one push, at its end"


@pytest.mark.parametrize("ended", [False, True], ids=["between", "at the end"])
def test_a_failure_found_by_a_snapshot_is_reported_with_its_lease(ended: bool) -> None:
    """A loss on a device is looked at only when a push is to leave."""
    life = Life()
    life.lease()
    if ended:
        life.until(Send)
        life.until(Wait)
        life.reply(MERGED, brings=True)
    failure = Failure(LEASE.id, LEASE.term, "the loss is nan", "", 103, 103)
    while not isinstance(action := life.state.next_action(life.now_s), TakeSnapshot):
        life.perform(action)
    assert action.lease == LEASE
    life.state.handle(TrainingFailed(failure), life.now_s)
    action = life.state.next_action(life.now_s)
    assert isinstance(action, Send)
    assert (action.content, action.sync.push, action.sync.failure) == (Content.NOTHING, None, failure)
    assert action.sync.holds == (LEASE.id,)
