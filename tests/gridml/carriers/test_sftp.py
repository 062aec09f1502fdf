"""The SFTP link: each failure becomes an OSError in time, and the next command works again."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gridml.carriers.base import name_of
from gridml.carriers.directory import DirectoryMailboxes
from gridml.carriers.file_link import FileMailbox, temporary_path
from gridml.carriers.sftp import WRITE, Credential, Sftp, SftpConnection, SftpLink, connection_of_job
from gridml.errors import RunError, UsageError
from gridml.protocol.bundle import digest
from master.sftp.server import MailServer

TIMEOUT_S = 60.0  # no test waits for it; a busy machine may need it
SOON_S = 0.3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MailServer]:
    (tmp_path / "mail" / "w1").mkdir(parents=True)
    (tmp_path / "chunks").mkdir()
    server = MailServer(tmp_path, "127.0.0.1")
    server.make("w1")
    yield server
    server.close()


@pytest.fixture
def credential(server: MailServer, tmp_path: Path) -> Credential:
    return Credential.read(tmp_path / "sftp" / "w1")


@pytest.fixture
def line(credential: Credential) -> Iterator[SftpConnection]:
    line = SftpConnection(credential, TIMEOUT_S)
    yield line
    line.close()


@pytest.fixture
def link(line: SftpConnection) -> SftpLink:
    return SftpLink(line)


class Relay:
    """A relay to the server. While it is cut, bytes are kept forever and no connection ends; with a limit of bytes, all
    connections end after it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._cut = threading.Event()
        self._counting = threading.Lock()
        self.carried, self._allowed = 0, 1 << 40
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        self._cut.set()

    def allow(self, count: int) -> None:
        """Allow a number of further bytes, in both directions together."""
        with self._counting:
            self._allowed = self.carried + count

    def close(self) -> None:
        self._cut.set()
        for end in (self._listening, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for end in (self._listening, *self._ends):
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            self._ends += [near, far]
            for pair in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._pump, args=pair, daemon=True))
                self._threads[-1].start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(1 << 16)) and not self._cut.is_set():
                with self._counting:
                    self.carried += len(data)
                    over = self.carried > self._allowed
                if over:
                    for end in (source, target):
                        end.shutdown(socket.SHUT_RDWR)
                    return
                target.sendall(data)


@pytest.fixture
def relay(credential: Credential) -> Iterator[Relay]:
    relay = Relay(credential.port)
    yield relay
    relay.close()


def test_what_was_put_is_there_and_nothing_beside_it(link: SftpLink, tmp_path: Path) -> None:
    for count in (0, 1, WRITE, WRITE + 1, 3_000_017):
        payload = os.urandom(count)
        link.put("mail/w1/message", payload)
        assert link.list("mail/w1") == ["message"] and link.get("mail/w1/message") == payload
    link.unlink("mail/w1/message")
    link.unlink("mail/w1/message")  # a second time is no error
    assert list((tmp_path / "mail" / "w1").iterdir()) == []


def test_what_was_written_is_there_and_only_its_owner_reads_it(link: SftpLink, tmp_path: Path) -> None:
    for number in range(3):
        link.write("mail/w1/heartbeat", number.to_bytes(8, "little"))
    assert (tmp_path / "mail" / "w1" / "heartbeat").read_bytes() == (2).to_bytes(8, "little")
    assert (tmp_path / "mail" / "w1" / "heartbeat").stat().st_mode & 0o777 == 0o600


def test_a_folder_of_many_files_is_listed_whole(link: SftpLink, tmp_path: Path) -> None:
    names = {f"message-{number}" for number in range(100)}
    for name in names:
        (tmp_path / "mail" / "w1" / name).touch()
    assert set(link.list("mail/w1")) == names


