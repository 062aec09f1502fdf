"""Enrolment of a machine with the master, on the machine's side.

The machine makes a key, proves its identity, and receives an assignment. All machines of a fleet start with the same
data, so no machine starts with a key of its own. Each machine makes a key, connects as SSH user `enrol` to the master's
server, whose public key it knows, and opens the subsystem `enrol`. A request is one line of JSON, and so is its answer.
After enrolment, the machine's key is the key of the assigned job (`gridml/carriers/sftp.py`). At the end the machine
sends a goodbye message in the same way, but as the job's user.
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
MAX_LINE_BYTES = 64 << 10  # maximum length of a request or an answer
MAX_LOG_CHARS = 8 << 10  # maximum length of a worker's log in a request; a character takes at most four bytes
MAX_BUNDLE_FILES = 256  # maximum number of files of an assignment, so that their names and digests fit into one line
BUNDLE = "bundle"  # folder of the run directory that holds the files of assignments
BUNDLE_DESCRIPTION = "bundle.json"  # file in that folder with the content of an assignment
_JOB = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}"
FILE_NAME = re.compile(rf"{_PART}(?:/{_PART}){{0,15}}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class BundleFile:
    """A file that a worker needs."""

    name: str  # path relative to the worker's folder
    sha256: str  # hexadecimal

    @property
    def path(self) -> str:
        """The path of the file in the run directory, where all files are in one folder and named by digest."""
        return f"{BUNDLE}/{self.sha256}"


@dataclass(frozen=True)
class Assignment:
    """The work of an enrolled machine."""

    job: str
    files: tuple[BundleFile, ...]  # files that the machine must fetch
    program: str  # name of the program's file, one of `files`
    arguments: tuple[str, ...] = ()  # arguments of the worker's command
    environment: Mapping[str, str] = field(default_factory=dict)  # variables to set for the worker

    @staticmethod
    def of(values: Mapping[str, Any]) -> Assignment:
        """Return the assignment in an answer. Raises ValueError for an invalid one."""
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
            raise ValueError("not an assignment: a name or a digest is invalid")
        return Assignment(values["job"], files, program, arguments, environment)


class Refused(RunError):
    """The master refused this machine, for the reason `why`. A retry can succeed after `retry_s` seconds; if `retry_s`
    is None, no retry will succeed."""

    def __init__(self, why: str, retry_s: float | None = None) -> None:
        super().__init__(f"the master refused this machine: {why}")
        self.why, self.retry_s = why, retry_s


def new_key() -> str:
    """Return a new private key (ed25519) in OpenSSH's format."""
    serialization = importlib.import_module("cryptography.hazmat.primitives.serialization")
    ed25519 = importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    private = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    return str(private.decode())


def is_key(text: str) -> bool:
    """Return whether a text is a private key in the format of `new_key`."""
    serialization = importlib.import_module("cryptography.hazmat.primitives.serialization")
    ed25519 = importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    unsupported = importlib.import_module("cryptography.exceptions").UnsupportedAlgorithm
    try:
        return isinstance(serialization.load_ssh_private_key(text.encode(), None), ed25519.Ed25519PrivateKey)
    except (ValueError, TypeError, unsupported):
        return False


class EnrolmentClient:
    """Sends requests to the master at `address`, from a machine with key `private_key`. Each request has a connection
    of its own; `timeout_s` limits each step of a connection.

    Every method raises PermissionError if the server's key is not the key in `address` or the server refuses the
    machine's key; another OSError if the master is unreachable or its answer is invalid; Refused if the master refuses
    the request.
    """

    def __init__(self, address: Address, private_key: str, timeout_s: float = TIMEOUT_S) -> None:
        self._address, self._private_key, self._timeout_s = address, private_key, timeout_s

    def enrol(self, token: str, document: str, signature: str) -> Assignment:
        """Enrol with the fleet's token and this machine's identity document. `document` and its `signature` (base64)
        are those that the metadata service returned. Idempotent for the same key."""
        request = {"op": "enrol", "fleet_token": token, "document": document, "signature": signature}
        answer = self._ask(USER, request)
        try:
            return Assignment.of(answer)
        except ValueError as error:
            raise OSError(errno.EPROTO, f"the master's answer is {error}", str(self._address)) from None

    def goodbye(self, job: str, exit_status: int, why: str, evicted: bool, log: str = "") -> None:
        """Report how the worker of `job` ended, whether this machine is being reclaimed, and the end of the worker's
        log, truncated to `MAX_LOG_CHARS`."""
        request = {"op": "farewell", "exit_status": exit_status, "why": printable(why), "evicted": evicted}
        self._ask(job, {**request, "log": printable(log, MAX_LOG_CHARS)})

    def _ask(self, user: str, request: Mapping[str, Any]) -> dict[str, Any]:
        paramiko = importlib.import_module("paramiko")
        line = json.dumps(request, ensure_ascii=False).encode() + b"\n"  # unescaped: an escape takes up to 12 bytes
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"got a request of {len(line)} bytes, expected at most {MAX_LINE_BYTES}")
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
            raise OSError(errno.EPROTO, "the master's answer is not a line of JSON", str(self._address))
        if "refused" in values:
            raise Refused(str(values["refused"])[:MAX_LINE_BYTES], _seconds(values.get("retry_s")))
        return values


def read_line(channel: Any, within_s: float) -> bytes | None:
    """Return the next line of a paramiko.Channel; None if the channel ends before the line does. Raises OSError for a
    line of more than `MAX_LINE_BYTES`, TimeoutError for a line that takes longer than `within_s` seconds."""
    line, deadline = bytearray(), time.monotonic() + within_s
    while not line.endswith(b"\n"):
        channel.settimeout(max(deadline - time.monotonic(), 0.001))
        got = channel.recv(min(MAX_LINE_BYTES + 1 - len(line), 4096))
        if not got:
            return None
        line += got
        if b"\n" in line[:-1] or len(line) > MAX_LINE_BYTES:
            raise OSError(errno.EMSGSIZE, f"expected one line of at most {MAX_LINE_BYTES} bytes")
    return bytes(line[:-1])


def _seconds(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return min(max(0.0, float(value)), 3600.0) if number else None
