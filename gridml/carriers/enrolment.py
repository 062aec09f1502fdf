"""Enrolment with the master, the machine's side: it makes a key, proves its identity, and receives an assignment.

All machines of a fleet start with the same data, so none starts with a key of its own. Each makes one, connects as SSH
user `enrol` to the master's server, whose key it knows, and opens the subsystem `enrol`. A request is one line of JSON,
and so is its answer. From then on the key is that of the assigned job (`gridml/carriers/sftp.py`), and the machine
sends its goodbye message as the job's user in the same way.
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
MAX_LINE_BYTES = 64 << 10  # of a request or an answer
MAX_LOG_CHARS = 8 << 10  # of a worker's log; each takes at most four bytes of a line
MAX_BUNDLE_FILES = 256  # their names and digests fit into one line
BUNDLE = "bundle"  # folder of the run directory that holds the files
BUNDLE_DESCRIPTION = "bundle.json"  # file in it with the content of an assignment
_JOB = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}"
FILE_NAME = re.compile(rf"{_PART}(?:/{_PART}){{0,15}}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class BundleFile:
    """A file that a worker needs."""

    name: str  # relative to the worker's folder, may contain folders
    sha256: str  # hexadecimal

    @property
    def path(self) -> str:
        """Its path in the run directory: all files are in one folder, by digest."""
        return f"{BUNDLE}/{self.sha256}"


@dataclass(frozen=True)
class Assignment:
    """The work of an enrolled machine."""

    job: str
    files: tuple[BundleFile, ...]  # to fetch
    program: str  # the name of one of the files
    arguments: tuple[str, ...] = ()  # of the worker
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
    """The master refused this machine, for the reason `why`. A retry may succeed after `retry_s` seconds; never where
    that is None."""

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
    """Requests of a machine with key `private_key` to the master at `address`, each on a connection of its own;
    `timeout_s` limits each step of it.

    Every method raises PermissionError where the server has another key than the known one, or refuses the machine's;
    another OSError where the master is unreachable or its answer invalid; and Refused.
    """

    def __init__(self, address: Address, private_key: str, timeout_s: float = TIMEOUT_S) -> None:
        self._address, self._private_key, self._timeout_s = address, private_key, timeout_s

    def enrol(self, token: str, document: str, signature: str) -> Assignment:
        """Enrol with the fleet's token, and this machine's identity document and its signature (base64) as the metadata
        service returns them. Idempotent for the same key."""
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
        line = json.dumps(request, ensure_ascii=False).encode() + b"\n"  # escaped, a character takes up to 12 bytes
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
    """Return the next line of a paramiko.Channel, None where the channel ends before. Raises OSError for a line of more
    than `MAX_LINE_BYTES`, TimeoutError for one that takes longer than `within_s` seconds."""
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
