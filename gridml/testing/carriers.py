"""Contract checks for carriers (implementations of `gridml.carriers.base`).

    def test_my_carrier(tmp_path):
        check_carrier(lambda: my_pair(tmp_path))

Each function in `CHECKS` checks one law on a new pair, and raises ContractBroken. A test parametrised with them names
the law that fails.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gridml.carriers.base import Heartbeat, MasterMailboxes, Message, WorkerMailbox
from gridml.protocol import bundle
from gridml.protocol.payload import Pieces
from gridml.testing.contracts import expect, expect_error, require

HEARTBEAT_LIMIT_S = 10.0  # the contract allows a delay of a second; the rest is for slow test machines
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda payload: payload[: len(payload) // 2],
    "emptied": lambda payload: b"",
    "altered": lambda payload: bytes([payload[0] ^ 1]) + payload[1:],
    "grown": lambda payload: payload + b"\0",
}
MANY = 20  # damaged syncs
PAYLOADS = (b"", b"\0", bytes(range(256)) * 4096)  # empty, a zero byte, and a megabyte of every byte value


@dataclass(frozen=True)
class CarrierPair:
    """Both ends of a carrier, without open mailboxes."""

    master: MasterMailboxes
    #: returns the worker's end of a mailbox, "w1" or "w2", that the master has opened
    worker: Callable[[str], WorkerMailbox]
    #: alters the only copy of a payload in transit or published, as a torn write or a broken connection would
    damage: Callable[[bytes, Callable[[bytes], bytes]], None]


def check_carrier(make_pair: Callable[[], AbstractContextManager[CarrierPair]]) -> None:
    """Run all checks, each on a new pair. Raises ContractBroken."""
    for check in CHECKS:
        with make_pair() as pair:
            check(pair)


def damage_in_files(root: Path) -> Callable[[bytes, Callable[[bytes], bytes]], None]:
    """Return the `damage` function of a carrier that keeps each payload in its own file below `root`."""

    def damage(payload: bytes, alter: Callable[[bytes], bytes]) -> None:
        files = [path for path in root.rglob("*") if path.is_file() and path.read_bytes() == payload]
        require(len(files) == 1, f"a payload lies in one file: got {files}")
        files[0].write_bytes(alter(payload))

    return damage


def a_sync_is_collected_and_its_reply_received(pair: CarrierPair) -> None:
    """Each end receives what the other sends, and nothing before that. A wait for it ends by itself."""
    with _worker(pair) as worker:
        pair.master.wait(0.001)
        worker.wait(0.001, time.sleep)
        expect(_collected(pair), [], "nothing is collected before it is sent")
        expect(worker.receive(1), None, "there is no reply before a sync")
        worker.send(1, b"hello")
        expect(_collected(pair), [("w1", 1, b"hello")], "a sync that was sent is collected")
        expect(worker.receive(1), None, "there is no reply before the answer")
        pair.master.answer("w1", 1, b"welcome")
        expect(worker.receive(1), b"welcome", "an answer is received")


def payloads_of_any_content_travel_both_ways(pair: CarrierPair) -> None:
    """Empty payloads, zeros and a megabyte of every byte arrive unaltered."""
    with _worker(pair) as worker:
        for number, payload in enumerate(PAYLOADS, 1):
            worker.send(number, payload)
            require(
                _collected(pair) == [("w1", number, payload)], f"a sync of {len(payload)} bytes is collected unaltered"
            )
            pair.master.answer("w1", number, payload)
            require(worker.receive(number) == payload, f"a reply of {len(payload)} bytes is received unaltered")


def payloads_in_pieces_travel_as_their_bytes(pair: CarrierPair) -> None:
    """Pieces of any length arrive in order, once each; their memory may change after `send` returns."""
    memory = [bytearray(piece) for piece in (b"", b"head", bytes(range(256)) * 12_000, b"", b"between", PAYLOADS[-1])]
    payload = b"".join(memory)
    with _worker(pair) as worker:
        worker.send(1, Pieces(memory))
        pair.master.publish("lease-000001", Pieces(memory))
        memory[1][:] = b"next"  # a worker reuses the memory as soon as `send` has returned
        require(_collected(pair) == [("w1", 1, payload)], "a sync in pieces is collected as the bytes that it was")
        require(worker.fetch("lease-000001", bundle.digest(payload)) == payload, "a chunk in pieces is fetched whole")
        memory[1][:] = b"head"
        pair.master.answer("w1", 1, Pieces(memory))
        memory[1][:] = b"next"
        require(worker.receive(1) == payload, "a reply in pieces is received as the bytes that it was")


def a_sync_is_collected_until_it_is_answered(pair: CarrierPair) -> None:
    """A sync stays collectable until answered, so that a master that dies before answering loses nothing."""
    with _worker(pair) as worker:
        worker.send(1, b"hello")
        for _ in range(2):
            expect(_collected(pair), [("w1", 1, b"hello")], "a sync is collected until it is answered")
        pair.master.answer("w1", 1, b"welcome")
        expect(_collected(pair), [], "a sync that was answered is not collected again")


def a_sync_that_is_held_can_be_answered_later(pair: CarrierPair) -> None:
    """`collect` may leave out a held sync, but its answer settles it as any other, and newer syncs are collected."""
    with _worker(pair) as worker:
        worker.send(1, b"hello")
        held = _collected(pair)
        pair.master.hold("w1", 1)
        require(_collected(pair) in ([], held), "a held sync is collected as it was, or not")
        pair.master.answer("w1", 1, b"late")
        expect(worker.receive(1), b"late", "the answer to a held sync is received")
        worker.send(2, b"more")
        expect(_collected(pair), [("w1", 2, b"more")], "after a held sync was answered, the next is collected")


def sending_a_number_again_replaces_it(pair: CarrierPair) -> None:
    """A sync sent again with the same number replaces the earlier one."""
    with _worker(pair) as worker:
        for payload in (b"first", b"second", b"second"):
            worker.send(1, payload)
        expect(_collected(pair), [("w1", 1, b"second")], "of a number that was sent again the newest is collected")


def a_sync_sent_again_after_its_answer_is_collected_again(pair: CarrierPair) -> None:
    """A sync sent again after its answer is collected again, so that a worker whose reply was lost gets another."""
    with _worker(pair) as worker:
        worker.send(1, b"hello")
        pair.master.answer("w1", 1, b"lost")
        worker.send(1, b"hello")
        expect(_collected(pair), [("w1", 1, b"hello")], "a sync sent again after its answer is collected again")
        pair.master.answer("w1", 1, b"again")
        # A carrier may deliver either: both answer this sync.
        require(worker.receive(1) in (b"lost", b"again"), "one of two replies to a number is received")
        expect(_collected(pair), [], "the second answer settles the sync")


def the_newest_sync_of_a_worker_is_collected(pair: CarrierPair) -> None:
    """Only the sync with the highest number is collected: a worker sends the next only after its last was answered."""
    with _worker(pair) as worker:
        for number in (2, 10, 9, 100, 1):  # 9 before 10 and 100 catches an order by text
            worker.send(number, b"%d" % number)
        expect(_collected(pair), [("w1", 100, b"100")], "of the syncs of a worker the newest is collected")


def a_sync_that_is_too_long_is_a_problem_and_not_read(pair: CarrierPair) -> None:
    """A sync over the limit is reported with its number, so that it can be discarded; other syncs are not affected."""
    pair.master.limit(100)
    with _worker(pair) as worker, _worker(pair, "w2") as other:
        worker.send(1, bytes(100))
        expect(_collected(pair), [("w1", 1, bytes(100))], "a sync of as many bytes as are allowed is collected")
        pair.master.answer("w1", 1, b"welcome")
        worker.send(2, bytes(101))
        other.send(1, b"short")
        (long, short) = sorted(pair.master.collect(), key=lambda message: message.worker)
        require(
            (long.worker, long.number, long.payload) == ("w1", 2, b"") and "101" in long.problem,
            f"a sync that is too long is a problem, and its payload empty: got {long}",
        )
        expect((short.payload, short.problem), (b"short", ""), "what another sends is collected")
        pair.master.discard("w1", 2)
        expect(_collected(pair), [("w2", 1, b"short")], "a problem that is discarded is gone")


def an_answer_settles_the_syncs_before_it(pair: CarrierPair) -> None:
    """After an answer, only syncs newer than the answered one are collected."""
    with _worker(pair) as worker:
        for number in (1, 2, 3):
            worker.send(number, b"%d" % number)
        pair.master.answer("w1", 2, b"reply")
        expect(_collected(pair), [("w1", 3, b"3")], "an answer settles no newer sync")
        pair.master.answer("w1", 3, b"reply")
        expect(_collected(pair), [], "an answer settles the syncs before it too")


def a_discarded_sync_is_not_collected(pair: CarrierPair) -> None:
    """Discarding a sync removes it and all earlier ones, without an answer."""
    with _worker(pair) as worker:
        for number in (1, 2, 3):
            worker.send(number, b"%d" % number)
        pair.master.discard("w1", 2)
        expect(_collected(pair), [("w1", 3, b"3")], "a sync after a discarded one is collected")
        pair.master.discard("w1", 3)
        expect(_collected(pair), [], "a discarded sync and those before it are not collected")
        expect(worker.receive(3), None, "a discarded sync is not answered")


def a_reply_to_another_number_is_not_received(pair: CarrierPair) -> None:
    """A worker never receives the reply to an earlier sync."""
    with _worker(pair) as worker:
        worker.send(1, b"one")
        pair.master.answer("w1", 1, b"old")
        worker.send(2, b"two")
        expect(worker.receive(2), None, "the reply to another number is not received")
        pair.master.answer("w1", 2, b"new")
        expect(worker.receive(2), b"new", "the reply to this number is received")


def mailboxes_are_separate(pair: CarrierPair) -> None:
    """Messages of one worker reach no other."""
    with _worker(pair) as worker, _worker(pair, "w2") as other:
        worker.send(1, b"mine")
        other.send(1, b"theirs")
        # Sorted, because the contract leaves the order of workers open.
        expect(
            sorted(_collected(pair)), [("w1", 1, b"mine"), ("w2", 1, b"theirs")], "a sync is collected as its sender's"
        )
        pair.master.answer("w2", 1, b"yours")
        expect(worker.receive(1), None, "the reply to another worker is not received")
        expect(other.receive(1), b"yours", "a reply reaches its worker")


def a_damaged_sync_is_not_delivered_and_can_be_sent_again(pair: CarrierPair) -> None:
    """A damaged sync is reported once, without its payload, and can be sent again."""
    with _worker(pair) as worker:
        for number, (damage, alter) in enumerate(DAMAGES.items(), 1):
            worker.send(number, b"precious")
            pair.damage(b"precious", alter)
            (message,) = _damaged(pair)
            expect((message.worker, message.number), ("w1", number), f"a sync that was {damage} is its sender's")
            expect(_collected(pair), [], f"a sync that was {damage} is reported once")
            worker.send(number, b"precious")
            expect(_collected(pair), [("w1", number, b"precious")], f"a sync that was {damage} can be sent again")
            pair.master.discard("w1", number)  # the next `damage` needs the only copy of the payload


def damaged_syncs_in_number_hold_up_nobody(pair: CarrierPair) -> None:
    """Each of many damaged syncs is reported once; another worker's sync is collected beside the first of them."""
    with _worker(pair) as worker, _worker(pair, "w2") as other:
        for number in range(1, MANY + 1):
            worker.send(number, b"%d times precious" % number)
            pair.damage(b"%d times precious" % number, DAMAGES["truncated"])
        other.send(1, b"honest")
        first = pair.master.collect()
        honest = [message.payload for message in first if message.worker == "w2"]
        expect(honest, [b"honest"], "a sync beside damaged ones is collected at the first look")
        pair.master.discard("w2", 1)
        reported = [message.number for message in first if message.is_damaged]
        for _ in range(MANY):
            reported += [message.number for message in _damaged(pair)]
        expect(sorted(reported), [*range(1, MANY + 1)], "each damaged sync is reported once")


