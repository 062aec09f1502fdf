"""Limits on the cost of clients with or without a key: connections, threads, bytes, files; and the allowed ciphers."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from gridml.carriers.sftp import Credential, SftpConnection, SftpLink
from master.sftp import server as mail_server
from master.sftp.jail import MAX_MESSAGES, Quota
from master.sftp.server import MAX_ANONYMOUS, MAX_JOB_CONNECTIONS, MailServer

TIMEOUT_S, LIMIT_S = 30.0, 60.0
QUOTA = Quota(10_000, files=8)
LONGEST = QUOTA.longest
IDLE = 3 * MAX_ANONYMOUS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for box in ("w7", "w7.1", "w70"):
        (tmp_path / "mail" / box).mkdir(parents=True)
    (tmp_path / "chunks").mkdir()
    return tmp_path


@pytest.fixture
def server(root: Path) -> Iterator[MailServer]:
    made = MailServer(root, "127.0.0.1")
    made.quota = QUOTA
    for job in ("w7", "w70"):
        made.make(job)
    yield made
    made.close()


@pytest.fixture
def session(server: MailServer, root: Path) -> Iterator[Any]:
    """An SFTP session of job w7."""
    line = SftpConnection(Credential.read(root / "sftp" / "w7"), TIMEOUT_S)
    yield line.session()
    line.close()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, f"did not happen within {LIMIT_S} s"
        threading.Event().wait(0.01)


def entered(root: Path, job: str = "w7") -> Any:
    """A connection that has authenticated and makes no request."""
    wanted = Credential.read(root / "sftp" / job)
    transport = paramiko.Transport(socket.create_connection((wanted.host, wanted.port)))
    transport.start_client(timeout=TIMEOUT_S)
    transport.auth_publickey(wanted.user, paramiko.Ed25519Key(file_obj=io.StringIO(wanted.private_key)))
    return transport


def active(transports: list[Any]) -> int:
    return sum(transport.is_active() for transport in transports)


# --- connections


def test_connections_that_ask_for_nothing_count_too(server: MailServer, root: Path) -> None:
    before, transports = threading.active_count(), []
    for _ in range(IDLE // 2):
        transports.append(entered(root))
        threads = threading.active_count() - before - active(transports)  # without the clients' own
        assert threads <= MAX_ANONYMOUS + MAX_JOB_CONNECTIONS, f"{threads} threads for {len(transports)} connections"
    wait_until(lambda: active(transports) <= MAX_JOB_CONNECTIONS)
    assert transports[-1].is_active()
    for transport in transports:
        transport.close()


def test_connections_on_which_nothing_is_said_make_no_more_threads(server: MailServer, root: Path) -> None:
    wanted, before = Credential.read(root / "sftp" / "w7"), threading.active_count()
    silent = []
    for _ in range(IDLE):
        silent.append(socket.create_connection((wanted.host, wanted.port)))
        assert threading.active_count() - before <= MAX_ANONYMOUS + 5  # those that end
    link = SftpLink(SftpConnection(wanted, TIMEOUT_S))
    assert sorted(link.list("mail")) == ["w7", "w7.1"]
    link._connection.close()
    for connection in silent:
        connection.close()


def test_one_address_cannot_keep_the_others_out(server: MailServer, root: Path) -> None:
    wanted = Credential.read(root / "sftp" / "w7")
    other = socket.create_connection((wanted.host, wanted.port), source_address=("127.0.0.2", 0))
    wait_until(lambda: len(server._connections) == 1)
    crowd = [socket.create_connection((wanted.host, wanted.port)) for _ in range(2 * MAX_ANONYMOUS)]
    with socket.create_connection((wanted.host, wanted.port)) as last:
        last.settimeout(LIMIT_S)
        assert last.recv(4) == b"SSH-"  # so all before it were accepted
    assert "127.0.0.2" in {connection.handler.address for connection in server._connections}
    other.close()
    for connection in crowd:
        connection.close()


# --- quotas


def test_a_file_ends_where_the_longest_message_would(session: Any, root: Path) -> None:
    with session.open("mail/w7/message", "w") as file:
        file.write(b"x" * LONGEST)
        with pytest.raises(OSError):
            file.write(b"x")
    assert (root / "mail/w7/message").stat().st_size == LONGEST


@pytest.mark.parametrize("offset", [LONGEST, 2**41, 2**63 - 1, 2**64 - 1])
def test_a_sparse_file_is_refused(session: Any, root: Path, offset: int) -> None:
    """A sparse file of two terabytes takes no disk space, but would take the master's memory."""
    handle = session.open("mail/w7/message", "w")
    with pytest.raises(OSError):
        session._request(paramiko.sftp.CMD_WRITE, handle.handle, paramiko.sftp.int64(offset), b"x")
    with pytest.raises(OSError):
        session.truncate("mail/w7/message", offset)
    assert (root / "mail/w7/message").stat().st_size == 0


