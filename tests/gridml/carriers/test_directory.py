"""An idle mailbox is not listed in every turn, and no message is missed."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gridml.carriers import directory
from gridml.carriers.base import MAX_MAILBOX_FILES, name_of
from gridml.carriers.directory import LIST_S, MAX_REMOVED, SETTLED_S, DirectoryMailbox, DirectoryMailboxes
from gridml.protocol.bundle import digest
from gridml.protocol.payload import Received
from master.simulation.faulty_network import VirtualClock
from tests.support.hostile_files import FILE_ATTACKS

PAYLOAD = b"a message"
LONG_S = 60.0  # no test waits as long


@dataclass
class Carrier:
    """Both ends of one mailbox, on a stopped clock."""

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
        """Change the mailbox without a new mtime, as when two changes fall into one tick of the disk's clock."""
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
    assert carrier.collected(SETTLED_S + LIST_S / 2) == []  # it is not listed
    assert carrier.collected(SETTLED_S + LIST_S) == [1]


def test_a_message_is_collected_until_it_is_answered_whatever_the_time(carrier: Carrier) -> None:
    carrier.worker.send(1, PAYLOAD)
    assert [carrier.collected(i * SETTLED_S) for i in range(30)] == [[1]] * 30
    carrier.within_the_tick(lambda: carrier.master.answer("w1", 1, b"welcome"))
    assert carrier.collected(30 * SETTLED_S) == []
    carrier.send_within_the_tick()
    assert carrier.collected(30.5 * SETTLED_S) == [1]


def test_a_held_message_waits_for_the_next_master(carrier: Carrier) -> None:
    carrier.worker.send(1, PAYLOAD)
    assert carrier.collected(0.0) == [1]
    carrier.master.hold("w1", 1)
    assert [carrier.collected(i * SETTLED_S) for i in range(1, 9)] == [[]] * 8
    assert [message.number for message in DirectoryMailboxes(carrier.root, carrier.clock).collect()] == [1]
    carrier.worker.send(2, PAYLOAD)
    assert carrier.collected(9 * SETTLED_S) == [2]


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


