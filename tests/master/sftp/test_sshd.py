"""The carrier against OpenSSH's sshd, with the configuration and the script that ship: the same contract, and a job is
confined to its own mailboxes there, too."""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from gridml.carriers.base import Forwarding, MasterMailboxes, name_of
from gridml.carriers.directory import DirectoryMailboxes
from gridml.carriers.enrolment import new_key
from gridml.carriers.file_link import FileMailbox
from gridml.carriers.sftp import Credential, SftpConnection, SftpLink, connected, hang_up
from gridml.protocol.bundle import digest
from gridml.protocol.outbox import job_of
from gridml.testing.carriers import CHECKS, CarrierPair, damage_in_files
from master.sftp import server as mail_server
from pools.sshd import NoSshd, Sshd, private_sshd

pytestmark = pytest.mark.real
SHIPPED = Path(mail_server.__file__).parent / "sshd"
OWNER = 54321  # of the run directory: the script admits no user to one of root
TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    try:
        with private_sshd(tmp_path_factory.mktemp("sshd") / "own", SHIPPED) as found:
            yield found
    except NoSshd as error:
        pytest.skip(str(error))


class Jails(Forwarding):
    """A run directory's mailboxes, each of which is mounted into its job's chroot when it is opened."""

    def __init__(self, mailboxes: MasterMailboxes, root: Path, sshd: Sshd) -> None:
        super().__init__(mailboxes)
        self._root, self._sshd = root, sshd
        self.lines: dict[str, SftpConnection] = {}

    def open(self, worker: str) -> None:
        super().open(worker)
        job = job_of(worker)
        key = self.lines[job].credential.private_key if job in self.lines else new_key()
        os.chown(self._root / "mail" / worker, OWNER, OWNER)
        user = self._sshd.admit(self._root, worker, public_half(key))
        if job not in self.lines:
            credential = Credential("127.0.0.1", self._sshd.port, self._sshd.host_key, user, key)
            self.lines[job] = SftpConnection(credential, TIMEOUT_S)

    def close(self, worker: str) -> None:
        super().close(worker)
        self._sshd.close(worker)

    def clear(self) -> None:
        for worker in os.listdir(self._root / "mail"):
            self._sshd.close(worker)
        super().clear()

    def stop(self) -> None:
        for job, line in self.lines.items():
            line.close()
            self._sshd.dismiss(job)
        super().stop()


def public_half(private_key: str) -> str:
    return str(paramiko.Ed25519Key(file_obj=io.StringIO(private_key)).get_base64())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    root.mkdir()
    return root


@pytest.fixture
def jails(sshd: Sshd, root: Path) -> Iterator[Jails]:
    made = Jails(DirectoryMailboxes(root), root, sshd)
    yield made
    made.stop()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_is_kept(check: Callable[[CarrierPair], None], jails: Jails, root: Path) -> None:
    def worker(name: str) -> FileMailbox:
        return FileMailbox(name, lambda: SftpLink(jails.lines[name]), heartbeat_s=0)

    check(CarrierPair(jails, worker, damage_in_files(root)))


@pytest.fixture
def link(jails: Jails, root: Path) -> SftpLink:
    """Mailboxes of job w7, which was started twice, of w70, and a chunk."""
    for worker in ("w7", "w7.1", "w70"):
        jails.open(worker)
        (root / "mail" / worker / "message").write_text(f"message of {worker}")
        os.chown(root / "mail" / worker / "message", OWNER, OWNER)
    (root / "chunks" / "chunk").write_text("rows")
    (root / "ledger.db").write_text("the ledger")
    return SftpLink(jails.lines["w7"])


def test_a_job_sees_its_own_mailboxes_and_the_chunks(link: SftpLink, root: Path) -> None:
    assert sorted(link.list("mail")) == ["w7", "w7.1"]
    assert link.get("mail/w7.1/message") == b"message of w7.1" and link.get("chunks/chunk") == b"rows"
    payload = os.urandom(3_000_000)
    path = f"mail/w7/{name_of('sync', 1, digest(payload))}"
    link.put(path, payload)
    assert (root / path).read_bytes() == payload
    found = (root / path).stat()
    assert (found.st_uid, found.st_mode & 0o777) == (OWNER, 0o600)
    link.unlink(path)
    assert not (root / path).exists()


