"""One contract for every carrier. A carrier joins by adding a `Pair` maker to `CARRIERS`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gridml.carriers.base import MasterMailboxes, WorkerMailbox
from gridml.carriers.chirp import ChirpWorker
from gridml.carriers.directory import DirectoryMailbox, DirectoryMailboxes
from gridml.carriers.file_link import FileMailbox
from gridml.carriers.sftp import SftpLink, line_of_job
from gridml.protocol import bundle
from gridml.testing.chirp_server import proxy
from master.sftp.server import MailServer


@dataclass(frozen=True)
class Pair:
    """A master's end, how a worker makes its own, and the folders where payloads of a mailbox and chunks lie."""

    master: MasterMailboxes
    worker: Callable[[str], WorkerMailbox]
    mailbox: Callable[[str], Path]
    chunks: Path


@contextmanager
def directory(root: Path) -> Iterator[Pair]:
    yield Pair(
        DirectoryMailboxes(root),
        lambda name: DirectoryMailbox(root, name),
        lambda name: root / "mail" / name,
        root / "chunks",
    )


@contextmanager
def chirp(root: Path) -> Iterator[Pair]:
    config = root / ".chirp.config"
    with proxy(root, config):
        yield Pair(
            DirectoryMailboxes(root),
            lambda name: ChirpWorker(name, config, heartbeat_s=0),
            lambda name: root / "mail" / name,
            root / "chunks",
        )


@contextmanager
def sftp(root: Path) -> Iterator[Pair]:
    master = DirectoryMailboxes(root)
    server = MailServer(root, "127.0.0.1")
    server.make("w1")
    server.make("w2")
    lines = {name: line_of_job(root / "sftp" / name) for name in ("w1", "w2")}
    try:
        yield Pair(
            master,
            lambda name: FileMailbox(name, lambda: SftpLink(lines[name]), heartbeat_s=0),
            lambda name: root / "mail" / name,
            root / "chunks",
        )
    finally:
        for line in lines.values():
            line.close()
        server.close()


CARRIERS: dict[str, Callable[[Path], AbstractContextManager[Pair]]] = {
    "directory": directory,
    "chirp": chirp,
    "sftp": sftp,
}


