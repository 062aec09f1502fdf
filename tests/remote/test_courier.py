"""Couriers carry one sync at a time, resend unanswered ones, and report when no reply will come."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from gridml.carriers.base import MasterMailboxes
from gridml.protocol import bundle
from gridml.protocol.messages import Push, Reply, Sync, sync_from, to_json
from gridml.protocol.push import PushContent, ReplicaPart, RowValues, encode_replica
from master.simulation.faulty_network import FaultyNetwork, VirtualClock
from remote.courier import FULL_DISK_S, RESEND_S, Courier, StepCourier, ThreadCourier

LIMIT_S = 60.0
PART = ReplicaPart(rows={"Word": RowValues(np.arange(3), {"count": np.arange(3)})})


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def post(clock: VirtualClock) -> FaultyNetwork:
    made = FaultyNetwork(clock)
    made.master().open("w1")
    return made


def until(done: Callable[[], bool]) -> None:
    """Wait for another thread."""
    limit = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.001)


def answer(master: MasterMailboxes, version: int) -> Sync:
    """Answer the one waiting sync, and return it."""
    (message,) = master.collect()
    sync = sync_from(bundle.decode(message.payload)[0])
    reply = Reply(version, process=sync.process)
    master.answer("w1", message.number, bundle.encode(to_json(reply), encode_replica(PART)))
    return sync


@pytest.fixture(params=["thread", "step"])
def courier(request: pytest.FixtureRequest, post: FaultyNetwork, clock: VirtualClock) -> Courier:
    made = ThreadCourier(post.worker("w1")) if request.param == "thread" else StepCourier(post.worker("w1"), clock)
    request.addfinalizer(made.close)
    return made


def test_a_sync_is_carried_and_its_reply_taken_once(courier: Courier, post: FaultyNetwork) -> None:
    master = post.master()
    for version in (1, 2):
        assert not courier.busy
        courier.post(Sync("w1", have=version), PushContent)
        assert courier.busy
        until(lambda: bool(master.collect()))
        assert courier.take() is None
        assert answer(master, version).have == version
        courier.wait(LIMIT_S)
        heard = courier.take()
        assert heard is not None
        assert heard[0].version == version
        np.testing.assert_array_equal(heard[1].rows["Word"].ids, np.arange(3))
        assert courier.take() is None


def test_an_answer_to_an_earlier_process_of_the_worker_is_passed_over(courier: Courier, post: FaultyNetwork) -> None:
    master = post.master()
    master.answer("w1", 1, bundle.encode(to_json(Reply(7, process="another")), {}))
    courier.post(Sync("w1", have=1), PushContent)
    until(lambda: bool(master.collect()))
    assert courier.take() is None
    answer(master, 8)
    until(lambda: (heard := courier.take()) is not None and heard[0].version == 8)


def test_a_push_without_an_answer_is_unanswered(courier: Courier, post: FaultyNetwork) -> None:
    master, push = post.master(), Push(lease=1, term=1, sequence=1, base=0, upto=4, vertices=4)
    assert courier.unanswered is None
    courier.post(Sync("w1", push=push), lambda: PushContent(PART))
    until(lambda: bool(master.collect()))
    kept = courier.unanswered
    assert kept is not None and (kept.number, kept.push) == (1, push)
    assert bytes(kept.payload) == master.collect()[0].payload
    answer(master, 1)
    courier.wait(LIMIT_S)
    assert courier.take() is not None and courier.unanswered is None


def test_a_closed_mailbox_is_noticed(courier: Courier, post: FaultyNetwork) -> None:
    post.master().close("w1")
    courier.post(Sync("w1"), PushContent)
    until(lambda: courier.gone)
    assert courier.take() is None


def test_a_second_sync_must_wait(courier: Courier) -> None:
    courier.post(Sync("w1"), PushContent)
    with pytest.raises(AssertionError, match="one sync at a time"):
        courier.post(Sync("w1"), PushContent)


def test_a_reply_without_sense_ends_the_worker_and_does_not_hang_it(courier: Courier, post: FaultyNetwork) -> None:
    master = post.master()
    courier.post(Sync("w1"), PushContent)
    until(lambda: bool(master.collect()))
    master.answer("w1", 1, bundle.encode({"what": "is this"}, {}))
    courier.wait(LIMIT_S)
    with pytest.raises(ValueError, match="not a reply"):
        courier.take()


def test_what_got_no_answer_is_sent_again(post: FaultyNetwork, clock: VirtualClock) -> None:
    courier, master = StepCourier(post.worker("w1"), clock), post.master()
    post.deliver = lambda payload: []
    courier.post(Sync("w1", have=7), PushContent)
    post.deliver = lambda payload: [(0.0, payload)]
    for now, there in ((RESEND_S - 0.1, 0), (RESEND_S, 1), (RESEND_S + 1, 1), (2 * RESEND_S, 2)):
        clock.now_s = now
        assert courier.take() is None
        assert sum(len(mailbox.syncs) for mailbox in post.mailboxes.values()) == there
    assert answer(master, 8).have == 7
    heard = courier.take()
    assert heard is not None
    assert heard[0].version == 8


def test_a_full_disk_is_waited_for(post: FaultyNetwork, clock: VirtualClock) -> None:
    end = post.worker("w1")
    courier = StepCourier(end, clock)
    send, room = end.send, False

    def full(number: int, payload: bytes) -> None:
        if not room:
            raise OSError(28, "No space left on device")
        send(number, payload)

    end.send = full  # type: ignore[method-assign]
    courier.post(Sync("w1"), PushContent)
    clock.sleep(FULL_DISK_S)
    courier.wait(0.0)
    assert post.master().collect() == []
    room = True
    clock.sleep(FULL_DISK_S)
    courier.wait(0.0)
    assert len(post.master().collect()) == 1
    assert not courier.gone