def a_damaged_reply_counts_as_none(pair: CarrierPair) -> None:
    """A damaged reply is ignored; the worker sends again and is answered again."""
    with _worker(pair) as worker:
        for number, (damage, alter) in enumerate(DAMAGES.items(), 1):
            worker.send(number, b"question")
            pair.master.answer("w1", number, b"precious")
            pair.damage(b"precious", alter)
            expect(worker.receive(number), None, f"a reply that was {damage} is not received")
            worker.send(number, b"question")
            pair.master.answer("w1", number, b"precious")
            expect(worker.receive(number), b"precious", f"a reply that was {damage} can be given again")


def a_published_chunk_is_fetched_until_it_is_retracted(pair: CarrierPair) -> None:
    """A chunk is available from publish to retract; retracting it twice is harmless."""
    with _worker(pair) as worker:
        pair.master.publish("lease-000001", b"rows")
        expect(worker.fetch("lease-000001", bundle.digest(b"rows")), b"rows", "a published chunk is fetched")
        pair.master.retract("lease-000001")
        pair.master.retract("lease-000001")
        with expect_error(OSError, "a retracted chunk cannot be fetched"):
            worker.fetch("lease-000001", bundle.digest(b"rows"))


def a_shared_file_is_fetched_until_it_is_retracted(pair: CarrierPair) -> None:
    """A shared file stays available even if its path is unlinked. A carrier that cannot share files returns False."""
    with tempfile.TemporaryDirectory() as folder, _worker(pair) as worker:
        path = Path(folder) / "file"
        path.write_bytes(b"version")
        if not pair.master.share("version-1", path):
            with expect_error(OSError, "what cannot be shared cannot be fetched"):
                worker.fetch("version-1", bundle.digest(b"version"))
            return
        require(pair.master.share("version-1", path), "what is shared again stays shared")
        path.unlink()
        expect(worker.fetch("version-1", bundle.digest(b"version")), b"version", "a shared file is fetched")
        pair.master.retract("version-1")
        with expect_error(OSError, "a shared file that was retracted cannot be fetched"):
            worker.fetch("version-1", bundle.digest(b"version"))


