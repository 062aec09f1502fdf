"""A vertex's views refer to the current tensors of its module, even after f has replaced some."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import gridml
from gridml.engine.devices import Device
from gridml.engine.engine import Engine
from gridml.engine.modules import Modules
from gridml.errors import ProgramError
from gridml.model.chunk import cut
from gridml.model.vertex import describe
from gridml.protocol.push import ReplicaPart
from tests.support.pretend_device import NAME

PLACES = ["cpu", pytest.param(NAME, marks=pytest.mark.pretended)]
KEY = ("Network", 0)
SUM, WEIGHT = "Network/0/model/sum", "Network/0/model/weight"


class Summing(nn.Module):
    """A module whose buffer is a new tensor in every batch."""

    sum: torch.Tensor
    cache: torch.Tensor | None

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=dtype))
        self.register_buffer("sum", torch.zeros(3, dtype=dtype))
        self.register_buffer("cache", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sum = self.sum + x.detach().sum(0).to(self.sum.dtype)
        return (self.weight * x).sum()


class Network(gridml.Vertex):
    model = gridml.module(Summing, partial(torch.optim.SGD, lr=0.0))


class Short(gridml.Vertex):
    model = gridml.module(partial(Summing, torch.bfloat16), partial(torch.optim.SGD, lr=0.0))


class Pair(nn.Module):
    """A trained pupil, and a teacher that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.pupil = nn.Parameter(torch.ones(3))
        self.teacher = nn.Parameter(torch.ones(3), requires_grad=False)


class Follower(gridml.Vertex):
    model = gridml.module(Pair, partial(torch.optim.SGD, lr=1.0))


class Point(gridml.Vertex):
    x = gridml.array("float32", (3,))
    network = gridml.edge(Network)


class Example(gridml.Vertex):
    x = gridml.array("float32", (3,))
    network = gridml.edge(Follower)


@gridml.update(batch=1)
def add_up(points: gridml.Batch[Point], network: Network) -> None:
    network.step(network.model(points.x))


@gridml.update(batch=1)
def exchange(points: gridml.Batch[Point], network: Network) -> None:
    network.model.weight.data = network.model.weight.data + 1


@gridml.update(batch=1)
def follow(examples: gridml.Batch[Example], network: Follower) -> None:
    model = network.model
    network.step((model.pupil * examples.x).sum())
    model.teacher.data.mul_(0.5).add_(model.pupil.data, alpha=0.5)


def engine_of(update: object, place: str = "cpu", count: int = 4) -> Engine:
    g = gridml.Graph()
    driver, home = (Example, Follower) if update is follow else (Point, Network)
    g.add(driver, x=np.ones((count, 3), np.float32), network=g.add(home))
    program = gridml.Program(lambda: g, update)  # type: ignore[arg-type]
    engine = Engine(program, Device(place))
    engine.begin(cut(g, driver.__name__, np.arange(count), None, None, bsp=program.consistency.is_bsp))
    return engine


def pushed(engine: Engine) -> dict[str, np.ndarray]:
    snapshot = engine.snapshot()
    snapshot.wait()
    return dict(snapshot.replica.modules[KEY])


@pytest.mark.parametrize("place", PLACES)
def test_a_buffer_that_forward_replaces_is_pushed_as_it_is_and_rebased(place: str) -> None:
    engine = engine_of(add_up, place)
    engine.train(0, 2, 1.0)
    first = engine.snapshot()
    first.wait()
    assert first.replica.modules[KEY][SUM].tolist() == [2, 2, 2]
    engine.train(2, 3, 1.0)
    engine.rebase(first, ReplicaPart({KEY: {SUM: np.full(3, 10, np.float32)}}, {}), 1)
    assert pushed(engine)[SUM].tolist() == [11, 11, 11]
    engine.train(3, 4, 1.0)
    assert pushed(engine)[SUM].tolist() == [12, 12, 12]
    engine.restart(ReplicaPart({KEY: {SUM: np.zeros(3, np.float32)}}, {}))
    assert pushed(engine)[SUM].tolist() == [0, 0, 0]


def test_a_parameter_that_is_given_other_memory_is_pushed_as_it_is_and_rebased() -> None:
    """On the CPU only, because the memory of the pretended device's tensors cannot be exchanged."""
    engine = engine_of(exchange)
    engine.train(0, 1, 1.0)
    first = engine.snapshot()
    assert first.replica.modules[KEY][WEIGHT].tolist() == [2, 2, 2]
    engine.train(1, 2, 1.0)
    engine.rebase(first, ReplicaPart({KEY: {WEIGHT: np.full(3, 7, np.float32)}}, {}), 1)
    assert pushed(engine)[WEIGHT].tolist() == [8, 8, 8]


@pytest.mark.parametrize("place", PLACES)
def test_a_teacher_that_follows_its_pupil_through_its_data_is_pushed_and_rebased(place: str) -> None:
    engine = engine_of(follow, place)
    key, teacher = ("Follower", 0), "Follower/0/model/teacher"
    engine.train(0, 1, 1.0)
    first = engine.snapshot()
    first.wait()
    assert first.replica.modules[key][teacher].tolist() == [0.5] * 3
    engine.train(1, 2, 1.0)
    engine.rebase(first, ReplicaPart({key: {teacher: np.full(3, 4, np.float32)}}, {}), 1)
    second = engine.snapshot()
    second.wait()
    assert second.replica.modules[key][teacher].tolist() == [4 - 0.75] * 3


@pytest.mark.parametrize("place", PLACES)
def test_a_short_buffer_that_is_replaced_keeps_what_its_format_cannot_hold(place: str) -> None:
    modules = Modules(describe(Short), device=Device(place))
    name = "Short/0/model/sum"
    modules.views(0)[name][:] = 1.001
    modules.put(0, [name])
    model = modules.read("model", 0)
    model.sum = model.sum + 1
    modules.pull(0)
    np.testing.assert_allclose(modules.views(0)[name], 2.001, rtol=1e-6)


@pytest.mark.parametrize("place", PLACES)
def test_views_are_made_once_as_long_as_the_module_has_the_same_tensors(place: str) -> None:
    modules = Modules(describe(Network), device=Device(place))
    views = modules.views(0)
    assert modules.views(0) is views
    model = modules.read("model", 0)
    with torch.no_grad():
        model.weight += 1
    assert modules.views(0) is views
    model.sum = model.sum + 1
    assert modules.views(0) is not views
    assert modules.views(0) is modules.views(0)


def shorter(model: Summing) -> None:
    model.sum = model.sum[:2]


def none(model: Summing) -> None:
    model.sum = None  # type: ignore[assignment]


def finer(model: Summing) -> None:
    model.sum = model.sum.double()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("spoil", "words"), [(shorter, r"float32 \(2,\)"), (none, "nothing"), (finer, r"float64 \(3,\)")]
)
def test_a_tensor_of_another_form_is_an_error_that_says_what_to_do(
    place: str, spoil: Callable[[Summing], None], words: str
) -> None:
    engine = engine_of(add_up, place)
    spoil(engine._modules["Network"].read("model", 0))
    with pytest.raises(ProgramError, match=rf"made {words} of {SUM}; expected float32 \(3,\).*persistent=False"):
        engine.snapshot()


def test_a_buffer_that_was_none_stays_with_its_worker() -> None:
    engine = engine_of(add_up)
    engine._modules["Network"].read("model", 0).cache = torch.ones(2)
    engine.train(0, 1, 1.0)
    tensors = pushed(engine)
    assert tensors.keys() == {SUM, WEIGHT}
    assert tensors[SUM].tolist() == [1, 1, 1]
