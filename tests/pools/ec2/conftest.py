"""The root file system of instances, for the tests that boot some."""

from __future__ import annotations

import os

import pytest

from pools.ec2 import root
from pools.ec2.machine import NoLocalEc2, unavailable


@pytest.fixture(scope="session")
def bootable() -> root.Root:
    """The root file system of this checkout; skip the test if this machine cannot boot it."""
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    if not root.made_within_seconds() and os.environ.get(root.MAKING) != "1":
        pytest.skip(f"the root that instances boot is not in the cache; {root.MAKING}=1 makes it, which takes minutes")
    try:
        return root.prepare()
    except NoLocalEc2 as error:
        pytest.skip(str(error))