def a_chunk_with_another_digest_is_refused(pair: CarrierPair) -> None:
    """Fetching a chunk whose digest differs (another of that name, or a damaged one) raises ValueError."""
    with _worker(pair) as worker:
        pair.master.publish("lease-000001", b"rows")
        with expect_error(ValueError, "a chunk with another digest is refused by its name", "lease-000001"):
            worker.fetch("lease-000001", bundle.digest(b"other rows"))
        pair.damage(b"rows", DAMAGES["truncated"])
        with expect_error(ValueError, "a damaged chunk is refused by its name", "lease-000001"):
            worker.fetch("lease-000001", bundle.digest(b"rows"))


def _await_heartbeat(pair: CarrierPair, wanted: Callable[[Heartbeat], bool], law: str) -> Heartbeat:
    """Return the heartbeat of w1 as soon as `wanted` accepts it. Raises ContractBroken after HEARTBEAT_LIMIT_S."""
    limit_s = time.monotonic() + HEARTBEAT_LIMIT_S
    # Polled, because a carrier may deliver heartbeats in the background.
    while (heartbeat := pair.master.heartbeat("w1")) is None or not wanted(heartbeat):
        require(time.monotonic() < limit_s, f"{law}: got {heartbeat}")
        time.sleep(0.001)
    return heartbeat


