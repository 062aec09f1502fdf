"""What an optimiser that has not stepped begins with of another's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gridml.engine.moments import FIRST, MOST_MOMENTS, SECOND, gathered, inherit
from gridml.protocol.compression import bfloat16, from_bfloat16

Make = Callable[..., torch.optim.Optimizer]
ADAPTIVE = {
    "adam": partial(torch.optim.Adam, lr=0.1),
    "amsgrad": partial(torch.optim.AdamW, lr=0.1, amsgrad=True),
    "nadam": partial(torch.optim.NAdam, lr=0.1),
    "radam": partial(torch.optim.RAdam, lr=0.1),
    "adamax": partial(torch.optim.Adamax, lr=0.1),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.1, momentum=0.9, centered=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "adadelta": partial(torch.optim.Adadelta, lr=0.1),
}
OTHERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "asgd": partial(torch.optim.ASGD, lr=0.1),
    "rprop": partial(torch.optim.Rprop, lr=0.1),
    "lbfgs": partial(torch.optim.LBFGS, lr=0.1),
}


class Worker:
    """A linear layer of (2, 3) weights and an optimiser of it."""

    def __init__(self, make: Make) -> None:
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(3, 2)
        self.names = {id(tensor): f"Network/0/net/{name}" for name, tensor in self.layer.named_parameters()}
        self.optimiser = make(self.layer.parameters())

    def train(self, steps: int) -> Worker:
        inputs = torch.arange(6.0).reshape(2, 3) / 6

        def closure() -> torch.Tensor:
            self.optimiser.zero_grad()
            loss: torch.Tensor = (self.layer(inputs) ** 2).sum()
            loss.backward()
            return loss

        for _ in range(steps):
            self.optimiser.step(closure)  # type: ignore[arg-type]
        return self

    @property
    def gathered(self) -> dict[str, np.ndarray[Any, Any]]:
        return gathered(self.optimiser, self.names)

    def state(self, name: str) -> dict[str, Any]:
        return dict(self.optimiser.state[getattr(self.layer, name)])


@pytest.mark.parametrize("name", ADAPTIVE)
def test_second_moments_and_counts_go_on_and_first_moments_begin_anew(name: str) -> None:
    old, new = Worker(ADAPTIVE[name]).train(20), Worker(ADAPTIVE[name])
    inherit(new.optimiser, new.names, old.gathered)
    for weight in ("weight", "bias"):
        theirs, mine = old.state(weight), new.state(weight)
        assert mine.keys() == theirs.keys()
        for entry, value in mine.items():
            if entry in FIRST:
                assert not value.any(), entry
            else:
                torch.testing.assert_close(value, theirs[entry], rtol=2**-8, atol=0.0, msg=entry)
    new.train(3)
    assert float(new.state("weight")["step"]) == 23


@pytest.mark.parametrize("name", OTHERS)
def test_others_gather_nothing(name: str) -> None:
    assert not Worker(OTHERS[name]).train(3).gathered


def test_who_has_stepped_goes_on_with_its_own() -> None:
    old, other = Worker(ADAPTIVE["adam"]).train(20), Worker(ADAPTIVE["adam"]).train(1)
    before = {entry: value.clone() for entry, value in other.state("weight").items()}
    inherit(other.optimiser, other.names, old.gathered)
    assert all(torch.equal(value, before[entry]) for entry, value in other.state("weight").items())


def test_one_that_counts_in_a_way_of_its_own_is_left_alone() -> None:
    class Counting(torch.optim.Adam):
        def __init__(self, weights: Any, **options: Any) -> None:
            super().__init__(weights, **options)
            self.state["begun"] = 1  # type: ignore[index]

    old, new = Worker(ADAPTIVE["adam"]).train(2), Worker(partial(Counting, lr=0.1))
    inherit(new.optimiser, new.names, old.gathered)
    assert not new.state("weight")


def test_a_weight_with_entries_that_nothing_is_known_of_is_left_out() -> None:
    worker = Worker(ADAPTIVE["adam"]).train(2)
    worker.optimiser.state[worker.layer.weight]["neighbours"] = torch.ones(2, 3)
    assert {name.partition("/")[2] for name in worker.gathered} == {"Network/0/net/bias"}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_moments_that_are_not_finite_stay_at_home(value: float) -> None:
    worker = Worker(ADAPTIVE["adam"]).train(2)
    worker.optimiser.state[worker.layer.bias]["exp_avg_sq"][0] = value
    assert {name.partition("/")[2] for name in worker.gathered} == {"Network/0/net/weight"}


def test_of_two_optimisers_each_takes_its_own_weights() -> None:
    old, new = Worker(ADAPTIVE["adam"]).train(4), Worker(ADAPTIVE["adam"])
    weight, bias = (torch.optim.Adam([getattr(new.layer, name)], lr=0.1) for name in ("weight", "bias"))
    for optimiser in (weight, bias):
        inherit(optimiser, new.names, old.gathered)
    assert [*weight.state] == [new.layer.weight]
    assert [*bias.state] == [new.layer.bias]


def test_no_optimiser_has_more_moments_than_a_message_has_room_for() -> None:
    for make in ADAPTIVE.values():
        entries = {name.partition("/")[0] for name in Worker(make).train(1).gathered}
        assert len(entries & SECOND) <= len(set(MOST_MOMENTS) & SECOND)


def test_second_moments_come_home_within_a_rounding_of_bfloat16() -> None:
    tiny = np.array([1e-30, 3e-12, 0.0, 7.0], np.float32)
    np.testing.assert_allclose(from_bfloat16(bfloat16(tiny)), tiny, rtol=2**-8)
