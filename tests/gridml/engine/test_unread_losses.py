"""Losses on a device are read only before a push, so that the host does not wait for the device in every batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import gridml
from gridml.engine import engine as engine_module
from gridml.engine.devices import Device
from gridml.engine.engine import Engine
from gridml.engine.update_runner import BatchFailed
from gridml.errors import NotFiniteError
from gridml.model.chunk import cut
from gridml.protocol.push import ReplicaPart
from tests.support.pretend_device import NAME

PLACES = ["cpu", pytest.param(NAME, marks=pytest.mark.pretended)]
BATCH, ROWS = 4, 32


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(3, 1)


class Network(gridml.Vertex):
    model = gridml.module(linear, partial(torch.optim.SGD, lr=0.01, momentum=0.9))


class Point(gridml.Vertex):
    x = gridml.array("float32", (3,))
    network = gridml.edge(Network)


@gridml.update(batch=BATCH)
def plain(points: gridml.Batch[Point], network: Network) -> None:
    network.step(network.model(points.x).square().mean())


@gridml.update(batch=BATCH)
def clipped(points: gridml.Batch[Point], network: Network) -> None:
    network.step(network.model(points.x).square().mean(), clip_norm=1.0)


@gridml.update(batch=BATCH, accumulate=3)
def gathered(points: gridml.Batch[Point], network: Network) -> None:
    network.step(network.model(points.x).square().mean())


def engine_on(place: str, update: Any, wrong: int | None = None) -> tuple[Engine, ReplicaPart]:
    """An engine on all points, of which the one at `wrong` has a NaN coordinate, and the replica."""
    x = np.random.default_rng(2).normal(size=(ROWS, 3)).astype(np.float32)
    if wrong is not None:
        x[wrong, 1] = np.nan
    g = gridml.Graph()
    g.add(Point, x=x, network=g.add(Network))
    engine = Engine(gridml.Program(lambda: g, update), Device(place))
    engine.begin(cut(g, "Point", np.arange(ROWS), None, None, bsp=False))
    snapshot = engine.snapshot()
    snapshot.wait()
    replica = snapshot.replica
    return engine, ReplicaPart({key: {n: t.copy() for n, t in ts.items()} for key, ts in replica.modules.items()})


def train_all(engine: Engine) -> None:
    for start in range(0, ROWS, BATCH):
        engine.train(start, start + BATCH, 1.0)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("wrong", [0, 13, ROWS - 1])
@pytest.mark.parametrize("update", [plain, clipped, gathered], ids=["plain", "clipped", "gathered"])
def test_a_vertex_whose_loss_is_no_number_is_named_before_anything_is_pushed(
    place: str, wrong: int, update: Any
) -> None:
    engine, held = engine_on(place, update, wrong)
    with pytest.raises(BatchFailed) as caught:
        train_all(engine)
        engine.snapshot(held.modules)
    assert (caught.value.first, caught.value.last) == (wrong, wrong)
    cause = caught.value.__cause__
    assert isinstance(cause, NotFiniteError) and str(cause).startswith("the loss is nan; expected a finite number.")
    assert cause.__traceback__ is not None
    lines = []
    trace = cause.__traceback__
    while trace is not None:
        lines.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert __file__ in lines  # the user's own line


@pytest.mark.parametrize("place", PLACES)
def test_what_is_dropped_says_nothing_of_what_is_trained_next(place: str) -> None:
    engine, held = engine_on(place, plain, wrong=2)
    try:
        engine.train(0, BATCH, 1.0)
    except BatchFailed:
        assert place == "cpu"
    engine.forget_rows()
    engine.restart(held)
    engine.forget_optimisers()
    engine.train(BATCH, 2 * BATCH, 1.0)
    engine.snapshot(held.modules)


class Reads(TorchDispatchMode):
    """Count the numbers that are read from a device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.pretended
@pytest.mark.parametrize("update", [plain, clipped], ids=["plain", "clipped"])
def test_training_reads_nothing_off_a_device(update: Any) -> None:
    engine, _ = engine_on(NAME, update)
    with Reads() as reads:
        train_all(engine)
    assert reads.count == 0
    assert engine._stepping.unread == (ROWS // BATCH) * (1 if update is plain else 2)
    engine.snapshot()
    assert engine._stepping.unread == 0


@pytest.mark.pretended
def test_losses_do_not_wait_for_a_push_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_UNREAD_LOSSES", 3)
    engine, _ = engine_on(NAME, plain, wrong=1)
    for start in range(0, 3 * BATCH, BATCH):
        engine.train(start, start + BATCH, 1.0)
    with pytest.raises(BatchFailed) as caught:
        engine.train(3 * BATCH, 4 * BATCH, 1.0)
    assert (caught.value.first, caught.value.last) == (0, BATCH - 1)  # only the held values could narrow it down