def the_last_heartbeat_is_read(pair: CarrierPair) -> None:
    """The last of several heartbeats is read, possibly a second late."""
    with _worker(pair) as worker:
        expect(pair.master.heartbeat("w1"), None, "a worker that never beat has no heartbeat")
        worker.beat(3, 64)
        worker.beat(4, 1 << 40)  # vertices may need more than 32 bits
        _await_heartbeat(pair, lambda heartbeat: heartbeat[:2] == (4, 1 << 40), "the last heartbeat is seen")


def a_repeated_heartbeat_differs_from_the_last(pair: CarrierPair) -> None:
    """A heartbeat with the same content differs from the previous one, so that a worker in a long batch counts as
    alive.
    """
    with _worker(pair) as worker:
        worker.beat(3, 64)
        first = _await_heartbeat(pair, lambda heartbeat: True, "the first heartbeat is seen")
        worker.beat(3, 64)
        again = _await_heartbeat(pair, lambda heartbeat: heartbeat != first, "a heartbeat said again is another")
    expect(again[:2], (3, 64), "a heartbeat said again says the same")


def a_heartbeat_outlives_its_worker(pair: CarrierPair) -> None:
    """The last heartbeat of a worker can be read after the worker has ended."""
    with _worker(pair) as worker:
        worker.beat(3, 64)
    heartbeat = pair.master.heartbeat("w1")
    expect(heartbeat and heartbeat[:2], (3, 64), "a heartbeat outlives its worker")


def a_worker_without_a_mailbox_has_no_heartbeat(pair: CarrierPair) -> None:
    """Reading the heartbeat of an unknown worker returns None."""
    expect(pair.master.heartbeat("unknown"), None, "a worker without a mailbox has no heartbeat")


