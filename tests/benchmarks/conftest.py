"""What proofs need that write much: a folder in memory, where there is one. Nothing in them ends the machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.exact_run import MEMORY


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gridml-", dir=MEMORY) as made:
        yield Path(made)
