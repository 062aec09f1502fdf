"""Moments of other workers, from which an optimiser starts before its first step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gridml.engine.optimisers import FIRST, MAX_MOMENTS, SECOND, entries_of, gathered, inherit
from gridml.model.layers import Weight, weights_of
from gridml.protocol.compression import bfloat16, from_bfloat16

Make = Callable[..., torch.optim.Optimizer]
ADAPTIVE: dict[str, Make] = {
    "adam": partial(torch.optim.Adam, lr=0.1),
    "amsgrad": partial(torch.optim.AdamW, lr=0.1, amsgrad=True),
    "nadam": partial(torch.optim.NAdam, lr=0.1),
    "radam": partial(torch.optim.RAdam, lr=0.1),
    "adamax": partial(torch.optim.Adamax, lr=0.1),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.1, momentum=0.9, centered=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "adadelta": partial(torch.optim.Adadelta, lr=0.1),
}
OTHERS: dict[str, Make] = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "asgd": partial(torch.optim.ASGD, lr=0.1),
    "rprop": partial(torch.optim.Rprop, lr=0.1),
    "lbfgs": partial(torch.optim.LBFGS, lr=0.1),
}


class Worker:
    """A linear layer with (2, 3) weights and its optimiser."""

    def __init__(self, make: Make) -> None:
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(3, 2)
        self.names = {id(tensor): f"Network/0/net/{name}" for name, tensor in self.layer.named_parameters()}
        self.optimiser = make(self.layer.parameters())
        self.make = make

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

    def inherit(self, moments: dict[str, np.ndarray[Any, Any]]) -> str | None:
        entries = entries_of(self.make, weights_of(self.layer))
        return inherit(
            self.optimiser, self.names, moments, {f"Network/0/net/{name}": each for name, each in entries.items()}
        )

    @property
    def gathered(self) -> dict[str, np.ndarray[Any, Any]]:
        return gathered(self.optimiser, self.names)

    def state(self, name: str) -> dict[str, Any]:
        return dict(self.optimiser.state[getattr(self.layer, name)])


@pytest.mark.parametrize("name", ADAPTIVE)
def test_second_moments_and_counts_continue_and_first_moments_restart(name: str) -> None:
    old, new = Worker(ADAPTIVE[name]).train(20), Worker(ADAPTIVE[name])
    assert new.inherit(old.gathered) is None
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
    assert other.inherit(old.gathered) is None
    assert all(torch.equal(value, before[entry]) for entry, value in other.state("weight").items())


def test_one_that_counts_in_a_way_of_its_own_is_left_alone() -> None:
    class Counting(torch.optim.Adam):
        def __init__(self, weights: Any, **options: Any) -> None:
            super().__init__(weights, **options)
            self.state["begun"] = 1  # type: ignore[index]

    old, new = Worker(ADAPTIVE["adam"]).train(2), Worker(partial(Counting, lr=0.1))
    assert new.inherit(old.gathered) is None
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
    entries = {name: frozenset({"step", "exp_avg", "exp_avg_sq"}) for name in new.names.values()}
    for optimiser in (weight, bias):
        assert inherit(optimiser, new.names, old.gathered, entries) is None
    assert [*weight.state] == [new.layer.weight]
    assert [*bias.state] == [new.layer.bias]


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_small_stand_in_shows_the_entries_that_come(name: str) -> None:
    worker = Worker(ADAPTIVE[name]).train(2)
    expected = {f"{entry}/Network/0/net/{w}" for w, each in _entries(worker).items() for entry in each}
    assert worker.gathered.keys() == expected


@pytest.mark.parametrize("name", ["sgd", "momentum", "asgd", "rprop"])
def test_of_others_no_entries_are_expected(name: str) -> None:
    assert not _entries(Worker(OTHERS[name]))


def test_what_only_runs_on_a_device_is_tried_without() -> None:
    assert _entries(Worker(partial(torch.optim.Adam, lr=0.1, capturable=True)))["weight"] == {
        "step",
        "exp_avg",
        "exp_avg_sq",
    }


def test_untrained_weights_do_not_prevent_the_check_of_others() -> None:
    weights = [
        Weight("net.weight", (2, 3), torch.float32, is_trained=True),
        Weight("net.scale", (2,), torch.float32, is_trained=False),
        Weight("net.quantised", (2, 3), torch.int8, is_trained=False),
    ]
    assert entries_of(ADAPTIVE["adam"], weights) == {"net.weight": {"step", "exp_avg", "exp_avg_sq"}}


def test_an_optimiser_that_takes_only_sparse_gradients_is_tried_with_those() -> None:
    """An optimiser that counts its steps in a plain number, such as torch's SparseAdam."""

    def make(weights: Any) -> torch.optim.Optimizer:
        return torch.optim.SparseAdam(list(weights), lr=0.1)

    table = [Weight("weight", (3, 2), torch.float32, is_trained=True)]
    assert entries_of(make, table) == {"weight": {"step", "exp_avg", "exp_avg_sq"}}
    old, new = (torch.nn.Embedding(3, 2, sparse=True) for _ in range(2))
    optimisers = [make(layer.parameters()) for layer in (old, new)]
    names = [{id(layer.weight): "Network/0/net/weight"} for layer in (old, new)]
    old(torch.tensor([0, 2])).sum().backward()
    optimisers[0].step()
    brought = gathered(optimisers[0], names[0])
    assert (
        inherit(optimisers[1], names[1], brought, {"Network/0/net/weight": entries_of(make, table)["weight"]}) is None
    )
    new(torch.tensor([0])).sum().backward()
    optimisers[1].step()
    assert float(optimisers[1].state[new.weight]["step"]) == 2
    assert float(optimisers[1].state[new.weight]["exp_avg_sq"][2, 0]) > 0


