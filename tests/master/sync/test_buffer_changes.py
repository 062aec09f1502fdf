"""Tensors that are left out of pushes of real modules: buffers and frozen weights that only one worker changes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gridml
from gridml.protocol.push import ReplicaPart
from master.store.versions import ReplicaState, initial
from master.sync.buffers import FilteredPush, UntrainedTensors

Array = np.ndarray[Any, Any]
KEY = ("Net", 0)


class Model(nn.Module):
    """A module with every kind of tensor that no optimiser trains."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(20))
        self.register_buffer("mask", torch.ones(20))
        self.register_buffer("causal", torch.ones(3, 3).tril().bool())
        self.register_buffer("bytes", torch.zeros(4, dtype=torch.uint8))
        self.register_buffer("minus", torch.full((3,), -torch.inf))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.norm = nn.BatchNorm1d(20)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(20, 4))
        self.body = nn.Linear(20, 4)


def net(rule: Any = None) -> type[gridml.Vertex]:
    class Net(gridml.Vertex):
        model = gridml.module(Model, partial(torch.optim.SGD, lr=0.1))
        aggregate = gridml.stale_mean() if rule is None else rule

    return Net


class Desk:
    """A master, and workers whose pushes change some tensors by some step."""

    def __init__(self, rule: Any = None, workers: int = 3) -> None:
        graph = gridml.Graph()
        graph.add(net(rule))
        self.base: ReplicaState = initial(graph, 0)
        self.untrained = UntrainedTensors(graph)
        self.workers, self.now = workers, 0.0

    def push(self, worker: str, steps: dict[str, Any], vertices: int = 32, *, is_last: bool = False) -> FilteredPush:
        held = self.base.modules[KEY].tensors
        tensors = dict(held)
        for name, step in steps.items():
            old = held[f"Net/0/model/{name}"]
            tensors[f"Net/0/model/{name}"] = (step(old) if callable(step) else old + step).astype(old.dtype)
        return self.filter(worker, ReplicaPart({KEY: tensors}), vertices, is_last=is_last)

    def filter(self, worker: str, part: ReplicaPart, vertices: int, *, is_last: bool = False) -> FilteredPush:
        return self.untrained.filter(
            part,
            self.base,
            worker,
            vertices,
            self.now,
            workers=self.workers,
            is_last=is_last,  # type: ignore[arg-type]
        )

    def changed(self, sifted: FilteredPush) -> set[str]:
        held = self.base.modules[KEY].tensors
        return {n.rpartition("/")[2] for n, t in sifted.part.modules[KEY].items() if t is not held[n]}


HONEST = {"body.weight": 0.1, "norm.running_mean": 0.1, "norm.num_batches_tracked": 1, "step": 1}
LIES = {
    "order": lambda old: np.full_like(old, 2**62),
    "mask": np.zeros_like,
    "causal": np.ones_like,
    "bytes": lambda old: old + 255,
    "frozen": 0.5,
}


@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("first", [True, False], ids=["comes first", "comes later"])
def test_what_f_changes_at_no_other_worker_is_not_changed_by_one(name: str, *, first: bool) -> None:
    desk = Desk()
    for turn in range(6):
        order = ("liar", "w2", "w3") if first else ("w2", "w3", "liar")
        for worker in order:
            sifted = desk.push(worker, HONEST | ({name: LIES[name]} if worker == "liar" else {}))
            assert name not in desk.changed(sifted)
            if worker == "liar":
                assert turn < 1 or name in sifted.reasons[0]
            else:
                assert not sifted.reasons
    assert not desk.untrained.forget("w2")


def test_what_f_changes_at_every_worker_comes_through_from_the_second_on() -> None:
    desk = Desk()
    first = desk.push("w1", HONEST)
    assert desk.changed(first) == {"body.weight"}, "the rest waits, and its worker brings it again"
    assert first.differs
    assert not first.reasons
    for worker, times in (("w2", 1), ("w1", 2), ("w3", 1), ("w1", 40)):
        sifted = desk.push(worker, HONEST | {"step": times}, 32 * times)
        assert desk.changed(sifted) == HONEST.keys()
        assert not sifted.differs
    assert desk.untrained.forget("w1") == []


def test_a_counter_does_not_jump() -> None:
    desk = Desk()
    for _ in range(2):
        for worker in ("w2", "w3", "w1"):
            desk.push(worker, HONEST)
    sifted = desk.push("w1", HONEST | {"step": 2**62})
    assert "step" not in desk.changed(sifted)
    assert "step" in sifted.reasons[0]
    desk.untrained.forget("w1")  # as after an invalid message
    for _ in range(3):
        assert "step" not in desk.changed(desk.push("w1", HONEST | {"step": 2**62}))
        desk.untrained.forget("w1")


def test_changes_pending_without_other_pushes_count_by_their_vertices() -> None:
    desk = Desk()
    for pushes in range(1, 100):
        desk.push("w1", {"step": 100 * pushes}, 32)
    desk.push("w2", {"step": 100}, 32)
    assert "step" in desk.changed(desk.push("w1", {"step": 10_000}, 32))


def test_a_module_without_weights_switches_nothing_off() -> None:
    class Stats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

    class Net(gridml.Vertex):
        model = gridml.module(Model, partial(torch.optim.SGD, lr=0.1))
        stats = gridml.module(Stats)
        aggregate = gridml.stale_mean()

    graph = gridml.Graph()
    graph.add(Net)
    desk = Desk()
    desk.base, desk.untrained = initial(graph, 0), UntrainedTensors(graph)
    for worker in ("w2", "w3"):
        desk.push(worker, HONEST)
    assert "mask" not in desk.changed(desk.push("w1", {"mask": np.zeros_like}))


def test_one_worker_alone_changes_what_it_likes() -> None:
    desk = Desk(workers=1)
    assert desk.changed(desk.push("w1", HONEST | LIES)) == HONEST.keys() | LIES.keys()


def test_the_last_worker_has_its_changes_in_the_replica_or_is_warned() -> None:
    desk = Desk(workers=4)
    desk.push("w1", HONEST)
    assert desk.changed(desk.push("w1", HONEST, is_last=True)) == HONEST.keys()
    another = Desk(workers=4)
    another.push("w1", HONEST)
    assert len(another.untrained.forget("w1")) == 3
    assert another.untrained.forget("w1") == []


def test_what_is_not_finite_is_left_to_the_gate_and_a_mask_that_stays_is_no_change() -> None:
    desk = Desk()
    sifted = desk.push("w1", {"mask": np.nan, "minus": 0.0})
    assert desk.changed(sifted) >= {"mask"}
    assert not sifted.differs


def test_what_a_user_named_or_adds_is_taken_as_it_comes() -> None:
    for rule in (
        gridml.by_name({"*/step": gridml.maximum()}),
        gridml.by_name({"*/step": gridml.add()}),
        gridml.add(),
        gridml.maximum(),
    ):
        desk = Desk(rule)
        for worker in ("w2", "w3"):
            desk.push(worker, {"body.weight": 0.1})
        assert "step" in desk.changed(desk.push("w1", {"step": 10**9}))
