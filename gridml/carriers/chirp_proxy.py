"""A Chirp proxy over a folder, for tests without a pool: it answers as HTCondor's does to what the carrier asks."""

from __future__ import annotations

import os
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

COOKIE = "c00k1e"
NOT_AUTHENTICATED, DOES_NOT_EXIST, INVALID = -1, -3, -8


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    root: Path


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        known = False
        while line := self.rfile.readline().decode().rstrip("\n"):
            command, *words = line.split(" ")
            known = known or (command == "cookie" and words == [COOKIE])
            try:
                answer, data = self._obey(command, words) if known else (NOT_AUTHENTICATED, b"")
            except FileNotFoundError:
                answer, data = DOES_NOT_EXIST, b""
            self.wfile.write(f"{answer}\n".encode() + data)

    def _obey(self, command: str, words: list[str]) -> tuple[int, bytes]:
        root = cast(_Server, self.server).root
        if command == "getdir":
            data = "\n".join(os.listdir(root / words[0])).encode()
            return len(data), data
        if command == "getfile":
            data = (root / words[0]).read_bytes()
            return len(data), data
        if command == "putfile":
            with (root / words[0]).open("wb") as file:
                self.wfile.write(b"0\n")
                return file.write(self.rfile.read(int(words[2]))), b""
        if command == "rename":
            (root / words[0]).rename(root / words[1])
        elif command == "unlink":
            (root / words[0]).unlink()
        elif command != "cookie":
            return INVALID, b""
        return 0, b""


@contextmanager
def proxy(root: Path, config: Path) -> Iterator[None]:
    """Serve `root` on loopback while inside `with`; `config` tells how to reach it, as the starter's does."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.root = root
        config.write_text(f"127.0.0.1 {server.server_address[1]} {COOKIE}\n")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
