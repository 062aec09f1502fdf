"""A job has a key for as long as one of its attempts has a mailbox."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gridml.carriers.enrolment import EnrolmentClient, new_key
from gridml.carriers.file_link import FileMailbox
from gridml.carriers.sftp import Credential, SftpConnection, SftpLink
from master.sftp.roster import Roster
from master.sftp.server import OWN, SftpMailboxes


@pytest.fixture
def mailboxes(tmp_path: Path) -> Iterator[SftpMailboxes]:
    made = SftpMailboxes(tmp_path, "127.0.0.1")
    yield made
    made.stop()


def keys(root: Path) -> set[str]:
    return {*os.listdir(root / "sftp")} - {OWN}


def test_a_job_reaches_its_mailbox_while_the_mailboxes_are_served(mailboxes: SftpMailboxes, tmp_path: Path) -> None:
    mailboxes.open("w1")
    line = SftpConnection(Credential.read(tmp_path / "sftp" / "w1"), 5.0)
    try:
        assert "w1" in SftpLink(line).list("mail")
        mailboxes.stop()
        with pytest.raises(OSError):
            SftpLink(line).list("mail")
    finally:
        line.close()


def test_the_key_stays_through_the_attempts_of_a_job_and_goes_with_the_last(
    mailboxes: SftpMailboxes, tmp_path: Path
) -> None:
    for worker in ("w1", "w1.1", "w2"):
        mailboxes.open(worker)
    assert keys(tmp_path) == {"w1", "w2"}
    mailboxes.close("w1")
    assert keys(tmp_path) == {"w1", "w2"}
    mailboxes.close("w1.1")
    mailboxes.close("w1.1")
    assert keys(tmp_path) == {"w2"}
    mailboxes.clear()
    assert keys(tmp_path) == set() and os.listdir(tmp_path / "mail") == []


def test_the_next_master_takes_the_keys_over(mailboxes: SftpMailboxes, tmp_path: Path) -> None:
    for worker in ("w1", "w2"):
        mailboxes.open(worker)
    before = (tmp_path / "sftp" / "w1").read_text()
    mailboxes.stop()
    later = SftpMailboxes(tmp_path, "127.0.0.1")
    try:
        later.open("w1.3")  # it continues
        later.close("w1")  # the ledger still names it,
        later.close("w2")  # and this one has ended in between
        assert keys(tmp_path) == {"w1"}
        assert (tmp_path / "sftp" / "w1").read_text() == before
    finally:
        later.stop()


def test_no_file_is_longer_than_the_longest_message(mailboxes: SftpMailboxes, tmp_path: Path) -> None:
    mailboxes.limit(1_000)
    mailboxes.open("w1")
    line = SftpConnection(Credential.read(tmp_path / "sftp" / "w1"), 5.0)
    try:
        SftpLink(line).put("mail/w1/message", b"x" * 1_000)
        with pytest.raises(OSError):
            SftpLink(line).put("mail/w1/message", b"x" * 1_001)
        assert (tmp_path / "mail" / "w1" / "message").stat().st_size == 1_000
    finally:
        line.close()


def test_a_machine_that_enrolled_reaches_its_mailbox_until_the_master_closes_it(
    fleet: Callable[..., Roster], provider: Any, tmp_path: Path
) -> None:
    """The life of a fleet's worker: its mailbox is opened, it enrols, sends, receives an answer, and ends."""
    fleet()
    mailboxes = SftpMailboxes(tmp_path, "127.0.0.1")
    try:
        mailboxes.open("w7")
        credential = Credential.read(tmp_path / "sftp" / "w7")
        assert credential.private_key == ""
        key, document = new_key(), provider.document()
        assigned = EnrolmentClient(credential, key, 5.0).enrol(
            "the token of the fleet", document, provider.sign(document)
        )
        line = SftpConnection(replace(credential, user=assigned.job, private_key=key), 5.0)
        mailbox = FileMailbox(assigned.job, lambda: SftpLink(line))
        mailbox.send(1, b"a push")
        assert [(each.worker, each.payload) for each in mailboxes.collect()] == [("w7", b"a push")]
        mailboxes.answer("w7", 1, b"an answer")
        assert mailbox.receive(1) == b"an answer"
        mailboxes.close("w7")
        with pytest.raises(OSError):
            mailbox.send(2, b"a late push")
        with pytest.raises(OSError):
            mailbox.send(2, b"a late push")
        assert mailboxes.collect() == [] and keys(tmp_path) == set()
        mailbox.close()
        line.close()
    finally:
        mailboxes.stop()