@pytest.mark.parametrize(
    "path", ["mail/w70/message", "ledger.db", "../ledger.db", "/etc/passwd", "../" * 9 + "etc/passwd", "mail/other"]
)
def test_a_job_sees_nothing_else(link: SftpLink, path: str) -> None:
    for ask in (lambda: link.get(path), lambda: link.write(path, b"x")):
        with pytest.raises(OSError):
            ask()


def test_what_is_published_is_not_written(link: SftpLink, root: Path) -> None:
    for ask in (lambda: link.write("chunks/chunk", b"x"), lambda: link.write("chunks/new", b"x")):
        with pytest.raises(OSError):
            ask()
    with pytest.raises(OSError):
        link.unlink("chunks/chunk")
    assert (root / "chunks" / "chunk").read_text() == "rows" and os.listdir(root / "chunks") == ["chunk"]


def test_no_link_leads_out_and_none_is_made(link: SftpLink, root: Path) -> None:
    (root / "mail" / "w7" / "out").symlink_to(root / "ledger.db")
    (root / "mail" / "w7" / "passwords").symlink_to("/etc/passwd")
    for name in ("out", "passwords"):
        with pytest.raises(OSError):
            link.get(f"mail/w7/{name}")
    session = link._connection.session()
    for ask in (
        lambda: session.symlink("/etc/passwd", "mail/w7/link"),
        lambda: session.mkdir("mail/w7/folder"),
        lambda: session.chmod("mail/w7/message", 0o777),
    ):
        with pytest.raises(OSError):
            ask()
    assert sorted(os.listdir(root / "mail" / "w7")) == ["message", "out", "passwords"]


def test_there_is_no_shell_no_command_and_no_port(link: SftpLink, root: Path) -> None:
    assert link.list("mail")
    transport: Any = link._connection._transport
    for ask in (
        lambda channel: channel.exec_command("touch /mail/w7/here"),
        lambda channel: channel.invoke_shell(),
    ):
        channel = transport.open_session(timeout=TIMEOUT_S)
        ask(channel)  # SFTP answers any request
        channel.sendall(b"touch /mail/w7/here\n")
        channel.shutdown_write()
        assert channel.recv_exit_status() != 0
    with pytest.raises(paramiko.SSHException):
        transport.open_session(timeout=TIMEOUT_S).get_pty()
    with pytest.raises(paramiko.SSHException):
        transport.open_channel("direct-tcpip", ("127.0.0.1", 22), ("127.0.0.1", 1), timeout=TIMEOUT_S)
    with pytest.raises(paramiko.SSHException):
        transport.request_port_forward("127.0.0.1", 0)
    assert os.listdir(root / "mail" / "w7") == ["message"]


def test_a_key_opens_its_own_account_alone(link: SftpLink, jails: Jails) -> None:
    credential = link._connection.credential
    for altered in ({"user": "gridml-w70"}, {"user": "root"}, {"private_key": new_key()}):
        with pytest.raises(PermissionError):
            SftpLink(SftpConnection(replace(credential, **altered), TIMEOUT_S)).list("mail")
    with pytest.raises(PermissionError, match="another server"):
        SftpLink(SftpConnection(replace(credential, host_key=public_half(new_key())), TIMEOUT_S)).list("mail")


def test_who_is_dismissed_is_out(link: SftpLink, jails: Jails, root: Path, sshd: Sshd) -> None:
    assert link.list("mail")
    sshd.dismiss("w7")
    for ask in (lambda: link.list("mail"), lambda: link.list("mail")):
        with pytest.raises(OSError):
            ask()
    assert (root / "mail" / "w7" / "message").exists()  # only its mount is gone
    assert SftpLink(jails.lines["w70"]).list("mail") == ["w70"]


