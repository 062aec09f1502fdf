"""The master's side of enrolment: machines of a fleet, which make their own keys, prove who they are.

It is the subsystem `enrol` of the master's SSH server; the machines' side is `gridml/carriers/enrolment.py`. Any
client that reaches the port may open it, as user `enrol` and with any key: it asks for the fleet's token and a
signed identity document, and reads and writes the roster (`roster.py`), nothing else. A job's user may say goodbye
there. `decide_enrolment` decides whether a machine is one that the fleet launched, and may have its worker's place.

An identity document is what a machine's provider says of it, signed, as its metadata service hands it out. The
signature is the plain one, RSA with PKCS #1 v1.5 and SHA-256 over the document as it is written, byte for byte. A
certificate is taken for its key: the providers sign theirs themselves, and the user who names one has chosen to
trust it, so there is no chain, and its dates say nothing.
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
from cryptography.x509 import load_pem_x509_certificate

from gridml.carriers.enrolment import BUNDLE, BUNDLE_DESCRIPTION, MAX_LOG_CHARS, SUBSYSTEM, USER, Assignment, read_line
from gridml.errors import GridmlError, UsageError
from gridml.protocol.foreign import printable
from master.sftp.roster import Enrolment, FleetFacts, GoodbyeMessage, Instance, Roster

RETRY_S = 3.0  # after which a machine asks again that may only not be known yet
LAUNCH_S = 900.0  # by which a document's time may differ from the launch: clocks differ, and starting takes time


class EnrolmentVerdict(Enum):
    """What becomes of a machine that asks."""

    ENROL = auto()
    WAIT = auto()  # it may ask again
    REFUSE = auto()


@dataclass(frozen=True)
class ProvenIdentity:
    """What an identity document says: of which account, region and image a machine is, and which one; `launched_s`
    seconds since 1970."""

    account: str
    region: str
    image: str
    instance: str
    launched_s: float


@dataclass(frozen=True)
class Launched:
    """What is known of an instance: when it was launched (seconds since 1970), which key enrolled for it, whether it
    has ended, and whether it has said that it is being taken away."""

    launched_s: float
    public_key: str | None = None
    ended: bool = False
    evicted: bool = False


@dataclass(frozen=True)
class EnrolmentRequest:
    """A machine that proved to hold `public_key` asks to enrol; `identity` is None where its document says none.
    `launched` is what is known of the instance that it names, None for nothing."""

    public_key: str
    is_token_valid: bool
    is_signature_valid: bool
    identity: ProvenIdentity | None
    launched: Launched | None


def decide_enrolment(request: EnrolmentRequest, account: str, region: str, image: str) -> tuple[EnrolmentVerdict, str]:
    """Return what becomes of a request to a fleet of this account, region and image, and why.

    Who has not the fleet's token is told nothing else, and of an instance nothing is said before its document is known
    to be genuine. One instance has one key for ever: the same key may ask again, as after its daemon started anew.
    """
    if not request.is_token_valid:
        return EnrolmentVerdict.REFUSE, "the fleet's token is another"
    if not request.is_signature_valid:
        return EnrolmentVerdict.REFUSE, "the identity document's signature is not its provider's"
    identity, launched = request.identity, request.launched
    if identity is None:
        return EnrolmentVerdict.REFUSE, "the identity document does not say who this is"
    for what, got, wanted in (
        ("account", identity.account, account),
        ("region", identity.region, region),
        ("image", identity.image, image),
    ):
        if got != wanted:
            return EnrolmentVerdict.REFUSE, f"the identity document is of {what} {got!r}, the fleet of {wanted!r}"
    if launched is None:
        return EnrolmentVerdict.WAIT, f"instance {identity.instance} is not known to be of this fleet, or not yet"
    if launched.ended:
        return EnrolmentVerdict.REFUSE, f"instance {identity.instance} has ended"
    if launched.evicted:
        return EnrolmentVerdict.REFUSE, f"instance {identity.instance} has said that it is being taken away"
    apart_s = identity.launched_s - launched.launched_s
    if not abs(apart_s) <= LAUNCH_S:  # so that NaN is refused
        older = "older" if apart_s < 0 else "newer"
        return (
            EnrolmentVerdict.REFUSE,
            f"the identity document is {abs(apart_s):.0f} s {older} than the launch of its instance",
        )
    if launched.public_key is None:
        return EnrolmentVerdict.ENROL, f"instance {identity.instance} is of this fleet"
    if launched.public_key != request.public_key:
        return EnrolmentVerdict.REFUSE, f"instance {identity.instance} has enrolled with another key"
    return EnrolmentVerdict.ENROL, f"instance {identity.instance} enrolled with this key before"


_MAX_FIELD_CHARS = 200  # characters of a field


def rsa_key(certificate: str) -> RSAPublicKey:
    """Return the public key of a certificate (PEM). Raises UsageError for one that is none, or has no RSA key."""
    try:
        key = load_pem_x509_certificate(certificate.encode()).public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"this is no certificate in PEM: {error}; expected -----BEGIN CERTIFICATE----- ...") from None
    if not isinstance(key, RSAPublicKey):
        raise UsageError("the certificate's key is not RSA; expected the one for the plain (base64) signature.")
    return key


def signed(document: str, signature: str, certificate: str) -> bool:
    """Whether `signature` (base64, in lines or not) is that of the certificate's key over `document`."""
    try:
        raw = base64.b64decode("".join(signature.split()), validate=True)
        rsa_key(certificate).verify(raw, document.encode(), PKCS1v15(), SHA256())
    except (InvalidSignature, binascii.Error, UnicodeError, ValueError):
        return False
    return True


