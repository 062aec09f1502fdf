"""OpenSSH's own programs work with the master's server like with any SFTP server, with the right exit status."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridml.carriers.sftp import Credential
from master.sftp.server import MailServer

MISSING = shutil.which("scp") is None or shutil.which("sftp") is None
pytestmark = [pytest.mark.real, pytest.mark.skipif(MISSING, reason="OpenSSH's scp and sftp are not installed")]
LIMIT_S = 60.0
Ask = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("mail/w7", "mail/w8", "chunks"):
        (tmp_path / "run" / folder).mkdir(parents=True)
    (tmp_path / "run" / "chunks" / "chunk").write_bytes(os.urandom(100_000))
    return tmp_path / "run"


@pytest.fixture
def ask(root: Path, tmp_path: Path) -> Iterator[Ask]:
    """A function that runs an OpenSSH program as job w7; a configuration defines address and key of host `master`."""
    server = MailServer(root, "127.0.0.1")
    server.make("w7")
    found = Credential.read(root / "sftp" / "w7")
    key, known, configuration = (tmp_path / name for name in ("key", "known", "configuration"))
    key.touch(mode=0o600)
    key.write_text(found.private_key)
    known.write_text(f"[{found.host}]:{found.port} ssh-ed25519 {found.host_key}\n")
    configuration.write_text(
        f"Host master\n HostName {found.host}\n Port {found.port}\n User {found.user}\n IdentityFile {key}\n"
        f" IdentitiesOnly yes\n UserKnownHostsFile {known}\n GlobalKnownHostsFile none\n StrictHostKeyChecking yes\n"
        " BatchMode yes\n LogLevel ERROR\n"
    )

    def run(program: str, *arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
        command = [program, "-F", str(configuration), *map(str, arguments)]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=LIMIT_S)

    yield run
    server.close()


def test_scp_brings_a_file_there_and_back(ask: Ask, root: Path, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(os.urandom(3_000_017))
    there = ask("scp", "-s", sent, "master:mail/w7/message")
    assert (there.returncode, there.stderr) == (0, "")
    assert (root / "mail" / "w7" / "message").read_bytes() == sent.read_bytes()
    back = ask("scp", "-s", "master:mail/w7/message", tmp_path / "back")
    assert (back.returncode, back.stderr) == (0, "")
    assert (tmp_path / "back").read_bytes() == sent.read_bytes()


def test_sftp_puts_renames_gets_and_removes(ask: Ask, root: Path, tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(b"x" * 1000)
    done = ask(
        "sftp", "-b", "-", "master",
        given=f"put {tmp_path}/sent mail/w7/half\nrename mail/w7/half mail/w7/whole\n"
        f"get mail/w7/whole {tmp_path}/back\nget chunks/chunk {tmp_path}/chunk\nrm mail/w7/whole\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "back").read_bytes() == b"x" * 1000
    assert (tmp_path / "chunk").read_bytes() == (root / "chunks" / "chunk").read_bytes()
    assert os.listdir(root / "mail" / "w7") == []


@pytest.mark.parametrize("target", ["mail/w8/message", "chunks/chunk", "ledger.db", "/etc/passwd", "mail/w7/../x"])
def test_what_is_refused_ends_ill(ask: Ask, root: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "sent").write_bytes(b"x")
    before = sorted(root.rglob("*"))
    assert ask("scp", "-s", tmp_path / "sent", f"master:{target}").returncode != 0
    assert sorted(root.rglob("*")) == before


def test_there_is_no_shell_and_no_command(ask: Ask, root: Path) -> None:
    for command in ("id", f"touch {root}/here", "internal-sftp"):
        done = ask("ssh", "master", command)
        assert done.returncode != 0 and not done.stdout
    assert ask("ssh", "master", given="id\n").returncode != 0
    assert ask("scp", "-O", root / "chunks" / "chunk", "master:mail/w7/message").returncode != 0  # which is a command
    assert not (root / "here").exists() and os.listdir(root / "mail" / "w7") == []


def test_no_port_is_forwarded(ask: Ask) -> None:
    """-W requests a connection from the server to elsewhere, -R a port on the server."""
    assert ask("ssh", "-W", "127.0.0.1:22", "master").returncode != 0
    assert ask("ssh", "-N", "-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:22", "master").returncode != 0
