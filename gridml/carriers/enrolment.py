"""How a machine that has no key yet enrols with the master: it makes one, shows who it is, and is told its work.

All machines of a fleet are started alike, so nothing that they are started with can tell one from the other. Each makes
a key of its own, connects as SSH user `enrol` to the master's server, whose key it knows, and opens the subsystem
`enrol`. There one line of JSON is a request, and one line the answer. From then on the key is that of the job that it
was assigned (`gridml/carriers/sftp.py`), and as the job's user it says goodbye in the same way.
"""

from __future__ import annotations

import errno
import importlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gridml.carriers.sftp import TIMEOUT_S, as_oserror, connected, hang_up, subsystem
from gridml.carriers.sftp import Address as Address
from gridml.errors import RunError
from gridml.protocol.foreign import printable

USER = SUBSYSTEM = "enrol"
MAX_LINE_BYTES = 64 << 10  # bytes of a line, in either direction
MAX_LOG_CHARS = 8 << 10  # characters of a worker's log, each of them four bytes of a line at worst
MAX_BUNDLE_FILES = 256  # of a bundle; their names and digests fit into a line
BUNDLE = "bundle"  # the folder of a run that holds them
BUNDLE_DESCRIPTION = "bundle.json"  # in it, what is told with an assignment
_JOB = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}"
FILE_NAME = re.compile(rf"{_PART}(?:/{_PART}){{0,15}}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class BundleFile:
    """A file that a worker runs on: its name in the worker's folder, in folders of that where it has any, and its
    SHA-256 as hex."""

    name: str
    sha256: str

    @property
    def path(self) -> str:
        """Where it lies in the run's directory, whatever it is called: in one folder."""
        return f"{BUNDLE}/{self.sha256}"


@dataclass(frozen=True)
class Assignment:
    """The job that a machine is to work for, the files it takes, and what is run: the program's name among them, its
    arguments, and what is set in its environment."""

    job: str
    files: tuple[BundleFile, ...]
    program: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(values: Mapping[str, Any]) -> Assignment:
        """Raises ValueError for what cannot be an assignment: an odd name, no digest, ..."""
        try:
            files = tuple(BundleFile(each["name"], each["sha256"]) for each in values["files"])
            program, arguments = values["program"], tuple(values.get("arguments", ()))
            environment = dict(values.get("environment", {}))
            texts = (program, *arguments, *environment, *environment.values())
            fits = (
                len(files) <= MAX_BUNDLE_FILES
                and _JOB.fullmatch(values["job"])
                and all(isinstance(text, str) for text in texts)
                and all(FILE_NAME.fullmatch(each.name) and _SHA256.fullmatch(each.sha256) for each in files)
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not an assignment: {error!r}") from None
        if not fits:
            raise ValueError("not an assignment: a name or a digest in it cannot be one")
        return Assignment(values["job"], files, program, arguments, environment)


class Refused(RunError):
    """The master does not want this machine: `why`, in words. It may ask again after `retry_s` seconds, never where
    that is None."""

    def __init__(self, why: str, retry_s: float | None = None) -> None:
        super().__init__(f"the master refused this machine: {why}")
        self.why, self.retry_s = why, retry_s


def new_key() -> str:
    """Return a new private key (ed25519) as in OpenSSH's files."""
    serialization = importlib.import_module("cryptography.hazmat.primitives.serialization")
    ed25519 = importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    private = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    return str(private.decode())


def is_key(text: str) -> bool:
    """Whether a text is a private key as `new_key` makes them."""
    serialization = importlib.import_module("cryptography.hazmat.primitives.serialization")
    ed25519 = importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    unsupported = importlib.import_module("cryptography.exceptions").UnsupportedAlgorithm
    try:
        return isinstance(serialization.load_ssh_private_key(text.encode(), None), ed25519.Ed25519PrivateKey)
    except (ValueError, TypeError, unsupported):
        return False


class EnrolmentClient:
    """What a machine with key `private_key` says to the master at `address`: each request on a connection of its own,
    which takes `timeout_s` seconds at each step at most.

    Every method raises PermissionError where another server answers than the one whose key is known, or this one does
    not know the machine's; another OSError where the master is out of reach or makes no sense; and Refused.
    """

    def __init__(self, address: Address, private_key: str, timeout_s: float = TIMEOUT_S) -> None:
        self._address, self._private_key, self._timeout_s = address, private_key, timeout_s

    def enrol(self, token: str, document: str, signature: str) -> Assignment:
        """Show the fleet's token, and this machine's identity document with its signature (base64), as the metadata
        service gave them. To ask again with the same key brings the same answer."""
        request = {"op": "enrol", "fleet_token": token, "document": document, "signature": signature}
        answer = self._ask(USER, request)
        try:
            return Assignment.of(answer)
        except ValueError as error:
            raise OSError(errno.EPROTO, f"the master's answer is {error}", str(self._address)) from None

    def goodbye(self, job: str, exit_status: int, why: str, evicted: bool, log: str = "") -> None:
        """Say how the worker of `job` ended, whether this machine is being taken away, and the end of what the worker
        wrote, as much of it as a line takes."""
        request = {"op": "farewell", "exit_status": exit_status, "why": printable(why), "evicted": evicted}
        self._ask(job, {**request, "log": printable(log, MAX_LOG_CHARS)})

    def _ask(self, user: str, request: Mapping[str, Any]) -> dict[str, Any]:
        paramiko = importlib.import_module("paramiko")
        line = json.dumps(request, ensure_ascii=False).encode() + b"\n"  # of what is escaped a sign takes twelve bytes
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"got a request of {len(line)} bytes, expected {MAX_LINE_BYTES} at most")
        with as_oserror(paramiko, str(self._address)):
            transport = connected(self._address, user, self._private_key, self._timeout_s)
            try:
                channel = subsystem(transport, SUBSYSTEM, self._timeout_s)
                channel.sendall(line)
                answer = read_line(channel, self._timeout_s)
            finally:
                hang_up(transport)
        if answer is None:
            raise ConnectionResetError(errno.ECONNRESET, "the master's server did not answer", str(self._address))
        try:
            values = json.loads(answer)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise OSError(errno.EPROTO, "the master's answer is no line of JSON", str(self._address))
        if "refused" in values:
            raise Refused(str(values["refused"])[:MAX_LINE_BYTES], _seconds(values.get("retry_s")))
        return values


def read_line(channel: Any, within_s: float) -> bytes | None:
    """Return what comes on a paramiko.Channel before the next end of a line, None where it ends before. Raises OSError
    for a line of more than `MAX_LINE_BYTES` bytes, TimeoutError for one that takes longer than `within_s`."""
    line, deadline = bytearray(), time.monotonic() + within_s
    while not line.endswith(b"\n"):
        channel.settimeout(max(deadline - time.monotonic(), 0.001))
        got = channel.recv(min(MAX_LINE_BYTES + 1 - len(line), 4096))
        if not got:
            return None
        line += got
        if b"\n" in line[:-1] or len(line) > MAX_LINE_BYTES:
            raise OSError(errno.EMSGSIZE, f"expected one line of {MAX_LINE_BYTES} bytes at most")
    return bytes(line[:-1])


def _seconds(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return min(max(0.0, float(value)), 3600.0) if number else None
