"""Heartbeats of a worker continue during a batch of f, and their position never decreases."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gridml.carriers.base import BEGUN, Heartbeat
from gridml.carriers.directory import DirectoryMailbox, DirectoryMailboxes
from remote.stepped import HeartbeatMailbox

LIMIT_S = 60.0


class Counting(DirectoryMailbox):
    """A mailbox that sets an event after a number of heartbeats."""

    def __init__(self, root: Path, wanted: int) -> None:
        super().__init__(root, "w1")
        self._left = wanted
        self.enough = threading.Event()

    def beat(self, lease: int, upto: int) -> None:
        super().beat(lease, upto)
        self._left -= 1
        if self._left <= 0:
            self.enough.set()


@pytest.fixture
def master(tmp_path: Path) -> DirectoryMailboxes:
    mailboxes = DirectoryMailboxes(tmp_path)
    mailboxes.open("w1")
    return mailboxes


def test_it_goes_on_by_itself(tmp_path: Path, master: DirectoryMailboxes) -> None:
    inner = Counting(tmp_path, 6)
    mailbox = HeartbeatMailbox(inner, every_s=0.001)
    mailbox.beat(3, 64)
    assert inner.enough.wait(LIMIT_S)
    mailbox.close()
    heartbeat = master.heartbeat("w1")
    assert heartbeat is not None and heartbeat[:2] == (3, 64) and heartbeat.number >= 6


def test_a_life_shows_before_its_first_chunk(tmp_path: Path, master: DirectoryMailboxes) -> None:
    inner = Counting(tmp_path, 1)
    mailbox = HeartbeatMailbox(inner)
    assert inner.enough.wait(LIMIT_S)
    mailbox.close()
    assert master.heartbeat("w1") == Heartbeat(BEGUN, 0, 1)


def test_the_newest_stays_however_often_the_thread_beats(tmp_path: Path, master: DirectoryMailboxes) -> None:
    mailbox = HeartbeatMailbox(DirectoryMailbox(tmp_path, "w1"), every_s=0.0)
    for upto in range(5000):
        mailbox.beat(1, upto)
        heartbeat = master.heartbeat("w1")
        assert heartbeat is not None and heartbeat.upto == upto
    mailbox.close()
