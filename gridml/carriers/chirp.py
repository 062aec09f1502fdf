"""The Chirp carrier: a job's mailbox is a folder on the submit host, reached through the job's own shadow.

HTCondor relays: worker → starter (a loopback socket beside the job) → shadow → files, as the user who submitted. No
port of ours is opened and nothing connects to the worker, so it works behind firewalls. The job must ask for it with
`want_io_proxy`. The master's end is the directory carrier's: layout and names are the same.

The protocol is spoken here, in the few commands needed, because the client that comes with HTCondor waits for ever
when the connection ends, and needs a file for every payload. Protocol: HTCondor manual, "Chirp"; src/condor_chirp.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from gridml import bundle
from gridml.carriers import mail
from gridml.carriers.base import WorkerEnd
from gridml.errors import RunError

TIMEOUT_S = 20.0  # of one answer; a shadow that is out of reach for longer is tried again on a new connection
NOTE_S = 0.2  # seconds between two notes of how far training has come: each is a round trip to the submit host
_LONGEST_LINE = 5120
_OWNERS = 0o600  # the mode of what is written; the protocol wants it in decimal
_ERRORS = {
    -1: errno.EACCES,
    -2: errno.EACCES,
    -3: errno.ENOENT,
    -4: errno.EEXIST,
    -5: errno.EFBIG,
    -6: errno.ENOSPC,
    -7: errno.ENOMEM,
    -8: errno.EINVAL,
    -9: errno.EMFILE,
    -10: errno.EBUSY,
    -11: errno.EAGAIN,
    -12: errno.EBADF,
    -13: errno.EISDIR,
    -14: errno.ENOTDIR,
    -15: errno.ENOTEMPTY,
    -16: errno.EXDEV,
    -17: errno.EHOSTUNREACH,
}


class ChirpLink:
    """A connection to the job's Chirp proxy; made when it is first used, and anew after it broke.

    `config` holds host, port and cookie, as the starter writes it. Paths are relative to the directory the job was
    submitted from. Every method raises OSError: the server's own errors with their errno, so that a file that is not
    there is a FileNotFoundError. Threads may share a link; their commands are sent one after the other.
    """

    def __init__(self, config: Path, timeout_s: float = TIMEOUT_S) -> None:
        host, port, self._cookie = config.read_text().split()
        self._address = host, int(port)
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._rest = b""  # received, not yet used
        self._open: dict[str, int] = {}  # descriptors of this connection, by path
        self._lock = threading.Lock()

    def list(self, folder: str) -> list[str]:
        with self._exchange(folder):
            return self._read(self._ask(f"getdir {_quoted(folder)}")).decode().split("\n")

    def get(self, path: str) -> bytes:
        with self._exchange(path):
            return self._read(self._ask(f"getfile {_quoted(path)}"))

    def put(self, path: str, payload: bytes) -> None:
        """Write a file so that it is there whole or not at all."""
        folder, _, name = path.rpartition("/")
        temporary = _quoted(f"{folder}/.{name}.tmp")
        with self._exchange(path):
            self._ask(f"putfile {temporary} {_OWNERS} {len(payload)}")
            self._give(payload)
            self._ask(f"rename {temporary} {_quoted(path)}")

    def overwrite(self, path: str, payload: bytes) -> None:
        """Write the first bytes of a file, which is kept open for the next time: one round trip."""
        with self._exchange(path):
            if path not in self._open:
                self._open[path] = self._ask(f"open {_quoted(path)} wc {_OWNERS}")
                self._line()  # the file's status
            self._send(f"pwrite {self._open[path]} {len(payload)} 0\n".encode())
            self._give(payload)

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._exchange(path):
            self._ask(f"unlink {_quoted(path)}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._rest = b""
        self._open.clear()

    @contextlib.contextmanager
    def _exchange(self, path: str) -> Iterator[None]:
        """The connection to oneself, for commands that concern `path`; what goes wrong becomes an OSError."""
        with self._lock:
            try:
                self._connect()
                yield
            except _Refused as refused:
                raise OSError(refused.number, os.strerror(refused.number), path) from None
            except (OSError, ValueError) as error:
                self.close()  # what is still to come of this answer must not be taken for the next one's
                raise error if isinstance(error, OSError) else OSError(errno.EPROTO, str(error)) from error

    def _connect(self) -> None:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ask(f"cookie {self._cookie}")

    def _ask(self, line: str) -> int:
        encoded = line.encode() + b"\n"
        if len(encoded) > _LONGEST_LINE:
            raise OSError(errno.ENAMETOOLONG, f"a Chirp command of {len(encoded)} bytes; {_LONGEST_LINE} are allowed")
        self._send(encoded)
        return self._answer()

    def _send(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.sendall(data)

    def _answer(self) -> int:
        answer = int(self._line())
        if answer < 0:
            raise _Refused(_ERRORS.get(answer, errno.EIO))
        return answer

    def _give(self, payload: bytes) -> None:
        """Send what the server has agreed to take."""
        self._send(payload)
        taken = self._answer()
        if taken != len(payload):
            raise OSError(errno.EIO, f"{taken} of {len(payload)} bytes arrived")

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            self._receive()
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _read(self, count: int) -> bytes:
        parts, missing = [self._rest[:count]], count - len(self._rest)
        self._rest = self._rest[count:]
        while missing > 0:
            self._receive()
            parts.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)

    def _receive(self) -> None:
        assert self._socket is not None
        received = self._socket.recv(1 << 18)
        if not received:
            raise ConnectionResetError(errno.ECONNRESET, "the job's Chirp proxy has gone")
        self._rest += received


class _Refused(Exception):
    """The server refused a command; the connection is as good as before."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ChirpWorker(WorkerEnd):
    """A worker's end inside a job that was submitted from the run directory.

    Letters and chunks have a connection each, so that a push under way keeps nobody waiting. Raises RunError when the
    job has no Chirp proxy.
    """

    poll_s = (0.03, 0.2)

    def __init__(self, worker: str, config: Path | None = None, note_s: float = NOTE_S) -> None:
        found = config or Path(os.environ.get("_CONDOR_CHIRP_CONFIG", ".chirp.config"))
        try:
            self._letters, self._chunks = ChirpLink(found), ChirpLink(found)
        except (OSError, ValueError) as error:
            raise RunError(
                f"this job has no Chirp proxy ({found}: {error}). Submit it with want_io_proxy = true; where a pool "
                f"does not allow Chirp, choose another carrier."
            ) from error
        self._mail = f"mail/{worker}"
        self._note_s, self._noted_s = note_s, float("-inf")

    def send(self, number: int, payload: bytes) -> None:
        name = mail.name_of("sync", number, payload)
        for found in mail.entries(self._letters.list(self._mail), "sync"):
            if found.number == number and found.name != name:  # removed first: the master must never see both
                self._letters.unlink(f"{self._mail}/{found.name}")
        self._letters.put(f"{self._mail}/{name}", payload)

    def receive(self, number: int) -> bytes | None:
        try:
            for found in mail.entries(self._letters.list(self._mail), "reply"):
                path = f"{self._mail}/{found.name}"
                payload = self._letters.get(path) if found.number == number else b""
                whole = found.number == number and bundle.digest(payload) == found.sha256
                if found.number < number or whole:
                    self._letters.unlink(path)
                if whole:
                    return payload
        except OSError:
            return None  # out of reach for the moment; when the mailbox is gone, the next `send` says so
        return None

    def fetch(self, name: str, sha256: str) -> bytes:
        payload = self._chunks.get(f"chunks/{name}{mail.SUFFIX}")
        if bundle.digest(payload) != sha256:
            raise ValueError(f"chunk {name} has another SHA-256 than its lease says")
        return payload

    def note(self, lease: int, upto: int) -> None:
        now = time.monotonic()
        if now - self._noted_s >= self._note_s:
            self._noted_s = now
            with contextlib.suppress(OSError):  # only the count of wasted work depends on it
                self._chunks.overwrite(f"{self._mail}/{mail.PROGRESS}", mail.pack_progress(lease, upto))

    def close(self) -> None:
        self._letters.close()
        self._chunks.close()


def _quoted(path: str) -> str:
    for character in "\\ \n\t\r":
        path = path.replace(character, f"\\{character}")
    return path
