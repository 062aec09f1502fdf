"""Separate HTCondor pools for test modules that disturb them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pools import pool
from pools.pool import Pool
from pools.release import NoCondor
from pools.submitted import WORKERS


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool for this module only; skip the test with the reason if there is none."""
    try:
        found = pool.personal(tmp_path_factory.mktemp("own"), cpus=WORKERS)
    except NoCondor as why:
        pytest.skip(str(why))
    yield found
    pool.take_down(found)