@pytest.fixture(params=CARRIERS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with CARRIERS[request.param](tmp_path) as found:
        yield found


@pytest.fixture
def worker(pair: Pair) -> Iterator[WorkerMailbox]:
    pair.master.open("w1")
    end = pair.worker("w1")
    yield end
    end.close()


def collected(pair: Pair) -> list[tuple[str, int, bytes]]:
    return [(message.worker, message.number, message.payload) for message in pair.master.collect()]


def damage(folder: Path, payload: bytes, how: Callable[[bytes], bytes]) -> None:
    """Alter the file of `folder` that holds `payload`."""
    found = [path for path in folder.iterdir() if path.read_bytes() == payload]
    assert len(found) == 1
    found[0].write_bytes(how(payload))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda payload: payload[: len(payload) // 2],
    "emptied": lambda payload: b"",
    "altered": lambda payload: bytes([payload[0] ^ 1]) + payload[1:],
    "grown": lambda payload: payload + b"\0",
}


def test_a_sync_is_collected_answered_and_its_reply_received(pair: Pair, worker: WorkerMailbox) -> None:
    assert collected(pair) == []
    assert worker.receive(1) is None
    worker.send(1, b"hello")
    assert collected(pair) == [("w1", 1, b"hello")]
    assert worker.receive(1) is None
    pair.master.answer("w1", 1, b"welcome")
    assert worker.receive(1) == b"welcome"


@pytest.mark.parametrize("payload", [b"", b"\0", bytes(range(256)) * 4096])
def test_payloads_of_any_content_travel_both_ways(pair: Pair, worker: WorkerMailbox, payload: bytes) -> None:
    worker.send(1, payload)
    assert collected(pair) == [("w1", 1, payload)]
    pair.master.answer("w1", 1, payload)
    assert worker.receive(1) == payload


def test_what_was_collected_is_collected_again_until_it_is_answered(pair: Pair, worker: WorkerMailbox) -> None:
    worker.send(1, b"hello")
    assert collected(pair) == collected(pair) == [("w1", 1, b"hello")]
    pair.master.answer("w1", 1, b"welcome")
    assert collected(pair) == []


def test_sending_a_number_again_replaces_it(pair: Pair, worker: WorkerMailbox) -> None:
    worker.send(1, b"first")
    worker.send(1, b"second")
    assert collected(pair) == [("w1", 1, b"second")]
    worker.send(1, b"second")
    assert collected(pair) == [("w1", 1, b"second")]


def test_a_sync_sent_again_after_its_answer_is_collected_again(pair: Pair, worker: WorkerMailbox) -> None:
    worker.send(1, b"hello")
    pair.master.answer("w1", 1, b"lost")
    worker.send(1, b"hello")
    assert collected(pair) == [("w1", 1, b"hello")]
    pair.master.answer("w1", 1, b"again")
    assert worker.receive(1) in (b"lost", b"again")
    assert collected(pair) == []


def test_syncs_of_a_worker_are_collected_oldest_first(pair: Pair, worker: WorkerMailbox) -> None:
    for number in (2, 10, 9, 100, 1):
        worker.send(number, b"%d" % number)
    assert [number for _, number, _ in collected(pair)] == [1, 2, 9, 10, 100]


def test_an_answer_also_settles_the_syncs_before_it(pair: Pair, worker: WorkerMailbox) -> None:
    worker.send(1, b"one")
    worker.send(2, b"two")
    worker.send(3, b"three")
    pair.master.answer("w1", 2, b"reply")
    assert collected(pair) == [("w1", 3, b"three")]


def test_a_reply_to_another_number_is_not_received(pair: Pair, worker: WorkerMailbox) -> None:
    worker.send(1, b"one")
    pair.master.answer("w1", 1, b"old")
    worker.send(2, b"two")
    assert worker.receive(2) is None
    pair.master.answer("w1", 2, b"new")
    assert worker.receive(2) == b"new"


def test_mailboxes_are_apart(pair: Pair, worker: WorkerMailbox) -> None:
    pair.master.open("w2")
    other = pair.worker("w2")
    worker.send(1, b"mine")
    other.send(1, b"theirs")
    assert sorted(collected(pair)) == [("w1", 1, b"mine"), ("w2", 1, b"theirs")]
    pair.master.answer("w2", 1, b"yours")
    assert worker.receive(1) is None
    assert other.receive(1) == b"yours"
    other.close()


@pytest.mark.parametrize("how", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_sync_is_not_delivered_and_can_be_sent_again(
    pair: Pair, worker: WorkerMailbox, how: Callable[[bytes], bytes]
) -> None:
    worker.send(1, b"precious")
    damage(pair.mailbox("w1"), b"precious", how)
    assert collected(pair) == []
    worker.send(1, b"precious")
    assert collected(pair) == [("w1", 1, b"precious")]


@pytest.mark.parametrize("how", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_reply_counts_as_none(pair: Pair, worker: WorkerMailbox, how: Callable[[bytes], bytes]) -> None:
    worker.send(1, b"question")
    pair.master.answer("w1", 1, b"precious")
    damage(pair.mailbox("w1"), b"precious", how)
    assert worker.receive(1) is None
    worker.send(1, b"question")
    pair.master.answer("w1", 1, b"precious")
    assert worker.receive(1) == b"precious"


def test_a_published_chunk_is_fetched_until_it_is_retracted(pair: Pair, worker: WorkerMailbox) -> None:
    pair.master.publish("lease-000001", b"rows")
    assert worker.fetch("lease-000001", bundle.digest(b"rows")) == b"rows"
    pair.master.retract("lease-000001")
    pair.master.retract("lease-000001")
    with pytest.raises(OSError):
        worker.fetch("lease-000001", bundle.digest(b"rows"))


def test_a_chunk_with_another_digest_is_refused(pair: Pair, worker: WorkerMailbox) -> None:
    pair.master.publish("lease-000001", b"rows")
    with pytest.raises(ValueError, match="lease-000001"):
        worker.fetch("lease-000001", bundle.digest(b"other rows"))
    damage(pair.chunks, b"rows", DAMAGE["truncated"])
    with pytest.raises(ValueError, match="lease-000001"):
        worker.fetch("lease-000001", bundle.digest(b"rows"))


def test_the_last_note_of_a_worker_is_known(pair: Pair, worker: WorkerMailbox) -> None:
    assert pair.master.heartbeat("w1") is None
    worker.beat(3, 64)
    worker.beat(4, 1 << 40)
    deadline = time.monotonic() + 10
    while pair.master.heartbeat("w1") != (4, 1 << 40):
        assert time.monotonic() < deadline, "a note may be late by a second, not by ten"


def test_a_note_outlives_its_worker(pair: Pair, worker: WorkerMailbox) -> None:
    worker.beat(3, 64)
    worker.close()
    assert pair.master.heartbeat("w1") == (3, 64)


def test_nothing_is_noted_of_a_worker_nobody_knows(pair: Pair) -> None:
    assert pair.master.heartbeat("nobody") is None


def test_a_reply_to_a_closed_mailbox_is_harmless(pair: Pair, worker: WorkerMailbox) -> None:
    worker.send(1, b"last words")
    pair.master.close("w1")
    pair.master.answer("w1", 1, b"farewell")
    assert collected(pair) == []
    with pytest.raises(FileNotFoundError):
        worker.receive(1)


def test_what_is_sent_to_a_closed_mailbox_is_lost(pair: Pair, worker: WorkerMailbox) -> None:
    pair.master.close("w1")
    with pytest.raises(OSError):
        worker.send(1, b"too late")
    assert collected(pair) == []


def test_closing_twice_and_opening_twice_are_harmless(pair: Pair, worker: WorkerMailbox) -> None:
    pair.master.open("w1")
    worker.send(1, b"still here")
    assert collected(pair) == [("w1", 1, b"still here")]
    worker.close()
    worker.close()
    pair.master.close("w1")
    pair.master.close("w1")
    assert collected(pair) == []


def test_what_was_cleared_is_not_collected_and_can_be_opened_again(pair: Pair, worker: WorkerMailbox) -> None:
    worker.send(1, b"of another time")
    pair.master.clear()
    with pytest.raises(OSError):
        worker.send(2, b"too late")
    pair.master.open("w1")
    assert collected(pair) == []
    worker.send(3, b"of now")
    assert collected(pair) == [("w1", 3, b"of now")]
