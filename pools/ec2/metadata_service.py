"""The instance metadata service of EC2 (IMDSv2) over HTTP, for tests and for a local EC2.

The service identifies a client by its source address, as a hypervisor does. It reads the facts of an instance at each
request, so an interruption is visible at once. Calls and statuses are those of
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html: a token by PUT, 400 for a bad
lifetime, 403 through a proxy, 401 without a token, 404 for an unknown path.
"""

from __future__ import annotations

import base64
import datetime
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

MAX_TTL_S = 21_600  # maximum lifetime of a token
_TTL = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "X-aws-ec2-metadata-token"


@dataclass(frozen=True)
class InstanceFacts:
    """The metadata of an instance."""

    id: str
    type: str
    zone: str
    region: str
    image: str
    account: str
    address: str
    launched: str = "2026-04-01T12:00:00Z"
    lifecycle: str = "spot"
    user_data: bytes | None = None
    interruption: tuple[str, str] | None = None  # (action, time): ("terminate", "2026-04-01T12:02:00Z")
    rebalance: str | None = None  # the time of the recommendation

    def document(self) -> str:
        """Return the identity document: the text that is signed."""
        values = {
            "accountId": self.account,
            "architecture": "x86_64",
            "availabilityZone": self.zone,
            "imageId": self.image,
            "instanceId": self.id,
            "instanceType": self.type,
            "pendingTime": self.launched,
            "privateIp": self.address,
            "region": self.region,
            "version": "2017-09-30",
        }
        return json.dumps(values, indent=2)


class Signatory:
    """A signer of identity documents: an RSA key, and a self-signed certificate (PEM) with the public key."""

    def __init__(self, name: str = "instance identity documents") -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        since = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(since)
            .not_valid_after(since.replace(year=2124))
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM).decode()

    def sign(self, document: str) -> str:
        """Sign a document with PKCS #1 v1.5 over SHA-256; return lines of base64, as the service does."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        signature = self._key.sign(document.encode(), padding.PKCS1v15(), hashes.SHA256())
        return base64.encodebytes(signature).decode()


class ImdsServer(ThreadingHTTPServer):
    """The service on `address`. `instance_at` maps a source address to an instance; None: the address is unknown.

    `sign` signs identity documents. `clock` gives seconds, for the lifetime of tokens.
    """

    # An open connection must not delay the end of the service.
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        address: tuple[str, int],
        instance_at: Callable[[str], InstanceFacts | None],
        sign: Callable[[str], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(address, _Handler)
        self.instance_at = instance_at
        self.sign = sign
        self._clock = clock
        self._tokens: dict[str, tuple[str, float]] = {}  # by token: (instance id, time of expiry)

    @property
    def url(self) -> str:
        """The URL for a client on this machine."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def new_token(self, instance: str, ttl_s: int) -> str:
        token = secrets.token_urlsafe(40)
        self._tokens[token] = (instance, self._clock() + ttl_s)
        return token

    def admits(self, token: str | None, instance: str) -> bool:
        """Return whether a token belongs to this instance and has not expired."""
        owner, until_s = self._tokens.get(token or "", ("", 0.0))
        return owner == instance and self._clock() < until_s

    def expire_tokens(self) -> None:
        """Invalidate all tokens, as a restart of the service does."""
        self._tokens.clear()

    @contextmanager
    def running(self) -> Iterator[ImdsServer]:
        """Serve on a thread inside `with`."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "EC2ws"  # as EC2's own service calls itself
    sys_version = ""
    timeout = 10  # seconds for a request

    @property
    def _server(self) -> ImdsServer:
        return cast(ImdsServer, self.server)

    def do_PUT(self) -> None:
        # As on EC2, the answer has a hop limit of 1: a container behind another hop must not get a token.
        self.connection.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
        instance = self._server.instance_at(self.client_address[0])
        ttl_s = self.headers.get(_TTL, "")
        if instance is None or self.path != "/latest/api/token":
            self._answer(404)
        elif "X-Forwarded-For" in self.headers:
            self._answer(403)
        elif not (ttl_s.isascii() and ttl_s.isdigit() and 1 <= int(ttl_s) <= MAX_TTL_S):
            self._answer(400)
        else:
            self._answer(200, self._server.new_token(instance.id, int(ttl_s)).encode(), {_TTL: ttl_s})

    def do_GET(self) -> None:
        instance = self._server.instance_at(self.client_address[0])
        if instance is None or not self._server.admits(self.headers.get(_TOKEN), instance.id):
            self._answer(401)
            return
        _version, _, path = self.path.strip("/").partition("/")
        found = look_up(tree_of(instance, self._server.sign), path.strip("/"))
        self._answer(404 if found is None else 200, found or b"")

    def _answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "text/plain", "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:
        """Log nothing: tokens and user data are secrets."""


Leaf = bytes | Callable[[], bytes]


def tree_of(instance: InstanceFacts, sign: Callable[[str], str]) -> dict[str, Leaf]:
    """Return all metadata of an instance, by path below the version; expensive values are functions."""
    octets = [int(part) for part in instance.address.split(".")]
    name = f"ip-{instance.address.replace('.', '-')}.ec2.internal"
    about = {
        "ami-id": instance.image,
        "hostname": name,
        "instance-id": instance.id,
        "instance-life-cycle": instance.lifecycle,
        "instance-type": instance.type,
        "local-hostname": name,
        "local-ipv4": instance.address,
        "mac": ":".join(f"{part:02x}" for part in (2, 0, *octets)),
        "placement/availability-zone": instance.zone,
        "placement/region": instance.region,
        "reservation-id": "r-" + instance.id.removeprefix("i-"),
        "services/domain": "amazonaws.com",
        "services/partition": "aws",
    }
    if instance.interruption is not None:
        action, at = instance.interruption
        about["spot/instance-action"] = json.dumps({"action": action, "time": at})
        if action == "terminate":
            about["spot/termination-time"] = at
    if instance.rebalance is not None:
        about["events/recommendations/rebalance"] = json.dumps({"noticeTime": instance.rebalance})
    tree: dict[str, Leaf] = {f"meta-data/{path}": text.encode() for path, text in about.items()}
    document = instance.document()
    tree["dynamic/instance-identity/document"] = document.encode()
    tree["dynamic/instance-identity/signature"] = lambda: sign(document).encode()
    if instance.user_data is not None:
        tree["user-data"] = instance.user_data
    return tree


def look_up(tree: Mapping[str, Leaf], path: str) -> bytes | None:
    """Return the value at a path, or the list of its children (folders end with '/'); None for an unknown path."""
    if path in tree:
        leaf = tree[path]
        return leaf if isinstance(leaf, bytes) else leaf()
    start = f"{path}/" if path else ""
    below = [name.removeprefix(start) for name in tree if name.startswith(start)]
    children = {name.split("/")[0] + "/" if "/" in name else name for name in below}
    return "\n".join(sorted(children)).encode() or None