def test_a_missing_file_is_a_missing_file_and_the_session_is_good(link: SftpLink, tmp_path: Path) -> None:
    (tmp_path / "mail" / "w1" / "there").write_bytes(b"yes")
    assert link.get("mail/w1/there") == b"yes"
    before = link._sftp
    for ask in (lambda: link.get("mail/w1/nothing"), lambda: link.put("mail/w1.1/message", b"")):
        with pytest.raises(FileNotFoundError):
            ask()
    with pytest.raises(FileNotFoundError):
        link.list("mail/w1.1")
    assert link.get("mail/w1/there") == b"yes" and link._sftp is before


@pytest.mark.parametrize("count", [100, WRITE + 1, 20 * WRITE])
def test_a_full_disk_is_no_success(link: SftpLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("master.sftp.jail.os.pwrite", full)
        with pytest.raises(OSError) as caught:
            link.put("mail/w1/message", bytes(count))
    assert caught.value.errno == errno.EIO
    assert not (tmp_path / "mail" / "w1" / "message").exists()
    link.put("mail/w1/message", bytes(count))
    assert link.get("mail/w1/message") == bytes(count)


def test_threads_may_share_a_link_and_links_a_line(line: SftpConnection, tmp_path: Path) -> None:
    links, failed = [SftpLink(line), SftpLink(line)], list[str]()

    def work(number: int) -> None:
        path, payload = f"mail/w1/{number}", bytes([number]) * 100_000
        for _ in range(10):
            links[number % 2].put(path, payload)
            if links[number % 2].get(path) != payload:
                failed.append(path)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and len(list((tmp_path / "mail" / "w1").iterdir())) == 4
    assert {link._sftp.get_channel().get_transport() for link in links} == {line._transport}


def test_after_a_broken_connection_the_next_command_makes_a_new_one(
    line: SftpConnection, link: SftpLink, tmp_path: Path
) -> None:
    (tmp_path / "mail" / "w1" / "there").write_bytes(b"yes")
    other = SftpLink(line)
    assert link.get("mail/w1/there") == other.get("mail/w1/there") == b"yes"
    line._transport.sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(OSError):
        link.get("mail/w1/there")
    assert link.get("mail/w1/there") == b"yes"
    made = line._transport
    with pytest.raises(OSError):
        other.get("mail/w1/there")  # its session was on the old connection
    assert other.get("mail/w1/there") == b"yes"
    assert line._transport is made


def test_a_master_that_starts_again_is_found_again(
    server: MailServer, link: SftpLink, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert link.list("mail") == ["w1"]
    server.close()
    with pytest.raises(OSError):
        link.list("mail")
    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{link._connection.credential.port}"):
        link.list("mail")
    again = MailServer(tmp_path, "127.0.0.1")
    try:
        assert link.list("mail") == ["w1"]
    finally:
        link._connection.close()
        again.close()
    assert capfd.readouterr() == ("", "")


def test_a_server_with_another_key_is_not_spoken_to(credential: Credential, tmp_path: Path) -> None:
    (tmp_path / "other" / "mail").mkdir(parents=True)
    other = MailServer(tmp_path / "other", "127.0.0.1")
    try:
        other.make("w1")
        another = Credential.read(tmp_path / "other" / "sftp" / "w1")
        line = SftpConnection(replace(another, host_key=credential.host_key), TIMEOUT_S)
        with pytest.raises(PermissionError, match="another server"):
            SftpLink(line).list("mail")
        assert line._transport is None
    finally:
        other.close()


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-other\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_that_says_nothing_more_is_given_up(credential: Credential, greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        link = SftpLink(SftpConnection(replace(credential, port=listening.getsockname()[1]), SOON_S))
        accepted = list[socket.socket]()

        def answer() -> None:
            accepted.append(listening.accept()[0])
            accepted[0].sendall(greeting)

        thread = threading.Thread(target=answer)
        thread.start()
        began = time.monotonic()
        with pytest.raises(OSError):
            link.list("mail")
        assert time.monotonic() - began < 15, "paramiko's default timeout for a greeting"
        thread.join(60)
        accepted[0].close()


@pytest.mark.parametrize("what", ["list", "get", "put", "put much", "write", "unlink"])
def test_a_peer_that_falls_silent_is_given_up_and_found_again(credential: Credential, relay: Relay, what: str) -> None:
    line = SftpConnection(replace(credential, port=relay.port), TIMEOUT_S)
    link = SftpLink(line)
    link.put("mail/w1/message", b"x" * 100)
    link._sftp.get_channel().settimeout(SOON_S)  # only now: a busy machine takes longer for a handshake
    relay.cut()
    with pytest.raises(OSError):
        {
            "list": lambda: link.list("mail"),
            "get": lambda: link.get("mail/w1/message"),
            "put": lambda: link.put("mail/w1/message", b"y"),
            "put much": lambda: link.put("mail/w1/message", bytes(50_000_000)),
            "write": lambda: link.write("mail/w1/message", b"y"),
            "unlink": lambda: link.unlink("mail/w1/message"),
        }[what]()
    assert line._transport is None
    line.credential = credential
    assert link.get("mail/w1/message") == b"x" * 100
    line.close()


def test_a_server_that_cannot_be_found_by_name_is_an_error(credential: Credential) -> None:
    with pytest.raises(OSError):
        SftpLink(SftpConnection(replace(credential, host="no-such-host.invalid"), TIMEOUT_S)).list("mail")


def test_a_closed_link_can_be_used_again(link: SftpLink) -> None:
    link.close()
    assert link.list("mail") == ["w1"]
    link.close()
    link.close()
    assert link.list("mail") == ["w1"]


def test_the_key_is_not_shown(credential: Credential) -> None:
    assert "PRIVATE" in credential.private_key
    assert "PRIVATE" not in f"{credential} {credential!r} {[credential]}"


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"host": "here", "port": "x"}', '{"port": 1, "more": 2}'])
def test_a_job_without_a_credential_says_what_to_do(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "w1").write_text(text)
    with pytest.raises(RunError, match="--carrier sftp"):
        connection_of_job(tmp_path / "w1")


def test_a_worker_of_another_carrier_does_without_paramiko() -> None:
    look = "import sys, remote.worker; sys.exit('paramiko' in sys.modules)"
    subprocess.run([sys.executable, "-c", look], check=True, timeout=60)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:2222", "127.0.0.1: on another machine that is the machine itself"),
        ("localhost", "on another machine that is the machine itself"),
        ("0.0.0.0", "or nothing"),
        ("[fe80::1]:22", "fe80::1"),
        ("no-such-host.invalid", "not known here"),
    ],
)
def test_a_place_where_no_worker_can_reach_the_master_is_refused(address: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)) as refused:
        Sftp().check_advertised(address, nearby=False)
    assert "--address HOST[:PORT]" in str(refused.value)
    Sftp().check_advertised(address, nearby=True)


