"""Execution of a command inside a local EC2, in namespaces that end with it, and the command's control of the cloud.

Instances cannot reach the service, because each instance has its own network namespace.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pools.ec2.guest_cloud import NOTICE_S, CloudEvent, GuestCloud, UnknownInstance
from pools.ec2.machine import ALONE
from pools.ec2.root import CHECKOUT, Root

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


IMAGE_VARIABLE = "GRIDML_LOCAL_EC2_IMAGE"
CERTIFICATE_VARIABLE = "GRIDML_LOCAL_EC2_CERTIFICATE"


def command(root: Root, folder: Path, inner: Sequence[str]) -> list[str]:
    """Return a command that creates the namespaces, starts a cloud in them and runs `inner`, whose exit status it
    returns. Consoles and the certificate go to `folder`."""
    cloud = [sys.executable, "-m", "pools.ec2.control", str(folder), *map(str, root.layers)]
    return [*ALONE, *cloud, "--", *inner]


def environment(more: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for `command`, with this checkout first on PYTHONPATH."""
    return {**more, "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), more.get("PYTHONPATH", "")]))}


def _main(arguments: Sequence[str]) -> int:
    """Start the cloud in this process's namespaces, and run the command."""
    from pools.ec2.guest_cloud import URL, GuestCloud
    from pools.ec2.instances import REGION

    split = arguments.index("--")
    folder, *layers = map(Path, arguments[:split])
    # The first process of a PID namespace ignores signals without a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    cloud = GuestCloud(Root(tuple(layers)), folder)
    with cloud.up(), served(cloud) as control:
        variables = {
            **_without_credentials(os.environ),
            **{"AWS_ENDPOINT_URL": URL, "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"},
            **{"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"},
            **{VARIABLE: control, IMAGE_VARIABLE: cloud.image, CERTIFICATE_VARIABLE: str(cloud.certificate)},
        }
        return subprocess.run(arguments[split + 1 :], env=variables).returncode


def _without_credentials(variables: Mapping[str, str]) -> dict[str, str]:
    """Drop the credentials of a real account and proxies, so that no call leaves this machine."""
    return {n: v for n, v in variables.items() if not n.startswith("AWS_") and not n.lower().endswith("_proxy")}


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
