"""Identity documents: what a machine's provider says of it, signed, as its metadata service hands it out.

The signature is the plain one, RSA with PKCS #1 v1.5 and SHA-256 over the document as it is written, byte for byte. A
certificate is taken for its key: the providers sign theirs themselves, and whoever names it has chosen to trust it, so
there is no chain, and its dates say nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509 import load_pem_x509_certificate

from gridml.errors import UsageError
from master.decisions.enrolment import Identity

_LONGEST = 200  # characters of a field


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


def token_fits(token: str, sha256: str) -> bool:
    """Whether `sha256` (hex) is a token's, in a time that does not tell how far it is right."""
    digest = hashlib.sha256(token.encode(errors="replace")).hexdigest()
    return hmac.compare_digest(digest, sha256.lower())


def identity_of(document: str) -> Identity | None:
    """Return what a document says, None where it does not say all of it, or twice."""
    try:
        values = json.loads(document, object_pairs_hook=_once)
        texts = [values[name] for name in ("accountId", "region", "imageId", "instanceId", "pendingTime")]
        if not all(isinstance(text, str) and text.isprintable() and len(text) <= _LONGEST for text in texts):
            return None
        account, region, image, instance, pending = texts
        launched = datetime.fromisoformat(pending)
        utc = launched if launched.tzinfo else launched.replace(tzinfo=UTC)
        return Identity(account, region, image, instance, utc.timestamp())
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name stands there twice")
    return dict(pairs)
