"""A Chirp proxy over a folder, for tests without a pool: it answers the carrier's requests like a real one."""

from __future__ import annotations

import os
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

COOKIE = "c00k1e"
MAX_COMMAND_BYTES = 1 << 28  # a real proxy refuses larger commands
NOT_AUTHENTICATED, DOES_NOT_EXIST, TOO_BIG, INVALID, BAD_FILE = -1, -3, -5, -8, -12
_MODES = {"r": "rb", "wct": "wb"}


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    root: Path
    largest: int


class _Handler(socketserver.StreamRequestHandler):
    def setup(self) -> None:
        super().setup()
        self._files: dict[int, BinaryIO] = {}

    def finish(self) -> None:
        for file in self._files.values():
            file.close()
        super().finish()

    def handle(self) -> None:
        authenticated = False
        while line := self.rfile.readline().decode().rstrip("\n"):
            command, *words = line.split(" ")
            authenticated = authenticated or (command == "cookie" and words == [COOKIE])
            try:
                answer, data = self._obey(command, words) if authenticated else (NOT_AUTHENTICATED, b"")
            except FileNotFoundError:
                answer, data = DOES_NOT_EXIST, b""
            self.wfile.write(f"{answer}\n".encode() + data)

    def _obey(self, command: str, words: list[str]) -> tuple[int, bytes]:
        server = cast(_Server, self.server)
        root = server.root
        if command == "getdir":
            data = "\n".join(os.listdir(root / words[0])).encode()
            return len(data), data
        if command == "stat":
            return 0, _status(os.stat(root / words[0]))
        if command == "getfile":
            data = (root / words[0]).read_bytes()
            return (TOO_BIG, b"") if len(data) > server.largest else (len(data), data)
        if command == "putfile":
            if int(words[2]) > server.largest:
                return TOO_BIG, b""
            with (root / words[0]).open("wb") as stored:
                if words[2] != "0":
                    self.wfile.write(b"0\n")
                return stored.write(self.rfile.read(int(words[2]))), b""
        if command == "open":
            file = cast(BinaryIO, (root / words[0]).open(_MODES[words[1]]))
            self._files[file.fileno()] = file
            return file.fileno(), _status(os.fstat(file.fileno()))
        if command in ("read", "write", "close"):
            return self._with_file(command, *map(int, words))
        if command == "rename":
            (root / words[0]).rename(root / words[1])
        elif command == "unlink":
            (root / words[0]).unlink()
        elif command != "cookie":
            return INVALID, b""
        return 0, b""

    def _with_file(self, command: str, number: int, length: int = 0) -> tuple[int, bytes]:
        data = self.rfile.read(length) if command == "write" else b""
        if length > cast(_Server, self.server).largest:
            return TOO_BIG, b""
        file = self._files.pop(number, None) if command == "close" else self._files.get(number)
        if file is None:
            return BAD_FILE, b""
        if command == "close":
            file.close()
        elif command == "write":
            return file.write(data), b""
        else:
            data = file.read(length)
        return len(data), data


def _status(said: os.stat_result) -> bytes:
    """Return the fields of stat, in the protocol's order."""
    values = (said.st_dev, said.st_ino, said.st_mode, said.st_nlink, said.st_uid, said.st_gid, said.st_rdev,
              said.st_size, said.st_blksize, said.st_blocks, said.st_atime, said.st_mtime, said.st_ctime)  # fmt: skip
    return (" ".join(str(int(value)) for value in values) + "\n").encode()


@contextmanager
def proxy(root: Path, config: Path, *, largest: int = MAX_COMMAND_BYTES) -> Iterator[None]:
    """Serve `root` on loopback while inside `with`; `config` gets host, port and cookie, as from the starter.

    Commands of more than `largest` bytes are refused.
    """
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.root, server.largest = root, largest
        config.write_text(f"127.0.0.1 {server.server_address[1]} {COOKIE}\n")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
