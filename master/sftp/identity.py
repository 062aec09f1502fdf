"""The master's side of enrolment: machines of a fleet make their own keys and prove their identities.

Machines enrol through the subsystem `enrol` of the master's SSH server; their side is `gridml/carriers/enrolment.py`.
Any client that reaches the port may open the subsystem, as user `enrol` and with any key. The subsystem demands the
fleet's token and a signed identity document, and accesses only the roster (`roster.py`). A client that logs in as a job
can send a goodbye message through the subsystem. `decide_enrolment` decides whether the fleet launched a machine. If it
did, the machine gets the job of its worker.

An identity document is the provider's signed statement about a machine, from the metadata service. The signature is
RSA with PKCS #1 v1.5 and SHA-256 over the exact bytes of the document. Only the key of a provider's certificate is
used. Its chain and dates are not checked: such certificates are self-signed, and the user has chosen to trust this one.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509 import InvalidVersion, load_pem_x509_certificate

from gridml.carriers.enrolment import BUNDLE, BUNDLE_DESCRIPTION, MAX_LOG_CHARS, SUBSYSTEM, USER, Assignment, read_line
from gridml.dataclass_json import loads
from gridml.errors import GridmlError, UsageError
from gridml.protocol.foreign import printable
from master.sftp.roster import Enrolment, FleetFacts, GoodbyeMessage, Instance, Roster

RETRY_S = 3.0  # seconds after which a machine should retry, for example if it is not in the roster yet
LAUNCH_S = 900.0  # maximum seconds between the launch and a document's time, for clock skew and the time to start


class EnrolmentVerdict(Enum):
    """The decision on a request to enrol."""

    ENROL = auto()
    WAIT = auto()  # the machine should retry
    REFUSE = auto()


@dataclass(frozen=True)
class ProvenIdentity:
    """The content of a verified identity document."""

    account: str
    region: str
    image: str
    instance: str
    launched_s: float  # seconds since 1970


@dataclass(frozen=True)
class Launched:
    """The roster's record of an instance."""

    launched_s: float  # seconds since 1970
    public_key: str | None = None  # key that the instance enrolled with; None: it has not enrolled
    ended: bool = False
    evicted: bool = False  # its goodbye message said that the provider reclaims it


@dataclass(frozen=True)
class EnrolmentRequest:
    """A request to enrol, from a machine that has proved that it holds the private half of `public_key`."""

    public_key: str
    is_token_valid: bool
    is_signature_valid: bool
    identity: ProvenIdentity | None  # None: the document names no instance
    launched: Launched | None  # None: the roster does not have the instance


def decide_enrolment(request: EnrolmentRequest, account: str, region: str, image: str) -> tuple[EnrolmentVerdict, str]:
    """Return (verdict, reason) on a request to a fleet of this account, region and image.

    The reason reveals nothing to a client without the fleet's token, and nothing about an instance to a client without
    a genuine document. An instance is bound to the first key that enrols. That key can enrol again, for example after a
    restart of the daemon.
    """
    if not request.is_token_valid:
        return EnrolmentVerdict.REFUSE, "this is not the fleet's token"
    if not request.is_signature_valid:
        return EnrolmentVerdict.REFUSE, "the identity document's signature is not the provider's"
    identity, launched = request.identity, request.launched
    if identity is None:
        return EnrolmentVerdict.REFUSE, "the identity document names no instance"
    for what, got, wanted in (
        ("account", identity.account, account),
        ("region", identity.region, region),
        ("image", identity.image, image),
    ):
        if got != wanted:
            return EnrolmentVerdict.REFUSE, f"the identity document has {what} {got!r}, the fleet has {wanted!r}"
    if launched is None:
        return EnrolmentVerdict.WAIT, f"instance {identity.instance} is not in this fleet's roster, or not yet"
    if launched.ended:
        return EnrolmentVerdict.REFUSE, f"instance {identity.instance} has ended"
    if launched.evicted:
        return EnrolmentVerdict.REFUSE, f"instance {identity.instance} has reported that it is being reclaimed"
    skew_s = identity.launched_s - launched.launched_s
    if not abs(skew_s) <= LAUNCH_S:  # written so that NaN is refused
        older = "older" if skew_s < 0 else "newer"
        return (
            EnrolmentVerdict.REFUSE,
            f"the identity document is {abs(skew_s):.0f} s {older} than the launch of its instance",
        )
    if launched.public_key is None:
        return EnrolmentVerdict.ENROL, f"instance {identity.instance} is of this fleet"
    if launched.public_key != request.public_key:
        return EnrolmentVerdict.REFUSE, f"instance {identity.instance} has already enrolled with another key"
    return EnrolmentVerdict.ENROL, f"instance {identity.instance} has enrolled with this key before"


