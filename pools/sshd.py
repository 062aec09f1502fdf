"""A real sshd in its own mount namespace, for tests and benchmarks. Its accounts, keys and chroots are invisible to the
rest of the machine, and disappear with the namespace. Requires root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STARTS_S = 20.0  # for sshd to start and to stop
# /etc is a copy, because accounts are created in it. A chroot must not be below a world-writable folder such as /tmp.
_ENTER = """
set -e
mount -t tmpfs -o mode=755 tmpfs /srv
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
mount --bind "$1/etc" /etc
shift
exec "$@"
"""


class NoSshd(Exception):
    """sshd cannot be started on this machine; the text has the reason."""


@dataclass(frozen=True)
class Sshd:
    """A running sshd."""

    port: int  # on loopback
    host_key: str  # public, base64
    pid: int
    script: Path  # jail.sh, which creates and removes accounts

    def admit(self, run: Path, mailbox: str, public_key: str) -> str:
        """Create an account for a mailbox of a run, with this key; return the account's name."""
        return self._jail("admit", str(run), mailbox, given=f"ssh-ed25519 {public_key} a comment\n").strip()

    def close(self, mailbox: str) -> None:
        self._jail("close", mailbox)

    def dismiss(self, job: str) -> None:
        self._jail("dismiss", job)

    def _jail(self, *arguments: str, given: str = "") -> str:
        command = ["nsenter", "--target", str(self.pid), "--mount", "sh", str(self.script), *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{self.script.name} {arguments[0]} failed: {done.stderr.strip()}")
        return done.stdout


@contextlib.contextmanager
def private_sshd(folder: Path, shipped: Path) -> Iterator[Sshd]:
    """Start sshd with the configuration and the script in `shipped`; `folder` is for its own files. Raises NoSshd."""
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise NoSshd("OpenSSH's sshd is not installed")
    if os.geteuid() != 0:
        raise NoSshd("only root starts an sshd with chroots")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        raise NoSshd("this machine makes no mount namespaces")
    folder.mkdir(parents=True)
    shutil.copytree("/etc", folder / "etc", symlinks=True, ignore_dangling_symlinks=True)
    key = folder / "host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "sh", str(folder)]
    command += [program, "-D", "-e", "-f", str(shipped / "sshd_config")]  # in the foreground, log on stderr
    command += ["-o", f"Port={port}", "-o", "ListenAddress=127.0.0.1", "-o", f"HostKey={key}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log, stdin=subprocess.DEVNULL)
    try:
        _wait(process, port, folder / "log")
        yield Sshd(port, key.with_suffix(".pub").read_text().split()[1], process.pid, shipped / "jail.sh")
    finally:
        process.terminate()
        process.wait(STARTS_S)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + STARTS_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), 1.0) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            time.sleep(0.05)
    raise NoSshd(f"sshd does not answer: {log.read_text()[-500:]}")
