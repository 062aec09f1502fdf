"""A folder in memory, if there is one, for tests that write much. They never cut the power of this machine."""

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
