"""The client of the metadata service against a server on loopback that answers as EC2's does."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from ami.imds import EvictionNotice, Imds
from pools.ec2.metadata_service import ImdsServer, Signatory


def client(cloud: Any) -> Imds:
    return Imds(cloud.server.url, cloud.clock)


def status(cloud: Any, path: str, method: str = "GET", **headers: str) -> int:
    request = urllib.request.Request(
        f"{cloud.server.url}{path}", headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    request.method = method
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_the_identity_document_is_signed(cloud: Any) -> None:
    identity = client(cloud).identity()
    key = x509.load_pem_x509_certificate(cloud.signatory.certificate.encode()).public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    signature = base64.b64decode(identity.signature, validate=True)
    key.verify(signature, identity.document.encode(), padding.PKCS1v15(), hashes.SHA256())
    assert '"instanceId": "i-0abc"' in identity.document


def test_an_interruption_is_there_once_ec2_says_so(cloud: Any) -> None:
    imds = client(cloud)
    assert (imds.interruption(), imds.rebalance()) == (None, None)
    cloud.facts = replace(
        cloud.facts, interruption=("terminate", "2026-04-01T12:02:00Z"), rebalance="2026-04-01T11:50:00Z"
    )
    assert imds.interruption() == EvictionNotice("terminate", "2026-04-01T12:02:00Z")
    assert imds.rebalance() == "2026-04-01T11:50:00Z"


def test_a_token_is_renewed_before_it_expires(cloud: Any) -> None:
    imds = client(cloud)
    assert imds.get("meta-data/instance-id") == "i-0abc"
    for _ in range(5):
        cloud.clock.sleep(20_000)
        assert imds.get("meta-data/instance-id") == "i-0abc"


def test_a_token_that_is_void_is_replaced_once(cloud: Any) -> None:
    imds = client(cloud)
    assert imds.get("meta-data/instance-id") == "i-0abc"
    cloud.server.expire_tokens()
    assert imds.get("meta-data/instance-id") == "i-0abc"


def test_a_service_that_gives_no_token_is_an_error(cloud: Any) -> None:
    cloud.facts = None
    with pytest.raises(OSError, match="gives no token: it answered 404"):
        client(cloud).get("meta-data/instance-id")


def test_what_is_not_there_is_none(cloud: Any) -> None:
    assert client(cloud).get("meta-data/no/such/thing") is None
    assert client(cloud).get("user-data") is None


def test_a_missing_service_is_an_oserror(signatory: Signatory) -> None:
    with ImdsServer(("127.0.0.1", 0), lambda address: None, signatory.sign) as server:
        url = server.url
    with pytest.raises(OSError):
        Imds(url).identity()


def test_folders_are_listed(cloud: Any) -> None:
    assert client(cloud).get("dynamic/instance-identity") == "document\nsignature"
    assert "placement/" in (client(cloud).get("meta-data") or "").splitlines()


@pytest.mark.parametrize(
    ("path", "method", "headers", "expected"),
    [
        ("/latest/meta-data/", "GET", {}, 401),
        ("/latest/meta-data/", "GET", {"X_aws_ec2_metadata_token": "invented"}, 401),
        ("/latest/api/token", "PUT", {}, 400),
        ("/latest/api/token", "PUT", {"X_aws_ec2_metadata_token_ttl_seconds": "21601"}, 400),
        ("/latest/api/token", "PUT", {"X_aws_ec2_metadata_token_ttl_seconds": "60", "X_Forwarded_For": "1.1.1.1"}, 403),
        ("/latest/api/tokens", "PUT", {"X_aws_ec2_metadata_token_ttl_seconds": "60"}, 404),
    ],
)
def test_what_is_asked_the_wrong_way_is_refused(
    cloud: Any, path: str, method: str, headers: dict[str, str], expected: int
) -> None:
    assert status(cloud, path, method, **headers) == expected


def test_a_token_of_another_instance_is_not_good(cloud: Any) -> None:
    token = cloud.server.new_token("i-0other", 60)
    assert status(cloud, "/latest/meta-data/", X_aws_ec2_metadata_token=token) == 401
