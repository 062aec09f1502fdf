"""HTTP server for the live page of a run, for browsers on this machine (`gridml watch --page`).

It listens on loopback until interrupted. Other users of the machine and pages of other sites in the same browser can
reach that port, too. Therefore the address contains a secret token, which is compared in constant time. The Host header
must be this server's own, which defeats DNS rebinding. Only GET is allowed.
"""

from __future__ import annotations

import dataclasses
import hmac
import http
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import typer

from gridml.errors import GridmlError, UsageError
from gridml.protocol.foreign import described, one_line, printable
from master.store.rundir import command
from master.views.console import json_text
from master.views.page.document import PageFacts, changed_parts, read_library, read_page_facts, render_page

HOST = "127.0.0.1"
TOKEN_BYTES = 24
MAX_DIGITS = 15  # maximum digits of an event's number in a request
SHARE = 0.1  # maximum share of the time that may be spent on reading the ledger
MIN_INTERVAL_S = 1.0  # between two readings of the ledger
POLL_S = 0.1  # interval at which the server thread checks for shutdown
TIMEOUT_S = 10.0  # for a browser that neither sends nor receives
MAX_CONNECTIONS = 64  # at a time; bounded because anyone on this machine can open connections, and each takes a thread
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass
class CachedFacts:
    """The data last read from a run, shared by all requests, so that a large ledger is not read for each one."""

    root: Path
    clock: Callable[[], float] = time.monotonic
    read: Callable[[Path], PageFacts] = read_page_facts
    _facts: PageFacts | None = None
    _again_s: float = 0.0  #: earliest time of the next reading
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> PageFacts:
        """Return the current data; if the run cannot be read now, the older data with `trouble` set. Raises LedgerError
        or OSError if nothing was read yet."""
        with self._lock:
            begun = self.clock()
            if self._facts is None or begun >= self._again_s:
                try:
                    self._facts = self.read(self.root)
                except (GridmlError, OSError) as error:
                    if self._facts is None:
                        raise
                    self._facts = dataclasses.replace(self._facts, trouble=str(error))
                ended = self.clock()
                self._again_s = ended + max(MIN_INTERVAL_S, (ended - begun) / SHARE)
            return self._facts


class PageServer(ThreadingHTTPServer):
    """Serves the page of one run on loopback; port 0 picks a free one. Raises UsageError if the port is in use."""

    daemon_threads = True
    allow_reuse_address = True  # a port with connections in TIME_WAIT can be reused
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, root: Path, port: int = 0, facts: CachedFacts | None = None) -> None:
        read_library()  # fails here, on the terminal, rather than in a browser
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.facts = CachedFacts(root) if facts is None else facts
        self._free = threading.Semaphore(MAX_CONNECTIONS)
        self._reported: set[type] = set()  # types of the errors reported so far
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"port {port} of {HOST} cannot be used: {error.strerror}. Give another --port, or omit it to use a "
                "free one."
            ) from error

    @property
    def address(self) -> str:
        """The URL of the page, including the token."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The accepted values of the Host header."""
        return f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._free.acquire(timeout=POLL_S)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report the first error of each kind in one line; the connection ends. A broken connection is no error."""
        error = sys.exception()
        if not isinstance(error, OSError | None) and type(error) not in self._reported:
            self._reported.add(type(error))
            typer.echo(one_line(f"The page's server could not answer a request: {described(error)}"), err=True)


@contextmanager
def serving(server: PageServer) -> Iterator[PageServer]:
    """Answer requests in a thread while the context is open."""
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), name="page", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers GET requests for the page and its data; rejects all other methods."""

    server: PageServer
    timeout = TIMEOUT_S
    server_version = "gridml"
    sys_version = ""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(http.HTTPStatus.FORBIDDEN, "this page is for browsers of its own machine")
            return
        path, _, query = self.path.partition("?")
        token, _, name = path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(http.HTTPStatus.FORBIDDEN, "wrong token: use the address that gridml printed")
            return
        try:
            if name == "":
                self._answer("text/html; charset=utf-8", render_page(self.server.facts.now(), live=True))
            elif name == "data":
                asked = parse_qs(query)
                after = asked.get("after", ["0"])[0]
                seen = int(after[:MAX_DIGITS]) if after.isascii() and after.isdecimal() else 0
                kept = asked.get("digests", [""])[0].split(".")
                self._answer("application/json", json_text(changed_parts(self.server.facts.now().after(seen), kept)))
            else:
                self._refuse(http.HTTPStatus.NOT_FOUND, "only the page and its data exist here")
        except (GridmlError, OSError) as error:
            self._refuse(http.HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def _only_get(self) -> None:
        self._refuse(http.HTTPStatus.METHOD_NOT_ALLOWED, "a page is read only: GET", {"Allow": "GET"})

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _only_get

    def _answer(self, kind: str, text: str) -> None:
        self._send(http.HTTPStatus.OK, kind, text, {})

    def _refuse(self, status: http.HTTPStatus, why: str, more: dict[str, str] | None = None) -> None:
        self._send(status, "text/plain; charset=utf-8", why, more or {})

    def _send(self, status: http.HTTPStatus, kind: str, text: str, more: dict[str, str]) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **HEADERS, **more}.items():
            self.send_header(name, value)
        if not kind.startswith("text/html"):  # the page itself contains a policy with the hashes of its scripts
            self.send_header("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a log line would contain the token."""


def serve_page(run: Path, port: int, wait: Callable[[], object] | None = None) -> None:
    """Serve the page of a run and print its address. Return at Ctrl-C, or when `wait` returns, if given.

    Raises LedgerError, and UsageError if the port is in use.
    """
    server = PageServer(run, port)
    try:
        server.facts.now()  # read once here, so that errors of the run appear on the terminal
        with serving(server):
            typer.echo(f"The page of {printable(str(run))} is at {server.address}")
            typer.echo("It can be opened on this machine by anyone who has the address. Ctrl-C stops the server.")
            (threading.Event().wait if wait is None else wait)()
    except KeyboardInterrupt:
        again = command("report", run)
        typer.echo(
            printable(f"The server has stopped; the run continues. To save the page: {again} --html FILE"), err=True
        )
    finally:
        server.server_close()
