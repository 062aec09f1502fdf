"""The Chirp carrier: the mailbox of a job is a folder on the submit host, accessed through the job's shadow.

The batch system relays commands: worker → starter (a loopback socket on the job's machine) → shadow, which accesses the
files as the user who submitted the job. gridml opens no port and nothing connects to the worker, so this carrier works
behind firewalls. The job must set `want_io_proxy`. The master's side is that of the directory carrier, with the same
layout and names.

This module is a Chirp client with the few commands that the carrier needs. The client that comes with the batch system
blocks forever when the connection ends, and needs a file for every payload. The batch system's manual describes the
protocol in the chapter "Chirp".
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

TIMEOUT_S = 20.0  # time limit of a short answer; a later answer fails the command, and the next command reconnects
MIN_BYTES_PER_S = 1e5  # a transfer times out over a connection that is slower than this
MAX_PIECE_BYTES = 1 << 23  # data of one command, of which starter and shadow each hold up to three copies in memory
_MAX_LINE_BYTES = 5120  # maximum length of a command
CONFIG = "GRIDML_CHIRP_CONFIG"  # environment variable: path of the starter's file with host, port and cookie
_GONE = "the job's Chirp proxy has gone"
_SIZE = 7  # index of the size in a stat answer: device, inode, mode, links, user, group, device, size, ...
_OWNERS = 0o600  # mode of written files; commands write the mode in decimal
_ERRORS = {  # errno by Chirp's error code
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

    The starter writes the file `config` with host, port and cookie. Paths are relative to the directory from which the
    job was submitted. A file of more than `piece` bytes is transferred in pieces of that size.
    """

    def __init__(self, config: Path, timeout_s: float = TIMEOUT_S, *, piece: int = MAX_PIECE_BYTES) -> None:
        host, port, self._cookie = config.read_text().split()
        self._address = host, int(port)
        self._timeout_s = timeout_s
        self._piece = piece
        self._socket: socket.socket | None = None
        self._received: BinaryIO = io.BytesIO()  # reads from `_socket` once connected
        self._lock = threading.Lock()  # held from a command to its answer, so that only one command is under way

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
        """Hold the connection exclusively for commands on `path`. Turns any failure into an OSError."""
        with self._lock:
            try:
                self._connect()
                yield
            except _Refused as refused:
                raise OSError(*refused.args, os.strerror(*refused.args), path) from None
            except (OSError, ValueError) as error:
                self.close()  # the rest of this answer must not be read as the answer to the next command
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
        """Return the bytes of a file."""
        self._ask(f"stat {_quoted(path)}")
        return self._read_size()

    def _read_size(self) -> int:
        status = self._line().split()
        if len(status) <= _SIZE:
            raise ValueError(f"got {len(status)} numbers in a stat answer, expected 13")
        return int(status[_SIZE])

    def _get_whole(self, path: str, size: int) -> Received:
        with self._patient(size):
            count = self._ask(f"getfile {_quoted(path)}")  # can differ from `size` if the file has just been replaced
            content = Received(count)
            content.take(self._read(count))
        return content

    def _get_in_pieces(self, path: str) -> Received:
        with self._opened(path, "r", 0) as (file, size):
            content = Received(size)
            # Each `read` continues where the one before ended. `pread` would take an offset, but only up to 2 GB.
            while content.missing:
                with self._patient(self._piece):
                    part = self._read(self._ask(f"read {file} {min(content.missing, self._piece)}"))
                if not part:
                    break  # the file was truncated
                content.take(part)
            content.end()
        return content

    def _store(self, path: str, payload: Payload) -> None:
        """Send a file. The server answers once after the command, and again when the shadow has the content."""
        blocks = in_pieces(payload).blocks(self._piece)
        if len(payload) > self._piece:
            self._put_in_pieces(path, blocks)
            return
        self._ask(f"putfile {_quoted(path)} {_OWNERS} {len(payload)}")
        for block in blocks:  # at most one block; an empty payload has none, and gets no second answer
            self._send_whole(block)

    def _send_whole(self, payload: bytes | memoryview) -> None:
        with self._patient(len(payload)):
            self._send(payload)
            taken = self._answer()
        if taken != len(payload):
            raise OSError(errno.EIO, f"{taken} of {len(payload)} bytes arrived")

    def _put_in_pieces(self, path: str, blocks: Iterable[memoryview]) -> None:
        with self._opened(path, "wct", _OWNERS) as (file, _):  # write, create, truncate
            for block in blocks:  # never empty: an empty write makes the starter exit
                self._send(f"write {file} {len(block)}\n".encode())
                self._send_whole(block)

    @contextlib.contextmanager
    def _opened(self, path: str, flags: str, mode: int) -> Iterator[tuple[int, int]]:
        """Yield (descriptor, size in bytes) of a file that the shadow has opened."""
        # If a starter has lost its shadow, `open` makes it exit together with its job; any other command only fails. So
        # another command that the shadow must answer is sent directly before `open`.
        self._size(".")
        file = self._ask(f"open {_quoted(path)} {flags} {mode}")
        size = self._read_size()
        try:
            yield file, size
        except _Refused:
            self._ask(f"close {file}")
            raise
        self._ask(f"close {file}")  # can be the first command to report a full disk

    @contextlib.contextmanager
    def _patient(self, count: int) -> Iterator[None]:
        """Extend the timeout, inside `with`, by the time that `count` bytes take at `MIN_BYTES_PER_S`."""
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
    """The server refused a command. The argument is the errno; the connection stays usable."""


class Chirp(Carrier):
    """The registered Chirp carrier."""

    name = "chirp"
    hint = "Check whether the job's shadow still runs."

    def connect(self, job: str, directory: Path | None) -> Connection:
        link = proxy_of_job()
        return Connection(lambda: link.list("mail"), lambda worker: FileMailbox(worker, proxy_of_job))


def proxy_of_job(config: Path | None = None) -> ChirpLink:
    """Return a connection to the proxy of the job that this process runs in. Raises RunError without a proxy."""
    path = config or Path(os.environ.get(CONFIG, ".chirp.config"))
    try:
        return ChirpLink(path)
    except (OSError, ValueError) as error:
        raise RunError(
            f"this job has no Chirp proxy ({path}: {error}). Submit it with want_io_proxy = true; if the pool "
            f"does not allow Chirp, choose another carrier."
        ) from error


def _quoted(path: str) -> str:
    return re.sub(r"[\\ \n\t\r]", r"\\\g<0>", path)
