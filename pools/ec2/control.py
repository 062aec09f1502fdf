"""Control of a local EC2 by a command that runs in its namespaces: an HTTP service on loopback, and a client.

Instances cannot reach the service, because each instance has its own network namespace.
"""

from __future__ import annotations

import http.server
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from pools.ec2.guest_cloud import NOTICE_S, CloudEvent, GuestCloud, UnknownInstance

PORT = 5001
VARIABLE = "GRIDML_LOCAL_EC2"
"""The environment variable with the URL of the service."""
POLL_S = 0.05


class Control:
    """A client of the service at `url`, the value of VARIABLE. Raises UnknownInstance for an instance that never
    booted."""

    def __init__(self, url: str) -> None:
        self._url = url

    def interrupt(self, id: str, notice_s: float = NOTICE_S) -> None:
        self._ask("interrupt", id=id, notice_s=notice_s)

    def rebalance(self, id: str) -> None:
        self._ask("rebalance", id=id)

    def crash(self, id: str) -> None:
        self._ask("crash", id=id)

    def refuse(self, times: int = 1) -> None:
        self._ask("refuse", times=times)

    def mute(self, times: int = 1) -> None:
        self._ask("mute", times=times)

    def events(self) -> list[CloudEvent]:
        """Return all events so far, oldest first."""
        return [CloudEvent(**each) for each in self._ask("events")]

    def wait(self, true: Callable[[list[CloudEvent]], bool], limit_s: float) -> list[CloudEvent]:
        """Poll until `true` holds for the events, and return them. Raises TimeoutError, with the events so far."""
        deadline = time.monotonic() + limit_s
        while not true(events := self.events()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {limit_s:g} s; there was: {events}")
            time.sleep(POLL_S)
        return events

    def _ask(self, what: str, **values: Any) -> Any:
        request = urllib.request.Request(f"{self._url}/{what}", json.dumps(values).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise UnknownInstance(json.load(error)) from None


@contextmanager
def served(cloud: GuestCloud) -> Iterator[str]:
    """Serve the control of a cloud while the context is open. Yields the URL."""
    deeds: Mapping[str, Callable[..., Any]] = {
        **{name: getattr(cloud, name) for name in ("interrupt", "rebalance", "crash", "refuse", "mute")},
        "events": lambda: [asdict(event) for event in list(cloud.events)],
    }
    server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), type("Handler", (_Handler,), {"deeds": deeds}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{PORT}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    deeds: Mapping[str, Callable[..., Any]]

    def do_POST(self) -> None:
        values = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            status, answer = 200, self.deeds[self.path.strip("/")](**values)
        except UnknownInstance as error:
            status, answer = 404, str(error)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""
