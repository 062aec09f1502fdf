"""Host copies of tensors that numpy cannot access."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import gridml
from gridml.engine import mirror as mirror_module
from gridml.engine.devices import Device
from gridml.engine.mirror import Mirror, needs_mirror
from gridml.engine.modules import Modules
from gridml.model.vertex import describe
from tests.support.pretend_device import NAME, STATE

PLACES = ["cpu", pytest.param(NAME, marks=pytest.mark.pretended)]


def mirror_of(values: torch.Tensor, place: str) -> tuple[Mirror, torch.Tensor]:
    tensor = values.to(place)
    return Mirror({"weight": tensor}, place), tensor


def test_only_what_the_host_cannot_merge_into_has_a_mirror() -> None:
    formats = [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.float16]
    assert [needs_mirror(torch.zeros(1, dtype=dtype)) for dtype in formats] == [False] * 4 + [True] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_values_go_and_come(place: str, dtype: torch.dtype) -> None:
    mirror, tensor = mirror_of(torch.tensor([0, 1, 1]).to(dtype), place)
    assert mirror.arrays["weight"].tolist() == [0, 1, 1]
    assert mirror.arrays["weight"].dtype == (np.float32 if dtype == torch.bfloat16 else mirror.arrays["weight"].dtype)
    mirror.arrays["weight"][:] = 1
    mirror.put(["weight"])
    assert tensor.cpu().tolist() == [1, 1, 1]
    with torch.no_grad():
        tensor.fill_(0)
    assert mirror.arrays["weight"].tolist() == [1, 1, 1]
    mirror.pull()
    assert mirror.arrays["weight"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("place", PLACES)
def test_a_capture_is_unaffected_by_later_writes(place: str) -> None:
    mirror, tensor = mirror_of(torch.arange(5.0), place)
    with torch.no_grad():
        tensor += 1
        capture = mirror.capture()
        tensor.fill_(-1)
        later = mirror.capture()
        tensor.fill_(-2)
    later.wait()
    capture.wait()
    capture.wait()
    assert capture.arrays["weight"].tolist() == [1, 2, 3, 4, 5]
    assert later.arrays["weight"].tolist() == [-1] * 5
    assert mirror.arrays["weight"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.pretended
def test_what_has_not_been_waited_for_is_not_there() -> None:
    """The copy does not block, so the other tests can fail."""
    mirror, _ = mirror_of(torch.arange(5.0), NAME)
    before = STATE.deferred
    capture = mirror.capture()
    capture.arrays["weight"][:] = 7
    assert STATE.deferred == before + 1
    assert capture.arrays["weight"].tolist() == [7] * 5
    capture.wait()
    assert capture.arrays["weight"].tolist() == [0, 1, 2, 3, 4]


class Tied(nn.Module):
    """One tensor under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.words.weight


class Language(gridml.Vertex):
    model = gridml.module(Tied, partial(torch.optim.SGD, lr=0.1))


@pytest.mark.parametrize("place", PLACES)
def test_tied_weights_are_one_tensor_wherever_they_are(place: str) -> None:
    modules = Modules(describe(Language), device=Device(place))
    views = modules.views(0)
    assert list(views) == ["Language/0/model/words.weight"]
    views["Language/0/model/words.weight"][:] = 2
    modules.put(0, views)
    model = modules.read("model", 0)
    assert model.head.weight is model.words.weight
    assert model.head.weight.device.type == torch.device(place).type
    assert model.head.weight.detach().cpu().unique().tolist() == [2]
    assert len(modules.optimisers(0)["model"].param_groups[0]["params"]) == 1


@pytest.mark.pretended
def test_what_was_put_is_free_to_be_written_again() -> None:
    mirror, tensor = mirror_of(torch.zeros(3), NAME)
    mirror.arrays["weight"][:] = 1
    mirror.put(["weight"])
    mirror.arrays["weight"][:] = 2
    assert tensor.cpu().tolist() == [1, 1, 1]


@pytest.mark.parametrize("place", PLACES)
def test_what_a_short_format_cannot_hold_of_a_value_is_kept(place: str) -> None:
    fine = np.array([1.001, -2.003, 0.5], np.float32)
    mirror, tensor = mirror_of(torch.zeros(3, dtype=torch.bfloat16), place)
    mirror.arrays["weight"][:] = fine
    mirror.put(["weight"])
    held = tensor.cpu().float().numpy()
    assert (held != fine).tolist() == [True, True, False]
    mirror.pull()
    np.testing.assert_array_equal(mirror.arrays["weight"], fine)
    with torch.no_grad():
        tensor[0] += 0.25
    capture = mirror.capture()
    capture.wait()
    moved = tensor.cpu().float().numpy() - held
    np.testing.assert_allclose(capture.arrays["weight"], fine + moved, rtol=1e-6)
    assert capture.arrays["weight"][1:].tolist() == fine[1:].tolist()


@pytest.mark.parametrize("place", PLACES)
def test_a_frozen_tensor_is_not_copied_again_until_it_is_written(place: str) -> None:
    tensors = {
        "frozen": torch.nn.Parameter(torch.ones(2).to(place), requires_grad=False),
        "trained": torch.nn.Parameter(torch.ones(2).to(place)),
        "buffer": torch.ones(2).to(place),
    }
    mirror = Mirror(tensors, place)
    assert mirror.capture().arrays.keys() == {"trained", "buffer"}
    with torch.no_grad():
        tensors["frozen"].fill_(3)
    capture = mirror.capture()
    capture.wait()
    assert capture.arrays["frozen"].tolist() == [3, 3]
    mirror.pull()
    assert mirror.capture().arrays.keys() == {"trained", "buffer"}
    mirror.arrays["frozen"][:] = 4
    mirror.put(["frozen"])
    assert mirror.capture().arrays.keys() == {"trained", "buffer"}
    assert tensors["frozen"].cpu().tolist() == [4, 4]


