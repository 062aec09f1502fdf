"""Copies between a device and the host, by threads without a device, and with little device memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from gridml.engine.mirror import Transfers
from tests.support.pretend_device import NAME, STATE

pytestmark = pytest.mark.pretended


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    yield
    STATE.limit = None


def test_another_thread_waits_for_a_copy_on_the_device_that_it_comes_from() -> None:
    into = torch.zeros(3)
    arrival = Transfers(NAME).fetch([torch.arange(3.0).to(NAME)], [into])
    assert arrival is not None
    errors: list[Exception] = []

    def wait() -> None:
        try:
            arrival.wait()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(30)
    assert not errors
    assert into.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_without_memory_on_the_device_for_a_copy_the_host_has_it_at_once(dtype: torch.dtype) -> None:
    tensors = [torch.full((1000,), value, dtype=dtype).to(NAME) for value in (1, 2)]
    into = [torch.zeros(1000) for _ in tensors]
    STATE.limit = STATE.used + 5000  # for one copy in float32, not for two
    used = STATE.used
    assert Transfers(NAME).fetch(tensors, into) is None
    assert [host.unique().tolist() for host in into] == [[1], [2]]
    assert STATE.used == used
