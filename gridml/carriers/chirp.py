"""The Chirp carrier: a job's mailbox is a folder on the submit host, reached through the job's own shadow.

The batch system relays: worker → starter (a loopback socket beside the job) → shadow → files, as the user who
submitted. No port of ours is opened and nothing connects to the worker, so it works behind firewalls. The job must ask
for it with `want_io_proxy`. The master's side is the directory carrier's: layout and names are the same.

The protocol is spoken here, in the few commands needed, because the client that comes with the batch system waits for
ever when the connection ends, and needs a file for every payload. Protocol: chapter "Chirp" of its manual.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from gridml.carriers.file_link import FileLink, FileMailbox, temporary_path
from gridml.carriers.registry import Carrier, Connection
from gridml.errors import RunError
from gridml.protocol.payload import Payload, Received, in_pieces

TIMEOUT_S = 20.0  # of a small answer; a shadow that is out of reach for longer is tried again on a new connection
MIN_BYTES_PER_S = 1e5  # bytes per second of the slowest line that is waited for
MAX_PIECE_BYTES = 1 << 23  # of one command: starter and shadow each hold up to three copies of it in memory
_MAX_LINE_BYTES = 5120
CONFIG = "GRIDML_CHIRP_CONFIG"  # the back end says with it where the starter wrote host, port and cookie
_GONE = "the job's Chirp proxy has gone"
_SIZE = 7  # where a file's size stands in what stat says: device, inode, mode, links, user, group, device, size, ...
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


class ChirpLink(FileLink):
    """A connection to the job's Chirp proxy.

    `config` holds host, port and cookie, as the starter writes it. Paths are relative to the directory the job was
    submitted from. Larger files travel in pieces of `piece` bytes.
    """

    def __init__(self, config: Path, timeout_s: float = TIMEOUT_S, *, piece: int = MAX_PIECE_BYTES) -> None:
        host, port, self._cookie = config.read_text().split()
        self._address = host, int(port)
        self._timeout_s = timeout_s
        self._piece = piece
        self._socket: socket.socket | None = None
        self._received: BinaryIO = io.BytesIO()  # what comes on the socket
        self._lock = threading.Lock()

    def list(self, folder: str) -> list[str]:
        with self._exchange(folder):
            return self._read(self._ask(f"getdir {_quoted(folder)}")).decode().split("\n")

    def get(self, path: str) -> Received:
        with self._exchange(path):
            size = self._size(path)
            return self._get_whole(path, size) if size <= self._piece else self._get_in_pieces(path)

    def put(self, path: str, payload: Payload) -> None:
        with self._exchange(path):
            self._store(temporary_path(path), payload)
            self._ask(f"rename {_quoted(temporary_path(path))} {_quoted(path)}")

    def write(self, path: str, payload: Payload) -> None:
        with self._exchange(path):
            self._store(path, payload)

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._exchange(path):
            self._ask(f"unlink {_quoted(path)}")

    def close(self) -> None:
        if self._socket is not None:
            self._received.close()
            self._socket.close()
            self._socket = None

    @contextlib.contextmanager
    def _exchange(self, path: str) -> Iterator[None]:
        """The connection to oneself, for commands that concern `path`; what goes wrong becomes an OSError."""
        with self._lock:
            try:
                self._connect()
                yield
            except _Refused as refused:
                raise OSError(*refused.args, os.strerror(*refused.args), path) from None
            except (OSError, ValueError) as error:
                self.close()  # what is still to come of this answer must not be taken for the next one's
                raise error if isinstance(error, OSError) else OSError(errno.EPROTO, str(error)) from error

    def _connect(self) -> None:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._received = self._socket.makefile("rb")
            self._ask(f"cookie {self._cookie}")

    def _ask(self, line: str) -> int:
        encoded = line.encode() + b"\n"
        if len(encoded) > _MAX_LINE_BYTES:
            raise OSError(errno.ENAMETOOLONG, f"a Chirp command of {len(encoded)} bytes; {_MAX_LINE_BYTES} are allowed")
        self._send(encoded)
        return self._answer()

    def _send(self, data: bytes | memoryview) -> None:
        assert self._socket is not None
        self._socket.sendall(data)

    def _answer(self) -> int:
        answer = int(self._line())
        if answer < 0:
            raise _Refused(_ERRORS.get(answer, errno.EIO))
        return answer

    def _size(self, path: str) -> int:
        """How many bytes a file has."""
        self._ask(f"stat {_quoted(path)}")
        return self._read_size()

    def _read_size(self) -> int:
        status = self._line().split()
        if len(status) <= _SIZE:
            raise ValueError(f"got {len(status)} numbers of a file's stat, expected 13")
        return int(status[_SIZE])

    def _get_whole(self, path: str, size: int) -> Received:
        with self._patient(size):
            count = self._ask(f"getfile {_quoted(path)}")  # another number than `size` where it was replaced since
            content = Received(count)
            content.take(self._read(count))
        return content

    def _get_in_pieces(self, path: str) -> Received:
        with self._opened(path, "r", 0) as (file, size):
            content = Received(size)
            # `read` and `write` go on where the last one ended; offsets, which `pread` takes, end at 2 GB.
            while content.missing:
                with self._patient(self._piece):
                    part = self._read(self._ask(f"read {file} {min(content.missing, self._piece)}"))
                if not part:
                    break  # it has become shorter
                content.take(part)
            content.end()
        return content

    def _store(self, path: str, payload: Payload) -> None:
        """Send a file that the server agrees to take; it answers when the shadow has it, over any line there is."""
        blocks = in_pieces(payload).blocks(self._piece)
        if len(payload) > self._piece:
            self._put_in_pieces(path, blocks)
            return
        self._ask(f"putfile {_quoted(path)} {_OWNERS} {len(payload)}")
        for block in blocks:  # one; of nothing there is none, and no second answer
            self._send_whole(block)

    def _send_whole(self, payload: bytes | memoryview) -> None:
        with self._patient(len(payload)):
            self._send(payload)
            taken = self._answer()
        if taken != len(payload):
            raise OSError(errno.EIO, f"{taken} of {len(payload)} bytes arrived")

    def _put_in_pieces(self, path: str, blocks: Iterable[memoryview]) -> None:
        with self._opened(path, "wct", _OWNERS) as (file, _):  # write, create, truncate
            for block in blocks:  # none is empty: the starter takes that for an error of its own, and ends
                self._send(f"write {file} {len(block)}\n".encode())
                self._send_whole(block)

    @contextlib.contextmanager
    def _opened(self, path: str, flags: str, mode: int) -> Iterator[tuple[int, int]]:
        """A file of the shadow's, by its number, and how many bytes it has."""
        # Without its shadow a starter takes `open`, and no other command, for an error of its own, and ends together
        # with its job: it is asked behind another command that the shadow has just answered.
        self._size(".")
        file = self._ask(f"open {_quoted(path)} {flags} {mode}")
        size = self._read_size()
        try:
            yield file, size
        except _Refused:
            self._ask(f"close {file}")
            raise
        self._ask(f"close {file}")  # here a full disk may show

    @contextlib.contextmanager
    def _patient(self, count: int) -> Iterator[None]:
        """Time for `count` bytes over the slowest line, for what is asked inside only, refused or not."""
        link = self._socket
        assert link is not None
        link.settimeout(self._timeout_s + count / MIN_BYTES_PER_S)
        try:
            yield
        finally:
            link.settimeout(self._timeout_s)

    def _line(self) -> bytes:
        line = self._received.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError(errno.ECONNRESET, _GONE)
        return line[:-1]

    def _read(self, count: int) -> bytes:
        content = self._received.read(count)
        if len(content) < count:
            raise ConnectionResetError(errno.ECONNRESET, _GONE)
        return content


class _Refused(Exception):
    """The server refused a command, with this errno; the connection is as good as before."""


class Chirp(Carrier):
    """What is to be known of Chirp where carriers are chosen."""

    name = "chirp"
    hint = "See whether the job's shadow still runs."

    def connect(self, job: str, directory: Path | None) -> Connection:
        link = proxy_of_job()
        return Connection(lambda: link.list("mail"), lambda worker: FileMailbox(worker, proxy_of_job))


def proxy_of_job(config: Path | None = None) -> ChirpLink:
    """A connection to the proxy of the job that this process is. Raises RunError when it has none."""
    path = config or Path(os.environ.get(CONFIG, ".chirp.config"))
    try:
        return ChirpLink(path)
    except (OSError, ValueError) as error:
        raise RunError(
            f"this job has no Chirp proxy ({path}: {error}). Submit it with want_io_proxy = true; where a pool "
            f"does not allow Chirp, choose another carrier."
        ) from error


def _quoted(path: str) -> str:
    return re.sub(r"[\\ \n\t\r]", r"\\\g<0>", path)
