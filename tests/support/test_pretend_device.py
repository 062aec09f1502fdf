"""The pretended device is as strict as a GPU, and computes like the CPU. All tests on it run in one process."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support import pretend_streams
from tests.support.pretend_device import NAME, STATE

TESTS = Path(__file__).resolve().parents[1]
pretended = pytest.mark.pretended


@pytest.mark.real
def test_all_that_trains_on_a_device_does_so_on_a_pretended_one() -> None:
    """Torch never unregisters a device, so these tests run in their own process."""
    files = [str(file) for file in sorted(TESTS.rglob("test_*.py")) if "mark.pretended" in file.read_text()]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "pretended", *files],
        # Torch's thread for backward passes keeps the number of threads that it began with: sums depend on it.
        env={**os.environ, "PRETENDED": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    yield
    STATE.limit, STATE.fails_after, STATE.late, STATE.broken = None, None, None, False


def network() -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5)]
    return nn.Sequential(*layers)


OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "fused AdamW": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "foreach Adam": partial(torch.optim.Adam, lr=0.01, foreach=True),
}


@pretended
@pytest.mark.parametrize("name", OPTIMISERS)
def test_it_trains_as_the_cpu_does_bit_for_bit(name: str) -> None:
    here, there = network(), network().to(NAME)
    rng = torch.Generator().manual_seed(1)
    for model, place in ((here, "cpu"), (there, NAME)):
        rng.manual_seed(1)
        optimiser = OPTIMISERS[name](model.parameters())
        for _ in range(3):
            images = torch.randn(8, 1, 8, 8, generator=rng).to(place)
            labels = torch.randint(0, 5, (8,), generator=rng).to(place)
            optimiser.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimiser.step()
    for key, value in there.state_dict().items():
        assert value.device.type == torch.device(NAME).type
        torch.testing.assert_close(value.cpu(), here.state_dict()[key], rtol=0, atol=0)


@pretended
def test_tensors_of_the_cpu_and_of_the_device_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device=NAME) + torch.ones(2)
    with pytest.raises(TypeError):
        torch.ones(2, device=NAME).numpy()
    assert (torch.ones(2, device=NAME) * 3).cpu().tolist() == [3, 3]


@pretended
def test_a_copy_that_does_not_block_comes_when_it_is_waited_for() -> None:
    host, there = torch.ones(3), torch.zeros(3, device=NAME)
    host.copy_(there, non_blocking=True)
    assert host.tolist() == [1, 1, 1]
    torch.get_device_module(torch.device(NAME)).synchronize()
    assert host.tolist() == [0, 0, 0]


@pretended
def test_what_is_overwritten_before_it_was_copied_is_copied_wrong() -> None:
    host, there = torch.ones(3), torch.zeros(3, device=NAME)
    there.copy_(host, non_blocking=True)
    host.fill_(7)
    assert there.cpu().tolist() == [7, 7, 7]


@pretended
def test_a_stream_goes_on_when_it_is_waited_for() -> None:
    other = pretend_streams.Stream()
    host, there = torch.ones(3), torch.zeros(3, device=NAME)
    with pretend_streams.on(other):
        host.copy_(there, non_blocking=True)
        event = other.record_event()
    there + 1  # on the other stream
    assert not event.query()
    assert host.tolist() == [1, 1, 1]
    event.synchronize()
    assert event.query()
    assert host.tolist() == [0, 0, 0]


@pretended
def test_it_makes_tensors_of_its_own() -> None:
    assert torch.arange(2, 5, device=NAME).cpu().tolist() == [2, 3, 4]
    assert torch.full((2,), 3.0, device=NAME).add_(1).cpu().tolist() == [4, 4]
    assert sorted(torch.randperm(3, device=NAME).cpu().tolist()) == [0, 1, 2]
    torch.manual_seed(1)
    there = torch.randn(3, device=NAME).cpu()
    torch.manual_seed(1)
    assert torch.equal(there, torch.randn(3))


@pretended
def test_memory_ends_and_is_given_back() -> None:
    gc.collect()
    STATE.limit = STATE.used + 4000
    first = torch.zeros(500, device=NAME)
    half = first[:250]
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 2400 bytes"):
        torch.zeros(600, device=NAME)
    del first
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(600, device=NAME)  # a view is left
    del half
    torch.zeros(600, device=NAME)


@pretended
def test_once_it_has_failed_it_fails_for_good() -> None:
    STATE.fails_after = STATE.operations + 2
    there = torch.zeros(3, device=NAME)
    for _ in range(2):
        with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
            for _ in range(3):
                there.add_(1)


@pretended
def test_an_error_in_a_backward_pass_is_raised_after_it() -> None:
    weight = torch.ones(3, device=NAME, requires_grad=True)
    loss = (weight * 2).sum()
    STATE.fails_after = STATE.operations + 1
    loss.backward()
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        weight.sum()


@pretended
def test_it_knows_the_formats_of_mixed_precision() -> None:
    model = nn.Linear(3, 3).to(NAME)
    scaler = torch.amp.GradScaler(NAME)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.weight.detach().cpu())
    with torch.autocast(torch.device(NAME).type, dtype=torch.bfloat16):
        made = model(torch.ones(2, 3, device=NAME))
    assert made.dtype == torch.bfloat16
    scaler.scale(made.float().sum()).backward()
    scaler.step(optimiser)
    scaler.update()
    assert not torch.equal(model.weight.detach().cpu(), before)