def test_a_job_is_dismissed_while_its_master_runs(link: SftpLink, jails: Jails, root: Path, sshd: Sshd) -> None:
    """The account has the user id of the running master, which userdel takes for a login."""
    with subprocess.Popen(["sleep", "600"], user=OWNER) as master:
        try:
            sshd.dismiss("w7")
            for user in (link._connection.credential.user, "root"):
                with pytest.raises(PermissionError):
                    SftpLink(SftpConnection(replace(link._connection.credential, user=user), TIMEOUT_S)).list("mail")
            assert master.poll() is None
            jails.lines.pop("w7")
            jails.open("w7")  # the remaining account is reused
            assert SftpLink(jails.lines["w7"]).list("mail") == ["w7"]
        finally:
            master.kill()


@pytest.mark.parametrize("program", ["sshd", "sshd-session"])  # the second from OpenSSH 9.8 on
def test_the_connections_of_a_dismissed_job_end(program: str, sshd: Sshd) -> None:
    title = f"{program}: gridml-w6@internal-sftp"
    with subprocess.Popen([title, "600"], executable=shutil.which("sleep")) as connection:
        try:
            sshd.dismiss("w60")
            assert connection.poll() is None
            sshd.dismiss("w6")
            assert connection.wait(TIMEOUT_S) == -signal.SIGTERM
        finally:
            connection.kill()


def test_an_account_left_by_another_owners_run_is_replaced(jails: Jails, root: Path, sshd: Sshd) -> None:
    jails.open("w7")
    with subprocess.Popen(["sleep", "600"], user=OWNER) as master:
        try:
            sshd.dismiss("w7")
        finally:
            master.kill()
    os.chown(root / "mail" / "w7", OWNER + 1, OWNER)
    sshd.admit(root, "w7", public_half(jails.lines["w7"].credential.private_key))
    link = SftpLink(jails.lines["w7"])
    link.write("mail/w7/message", b"x")
    assert (root / "mail" / "w7" / "message").stat().st_uid == OWNER + 1


def test_an_interrupted_put_goes_on_there_too(link: SftpLink, root: Path) -> None:
    payload = os.urandom(5_000_000)
    name = name_of("sync", 1, digest(payload))
    half = root / "mail" / "w7" / f".{name}.tmp"
    half.write_bytes(payload[:3_000_000])
    os.chown(half, OWNER, OWNER)
    before = half.stat().st_ino
    link.put(f"mail/w7/{name}", payload)
    assert (root / "mail" / "w7" / name).read_bytes() == payload
    assert (root / "mail" / "w7" / name).stat().st_ino == before


def test_fifty_strangers_are_not_turned_away(link: SftpLink) -> None:
    credential = link._connection.credential
    silent = [socket.create_connection((credential.host, credential.port), TIMEOUT_S) for _ in range(50)]
    assert all(connection.recv(4) == b"SSH-" for connection in silent)
    hang_up(connected(credential, credential.user, credential.private_key, TIMEOUT_S))
    for connection in silent:
        connection.close()


@pytest.mark.parametrize(
    ("arguments", "given", "why"),
    [
        (["admit", ".", "../w7"], "", "name"),
        (["admit", ".", ".w7"], "", "name"),
        (["admit", "/nowhere", "w7"], "", "no mailbox"),
        (["close", "../w7"], "", "name"),
        (["dismiss", "a/b"], "", "name"),
        (["dismiss", ""], "", "name"),
        ([], "", "expected"),
        (["admit", "."], "", "expected"),
    ],
)
def test_the_script_says_what_it_cannot_do(arguments: list[str], given: str, why: str) -> None:
    done = subprocess.run(["sh", SHIPPED / "jail.sh", *arguments], input=given, capture_output=True, text=True)
    assert done.returncode == 2 and why in done.stderr


def test_a_key_that_could_be_more_than_a_key_is_refused(sshd: Sshd, root: Path) -> None:
    (root / "mail" / "w9").mkdir(parents=True)
    for key in ('AAAA"', "$(id)", ""):
        with pytest.raises(RuntimeError, match="key"):
            sshd.admit(root, "w9", key)
    with pytest.raises(RuntimeError, match="belongs to root"):
        sshd.admit(root, "w9", public_half(new_key()))
