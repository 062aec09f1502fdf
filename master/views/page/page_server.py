"""A run as a page that keeps up with it, for browsers of this machine (`gridml watch --page`).

It is served on loopback until a person ends it. Anything that reaches a port of this machine could ask: other
users, and pages of others that the same browser shows. So the address holds a token, which is compared in constant
time; a request must name the host that it reached, which a name that was bent to this machine does not; and only
reading is offered.
"""

from __future__ import annotations

import dataclasses
import hmac
import http
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import typer

from gridml.errors import GridmlError, UsageError
from gridml.protocol.foreign import printable
from master.store.rundir import command
from master.views.console import json_text
from master.views.page.document import PageFacts, news, read_library, read_page_facts, render_page

HOST = "127.0.0.1"
TOKEN_BYTES = 24
SHARE = 0.1  # of the time, at most, that reading the ledger for pages may take
MIN_INTERVAL_S = 1.0  # between two readings
POLL_S = 0.1  # how often it looks whether it is to end
TIMEOUT_S = 10.0  # with a browser that sends or takes nothing
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass
class CachedFacts:
    """What was last read of a run, for all browsers that ask: a large ledger is not read again for each."""

    root: Path
    clock: Callable[[], float] = time.monotonic
    read: Callable[[Path], PageFacts] = read_page_facts
    _facts: PageFacts | None = None
    _again_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> PageFacts:
        """Return what is known of the run: where it cannot be read now, what was known before, with the trouble. Raises
        LedgerError or OSError where nothing was known yet."""
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
    """Serves the page of one run on loopback. Raises UsageError where the port is taken, 0 being any that is free."""

    daemon_threads = True
    allow_reuse_address = True  # a port whose last connections are being forgotten is free

    def __init__(self, root: Path, port: int = 0, facts: CachedFacts | None = None) -> None:
        read_library()  # said now, rather than to a browser
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.facts = CachedFacts(root) if facts is None else facts
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"port {port} of {HOST} cannot be had: {error.strerror}. Name another with --port, or leave it out "
                "for one that is free."
            ) from error

    @property
    def address(self) -> str:
        """Where the page is, with the token that lets one in."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What browsers may have been told to call this machine by."""
        return f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"


@contextmanager
def serving(server: PageServer) -> Iterator[PageServer]:
    """Answer browsers from a thread, as long as the context is open."""
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), name="page", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for the page and its data; any other method is refused."""

    server: PageServer
    timeout = TIMEOUT_S
    server_version = "gridml"
    sys_version = ""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(http.HTTPStatus.FORBIDDEN, "this page is for browsers of its own machine")
            return
        parts = urlsplit(self.path)
        token, _, name = parts.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(http.HTTPStatus.FORBIDDEN, "the address has the wrong token: take the one that gridml printed")
            return
        try:
            if name == "":
                self._answer("text/html; charset=utf-8", render_page(self.server.facts.now(), live=True))
            elif name == "data":
                asked = parse_qs(parts.query)
                after = asked.get("after", ["0"])[0]
                seen = int(after) if after.isascii() and after.isdecimal() else 0
                kept = asked.get("digests", [""])[0].split(".")
                self._answer("application/json", json_text(news(self.server.facts.now().after(seen), kept)))
            else:
                self._refuse(http.HTTPStatus.NOT_FOUND, "there is nothing here but the page and its data")
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
        if not kind.startswith("text/html"):  # the page has a policy of its own, with the hashes of its scripts
            self.send_header("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the address, with its token, would stand in a log."""


def serve_page(run: Path, port: int, wait: Callable[[], object] | None = None) -> None:
    """Serve the page of a run, say where, and return when `wait` does, or at Ctrl-C; without it, then alone.

    Raises LedgerError, and UsageError for a port that is taken.
    """
    server = PageServer(run, port)
    try:
        server.facts.now()  # what is wrong with the run is said here
        with serving(server):
            typer.echo(f"The page of {printable(str(run))} is at {server.address}")
            typer.echo("It is for browsers of this machine, and for whoever has this address. Ctrl-C ends it.")
            (threading.Event().wait if wait is None else wait)()
    except KeyboardInterrupt:
        again = command("report", run)
        typer.echo(printable(f"The page is gone; the run is left alone. To keep one: {again} --html FILE"), err=True)
    finally:
        server.server_close()
