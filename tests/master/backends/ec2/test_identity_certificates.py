"""The certificates shipped with gridml can be read, and cover many regions."""

from __future__ import annotations

import pytest

from master.backends.ec2.provisioning import certificates
from master.sftp.identity import rsa_key


@pytest.mark.parametrize("region", sorted(certificates()))
def test_each_holds_an_rsa_key(region: str) -> None:
    assert rsa_key(certificates()[region]).key_size >= 1024


def test_there_is_one_of_every_usual_region() -> None:
    assert len(certificates()) >= 36
    for region in ("us-east-1", "us-west-2", "eu-north-1", "eu-central-1", "ap-northeast-1", "sa-east-1", "af-south-1"):
        assert certificates()[region]
    assert "eu-nowhere-7" not in certificates()
