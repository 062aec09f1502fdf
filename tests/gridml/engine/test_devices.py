"""Choice of the device that a worker trains on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gridml
from gridml.engine.devices import Accelerators, Device, DeviceFailedError, DeviceFault, NoDeviceError, choose
from gridml.errors import DEVICE, UNFIT, ProgramError
from gridml.model.device_memory import parse

NONE = Accelerators(why_none="CUDA finds no GPU")
FOUR = Accelerators("cuda", 4)


@pytest.mark.parametrize(
    ("asked", "present", "slot", "device"),
    [
        ("auto", NONE, 3, "cpu"),
        ("auto", FOUR, None, "cuda:0"),
        ("auto", FOUR, 6, "cuda:2"),
        ("cuda", FOUR, 1, "cuda:1"),
        ("cuda:3", FOUR, 1, "cuda:3"),
        ("cpu", FOUR, 1, "cpu"),
        ("auto", Accelerators("privateuseone", 1), 5, "privateuseone:0"),
    ],
)
def test_what_is_asked_for_and_here_is_taken(asked: str, present: Accelerators, slot: int | None, device: str) -> None:
    chosen, reason = choose(parse(asked), present, slot)
    assert chosen == device
    assert reason


@pytest.mark.parametrize(
    ("asked", "present", "here"),
    [
        ("cuda", NONE, r"only the CPU \(CUDA finds no GPU\)"),
        ("cuda:4", FOUR, "cuda:0 to cuda:3"),
        ("privateuseone", FOUR, "cuda:0 to cuda:3"),
        ("cuda:1", Accelerators("cuda", 1), "cuda:0"),
    ],
)
def test_a_missing_device_is_reported_with_the_present_ones(asked: str, present: Accelerators, here: str) -> None:
    with pytest.raises(NoDeviceError, match=rf"^--device is {asked}; this machine has {here}\. ") as refused:
        choose(parse(asked), present)
    assert refused.value.exit_status == UNFIT


@given(st.integers(1, 64), st.integers(1, 200))
def test_slots_share_the_gpus_out_evenly(gpus: int, slots: int) -> None:
    taken = [choose(parse("auto"), Accelerators("cuda", gpus), slot)[0] for slot in range(slots)]
    counts = [taken.count(f"cuda:{gpu}") for gpu in range(gpus)]
    assert sum(counts) == slots and max(counts) - min(counts) <= 1


def test_a_module_may_say_where_it_lives() -> None:
    first = Device("cuda:1")
    assert first.of(gridml.module(list), "Network.model") == "cuda:1"
    assert first.of(gridml.module(list, device="auto"), "Network.model") == "cuda:1"
    assert first.of(gridml.module(list, device="cpu"), "Network.model") == "cpu"
    assert first.of(gridml.module(list, device="cuda"), "Network.model") == "cuda:1"
    assert first.of(gridml.module(list, device="cuda:0"), "Network.model") == "cuda:0"
    with pytest.raises(NoDeviceError, match=r"^Network\.model asks for cuda, and this worker trains on cpu\. "):
        Device().of(gridml.module(list, device="cuda"), "Network.model")
    with pytest.raises(ProgramError, match=r"the device of gridml\.module is 'gpu'; expected auto, cpu, cuda"):
        gridml.module(list, device="gpu")


def test_a_device_that_fails_says_what_to_do() -> None:
    error = DeviceFailedError("cuda:0", DeviceFault.MEMORY, "CUDA out of memory. Tried to allocate 2 GiB.\x1b")
    assert error.exit_status == DEVICE
    assert str(error).startswith("cuda:0 out of memory: CUDA out of memory. Tried to allocate 2 GiB.")
    assert "smaller batch" in str(error) and "\x1b" not in str(error)