def test_what_is_appended_counts(session: Any, root: Path) -> None:
    """On a file opened for appending the kernel ignores the offset and writes to the end."""
    handle = session.open("mail/w7/message", "a")
    with contextlib.suppress(OSError):
        for _ in range(2 * MAX_MESSAGES):
            session._request(paramiko.sftp.CMD_WRITE, handle.handle, paramiko.sftp.int64(0), b"x" * LONGEST)
    assert (root / "mail/w7/message").stat().st_size <= LONGEST
    with session.open("mail/w7/message", "w") as file:
        file.write(b"one")
    with session.open("mail/w7/message", "a") as file:  # as the client intends
        file.write(b", two")
    assert (root / "mail/w7/message").read_bytes() == b"one, two"


def test_the_byte_limit_of_a_mailbox_covers_all_sessions(server: MailServer, session: Any, root: Path) -> None:
    line = SftpConnection(Credential.read(root / "sftp" / "w7"), TIMEOUT_S)
    second, written = line.session(), 0
    with pytest.raises(OSError):
        for number in range(2 * MAX_MESSAGES):
            with (second if number % 2 else session).open(f"mail/w7/{number}", "w") as file:
                file.write(b"x" * LONGEST)
            written += 1
    assert written == MAX_MESSAGES
    session.remove("mail/w7/0")  # which makes room
    with session.open("mail/w7/again", "w") as file:
        file.write(b"x" * LONGEST)
    line.close()


def test_bytes_of_files_that_were_removed_and_are_still_open_count(session: Any, root: Path) -> None:
    held = []
    for number in range(MAX_MESSAGES):
        held.append(session.open("mail/w7/message", "w"))
        held[-1].write(b"x" * LONGEST)
        session.remove("mail/w7/message")
        assert len(held) == number + 1
    with session.open("mail/w7/message", "w") as file, pytest.raises(OSError):
        file.write(b"x")
    held.pop().close()
    with session.open("mail/w7/message", "w") as file:
        file.write(b"x")


def test_the_number_of_files_in_a_mailbox_is_limited(session: Any, root: Path) -> None:
    for number in range(QUOTA.files):
        session.open(f"mail/w7/{number}", "w").close()
    for mode in ("w", "x", "a"):
        with pytest.raises(OSError):
            session.open("mail/w7/more", mode)
    session.open("mail/w7/3", "w").close()
    session.posix_rename("mail/w7/3", "mail/w7/0")
    session.open("mail/w7/more", "w").close()
    assert len(os.listdir(root / "mail" / "w7")) == QUOTA.files


def test_nothing_moves_from_one_mailbox_to_another(session: Any, root: Path) -> None:
    session.open("mail/w7/message", "w").close()
    with pytest.raises(PermissionError):
        session.posix_rename("mail/w7/message", "mail/w7.1/message")


def test_a_file_that_is_there_may_be_written_again_where_no_more_fits(session: Any) -> None:
    with session.open("mail/w7/message", "w") as file:
        file.write(b"x" * LONGEST)
    with session.open("mail/w7/message", "r+") as file:
        file.write(b"y" * LONGEST)


# --- algorithms

LEGACY = [
    ("ciphers", "aes128-cbc"),
    ("ciphers", "aes256-cbc"),
    ("ciphers", "3des-cbc"),
    ("digests", "hmac-sha1"),
    ("digests", "hmac-md5"),
    ("digests", "hmac-sha1-96"),
    ("digests", "hmac-md5-96"),
    ("digests", "hmac-sha2-256"),
    ("kex", "diffie-hellman-group14-sha256"),
    ("kex", "diffie-hellman-group-exchange-sha256"),
    ("key_types", "rsa-sha2-256"),
    ("compression", "zlib"),
]


@pytest.mark.parametrize(("what", "name"), LEGACY)
def test_what_is_out_of_date_is_not_spoken(server: MailServer, root: Path, what: str, name: str) -> None:
    wanted = Credential.read(root / "sftp" / "w7")
    transport = paramiko.Transport(socket.create_connection((wanted.host, wanted.port)))
    setattr(transport.get_security_options(), what, (name,))
    with pytest.raises((paramiko.SSHException, EOFError)):
        transport.start_client(timeout=TIMEOUT_S)
    transport.close()


def test_of_all_that_paramiko_has_only_some_are_spoken(server: MailServer, root: Path) -> None:
    transport = entered(root)
    wait_until(lambda: len(server._connections) == 1)
    options = server._connections[0].transport.get_security_options()
    assert set(options.ciphers) <= {f"aes{bits}-ctr" for bits in (128, 192, 256)} | {
        f"aes{bits}-gcm@openssh.com" for bits in (128, 256)
    }
    assert all("etm" in digest and "sha2" in digest for digest in options.digests)
    assert options.key_types == ("ssh-ed25519",)
    assert mail_server.LOGIN_TIMEOUT_S < 60
    transport.close()
