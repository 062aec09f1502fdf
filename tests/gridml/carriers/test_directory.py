"""A mailbox in which nothing happens is not looked into at every turn, and no message is missed for it."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gridml.carriers import directory
from gridml.carriers.base import MAX_MAILBOX_FILES, name_of
from gridml.carriers.directory import LIST_S, SETTLED_S, DirectoryMailbox, DirectoryMailboxes
from gridml.protocol.bundle import digest
from master.simulation.faulty_network import VirtualClock
from tests.support.hostile_files import FILE_ATTACKS

PAYLOAD = b"a message"


@dataclass
class Carrier:
    """Both ends of one mailbox, on a clock that stands still."""

    root: Path
    clock: VirtualClock = field(default_factory=VirtualClock)
    master: DirectoryMailboxes = field(init=False)
    worker: DirectoryMailbox = field(init=False)

    def __post_init__(self) -> None:
        self.master = DirectoryMailboxes(self.root, self.clock)
        self.master.open("w1")
        self.worker = DirectoryMailbox(self.root, "w1")

    def collected(self, now_s: float) -> list[int]:
        self.clock.advance(now_s)
        return [message.number for message in self.master.collect()]

    def within_the_tick(self, change: Callable[[], None]) -> None:
        """Change the mailbox without another mtime, as happens when two changes fall into one tick of the disk."""
        before = (self.root / "mail" / "w1").stat().st_mtime_ns
        change()
        os.utime(self.root / "mail" / "w1", ns=(before, before))

    def send_within_the_tick(self) -> None:
        self.within_the_tick(lambda: self.worker.send(1, PAYLOAD))


@pytest.fixture
def carrier(tmp_path: Path) -> Iterator[Carrier]:
    carrier = Carrier(tmp_path)
    yield carrier
    carrier.worker.close()


@pytest.mark.parametrize("looks", [[0.0], [0.0, SETTLED_S / 2], [i * SETTLED_S / 10 for i in range(10)]])
def test_a_message_of_the_same_tick_is_collected_at_the_next_look(carrier: Carrier, looks: list[float]) -> None:
    assert [carrier.collected(now) for now in looks] == [[] for _ in looks]
    carrier.send_within_the_tick()
    assert carrier.collected(looks[-1] + SETTLED_S / 10) == [1]


def test_a_message_in_a_mailbox_that_was_long_empty_is_collected_at_once(carrier: Carrier) -> None:
    assert not any(carrier.collected(i * SETTLED_S) for i in range(10))
    carrier.worker.send(1, PAYLOAD)
    assert carrier.collected(9 * SETTLED_S) == [1]


def test_an_empty_mailbox_is_looked_into_once_a_second_where_mtimes_say_nothing(carrier: Carrier) -> None:
    assert not carrier.collected(0.0) and not carrier.collected(SETTLED_S)
    carrier.send_within_the_tick()
    assert carrier.collected(SETTLED_S + LIST_S / 2) == []  # it is not listed, which is what is saved
    assert carrier.collected(SETTLED_S + LIST_S) == [1]


def test_a_message_is_collected_until_it_is_answered_whatever_the_time(carrier: Carrier) -> None:
    carrier.worker.send(1, PAYLOAD)
    assert [carrier.collected(i * SETTLED_S) for i in range(30)] == [[1]] * 30
    carrier.within_the_tick(lambda: carrier.master.answer("w1", 1, b"welcome"))
    assert carrier.collected(30 * SETTLED_S) == []
    carrier.send_within_the_tick()
    assert carrier.collected(30.5 * SETTLED_S) == [1]


def test_a_mailbox_that_is_opened_again_is_a_new_one(carrier: Carrier) -> None:
    assert not carrier.collected(0.0) and not carrier.collected(SETTLED_S)
    before = (carrier.root / "mail" / "w1").stat().st_mtime_ns
    carrier.worker.close()
    carrier.master.close("w1")
    carrier.master.open("w1")
    carrier.worker = DirectoryMailbox(carrier.root, "w1")
    carrier.worker.send(1, PAYLOAD)
    os.utime(carrier.root / "mail" / "w1", ns=(before, before))
    assert carrier.collected(SETTLED_S) == [1]


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOTDIR, errno.ELOOP])
def test_a_mailbox_that_its_worker_has_closed_to_us_is_a_problem(
    carrier: Carrier, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: object) -> list[str]:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "listdir", refuse)
    (message,) = carrier.master.collect()
    assert (message.worker, message.number) == ("w1", 0) and os.strerror(number) in message.problem
    carrier.master.answer("w1", 1, b"welcome")
    carrier.master.discard("w1", 1)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENOSPC])
def test_what_our_disk_refuses_is_no_problem_of_a_worker(
    carrier: Carrier, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: object) -> list[str]:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(OSError, match=os.strerror(number)):
        carrier.master.collect()


def test_of_a_flood_of_whole_messages_the_newest_is_left_and_told_of_once(carrier: Carrier) -> None:
    for number in range(1, 2 * MAX_MAILBOX_FILES):
        carrier.worker.send(number, PAYLOAD)
    problem, message = carrier.master.collect()
    assert (problem.number, message.number, message.payload) == (0, 2 * MAX_MAILBOX_FILES - 1, PAYLOAD)
    assert problem.problem.startswith(f"{2 * MAX_MAILBOX_FILES:,} files")  # with the heartbeat
    assert [message.number for message in carrier.master.collect()] == [2 * MAX_MAILBOX_FILES - 1]
    assert len([*(carrier.root / "mail" / "w1").iterdir()]) == 2  # and the heartbeat


def test_a_reply_where_a_folder_lies_is_a_problem_of_its_worker(carrier: Carrier) -> None:
    carrier.worker.send(1, PAYLOAD)
    (carrier.root / "mail" / "w1" / name_of("reply", 1, digest(b"welcome"))).mkdir()
    carrier.master.answer("w1", 1, b"welcome")
    (problem,) = carrier.master.collect()
    assert problem.problem and problem.number == 0


def test_only_folders_that_are_called_as_a_worker_are_mailboxes(tmp_path: Path) -> None:
    """A folder called caf\xe9 ended the master: the name is no UTF-8, and went into a file."""
    master, rng = DirectoryMailboxes(tmp_path), random.Random(1)
    FILE_ATTACKS["mailboxes of nobody"](rng, tmp_path / "mail" / "w1", "")
    assert len(os.listdir(tmp_path / "mail")) > 6
    assert [message.worker for message in master.collect()] == ["w1.99", "w999999", "x" * 200]


def test_messages_come_in_groups_that_memory_holds_and_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "GROUP_BYTES", 100)
    master = DirectoryMailboxes(tmp_path, VirtualClock())
    workers = [f"w{number}" for number in range(1, 8)]
    for worker in workers:
        master.open(worker)
        with contextlib.closing(DirectoryMailbox(tmp_path, worker)) as mailbox:
            mailbox.send(1, bytes(250 if worker == "w2" else 40))

    def collected() -> list[str]:
        messages = master.collect()
        for message in messages:
            master.answer(message.worker, message.number, b"heard")
        with contextlib.closing(DirectoryMailbox(tmp_path, "w1")) as mailbox:
            mailbox.send(1, bytes(40))  # it speaks again at once, and waits until the others were heard
        return [message.worker for message in messages]

    groups = [collected()]
    while master.more:
        groups.append(collected())
    assert groups == [["w1", "w2"], ["w3", "w4"], ["w5", "w6"], ["w7"]]
    assert collected() == ["w1"] and not master.more
