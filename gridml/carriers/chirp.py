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
from collections.abc import Iterator
from pathlib import Path

from gridml import bundle
from gridml.carriers import mail
from gridml.carriers.base import WorkerEnd
from gridml.errors import RunError

TIMEOUT_S = 20.0  # of a small answer; a shadow that is out of reach for longer is tried again on a new connection
SLOWEST = 1e5  # bytes per second of the slowest line that is waited for
LARGEST = 1 << 28  # bytes that the starter takes at once; more is refused
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
        self._lock = threading.Lock()

    def list(self, folder: str) -> list[str]:
        with self._exchange(folder):
            return self._read(self._ask(f"getdir {_quoted(folder)}")).decode().split("\n")

    def get(self, path: str) -> bytes:
        with self._exchange(path), self._patient(LARGEST):  # nothing comes before the starter has it all
            return self._read(self._ask(f"getfile {_quoted(path)}"))

    def put(self, path: str, payload: bytes) -> None:
        """Write a file so that it is there whole or not at all."""
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/.{name}.tmp"
        with self._exchange(path):
            self._store(temporary, payload)
            self._ask(f"rename {_quoted(temporary)} {_quoted(path)}")

    def write(self, path: str, payload: bytes) -> None:
        """Write a file in one round trip; a reader may meanwhile see it empty."""
        with self._exchange(path):
            self._store(path, payload)

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._exchange(path):
            self._ask(f"unlink {_quoted(path)}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._rest = b""

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

    def _store(self, path: str, payload: bytes) -> None:
        """Send a file that the server agrees to take; it answers when the shadow has it, over any line there is."""
        self._ask(f"putfile {_quoted(path)} {_OWNERS} {len(payload)}")
        with self._patient(len(payload)):
            self._send(payload)
            taken = self._answer()
        if taken != len(payload):
            raise OSError(errno.EIO, f"{taken} of {len(payload)} bytes arrived")

    @contextlib.contextmanager
    def _patient(self, count: int) -> Iterator[None]:
        """Time for `count` bytes over the slowest line, for what is asked inside only, refused or not."""
        link = self._socket
        assert link is not None
        link.settimeout(self._timeout_s + count / SLOWEST)
        try:
            yield
        finally:
            link.settimeout(self._timeout_s)

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

    Letters and chunks have a connection each, and notes a thread: the starter serves one command at a time, so that a
    note waits while a push is under way. Raises RunError when the job has no Chirp proxy.
    """

    poll_s = (0.03, 0.2)

    def __init__(self, worker: str, config: Path | None = None, note_s: float = NOTE_S) -> None:
        self._letters, self._chunks = proxy_of_job(config), proxy_of_job(config)
        self._mail = f"mail/{worker}"
        self._notes = _Notes(proxy_of_job(config), f"{self._mail}/{mail.PROGRESS}", note_s)

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
        self._notes.leave(mail.pack_progress(lease, upto))

    def close(self) -> None:
        self._notes.close()
        self._letters.close()
        self._chunks.close()


class _Notes:
    """Writes the newest note, every `every_s` seconds at most, on a thread of its own: training never waits for it."""

    def __init__(self, link: ChirpLink, path: str, every_s: float) -> None:
        self._link, self._path, self._every_s = link, path, every_s
        self._newest: bytes | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="notes", daemon=True)
        self._thread.start()

    def leave(self, note: bytes) -> None:
        with self._changed:
            self._newest = note
            self._changed.notify()

    def close(self) -> None:
        """The last note is written if that takes no longer than a second."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=1)
        if not self._thread.is_alive():
            self._link.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._closed)
                note, self._newest = self._newest, None
            if note is None:
                return
            with contextlib.suppress(OSError):  # only the count of wasted work depends on it
                self._link.write(self._path, note)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, self._every_s)


def proxy_of_job(config: Path | None = None) -> ChirpLink:
    """A connection to the proxy of the job that this process is. Raises RunError when it has none."""
    found = config or Path(os.environ.get("_CONDOR_CHIRP_CONFIG", ".chirp.config"))
    try:
        return ChirpLink(found)
    except (OSError, ValueError) as error:
        raise RunError(
            f"this job has no Chirp proxy ({found}: {error}). Submit it with want_io_proxy = true; where a pool "
            f"does not allow Chirp, choose another carrier."
        ) from error


def _quoted(path: str) -> str:
    for character in "\\ \n\t\r":
        path = path.replace(character, f"\\{character}")
    return path
