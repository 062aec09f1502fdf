"""Shared fixtures of the tests of an instance: a metadata service on loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from master.simulation.faulty_network import VirtualClock
from pools.ec2.metadata_service import ImdsServer, InstanceFacts, Signatory


class Cloud:
    """One instance on loopback, and the clock of its metadata service."""

    def __init__(self, signatory: Signatory) -> None:
        self.signatory = signatory
        self.facts: InstanceFacts | None = InstanceFacts(
            "i-0abc", "c7i.large", "eu-west-1a", "eu-west-1", "ami-1", "123456789012", "127.0.0.1"
        )
        self.clock = VirtualClock()
        self.server = ImdsServer(("127.0.0.1", 0), lambda address: self.facts, signatory.sign, self.clock)


@pytest.fixture(scope="session")
def signatory() -> Signatory:
    return Signatory()


@pytest.fixture
def cloud(signatory: Signatory) -> Iterator[Cloud]:
    cloud = Cloud(signatory)
    with cloud.server.running():
        yield cloud
