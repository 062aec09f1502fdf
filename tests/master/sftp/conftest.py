"""A provider of machines that signs their identity documents, like EC2, and fleets of its machines."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from master.sftp.roster import FleetFacts, Instance, Roster

LAUNCHED_S = 1_700_000_000.0
TOKEN = "the token of the fleet"


@dataclass(frozen=True)
class Provider:
    """A provider that signs identity documents with a key whose certificate is known."""

    key: rsa.RSAPrivateKey
    certificate: str

    @staticmethod
    def make() -> Provider:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a provider")])
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + timedelta(days=1))
            .sign(key, SHA256())
        )
        return Provider(key, made.public_bytes(Encoding.PEM).decode())

    def document(self, id: str = "i-7", **altered: Any) -> str:
        launched = datetime.fromtimestamp(LAUNCHED_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        values = {
            "accountId": "123456789012",
            "region": "eu-north-1",
            "imageId": "ami-1",
            "instanceId": id,
            "pendingTime": launched,
            "instanceType": "c7i.large",
            "devpayProductCodes": None,
        }
        return json.dumps({**values, **altered}, indent=2)

    def sign(self, document: str) -> str:
        return base64.encodebytes(self.key.sign(document.encode(), PKCS1v15(), SHA256())).decode()

    def facts(self, token: str = TOKEN) -> FleetFacts:
        digest = hashlib.sha256(token.encode()).hexdigest()
        return FleetFacts("a run", digest, "123456789012", "eu-north-1", "ami-1", self.certificate)


@pytest.fixture(scope="session")
def provider() -> Provider:
    return Provider.make()


@pytest.fixture(scope="session")
def impostor() -> Provider:
    """An impostor: it issues the same documents, signed with its own key."""
    return Provider.make()


@pytest.fixture
def fleet(tmp_path: Path, provider: Provider) -> Callable[..., Roster]:
    """A maker of the run directory of a fleet with instances i-7 (w7) and i-8 (w8), their mailboxes and a bundle."""

    def make(root: Path = tmp_path) -> Roster:
        roster = Roster(root)
        roster.create(provider.facts())
        for number in (7, 8):
            roster.keep(Instance(f"i-{number}", f"w{number}", "c7i.large", "eu-north-1a", LAUNCHED_S))
            (root / "mail" / f"w{number}").mkdir(parents=True)
        for folder in ("chunks", "bundle"):
            (root / folder).mkdir()
        program = b"print('trains')\n"
        digest = hashlib.sha256(program).hexdigest()
        (root / "bundle" / digest).write_bytes(program)
        file = {"name": "mnist.py", "sha256": digest}
        described = {
            "files": [file],
            "program": "mnist.py",
            "arguments": ["--seed", "0"],
            "environment": {"OMP_NUM_THREADS": "4"},
        }
        (root / "bundle" / "bundle.json").write_text(json.dumps(described))
        return roster

    return make
