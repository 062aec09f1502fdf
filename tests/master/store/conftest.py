"""Ledgers for the tests of the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gridml.protocol import bundle
from master.store.ledger import Ledger


@pytest.fixture(scope="session")
def replica() -> bytes:
    """The file of a run's initial version, without content."""
    return bundle.encode({"version": 0, "credited": 0}, {})


@pytest.fixture(scope="session")
def made(replica: bytes) -> Callable[[Path], Ledger]:
    """A maker of ledgers of one epoch of 20 vertices."""

    def make(path: Path) -> Ledger:
        ledger = Ledger(path, shared_disk=False, create=True, durable=False)
        with ledger.transaction():
            ledger.add_version(0, bundle.digest(replica), 0, 0.0)
            ledger.open_epoch(0, 20, 0.0)
        return ledger

    return make


@pytest.fixture
def ledger(made: Callable[[Path], Ledger], tmp_path: Path) -> Ledger:
    return made(tmp_path / "ledger.db")
