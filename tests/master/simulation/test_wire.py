"""The carrier of a simulation: the contract of carriers, and faults of payloads."""

from __future__ import annotations

import pytest

from gridml.protocol.messages import Reply, Sync
from gridml.protocol.push import InProcessCodec, PushContent, in_process_payload
from master.simulation.cost_only_worker import Wire
from master.simulation.faulty_network import Chances, Delivery, VirtualClock

ONE, TWO = in_process_payload(Sync("w1", trained=1)), in_process_payload(Sync("w1", trained=2))


def wire_of(fate: Delivery | None = None, travel_s: float = 0.0) -> tuple[VirtualClock, Wire]:
    clock = VirtualClock()
    wire = Wire(clock, fate, travel_s)
    wire.open("w1")
    return clock, wire


def messages(wire: Wire) -> list[tuple[str, int]]:
    return [(message.worker, message.number) for message in wire.collect()]


def test_a_message_is_collected_until_it_is_answered() -> None:
    clock, wire = wire_of()
    wire.send("w1", 1, ONE)
    assert messages(wire) == []  # it has not arrived
    clock.advance(1)
    assert messages(wire) == messages(wire) == [("w1", 1)]
    heard: list[int] = []
    wire.listen("w1", lambda number, payload: heard.append(number))
    wire.answer("w1", 1, in_process_payload(Reply(0)))
    assert messages(wire) == []
    clock.advance(2)
    assert heard == [1]


def test_payloads_take_their_time_both_ways() -> None:
    clock, wire = wire_of(travel_s=3.0)
    heard: list[float] = []
    wire.listen("w1", lambda number, payload: heard.append(clock.now_s))
    wire.send("w1", 1, ONE)
    clock.advance(2.9)
    assert messages(wire) == []
    clock.advance(3.0)
    assert messages(wire) == [("w1", 1)]
    wire.answer("w1", 1, in_process_payload(Reply(0)))
    clock.advance(10.0)
    assert heard == [6.0]


def test_of_each_worker_the_newest_message_is_collected_until_that_number_is_discarded() -> None:
    clock, wire = wire_of()
    wire.open("w2")
    wire.send("w1", 2, TWO)
    wire.send("w2", 7, TWO)
    wire.send("w1", 1, ONE)
    clock.advance(1)
    assert messages(wire) == [("w1", 2), ("w2", 7)]
    wire.discard("w1", 1)
    assert messages(wire) == [("w1", 2), ("w2", 7)]
    wire.discard("w1", 2)
    assert messages(wire) == [("w2", 7)]


@pytest.mark.parametrize("chances", [Chances(lose=1.0), Chances(truncate=1.0), Chances(corrupt=1.0)])
def test_what_does_not_arrive_whole_does_not_arrive(chances: Chances) -> None:
    clock, wire = wire_of(chances.delivery(0))
    heard: list[int] = []
    wire.listen("w1", lambda number, payload: heard.append(number))
    wire.send("w1", 1, ONE)
    wire.answer("w1", 1, in_process_payload(Reply(0)))
    clock.advance(100)
    assert (messages(wire), heard) == ([], [])
    assert (wire.traffic.sent, wire.traffic.lost) == (2, 2)


def test_a_repeated_payload_arrives_twice_and_late() -> None:
    clock, wire = wire_of(Chances(repeat=1.0, delay_s=10.0).delivery(3))
    heard: list[float] = []
    wire.listen("w1", lambda number, payload: heard.append(clock.now_s))
    wire.answer("w1", 1, in_process_payload(Reply(0)))
    clock.advance(10)
    assert len(heard) == 2
    assert 0 < heard[0] < heard[1] < 10


def test_a_closed_mailbox_takes_nothing_and_says_so() -> None:
    clock, wire = wire_of()
    wire.send("w1", 1, ONE)
    wire.close("w1")
    clock.advance(1)
    assert messages(wire) == []
    assert wire.heartbeat("w1") is None
    with pytest.raises(FileNotFoundError, match="w1"):
        wire.send("w1", 2, TWO)
    with pytest.raises(FileNotFoundError, match="w1"):
        wire.listen("w1", lambda number, payload: None)


def test_a_heartbeat_stays_until_the_mailbox_is_closed() -> None:
    _, wire = wire_of()
    assert wire.heartbeat("w1") is None
    wire.beat("w1", 3, 40)
    assert wire.heartbeat("w1") == (3, 40, 1)
    wire.clear()
    assert wire.heartbeat("w1") is None


def test_messages_are_handed_over_as_they_are() -> None:
    sync, content = InProcessCodec().read(ONE)
    assert sync is ONE.message
    assert content == PushContent()
    with pytest.raises(ValueError, match="not a sync"):
        InProcessCodec().read(b"")
    with pytest.raises(ValueError, match="not a sync"):
        InProcessCodec().read(in_process_payload(Reply(0)))


def test_heartbeats_go_on_while_a_process_lives_and_stop_with_it() -> None:
    clock, wire = wire_of()
    ended_s, upto = [float("inf")], [40]
    wire.listen("w1", lambda number, payload: None, lambda: (min(clock.now_s, ended_s[0]), 3, upto[0]))
    assert wire.heartbeat("w1") is None
    wire.beat("w1", 3, 40)
    first = wire.heartbeat("w1")
    clock.advance(1)
    upto[0] = 60
    second = wire.heartbeat("w1")
    assert first is not None and second is not None
    assert (first.upto, second.upto) == (40, 60)
    assert second.number > first.number
    wire.beat("w1", 4, 0)  # of a lease that its standing does not tell of
    assert wire.heartbeat("w1") is not None and wire.heartbeat("w1")[:2] == (4, 0)  # type: ignore[index]
    ended_s[0] = clock.now_s
    last = wire.heartbeat("w1")
    clock.advance(1_000)
    assert wire.heartbeat("w1") == last