def test_a_place_that_others_may_reach_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    Sftp().check_advertised("192.0.2.1:2222", nearby=False)
    address = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("192.0.2.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: address)
    monkeypatch.setattr(socket, "getfqdn", lambda: "submit.example.org")
    Sftp().check_advertised(None, nearby=False)
    monkeypatch.setattr(socket, "getfqdn", lambda: "submit")
    Sftp().check_advertised("submit", nearby=False)
    with pytest.raises(UsageError, match="without a domain"):
        Sftp().check_advertised(None, nearby=False)


# --- transfers that a broken connection interrupts


def message_of(payload: bytes) -> str:
    return f"mail/w1/{name_of('sync', 1, digest(payload))}"


@pytest.fixture
def broken(credential: Credential, relay: Relay) -> Iterator[SftpLink]:
    """A link through the relay."""
    line = SftpConnection(replace(credential, port=relay.port), TIMEOUT_S)
    yield SftpLink(line)
    line.close()


def test_a_put_that_was_interrupted_goes_on_where_it_was(broken: SftpLink, relay: Relay, tmp_path: Path) -> None:
    payload = os.urandom(30_000_000)
    path, box = message_of(payload), tmp_path / "mail" / "w1"
    for allowed in (10_000_000, 10_000_000):
        relay.allow(allowed)
        with pytest.raises(OSError):
            broken.put(path, payload)
        assert not (tmp_path / path).exists()
    arrived = next(box.iterdir()).stat().st_size
    assert 12_000_000 < arrived < 20_000_000
    relay.allow(1 << 40)
    before = relay.carried
    broken.put(path, payload)
    assert relay.carried - before < len(payload) - arrived + 1_000_000
    assert (tmp_path / path).read_bytes() == payload and len(list(box.iterdir())) == 1


def test_another_process_goes_on_with_it(
    broken: SftpLink, relay: Relay, credential: Credential, tmp_path: Path
) -> None:
    payload = os.urandom(20_000_000)
    relay.allow(10_000_000)
    with pytest.raises(OSError):
        broken.put(message_of(payload), payload)
    later = SftpLink(SftpConnection(replace(credential, port=relay.port), TIMEOUT_S))
    relay.allow(1 << 40)
    before = relay.carried
    later.put(message_of(payload), payload)
    assert relay.carried - before < 15_000_000
    assert (tmp_path / message_of(payload)).read_bytes() == payload
    later._connection.close()


def test_a_transfer_without_a_digest_in_its_name_is_restarted(broken: SftpLink, relay: Relay, tmp_path: Path) -> None:
    relay.allow(10_000_000)
    with pytest.raises(OSError):
        broken.put("mail/w1/message", bytes(20_000_000))
    relay.allow(1 << 40)
    payload = os.urandom(20_000_000)
    broken.put("mail/w1/message", payload)
    assert (tmp_path / "mail" / "w1" / "message").read_bytes() == payload


@pytest.mark.parametrize("left", [0, 1, 20_000_000, 20_000_001])
def test_whatever_size_was_left_the_file_is_as_long_as_it_should(link: SftpLink, tmp_path: Path, left: int) -> None:
    payload = bytes(20_000_000)
    path = message_of(payload)
    (tmp_path / temporary_path(path)).write_bytes(bytes(left))
    link.put(path, payload)
    assert (tmp_path / path).read_bytes() == payload


def test_what_was_left_damaged_is_seen_by_its_reader_and_sent_again(line: SftpConnection, tmp_path: Path) -> None:
    payload = os.urandom(1_000_000)
    mailboxes, mailbox = DirectoryMailboxes(tmp_path), FileMailbox("w1", lambda: SftpLink(line))
    (tmp_path / temporary_path(message_of(payload))).write_bytes(b"not its beginning")
    try:
        mailbox.send(1, payload)
        assert [message.payload for message in mailboxes.collect() if not message.problem] == []
        mailbox.send(1, payload)
        assert [message.payload for message in mailboxes.collect() if not message.problem] == [payload]
    finally:
        mailbox.close()


def test_a_get_that_was_interrupted_goes_on_where_it_was(broken: SftpLink, relay: Relay, tmp_path: Path) -> None:
    payload = os.urandom(30_000_000)
    (tmp_path / "chunks" / "chunk").write_bytes(payload)
    for _ in range(2):
        relay.allow(10_000_000)
        with pytest.raises(OSError):
            broken.get("chunks/chunk")
    relay.allow(1 << 40)
    before = relay.carried
    assert broken.get("chunks/chunk") == payload
    assert relay.carried - before < 16_000_000
    assert broken.get("chunks/chunk") == payload


def test_a_file_replaced_during_a_transfer_is_fetched_whole(broken: SftpLink, relay: Relay, tmp_path: Path) -> None:
    (tmp_path / "chunks" / "chunk").write_bytes(bytes(20_000_000))
    relay.allow(10_000_000)
    with pytest.raises(OSError):
        broken.get("chunks/chunk")
    payload = os.urandom(20_000_001)
    (tmp_path / "chunks" / "chunk").write_bytes(payload)
    relay.allow(1 << 40)
    assert broken.get("chunks/chunk") == payload
