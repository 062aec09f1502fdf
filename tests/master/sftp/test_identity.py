"""An identity document is only valid with the exact bytes that its provider signed."""

from __future__ import annotations

import base64
import hashlib
import json
from ssl import DER_cert_to_PEM_cert, PEM_cert_to_DER_cert
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS, PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA1, SHA256
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UsageError
from master.sftp.identity import ProvenIdentity, identity_of, is_token_valid, rsa_key, signed


def test_what_its_provider_signed_is_signed(provider: Any) -> None:
    document = provider.document()
    assert signed(document, provider.sign(document), provider.certificate)
    assert signed(document, "".join(provider.sign(document).split()), provider.certificate)


def test_a_document_signed_by_others_is_rejected(provider: Any, impostor: Any) -> None:
    document = provider.document()
    assert not signed(document, impostor.sign(document), provider.certificate)
    assert not signed(document, provider.sign(document), impostor.certificate)


@pytest.mark.parametrize("altered", [{"instanceId": "i-8"}, {"imageId": "ami-2"}, {"instanceType": "c7i.metal"}])
def test_a_document_that_was_altered_is_not(provider: Any, altered: dict[str, str]) -> None:
    signature = provider.sign(provider.document())
    assert not signed(provider.document(**altered), signature, provider.certificate)
    assert not signed(provider.document() + " ", signature, provider.certificate)


@pytest.mark.parametrize("signature", ["", "=", "not base64!", "AAAA", "é", "A" * 344])
def test_what_is_no_signature_is_not(provider: Any, signature: str) -> None:
    assert not signed(provider.document(), signature, provider.certificate)


def test_another_scheme_is_not(provider: Any) -> None:
    raw = provider.document().encode()
    for scheme, digest in ((PSS(MGF1(SHA256()), 32), SHA256()), (PKCS1v15(), SHA1())):
        signature = base64.b64encode(provider.key.sign(raw, scheme, digest)).decode()
        assert not signed(provider.document(), signature, provider.certificate)


@given(document=st.text(max_size=200), signature=st.text(max_size=400))
def test_nothing_that_is_sent_raises(provider: Any, document: str, signature: str) -> None:
    assert not signed(document, signature, provider.certificate)
    identity_of(document)


def test_a_document_says_who_it_is_of(provider: Any) -> None:
    expected = ProvenIdentity("123456789012", "eu-north-1", "ami-1", "i-7", 1_700_000_000.0)
    assert identity_of(provider.document()) == expected


@pytest.mark.parametrize(
    "document",
    [
        "", "[]", "null", "{}", "[" * 100_000,
        '{"accountId": "1", "accountId": "123456789012", "region": "r", "imageId": "i", "instanceId": "i", '
        '"pendingTime": "2023-11-14T22:13:20Z"}',
    ],
)  # fmt: skip
def test_a_document_without_an_instance_is_rejected(document: str) -> None:
    assert identity_of(document) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("accountId", 123456789012), ("instanceId", None), ("region", "r\n"), ("imageId", "a" * 201),
     ("pendingTime", "yesterday")],
)  # fmt: skip
def test_a_document_with_an_invalid_field_is_rejected(provider: Any, name: str, value: Any) -> None:
    assert identity_of(json.dumps({**json.loads(provider.document()), name: value})) is None


def test_only_the_token_fits() -> None:
    digest = hashlib.sha256(b"token").hexdigest()
    assert is_token_valid("token", digest) and is_token_valid("token", digest.upper())
    assert not any(is_token_valid(token, digest) for token in ("", "Token", "token ", digest, "\ud800"))


def test_a_certificate_of_an_impossible_version_is_none(provider: Any) -> None:
    """Regression: cryptography raises an error of its own kind, which was a traceback of ours."""
    der = bytearray(PEM_cert_to_DER_cert(provider.certificate))
    version = b"\xa0\x03\x02\x01\x02"
    assert der.count(version) == 1
    der[der.index(version) + 4] = 106
    with pytest.raises(UsageError, match="PEM"):
        rsa_key(DER_cert_to_PEM_cert(bytes(der)))


@pytest.mark.parametrize("text", ["", "none", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_says_so(text: str) -> None:
    with pytest.raises(UsageError, match="PEM"):
        rsa_key(text)
