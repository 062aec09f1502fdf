"""A mailbox in which nothing happens is not looked into at every turn, and no message is missed for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gridml.carriers.directory import LIST_S, SETTLED_S, DirectoryMailbox, DirectoryMailboxes

PAYLOAD = b"a message"


@dataclass
class Office:
    """A master with one mailbox, on a clock that stands still until it is told."""

    root: Path
    now: float = 0.0
    master: DirectoryMailboxes = field(init=False)
    worker: DirectoryMailbox = field(init=False)

    def __post_init__(self) -> None:
        self.master = DirectoryMailboxes(self.root, lambda: self.now)
        self.master.open("w1")
        self.worker = DirectoryMailbox(self.root, "w1")

    def collected(self, now: float) -> list[int]:
        self.now = now
        return [message.number for message in self.master.collect()]

    def within_the_tick(self, change: Callable[[], None]) -> None:
        """Change the mailbox without another mtime, as happens when two changes fall into one tick of the disk."""
        before = (self.root / "mail" / "w1").stat().st_mtime_ns
        change()
        os.utime(self.root / "mail" / "w1", ns=(before, before))

    def send_within_the_tick(self) -> None:
        self.within_the_tick(lambda: self.worker.send(1, PAYLOAD))


@pytest.fixture
def mailboxes(tmp_path: Path) -> Iterator[Office]:
    found = Office(tmp_path)
    yield found
    found.worker.close()


@pytest.mark.parametrize("looks", [[0.0], [0.0, SETTLED_S / 2], [i * SETTLED_S / 10 for i in range(10)]])
def test_a_letter_of_the_same_tick_is_found_at_the_next_look(mailboxes: Office, looks: list[float]) -> None:
    assert [mailboxes.collected(now) for now in looks] == [[] for _ in looks]
    mailboxes.send_within_the_tick()
    assert mailboxes.collected(looks[-1] + SETTLED_S / 10) == [1]


def test_a_letter_in_a_mailbox_that_was_long_empty_is_found_at_once(mailboxes: Office) -> None:
    assert not any(mailboxes.collected(i * SETTLED_S) for i in range(10))
    mailboxes.worker.send(1, PAYLOAD)
    assert mailboxes.collected(9 * SETTLED_S) == [1]


def test_an_empty_mailbox_is_looked_into_once_a_second_where_mtimes_say_nothing(mailboxes: Office) -> None:
    assert not mailboxes.collected(0.0) and not mailboxes.collected(SETTLED_S)
    mailboxes.send_within_the_tick()
    assert mailboxes.collected(SETTLED_S + LIST_S / 2) == []  # it is not looked into, which is what is saved
    assert mailboxes.collected(SETTLED_S + LIST_S) == [1]


def test_a_letter_is_collected_until_it_is_answered_whatever_the_time(mailboxes: Office) -> None:
    mailboxes.worker.send(1, PAYLOAD)
    assert [mailboxes.collected(i * SETTLED_S) for i in range(30)] == [[1]] * 30
    mailboxes.within_the_tick(lambda: mailboxes.master.answer("w1", 1, b"welcome"))
    assert mailboxes.collected(30 * SETTLED_S) == []
    mailboxes.send_within_the_tick()
    assert mailboxes.collected(30.5 * SETTLED_S) == [1]


def test_a_mailbox_that_is_opened_again_is_a_new_one(mailboxes: Office) -> None:
    assert not mailboxes.collected(0.0) and not mailboxes.collected(SETTLED_S)
    before = (mailboxes.root / "mail" / "w1").stat().st_mtime_ns
    mailboxes.worker.close()
    mailboxes.master.close("w1")
    mailboxes.master.open("w1")
    mailboxes.worker = DirectoryMailbox(mailboxes.root, "w1")
    mailboxes.worker.send(1, PAYLOAD)
    os.utime(mailboxes.root / "mail" / "w1", ns=(before, before))
    assert mailboxes.collected(SETTLED_S) == [1]
