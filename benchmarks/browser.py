"""A headless Chromium, controlled over a pipe by the DevTools protocol, without other dependencies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
)
KEYS = {"ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39, "End": 35, "Tab": 9}  # Windows' virtual key codes, by name


def installed() -> str | None:
    """Return the path of an installed browser, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """A browser tab."""

    def __init__(self, to: int, come: int) -> None:
        self._to = os.fdopen(to, "wb", buffering=0)
        self._come = os.fdopen(come, "rb")
        self._number = 0  # of the last call; the protocol matches answers to calls by it
        self._waiting = b""  # bytes received after the last complete message
        self._session: str | None = None  # None: calls go to the browser, not to the tab
        self.requests: list[str] = []  #: addresses that the page requested
        self.errors: list[str] = []  #: exceptions of its scripts and logged errors
        self.loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._to.close()
        self._come.close()

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def go(self, address: str, width: int = 1200, height: int = 900) -> None:
        """Open an address and wait until it is loaded."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.loaded = False
        self.call("Page.navigate", url=address)
        while not self.loaded:
            self._read()

    def value(self, expression: str) -> Any:
        """Return the value of an expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def _read(self) -> Any:
        while b"\0" not in self._waiting:
            part = os.read(self._come.fileno(), 1 << 20)
            assert part, "the browser has exited"
            self._waiting += part
        message, _, self._waiting = self._waiting.partition(b"\0")
        read = json.loads(message)
        parameters = read.get("params", {})
        match read.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.errors.append(parameters["entry"]["text"])
            case "Page.loadEventFired":
                self.loaded = True
        return read


@contextmanager
def browsing(program: str, profile: Path) -> Iterator[Tab]:
    """Open a tab of a new browser for the lifetime of the context."""
    to_read, to_write = os.pipe()
    come_read, come_write = os.pipe()

    def pipes() -> None:  # the browser reads from its descriptor 3 and writes to 4
        kept = [os.dup(to_read), os.dup(come_write)]
        for descriptor, other in zip((3, 4), kept, strict=True):
            os.dup2(other, descriptor)

    command = [program, *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        command, preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(to_read)
    os.close(come_write)
    try:
        tab = Tab(to_write, come_read)
        try:
            yield tab
            tab._session = None
            tab.call("Browser.close")
        finally:
            tab.close()
    finally:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