_MAX_FIELD_CHARS = 200  # of each field of an identity document


def rsa_key(certificate: str) -> RSAPublicKey:
    """Return the RSA public key of a certificate (PEM). Raises UsageError for any other text."""
    try:
        key = load_pem_x509_certificate(certificate.encode()).public_key()
    except (ValueError, UnsupportedAlgorithm, InvalidVersion) as error:
        raise UsageError("it is no certificate in PEM (-----BEGIN CERTIFICATE----- ...) that can be read") from error
    if not isinstance(key, RSAPublicKey):
        raise UsageError("its key is not RSA: it is another of the region's certificates")
    return key


def signed(document: str, signature: str, certificate: str) -> bool:
    """Return whether `signature` (base64, line breaks allowed) is the certificate's signature of `document`."""
    try:
        raw = base64.b64decode("".join(signature.split()), validate=True)
        rsa_key(certificate).verify(raw, document.encode(), PKCS1v15(), SHA256())
    except (InvalidSignature, binascii.Error, UnicodeError, ValueError):
        return False
    return True


def is_token_valid(token: str, sha256: str) -> bool:
    """Return whether `sha256` (hexadecimal) is the SHA-256 of `token`. The comparison takes constant time."""
    digest = hashlib.sha256(token.encode(errors="replace")).hexdigest()
    return hmac.compare_digest(digest, sha256.lower())


def identity_of(document: str) -> ProvenIdentity | None:
    """Return the identity in a document; None if a field is missing, invalid or duplicate."""
    try:
        values = json.loads(document, object_pairs_hook=_unique_keys)
        texts = [values[name] for name in ("accountId", "region", "imageId", "instanceId", "pendingTime")]
        if not all(isinstance(text, str) and text.isprintable() and len(text) <= _MAX_FIELD_CHARS for text in texts):
            return None
        account, region, image, instance, pending = texts
        launched = datetime.fromisoformat(pending)
        utc = launched if launched.tzinfo else launched.replace(tzinfo=UTC)
        return ProvenIdentity(account, region, image, instance, utc.timestamp())
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("duplicate name")
    return dict(pairs)


LOGS = "logs"  # folder of the run directory for workers' logs
MAX_REQUESTS = 4  # per channel
REQUEST_TIMEOUT_S = 10.0  # maximum time to receive a complete request


@dataclass(frozen=True)
class Login:
    """An authenticated connection."""

    user: str  # name of a job, or `USER`, which may only enrol
    public_key: str
    instance: str | None = None  # the machine that enrolled for the job; None: no fleet, or `USER`
    files: bool = True  # may access files; False for `USER`, and once the job has ended: it may only send a goodbye