def refuse_listing(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the disk refuse to list the mailbox of w1."""
    scandir = os.scandir

    def scan(path: Path) -> Any:
        if path.name == "w1":
            raise OSError(number, os.strerror(number))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOTDIR, errno.ELOOP])
def test_a_mailbox_that_its_worker_has_closed_to_us_is_a_problem(
    carrier: Carrier, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_listing(monkeypatch, number)
    (message,) = carrier.master.collect()
    assert (message.worker, message.number) == ("w1", 0) and os.strerror(number) in message.problem
    carrier.master.answer("w1", 1, b"welcome")
    carrier.master.discard("w1", 1)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENOSPC])
def test_what_our_disk_refuses_is_no_problem_of_a_worker(
    carrier: Carrier, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_listing(monkeypatch, number)
    with pytest.raises(OSError, match=os.strerror(number)):
        carrier.master.collect()


def test_of_a_flood_of_messages_the_newest_is_kept_and_reported_once(carrier: Carrier) -> None:
    for number in range(1, 2 * MAX_MAILBOX_FILES):
        carrier.worker.send(number, PAYLOAD)
    problem, message = carrier.master.collect()
    assert (problem.number, message.number, message.payload) == (0, 2 * MAX_MAILBOX_FILES - 1, PAYLOAD)
    assert problem.problem.startswith(f"{2 * MAX_MAILBOX_FILES:,} files")  # with the heartbeat
    assert [message.number for message in carrier.master.collect()] == [2 * MAX_MAILBOX_FILES - 1]
    assert len([*(carrier.root / "mail" / "w1").iterdir()]) == 2  # and the heartbeat


def hard_links(carrier: Carrier, count: int) -> int:
    """Fill the mailbox of w1 with names of one file, all under wrong digests; return its length."""
    (carrier.root / "one").write_bytes(bytes(1000))
    for number in range(1, count + 1):
        os.link(carrier.root / "one", carrier.root / "mail" / "w1" / name_of("sync", number, f"{number:064x}"))
    return 1000


def test_of_many_damaged_messages_one_is_read_at_a_look(carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: 60 hard links of the longest length were read and hashed at every poll, and no worker was blamed."""
    length, read, count = hard_links(carrier, 60), list[int](), directory.receive_regular

    def receive(path: Path, longest: int) -> Received:
        read.append(1)
        return count(path, longest)

    monkeypatch.setattr(directory, "receive_regular", receive)
    carrier.master.open("w2")
    with contextlib.closing(DirectoryMailbox(carrier.root, "w2")) as honest:
        honest.send(1, PAYLOAD)
    damaged, message = carrier.master.collect()
    assert (damaged.worker, damaged.number, damaged.payload, damaged.is_damaged) == ("w1", 60, b"", True)
    assert f"{length:,} bytes" in damaged.problem and (message.worker, message.payload) == ("w2", PAYLOAD)
    assert len(read) == 2
    carrier.master.discard("w2", 1)
    assert [(each.number, each.is_damaged) for each in carrier.master.collect()] == [(59, True)]


@pytest.mark.parametrize("name", [name_of("sync", 1, "0" * 64), name_of("reply", 1, digest(b"welcome"))])
def test_a_tree_in_a_mailbox_is_removed_beside_the_loop(
    carrier: Carrier, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the master's loop stood still while it removed a tree, whatever its size."""
    tree = carrier.root / "mail" / "w1" / name
    for folder in range(20):
        (tree / f"{folder}" / "deeper").mkdir(parents=True)
        for number in range(20):
            (tree / f"{folder}" / f"{number}").touch()
    removed, unlink = list[str](), os.unlink

    def remove(path: Any, *, dir_fd: int | None = None) -> None:
        removed.append(threading.current_thread().name)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", remove)
    if name.startswith("sync"):
        (problem,) = carrier.master.collect()
        assert (problem.worker, problem.number) == ("w1", 1) and "no regular file" in problem.problem
        carrier.master.discard("w1", 1)
    else:
        carrier.master.close("w1")
    assert not tree.exists() and removed.count("MainThread") <= MAX_REMOVED
    assert carrier.master.collect() == []
    carrier.master.stop()
    assert len(removed) >= 400 and len({*removed}) == 2
    assert os.listdir(carrier.root / "mail") == ["w1"] * name.startswith("sync")


def test_a_mailbox_is_listed_within_a_bound(carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAX_LISTED", 100)
    hard_links(carrier, 350)
    problems = [message.problem for _ in range(5) for message in carrier.master.collect() if not message.is_damaged]
    assert problems == ["100 files or more lay in its mailbox, expected at most 64"] * 3
    assert len(os.listdir(carrier.root / "mail" / "w1")) <= MAX_MAILBOX_FILES


def test_a_reply_where_a_folder_lies_is_a_problem_of_its_worker(carrier: Carrier) -> None:
    carrier.worker.send(1, PAYLOAD)
    (carrier.root / "mail" / "w1" / name_of("reply", 1, digest(b"welcome"))).mkdir()
    carrier.master.answer("w1", 1, b"welcome")
    (problem,) = carrier.master.collect()
    assert problem.problem and problem.number == 0


def test_only_folders_that_are_called_as_a_worker_are_mailboxes(tmp_path: Path) -> None:
    """Regression: a folder called caf\xe9, whose name is no UTF-8 and was written into a file, ended the master."""
    master, rng = DirectoryMailboxes(tmp_path), random.Random(1)
    FILE_ATTACKS["unknown mailboxes"](rng, tmp_path / "mail" / "w1", "")
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
            mailbox.send(1, bytes(40))  # it sends again at once, and is answered after the others
        return [message.worker for message in messages]

    groups = [collected()]
    while master.more:
        groups.append(collected())
    assert groups == [["w1", "w2"], ["w3", "w4"], ["w5", "w6"], ["w7"]]
    assert collected() == ["w1"] and not master.more


@pytest.fixture
def inotify(tmp_path: Path) -> None:
    """Skip a test of watches if this user's other processes have all of them."""
    with contextlib.closing(directory.FolderWatch("sync")) as watch:
        if not watch.add(tmp_path):
            pytest.skip("inotify gives no watch: see fs.inotify.max_user_instances")


@pytest.mark.usefixtures("inotify")
@pytest.mark.parametrize("notified", [True, False])
def test_a_wait_ends_with_a_message_of_the_other_end_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notified: bool
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    if not notified:
        monkeypatch.setattr(os, "O_NONBLOCK", -1)  # a flag that inotify_init1 refuses
    carrier = Carrier(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(time, "sleep", waits.append)
    carrier.master.collect()  # from now on the mailbox is watched
    carrier.worker.send(1, PAYLOAD)
    carrier.master.wait(LONG_S)
    assert carrier.collected(0.0) == [1]
    carrier.master.wait(0.001)  # what was collected ends no other wait
    carrier.worker.wait(0.001, time.sleep)  # nor what this end has sent itself
    carrier.master.answer("w1", 1, PAYLOAD)
    carrier.worker.wait(LONG_S, time.sleep)
    carrier.master.wait(0.001)
    assert waits == ([] if notified else [LONG_S, 0.001, 0.001, LONG_S, 0.001])
    assert (carrier.worker.poll_s == directory.WATCHED_POLL_S) is notified
    carrier.worker.close()
    carrier.master.stop()


@pytest.mark.usefixtures("inotify")
def test_a_wait_for_several_workers_gathers_their_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carrier = Carrier(tmp_path)
    carrier.master.open("w2")
    carrier.master.collect()
    other = DirectoryMailbox(tmp_path, "w2")
    carrier.worker.send(1, PAYLOAD)
    monkeypatch.setattr(time, "sleep", lambda seconds: other.send(1, PAYLOAD))  # while the master gathers
    carrier.master.wait(LONG_S)
    assert carrier.collected(0.0) == [1, 1]
    other.close()


@pytest.mark.usefixtures("inotify")
def test_a_wait_ends_although_its_folder_is_gone(tmp_path: Path) -> None:
    carrier = Carrier(tmp_path)
    carrier.master.collect()
    carrier.master.close("w1")
    carrier.worker.wait(0.001, time.sleep)
    carrier.master.wait(0.001)
    carrier.master.open("w1")
    carrier.master.collect()
    DirectoryMailbox(tmp_path, "w1").send(1, PAYLOAD)
    carrier.master.wait(LONG_S)  # the new mailbox is watched
    assert carrier.collected(0.0) == [1]


@pytest.mark.usefixtures("inotify")
def test_a_watch_that_nobody_holds_is_given_back(tmp_path: Path) -> None:
    """A user has 128 of them, and a master that fails as it begins closes nothing."""
    for _ in range(300):
        assert directory.FolderWatch("sync").add(tmp_path)
