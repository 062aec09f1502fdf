"""The master's SFTP server: a job reaches its own mailboxes and the chunks, for as long as its key is valid."""

from __future__ import annotations

import io
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from gridml.carriers.sftp import Credential, SftpConnection, SftpLink, host_and_port
from gridml.errors import RunError, UsageError
from master.backends.condor.options import CondorOptions
from master.sftp import server as mail_server
from master.sftp.jail import MAX_OPEN_FILES, allowed_path
from master.sftp.server import LOGIN_TIMEOUT_S, MAX_ANONYMOUS, MAX_JOB_CONNECTIONS, MailServer
from master.simulation.faulty_network import VirtualClock
from master.store.settings import Settings

TIMEOUT_S = 30.0
LIMIT_S = 60.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run directory with mailboxes of three jobs, one of which was started twice, and a chunk."""
    for box in ("w7", "w7.1", "w70", "w1", ".w7"):
        (tmp_path / "mail" / box).mkdir(parents=True)
        (tmp_path / "mail" / box / "message").write_text(f"message of {box}")
    (tmp_path / "chunks").mkdir()
    (tmp_path / "chunks" / "chunk").write_text("rows")
    (tmp_path / "ledger.db").write_text("the ledger")
    return tmp_path


@pytest.fixture
def server(root: Path, clock: VirtualClock) -> Iterator[MailServer]:
    found = MailServer(root, "127.0.0.1", clock=clock)
    for job in ("w7", "w70"):
        found.make(job)
    yield found
    found.close()


def credential_of(root: Path, job: str) -> Credential:
    return Credential.read(root / "sftp" / job)


@pytest.fixture
def connect(server: MailServer, root: Path) -> Iterator[Callable[..., SftpLink]]:
    """A maker of links of a job, each with its own connection; its credential may be altered."""
    lines: list[SftpConnection] = []

    def make(job: str = "w7", **altered: Any) -> SftpLink:
        lines.append(SftpConnection(replace(credential_of(root, job), **altered), TIMEOUT_S))
        return SftpLink(lines[-1])

    yield make
    for line in lines:
        line.close()


@pytest.fixture
def session(connect: Callable[..., SftpLink]) -> Any:
    """A bare SFTP session of job w7."""
    return connect()._connection.session()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, f"did not happen within {LIMIT_S} s"
        time.sleep(0.01)


def ended(connection: socket.socket) -> bool:
    """Return True if the other end closes a connection within a limit; discard the data before that."""
    connection.settimeout(LIMIT_S)
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def other_key() -> str:
    made = Ed25519PrivateKey.generate()
    return made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()


def tree(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


# --- credentials ---


def test_a_credential_holds_what_a_job_needs_and_only_its_owner_reads_it(server: MailServer, root: Path) -> None:
    found = json.loads((root / "sftp" / "w7").read_text())
    assert found["host"] == "127.0.0.1" and found["user"] == "w7" and 0 < found["port"] < 65536
    assert set(found) == {"host", "port", "host_key", "user", "private_key"}
    assert (root / "sftp").stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in (root / "sftp").iterdir()} == {
        "w7": 0o600,
        "w70": 0o600,
        "server.json": 0o600,
    }


def test_modes_do_not_depend_on_the_umask(root: Path) -> None:
    before = os.umask(0)
    try:
        server = MailServer(root, "127.0.0.1")
        server.make("w7")
        server.close()
    finally:
        os.umask(before)
    assert (root / "sftp").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (root / "sftp").iterdir())


def test_each_job_has_a_key_of_its_own_and_keeps_it(server: MailServer, root: Path) -> None:
    made = credential_of(root, "w7")
    assert made.private_key != credential_of(root, "w70").private_key
    server.make("w7")
    assert credential_of(root, "w7") == made


@pytest.mark.parametrize("name", ["", "..", "a/b", "server.json", ".w7", "w7.1", "w\0", "w" * 200])
def test_a_name_that_is_no_jobs_gets_no_credential(server: MailServer, root: Path, name: str) -> None:
    before = tree(root)
    with pytest.raises(UsageError, match="job name"):
        server.make(name)
    server.remove(name)
    assert tree(root) == before


def test_only_the_jobs_that_are_kept_keep_theirs(server: MailServer, root: Path) -> None:
    server.keep(["w70", "w8"])
    assert sorted(os.listdir(root / "sftp")) == ["server.json", "w70"]


# --- access ---


def test_a_job_enters_with_its_key(connect: Callable[..., SftpLink]) -> None:
    assert sorted(connect().list("mail")) == ["w7", "w7.1"]


@pytest.mark.parametrize("user", ["w7", "w8", "root", "", "../sftp/w7", "server.json"])
def test_another_key_gives_no_access(connect: Callable[..., SftpLink], user: str) -> None:
    with pytest.raises(OSError):
        connect(user=user, private_key=other_key()).list("mail")


def test_a_jobs_key_opens_no_other_jobs_door(connect: Callable[..., SftpLink]) -> None:
    for user in ("w70", "w1", "w7.1"):
        with pytest.raises(PermissionError, match="refused"):
            connect("w7", user=user).list("mail")


def test_a_removed_credential_is_refused_and_its_connections_end(
    server: MailServer, connect: Callable[..., SftpLink], root: Path
) -> None:
    live, later, other = connect(), connect(), connect("w70")
    assert live.list("mail") and other.list("mail") == ["w70"]
    server.remove("w7")
    server.remove("w7")
    with pytest.raises(OSError):
        live.list("mail")
    for link in (live, later):
        with pytest.raises(PermissionError, match="refused"):
            link.list("mail")
    assert other.list("mail") == ["w70"]
    assert not (root / "sftp" / "w7").exists()
    server.make("w7")  # another key
    with pytest.raises(PermissionError, match="refused"):
        live.list("mail")


def test_a_missing_or_damaged_key_file_gives_no_access(connect: Callable[..., SftpLink], root: Path) -> None:
    link = connect()
    for damage in ("", "{}", '{"host": "", "port": 1, "host_key": "", "user": "w7", "private_key": "none"}'):
        (root / "sftp" / "w7").write_text(damage)
        with pytest.raises(PermissionError, match="refused"):
            link.list("mail")


def test_only_a_key_opens(server: MailServer, root: Path) -> None:
    wanted = credential_of(root, "w7")
    for show in (
        lambda transport: transport.auth_none("w7"),
        lambda transport: transport.auth_password("w7", "w7", fallback=False),
        lambda transport: transport.auth_interactive("w7", lambda *_: []),
    ):
        transport = paramiko.Transport(socket.create_connection((wanted.host, wanted.port)))
        transport.start_client(timeout=TIMEOUT_S)
        with pytest.raises(paramiko.AuthenticationException):
            show(transport)
        transport.close()


def test_there_is_sftp_and_nothing_else(session: Any, root: Path) -> None:
    transport = session.get_channel().get_transport()
    for ask in (
        lambda channel: channel.exec_command(f"touch {root}/here"),
        lambda channel: channel.invoke_shell(),
        lambda channel: channel.get_pty(),
        lambda channel: channel.invoke_subsystem("netconf"),
        lambda channel: channel.request_x11(handler=lambda *_: None),
    ):
        with pytest.raises(paramiko.SSHException):
            ask(transport.open_session(timeout=TIMEOUT_S))
    with pytest.raises(paramiko.SSHException):
        transport.open_channel("direct-tcpip", ("127.0.0.1", 22), ("127.0.0.1", 1), timeout=TIMEOUT_S)
    with pytest.raises(paramiko.SSHException):
        transport.request_port_forward("127.0.0.1", 0)
    assert session.listdir("mail") and not (root / "here").exists()


# --- a job's view ---

NOT_ITS_OWN = [
    "", ".", "/", "..", "bundle", "bundle/", "bundle/../ledger.db", "/bundle/x", "fleet/fleet.json",
    "mail/", "/mail", "mail/..", "./mail", "mail/./w7", "mail//w7", "chunks", "chunks/",
    "sftp", "ledger.db", "mail/w1", "mail/w70", "mail/.w7", "mail/w7/..", "mail/w7/../w1", "mail/w7./../w1",
    "sftp/w7", "sftp/server.json", "mail/w1/message", "mail/w70/message", "mail/.w7/message",
    "mail/w7/../w1/message", "mail/w7/../../ledger.db", "mail/../ledger.db", "/mail/w7/message",
    "mail/w7/message/", "mail//w7/message", "mail/./message", "mail/w7/./message", "chunks/../ledger.db",
    "chunks/../mail/w1/message", "chunks/./chunk", "/chunks/chunk", "chunks/chunk/more", "mail/w7/\0",
    "mail\\w7", "~", "mail/w7/a/b",
]  # fmt: skip


@pytest.mark.parametrize("path", [*NOT_ITS_OWN, "/etc/passwd", "../" * 9 + "etc/passwd"])
def test_nothing_else_can_be_named(session: Any, root: Path, path: str) -> None:
    before = tree(root)
    for ask in (
        lambda: session.listdir(path),
        lambda: session.open(path, "r"),
        lambda: session.open(path, "w"),
        lambda: session.open(path, "x"),
        lambda: session.open(path, "a"),
        lambda: session.remove(path),
        lambda: session.stat(path),
        lambda: session.lstat(path),
        lambda: session.rename(path, "mail/w7/stolen"),
        lambda: session.rename("mail/w7/message", path),
        lambda: session.posix_rename(path, "mail/w7/stolen"),
        lambda: session.posix_rename("mail/w7/message", path),
    ):
        with pytest.raises(PermissionError):
            ask()
    assert tree(root) == before


@given(
    st.lists(
        st.sampled_from(["mail", "chunks", "w7", "w7.1", "w70", "..", ".", "", "sftp", "x", "/", "\0"]), max_size=6
    )
)
def test_what_may_be_named_lies_in_the_jobs_boxes_or_among_the_chunks(parts: list[str]) -> None:
    path = "/".join(parts)
    if found := allowed_path("w7", path):
        assert "/".join(found) == path == os.path.normpath(path)
        assert (
            path == "mail" or path.startswith(("mail/w7/", "mail/w7.1/", "chunks/")) or path in ("mail/w7", "mail/w7.1")
        )


def test_no_symbolic_link_is_followed(session: Any, root: Path) -> None:
    (root / "mail" / "w7" / "out").symlink_to(root / "ledger.db")
    (root / "mail" / "w7" / "new").symlink_to(root / "not-yet")
    (root / "chunks" / "out").symlink_to(root / "ledger.db")
    (root / "mail" / "w7.2").symlink_to(root / "mail" / "w1")
    before = tree(root)
    for path, mode in (
        ("mail/w7/out", "r"),
        ("mail/w7/out", "w"),
        ("mail/w7/new", "w"),
        ("chunks/out", "r"),
        ("mail/w7.2/message", "r"),
        ("mail/w7.2/other", "w"),
    ):
        with pytest.raises(OSError):
            session.open(path, mode)
    with pytest.raises(OSError):
        session.listdir("mail/w7.2")
    with pytest.raises(OSError):
        session.remove("mail/w7.2/message")
    assert tree(root) == before and not (root / "not-yet").exists()


def test_what_is_no_file_is_not_opened(session: Any, root: Path) -> None:
    os.mkfifo(root / "mail" / "w7" / "pipe")
    (root / "mail" / "w7" / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError):
            session.open(f"mail/w7/{name}", "r")


def test_no_folder_or_link_can_be_made_and_nothing_moved_out_of_the_boxes(session: Any, root: Path) -> None:
    before = tree(root)
    for ask in (
        lambda: session.mkdir("mail/w7/folder"),
        lambda: session.mkdir("mail/w7.5"),
        lambda: session.rmdir("mail/w7"),
        lambda: session.symlink("/etc/passwd", "mail/w7/link"),
        lambda: session.chmod("mail/w7/message", 0o777),
        lambda: session.truncate("mail/w7/message", 0),
        lambda: session.posix_rename("mail/w7/message", "chunks/chunk"),
        lambda: session.posix_rename("mail/w7", "mail/w7.9"),
        lambda: session.rename("mail/w7/message", "chunks/chunk"),
        lambda: session.rename("mail/w7/message", "mail/w7.1/other"),
        lambda: session.remove("mail/w7"),
    ):
        with pytest.raises(OSError):
            ask()
    assert tree(root) == before


def test_all_lives_of_the_job_are_its_own(connect: Callable[..., SftpLink]) -> None:
    link = connect()
    for box in ("w7", "w7.1"):
        assert link.list(f"mail/{box}") == ["message"]
        assert link.get(f"mail/{box}/message").decode() == f"message of {box}"
        link.put(f"mail/{box}/message", b"another")  # a rename over an existing file
        assert link.get(f"mail/{box}/message") == b"another" and link.list(f"mail/{box}") == ["message"]
        link.unlink(f"mail/{box}/message")
        assert link.list(f"mail/{box}") == []


def test_chunks_are_read_and_never_written(session: Any, connect: Callable[..., SftpLink], root: Path) -> None:
    assert connect().get("chunks/chunk") == b"rows"
    for mode in ("w", "a", "r+", "x"):
        with pytest.raises(PermissionError):
            session.open("chunks/chunk", mode)
        with pytest.raises(PermissionError):
            session.open("chunks/another", mode)
    with pytest.raises(PermissionError):
        session.remove("chunks/chunk")
    with session.open("chunks/chunk", "r") as file, pytest.raises(OSError):
        file.write("more")
    assert (root / "chunks" / "chunk").read_text() == "rows" and os.listdir(root / "chunks") == ["chunk"]


def test_a_rename_without_the_extension_replaces_nothing(session: Any, root: Path) -> None:
    (root / "mail" / "w7" / "other").write_text("other")
    with pytest.raises(OSError):
        session.rename("mail/w7/message", "mail/w7/other")
    assert (root / "mail" / "w7" / "other").read_text() == "other"
    session.rename("mail/w7/message", "mail/w7/new")
    assert sorted(os.listdir(root / "mail" / "w7")) == ["new", "other"]


def test_stat_answers_and_follows_no_link(session: Any, root: Path) -> None:
    (root / "mail" / "w7" / "out").symlink_to(root / "ledger.db")
    assert session.stat("mail/w7/message").st_size == len("message of w7")
    assert session.stat("mail/w7/out").st_size == session.lstat("mail/w7/out").st_size != len("the ledger")
    with pytest.raises(FileNotFoundError):
        session.stat("mail/w7/nothing")
    assert session.stat("mail").st_mode and session.stat("mail/w7").st_mode


def test_an_open_file_keeps_the_servers_mode_and_is_not_cut(session: Any, root: Path) -> None:
    with session.open("mail/w7/message", "r+") as file:
        file.chmod(0o777)
        with pytest.raises(OSError):
            file.truncate(0)
    assert (root / "mail" / "w7" / "message").read_text() == "message of w7"
    assert (root / "mail" / "w7" / "message").stat().st_mode & 0o777 != 0o777


def test_the_number_of_open_files_of_a_session_is_limited(session: Any) -> None:
    files = [session.open("chunks/chunk", "r") for _ in range(MAX_OPEN_FILES)]
    with pytest.raises(PermissionError):
        session.open("chunks/chunk", "r")
    files.pop().close()
    session.open("chunks/chunk", "r")


def test_a_hash_past_the_end_of_a_file_comes_to_an_end(session: Any) -> None:
    session.get_channel().settimeout(LIMIT_S)
    with session.open("chunks/chunk", "r") as file, pytest.raises(EOFError):
        file.check("md5", 0, 1 << 40)


# --- limits ---


def test_who_shows_no_key_in_time_is_shown_out(server: MailServer, root: Path, clock: VirtualClock) -> None:
    wanted = credential_of(root, "w7")
    silent = [socket.create_connection((wanted.host, wanted.port)) for _ in range(3)]
    wait_until(lambda: len(server._connections) == 3)
    link = SftpLink(SftpConnection(wanted, TIMEOUT_S))
    assert link.list("mail")
    clock.now_s = LOGIN_TIMEOUT_S + 1
    assert all(ended(connection) for connection in silent)
    assert link.list("mail")
    wait_until(lambda: len(server._connections) == 1)
    link._connection.close()
    for connection in silent:
        connection.close()


def test_of_too_many_strangers_the_first_is_turned_away(
    server: MailServer, root: Path, connect: Callable[..., SftpLink]
) -> None:
    inside, wanted = connect(), credential_of(root, "w7")
    assert inside.list("mail")
    strangers = [socket.create_connection((wanted.host, wanted.port)) for _ in range(MAX_ANONYMOUS)]
    wait_until(lambda: len(server._connections) == MAX_ANONYMOUS + 1)
    with socket.create_connection((wanted.host, wanted.port)):
        assert ended(strangers[0])
        assert inside.list("mail") and connect().list("mail")
    for connection in strangers:
        connection.close()


def test_of_a_jobs_many_connections_the_oldest_end(connect: Callable[..., SftpLink]) -> None:
    links = [connect() for _ in range(MAX_JOB_CONNECTIONS + 2)]
    for link in links:
        assert link.list("mail")
    transports = [link._connection._transport for link in links]
    wait_until(lambda: not any(transport.is_active() for transport in transports[:2]))
    assert all(transport.is_active() for transport in transports[2:])
    for link in links[2:]:
        assert link.list("mail")


def test_nothing_is_left_when_it_is_closed(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    server = MailServer(root, "127.0.0.1")
    server.make("w7")
    wanted = credential_of(root, "w7")
    assert SftpLink(SftpConnection(wanted, TIMEOUT_S)).list("mail")
    with pytest.raises(OSError):
        SftpLink(SftpConnection(replace(wanted, private_key=other_key()), TIMEOUT_S)).list("mail")
    with socket.create_connection((wanted.host, wanted.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert ended(stranger)
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((wanted.host, wanted.port))
    wait_until(lambda: set(threading.enumerate()) <= before)
    assert (root / "sftp" / "w7").exists()
    assert capfd.readouterr() == ("", "")


# --- address ---


def test_a_master_that_starts_again_is_the_same_server(server: MailServer, root: Path) -> None:
    before = tree(root / "sftp")
    link = SftpLink(SftpConnection(credential_of(root, "w7"), TIMEOUT_S))
    assert link.list("mail")
    server.close()
    again = MailServer(root, "127.0.0.1")
    try:
        assert tree(root / "sftp") == before
        with pytest.raises(OSError):
            link.list("mail")
        assert link.list("mail")
    finally:
        link._connection.close()
        again.close()


def test_if_its_port_is_taken_it_uses_another_and_publishes_it(server: MailServer, root: Path) -> None:
    before = {job: credential_of(root, job) for job in ("w7", "w70")}
    server.close()
    (root / "sftp" / "w8").write_text("damaged")
    with socket.create_server(("127.0.0.1", before["w7"].port)):
        again = MailServer(root, "127.0.0.1")
        try:
            after = {job: credential_of(root, job) for job in ("w7", "w70")}
            assert after["w7"].port != before["w7"].port
            assert after == {job: replace(found, port=after["w7"].port) for job, found in before.items()}
            assert (root / "sftp" / "w7").stat().st_mode & 0o777 == 0o600
            assert not (root / "sftp" / "w8").exists()
            link = SftpLink(SftpConnection(after["w7"], TIMEOUT_S))
            assert link.list("mail")
            link._connection.close()
        finally:
            again.close()


def test_a_damaged_key_of_the_server_is_replaced(server: MailServer, root: Path) -> None:
    server.close()
    before = credential_of(root, "w7")
    (root / "sftp" / "server.json").write_text("{")
    again = MailServer(root, "127.0.0.1")
    again.close()
    assert credential_of(root, "w7").host_key != before.host_key


def test_a_port_that_was_asked_for_and_is_taken_is_an_error(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RunError, match=rf"port {port} .*in use.*--address"):
            MailServer(root, f"127.0.0.1:{port}")


def test_an_address_of_this_machine_is_listened_at_alone_and_another_everywhere(root: Path) -> None:
    listened = []
    for address in ("127.0.0.1", "192.0.2.1", "submit.example.org"):
        server = MailServer(root, address)
        server.make("w7")
        assert credential_of(root, "w7").host == address
        listened.append(server._listening.getsockname()[0])
        server.close()
    assert listened[0] == "127.0.0.1" and set(listened[1:]) <= {"::", "0.0.0.0"}


def test_by_default_workers_get_the_machines_full_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail_server.socket, "getfqdn", lambda: "submit.example.org")
    server = MailServer(root)
    server.make("w7")
    server.close()
    assert credential_of(root, "w7").host == "submit.example.org"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("submit.example.org", ("submit.example.org", 0)),
        ("submit:2222", ("submit", 2222)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("[fe80::1]", ("fe80::1", 0)),
    ],
)
def test_addresses_are_read(text: str, expected: tuple[str, int]) -> None:
    assert host_and_port(text) == expected


def submitted(**values: str) -> Settings:
    return Settings(Path("p.py"), backend="condor", options=CondorOptions(), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", ":22", "host:", "host:0", "host:65536", "host:ssh", "::1", "a b", "sftp://host", "u@h"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--address"):
        submitted(carrier="sftp", address=text)


def test_the_options_fit_together() -> None:
    with pytest.raises(UsageError, match="--carrier"):
        submitted(carrier="pigeon")
    with pytest.raises(UsageError, match="--address without"):
        submitted(address="host")


def test_the_key_that_is_pinned_is_the_servers(server: MailServer, root: Path) -> None:
    kept = json.loads((root / "sftp" / "server.json").read_text())
    key = paramiko.Ed25519Key(file_obj=io.StringIO(kept["private_key"]))
    assert credential_of(root, "w7").host_key == key.get_base64()