@pytest.mark.parametrize("place", PLACES)
def test_a_frozen_tensor_is_copied_once_it_is_trained_or_moved(place: str) -> None:
    """A fused optimiser writes parameters without increasing their version, and so does an exchange of their memory."""
    names = ("trained", "replaced")
    made = {n: nn.Parameter(torch.ones(2, dtype=torch.bfloat16).to(place), requires_grad=False) for n in names}
    mirror = Mirror(made, place)
    assert not mirror.capture().arrays
    made["trained"].requires_grad_()
    assert mirror.capture().arrays.keys() == {"trained"}
    if place == "cpu":  # the memory of the pretended device's tensors cannot be exchanged
        made["replaced"].data = made["replaced"].data * 3
        assert mirror.capture().arrays["replaced"].tolist() == [3, 3]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_frozen_parameter_written_through_its_data_is_copied(place: str, dtype: torch.dtype) -> None:
    """A teacher that follows the trained network: neither its version nor its address changes."""
    tensors = {
        n: nn.Parameter(torch.ones(3, dtype=dtype).to(place), requires_grad=False) for n in ("teacher", "frozen")
    }
    mirror = Mirror(tensors, place)
    assert not mirror.capture().arrays
    for value in (1.5, 1.75):
        version = tensors["teacher"]._version
        tensors["teacher"].data.mul_(0.5).add_(value - 0.5 if value == 1.5 else 1.0)
        assert tensors["teacher"]._version == version
        capture = mirror.capture()
        capture.wait()
        assert {name: values.tolist() for name, values in capture.arrays.items()} == {"teacher": [value] * 3}
    mirror.pull()
    assert mirror.arrays["teacher"].tolist() == [1.75] * 3
    mirror.arrays["teacher"][:] = 4
    mirror.put(["teacher"])
    assert tensors["teacher"].cpu().tolist() == [4, 4, 4]
    assert mirror.capture().arrays.keys() == {"teacher"}


@pytest.mark.parametrize("place", PLACES)
def test_memory_of_the_host_is_that_whatever_device_is_the_default(place: str) -> None:
    tensor = torch.ones(2, dtype=torch.bfloat16).to(place)
    torch.set_default_device("meta")
    try:
        mirror = Mirror({"weight": tensor}, place)
    finally:
        torch.set_default_device(None)
    assert mirror.arrays["weight"].tolist() == [1, 1]


def rebased(place: str, dtype: torch.dtype, *, frozen: bool = False) -> tuple[Mirror, torch.Tensor, set[str]]:
    tensor = torch.tensor([1.0, 2.0, 3.0]).to(dtype).to(place)
    parameter = nn.Parameter(tensor, requires_grad=not frozen)
    mirror = Mirror({"weight": parameter}, place)
    pushed, newest = np.array([1.0, 1.0, 1.5]), np.array([10.0, 20.0, 30.0])
    kept = np.float64 if dtype == torch.float64 else np.float32
    return (
        mirror,
        parameter,
        mirror.rebase({"weight": (pushed.astype(kept), newest.astype(kept)), "other": (pushed, newest)}),
    )


@pytest.mark.pretended
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_device_rebases_what_it_trains(dtype: torch.dtype) -> None:
    mirror, tensor, done = rebased(NAME, dtype)
    assert done == {"weight"}
    assert tensor.detach().cpu().tolist() == [10.0, 21.0, 31.5]
    assert mirror.arrays["weight"].tolist() == [1.0, 2.0, 3.0], "the host's values are older until the next pull"
    mirror.pull(["weight"])
    assert mirror.arrays["weight"].tolist() == [10.0, 21.0, 31.5]


@pytest.mark.pretended
def test_a_device_leaves_to_the_host_what_only_the_host_can_do() -> None:
    """Frozen tensors are compared with the host's, short formats have their rounding errors there."""
    assert rebased(NAME, torch.float32, frozen=True)[2] == set()
    assert rebased(NAME, torch.bfloat16)[2] == set()
    mirror, tensor = mirror_of(torch.tensor([0.0, -torch.inf]), NAME)  # a mask
    assert mirror.rebase({"weight": (np.zeros(2, np.float32), np.ones(2, np.float32))}) == set()
    assert tensor.cpu().tolist() == [0.0, -torch.inf]


@pytest.mark.pretended
def test_where_the_device_has_no_memory_the_host_rebases() -> None:
    mirror, tensor = mirror_of(torch.ones(1000), NAME)
    limit, STATE.limit = STATE.limit, STATE.used + 4000
    try:
        assert mirror.rebase({"weight": (np.zeros(1000, np.float32), np.ones(1000, np.float32))}) == set()
    finally:
        STATE.limit = limit
    assert tensor.cpu().unique().tolist() == [1.0]


@pytest.mark.pretended
def test_memory_for_captures_is_there_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen parameters are not captured, and need none."""
    made: list[int] = []
    plain = mirror_module.host_memory
    monkeypatch.setattr(
        mirror_module, "host_memory", lambda shape, dtype: (made.append(shape[0]), plain(shape, dtype))[1]
    )
    tensors = {"frozen": nn.Parameter(torch.zeros(7).to(NAME), requires_grad=False), "trained": torch.zeros(5).to(NAME)}
    Mirror(tensors, NAME)
    assert sorted(made) == [5] * (1 + mirror_module.MAX_CAPTURES) + [7]