def is_token_valid(token: str, sha256: str) -> bool:
    """Whether `sha256` (hex) is a token's, in a time that does not tell how far it is right."""
    digest = hashlib.sha256(token.encode(errors="replace")).hexdigest()
    return hmac.compare_digest(digest, sha256.lower())


def identity_of(document: str) -> ProvenIdentity | None:
    """Return what a document says, None where it does not say all of it, or twice."""
    try:
        values = json.loads(document, object_pairs_hook=_once)
        texts = [values[name] for name in ("accountId", "region", "imageId", "instanceId", "pendingTime")]
        if not all(isinstance(text, str) and text.isprintable() and len(text) <= _MAX_FIELD_CHARS for text in texts):
            return None
        account, region, image, instance, pending = texts
        launched = datetime.fromisoformat(pending)
        utc = launched if launched.tzinfo else launched.replace(tzinfo=UTC)
        return ProvenIdentity(account, region, image, instance, utc.timestamp())
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name stands there twice")
    return dict(pairs)


LOGS = "logs"  # the run's folder of what workers wrote
MAX_REQUESTS = 4  # on one channel
REQUEST_TIMEOUT_S = 10.0  # within which a request must have come


@dataclass(frozen=True)
class Login:
    """Who came in with which public key: `USER` to enrol, or a job; `instance` is the machine that enrolled for it.
    With no `files`, as when its job is over, it has only goodbye to say."""

    user: str
    public_key: str
    instance: str | None = None
    files: bool = True


class Registrar:
    """Answers what machines ask, by the roster of run directory `root`; `clock` gives seconds since 1970.

    Threads share it. What it is asked is looked at one after the other, so that of two keys for one instance one is
    the first.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._roster, self._bundle, self._clock = Roster(root), root / BUNDLE, clock
        self._logs = root / LOGS
        self._lock = threading.Lock()

    @property
    def has_fleet(self) -> bool:
        return self._roster.facts is not None

    def instance_of(self, job: str, public_key: str) -> str | None:
        """The instance of a job that enrolled with this key and has not ended; None where there is none."""
        launched = (self._roster.instance(id) for id in self._roster.ids())
        for instance in launched:
            if instance is not None and instance.worker == job and self.is_running(instance.id):
                enrolment = self._roster.enrolment(instance.id)
                if enrolment is not None and enrolment.public_key == public_key:
                    return instance.id
        return None

    def is_running(self, id: str) -> bool:
        """Whether nobody has said that an instance has ended."""
        return self._roster.end(id) is None

    def answer(self, line: bytes, login: Login, address: str) -> dict[str, Any]:
        """The answer to a request of who came in so, from `address`. Raises OSError where the roster cannot be read or
        written, LedgerError where it is damaged."""
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
        return _refused("this is no request that is known here")

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
        """Who has not the token costs a SHA-256; only a genuine document has the roster looked at."""
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
        """What the back end left in the bundle, as it is sent. Raises OSError, ValueError where that is none."""
        described = json.loads((self._bundle / BUNDLE_DESCRIPTION).read_text())
        values = {"job": instance.worker, **{name: described[name] for name in ("files", "program")}}
        values |= {name: described[name] for name in ("arguments", "environment") if name in described}
        Assignment.of(values)
        return values

    def _keep_log(self, worker: str, log: str) -> None:
        """In place of what the worker's machine said before, so that it takes no more room however often it speaks. One
        that cannot be kept is no reason to refuse the rest."""
        with contextlib.suppress(OSError):
            self._logs.mkdir(exist_ok=True)
            (self._logs / f"{worker}.log").write_text(f"{printable(log, MAX_LOG_CHARS)}\n", encoding="utf-8")

    def _goodbye(self, id: str, status: int, why: str, evicted: bool) -> dict[str, Any]:
        if not self.is_running(id):
            return _refused("this machine is known to have ended")
        self._roster.keep(GoodbyeMessage(id, max(-255, min(status, 255)), printable(why), self._clock(), evicted))
        return {"ok": True}


class EnrolSession(paramiko.SubsystemHandler):  # type: ignore[misc]
    """A channel on which a machine asks: a line of JSON each, and a line for an answer."""

    def __init__(self, channel: Any, server: Any, registrar: Registrar, login: Login, address: str) -> None:
        super().__init__(channel, SUBSYSTEM, server)
        self._registrar, self._entry, self._address = registrar, login, address

    def start_subsystem(self, name: str, transport: Any, channel: Any) -> None:
        try:
            for _ in range(MAX_REQUESTS):
                line = read_line(channel, REQUEST_TIMEOUT_S)
                if line is None:
                    break
                channel.sendall(json.dumps(self._answer(line)).encode() + b"\n")
            channel.send_exit_status(0)
        except (OSError, EOFError, paramiko.SSHException):
            pass  # a line that is too long or comes too late, or a machine that has gone: the channel is closed

    def _answer(self, line: bytes) -> Mapping[str, Any]:
        try:
            return self._registrar.answer(line, self._entry, self._address)
        except (OSError, GridmlError, ValueError, KeyError, TypeError, AttributeError):  # the roster's, the bundle's
            return _refused("the master cannot read or write what it knows of its fleet", RETRY_S)


def _refused(why: str, retry_s: float | None = None) -> dict[str, Any]:
    return {"refused": why, "retry_s": retry_s}