class Registrar:
    """Answers requests of machines from the roster of the run in `root`. `clock` returns seconds since 1970.

    Thread-safe. Requests are handled one at a time, so that the first of two keys for one instance wins.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._roster, self._bundle, self._clock = Roster(root), root / BUNDLE, clock
        self._logs = root / LOGS
        self._lock = threading.Lock()

    @property
    def has_fleet(self) -> bool:
        return self._roster.facts is not None

    def instance_of(self, job: str, public_key: str) -> str | None:
        """Return the running instance that enrolled for this job with this key; None if there is none."""
        launched = (self._roster.instance(id) for id in self._roster.ids())
        for instance in launched:
            if instance is not None and instance.worker == job and self.is_running(instance.id):
                enrolment = self._roster.enrolment(instance.id)
                if enrolment is not None and enrolment.public_key == public_key:
                    return instance.id
        return None

    def is_running(self, id: str) -> bool:
        """Return whether the roster records no end of this instance."""
        return self._roster.end(id) is None

    def answer(self, line: bytes, login: Login, address: str) -> dict[str, Any]:
        """Return the answer to a request. Raises OSError if the roster cannot be read or written, LedgerError if it is
        damaged."""
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        match values:
            case {"op": "enrol", "fleet_token": str(token), "document": str(document), "signature": str(signature)} if (
                login.user == USER
            ):
                with self._lock:
                    return self._enrol(token, document, signature, login.public_key, address)
            case {"op": "farewell", "exit_status": int(status), "why": str(why), "evicted": bool(evicted)} if (
                login.instance
            ):
                log = values.get("log")
                with self._lock:
                    if isinstance(log, str):
                        self._keep_log(login.user, log)
                    return self._goodbye(login.instance, status, why, evicted)
        return _refused("unknown request")

    def _enrol(self, token: str, document: str, signature: str, public_key: str, address: str) -> dict[str, Any]:
        facts = self._roster.facts
        if facts is None:
            return _refused("this run has no fleet")
        request = self._request(facts, token, document, signature, public_key)
        verdict, why = decide_enrolment(request, facts.account, facts.region, facts.image)
        if verdict is EnrolmentVerdict.REFUSE or request.identity is None:
            return _refused(why)
        instance = self._roster.instance(request.identity.instance)
        if verdict is EnrolmentVerdict.WAIT or instance is None:
            return _refused(why, RETRY_S)
        try:
            assignment = self._assignment(instance)
        except FileNotFoundError:
            return _refused("the run's bundle is not there yet", RETRY_S)
        if request.launched is None or request.launched.public_key is None:
            self._roster.keep(Enrolment(instance.id, public_key, address, self._clock()))
        return assignment

    def _request(
        self, facts: FleetFacts, token: str, document: str, signature: str, public_key: str
    ) -> EnrolmentRequest:
        """Return a checked request. Cheap checks come first: for a client without the token, the master only computes
        one SHA-256; for a client without a genuine document, it does not read the roster."""
        fits = is_token_valid(token, facts.token_sha256)
        genuine = fits and signed(document, signature, facts.certificate)
        identity = identity_of(document) if genuine else None
        launched = None if identity is None else self._launched(identity.instance)
        return EnrolmentRequest(public_key, fits, genuine, identity, launched)

    def _launched(self, id: str) -> Launched | None:
        roster = self._roster
        instance, enrolment, goodbye = roster.instance(id), roster.enrolment(id), roster.goodbye(id)
        if instance is None:
            return None
        return Launched(
            instance.launched_s,
            None if enrolment is None else enrolment.public_key,
            ended=roster.end(id) is not None,
            evicted=goodbye is not None and goodbye.evicted,
        )

    def _assignment(self, instance: Instance) -> dict[str, Any]:
        """Return the assignment that the back end wrote into the bundle. Raises OSError, ValueError."""
        described = loads((self._bundle / BUNDLE_DESCRIPTION).read_bytes())
        values = {"job": instance.worker, **{name: described[name] for name in ("files", "program")}}
        values |= {name: described[name] for name in ("arguments", "environment") if name in described}
        Assignment.of(values)
        return values

    def _keep_log(self, worker: str, log: str) -> None:
        """Write a worker's log. It replaces the log of an earlier goodbye message, so that disk usage is bounded."""
        # Best effort: a full disk must not fail the rest of the goodbye message.
        with contextlib.suppress(OSError):
            self._logs.mkdir(exist_ok=True)
            (self._logs / f"{worker}.log").write_text(f"{printable(log, MAX_LOG_CHARS)}\n", encoding="utf-8")

    def _goodbye(self, id: str, status: int, why: str, evicted: bool) -> dict[str, Any]:
        if not self.is_running(id):
            return _refused("this machine has ended")
        self._roster.keep(GoodbyeMessage(id, max(-255, min(status, 255)), printable(why), self._clock(), evicted))
        return {"ok": True}


class EnrolSession(paramiko.SubsystemHandler):  # type: ignore[misc]
    """A channel for requests of a machine. A request is one line of JSON, and so is its answer."""

    def __init__(self, channel: Any, server: Any, registrar: Registrar, login: Login, address: str) -> None:
        super().__init__(channel, SUBSYSTEM, server)
        self._registrar, self._login, self._address = registrar, login, address

    def start_subsystem(self, name: str, transport: Any, channel: Any) -> None:
        try:
            for _ in range(MAX_REQUESTS):
                line = read_line(channel, REQUEST_TIMEOUT_S)
                if line is None:
                    break
                channel.sendall(json.dumps(self._answer(line)).encode() + b"\n")
            channel.send_exit_status(0)
        except (OSError, EOFError, paramiko.SSHException):
            pass  # a line that is too long or too late, or a lost connection: the channel is closed

    def _answer(self, line: bytes) -> Mapping[str, Any]:
        try:
            return self._registrar.answer(line, self._login, self._address)
        except (OSError, GridmlError, ValueError, KeyError, TypeError, AttributeError):  # a bad roster or bundle
            return _refused("the master cannot read or write the roster of its fleet", RETRY_S)


def _refused(why: str, retry_s: float | None = None) -> dict[str, Any]:
    return {"refused": why, "retry_s": retry_s}