def test_what_no_gradient_makes_step_raises_what_it_said_first() -> None:
    class Stubborn(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("needs the loss")

    with pytest.raises(RuntimeError, match="needs the loss"):
        entries_of(partial(Stubborn, lr=0.1), weights_of(torch.nn.Linear(2, 2)))


def _entries(worker: Worker) -> dict[str, frozenset[str]]:
    return entries_of(worker.make, weights_of(worker.layer))


@pytest.mark.parametrize("name", ADAPTIVE)
def test_moments_that_lack_an_entry_are_left_out_and_training_goes_on(name: str) -> None:
    """Regression: exp_avg_sq alone ended every new worker with KeyError: 'step'."""
    whole = Worker(ADAPTIVE[name]).train(5).gathered
    for left_out in {each.partition("/")[0] for each in whole}:
        new = Worker(ADAPTIVE[name])
        problem = new.inherit({name: v for name, v in whole.items() if not name.startswith(f"{left_out}/")})
        assert problem is not None or len({n.partition("/")[0] for n in whole}) == 1
        assert problem is None or "expected" in problem
        new.train(3)
        assert float(new.state("weight")["step"]) == 3


def test_moments_of_another_shape_or_that_cannot_be_loaded_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a scalar in place of a matrix ended every new worker in Adam.step."""
    whole, new = Worker(ADAPTIVE["adam"]).train(5).gathered, Worker(ADAPTIVE["adam"])
    wrong = {n: v[:1] if v.ndim and n.endswith("weight") else v for n, v in whole.items()}
    problem = new.inherit(wrong)
    assert problem is not None
    assert "Network/0/net/weight" in problem
    assert [*new.optimiser.state] == [new.layer.bias]
    new.train(3)

    def refuse(*given: Any) -> None:
        raise RuntimeError("another version of torch wrote this")

    another = Worker(ADAPTIVE["adam"])
    monkeypatch.setattr(another.optimiser, "load_state_dict", refuse)
    assert "another version" in str(another.inherit(whole))
    another.train(3)
    assert float(another.state("weight")["step"]) == 3


def test_no_optimiser_has_more_moments_than_a_message_has_room_for() -> None:
    for make in ADAPTIVE.values():
        entries = {name.partition("/")[0] for name in Worker(make).train(1).gathered}
        assert len(entries & SECOND) <= len(set(MAX_MOMENTS) & SECOND)


def test_second_moments_come_home_within_a_rounding_of_bfloat16() -> None:
    tiny = np.array([1e-30, 3e-12, 0.0, 7.0], np.float32)
    np.testing.assert_allclose(from_bfloat16(bfloat16(tiny)), tiny, rtol=2**-8)