def a_reply_to_a_closed_mailbox_is_harmless(pair: CarrierPair) -> None:
    """Answering a closed mailbox has no effect; the worker's `receive` raises FileNotFoundError."""
    with _worker(pair) as worker:
        worker.send(1, b"last message")
        pair.master.close("w1")
        pair.master.answer("w1", 1, b"goodbye")
        expect(_collected(pair), [], "nothing is collected from a closed mailbox")
        with expect_error(FileNotFoundError, "a worker sees that its mailbox was closed"):
            worker.receive(1)


def nothing_can_be_sent_to_a_closed_mailbox(pair: CarrierPair) -> None:
    """Sending to a mailbox that the master has closed raises OSError."""
    with _worker(pair) as worker:
        pair.master.close("w1")
        with expect_error(OSError, "nothing can be sent to a closed mailbox"):
            worker.send(1, b"too late")
        expect(_collected(pair), [], "nothing is collected from a closed mailbox")


def opening_and_closing_twice_are_harmless(pair: CarrierPair) -> None:
    """`open` and `close` are idempotent, and opening again keeps the mailbox's syncs."""
    with _worker(pair) as worker:
        pair.master.open("w1")
        worker.send(1, b"still here")
        pair.master.open("w1")
        expect(_collected(pair), [("w1", 1, b"still here")], "a mailbox that is opened again keeps its syncs")
        worker.close()
        worker.close()
        pair.master.close("w1")
        pair.master.close("w1")
        expect(_collected(pair), [], "nothing is collected from a closed mailbox")


def cleared_mailboxes_are_empty_and_can_be_opened_again(pair: CarrierPair) -> None:
    """`clear` removes all mailboxes and messages, so that a new run finds nothing old."""
    with _worker(pair) as worker:
        worker.send(1, b"of another time")
        pair.master.clear()
        with expect_error(OSError, "nothing can be sent to a mailbox that was cleared"):
            worker.send(2, b"too late")
        pair.master.open("w1")
        expect(_collected(pair), [], "what was cleared is not collected")
        worker.send(3, b"of now")
        expect(_collected(pair), [("w1", 3, b"of now")], "a mailbox that is opened again works")


CHECKS: tuple[Callable[[CarrierPair], None], ...] = (
    a_sync_is_collected_and_its_reply_received,
    payloads_of_any_content_travel_both_ways,
    payloads_in_pieces_travel_as_their_bytes,
    a_sync_is_collected_until_it_is_answered,
    a_sync_that_is_held_can_be_answered_later,
    sending_a_number_again_replaces_it,
    a_sync_sent_again_after_its_answer_is_collected_again,
    the_newest_sync_of_a_worker_is_collected,
    a_sync_that_is_too_long_is_a_problem_and_not_read,
    an_answer_settles_the_syncs_before_it,
    a_discarded_sync_is_not_collected,
    a_reply_to_another_number_is_not_received,
    mailboxes_are_separate,
    a_damaged_sync_is_not_delivered_and_can_be_sent_again,
    damaged_syncs_in_number_hold_up_nobody,
    a_damaged_reply_counts_as_none,
    a_published_chunk_is_fetched_until_it_is_retracted,
    a_shared_file_is_fetched_until_it_is_retracted,
    a_chunk_with_another_digest_is_refused,
    the_last_heartbeat_is_read,
    a_repeated_heartbeat_differs_from_the_last,
    a_heartbeat_outlives_its_worker,
    a_worker_without_a_mailbox_has_no_heartbeat,
    a_reply_to_a_closed_mailbox_is_harmless,
    nothing_can_be_sent_to_a_closed_mailbox,
    opening_and_closing_twice_are_harmless,
    cleared_mailboxes_are_empty_and_can_be_opened_again,
)
"""The laws of the contract."""


@contextmanager
def _worker(pair: CarrierPair, name: str = "w1") -> Iterator[WorkerMailbox]:
    pair.master.open(name)
    mailbox = pair.worker(name)
    try:
        yield mailbox
    finally:
        mailbox.close()


def _damaged(pair: CarrierPair) -> list[Message]:
    """Return the collected messages, all of which must be damaged."""
    messages = pair.master.collect()
    require(all(each.is_damaged and not each.payload and each.problem for each in messages), f"damaged: got {messages}")
    return messages


def _collected(pair: CarrierPair) -> list[tuple[str, int, bytes]]:
    return [(message.worker, message.number, bytes(message.payload)) for message in pair.master.collect()]
