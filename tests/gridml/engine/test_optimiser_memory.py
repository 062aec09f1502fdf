"""State of optimisers whose modules were released."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from gridml.engine import optimisers
from gridml.engine.optimisers import OptimiserMemory

SGD = partial(torch.optim.SGD, lr=0.1)


def stepped(make: Callable[..., torch.optim.Optimizer] = torch.optim.Adam, size: int = 8) -> torch.optim.Optimizer:
    """An optimiser that has stepped once."""
    weight = torch.nn.Parameter(torch.ones(size))
    weight.grad = torch.arange(size, dtype=torch.float32)
    optimiser = make([weight])
    optimiser.step()
    return optimiser


def momenta(optimiser: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [state["exp_avg"] for state in optimiser.state.values()]


def test_it_is_given_back_once() -> None:
    memory, first = OptimiserMemory(), stepped()
    memory.keep(3, [first])
    for expected in (1, 0):
        new = torch.optim.Adam([torch.nn.Parameter(torch.ones(8))])
        memory.restore(3, [new])
        assert len(momenta(new)) == expected
        assert all(torch.equal(*pair) for pair in zip(momenta(new), momenta(first), strict=False))


@pytest.mark.parametrize(("make", "kept"), [(SGD, 0), (partial(SGD, momentum=0.9), 1), (torch.optim.Adam, 1)])
def test_nothing_is_kept_of_who_remembers_nothing(make: Callable[..., torch.optim.Optimizer], kept: int) -> None:
    memory = OptimiserMemory()
    memory.keep(0, [stepped(make)])
    assert len(memory) == kept


def test_whatever_optimisers_remember_is_counted() -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            self.state["steps"] = 1  # type: ignore[index]
            self.state[self.param_groups[0]["params"][0]]["last"] = [torch.zeros(3), (torch.zeros(2),)]

    memory = OptimiserMemory()
    memory.keep(0, [stepped(partial(Counting, lr=0.1))])
    assert {index: nbytes for index, (_, nbytes) in memory._states.items()} == {0: 5 * 4}


def test_of_many_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimisers, "MAX_KEPT_BYTES", 3 * (2 * 8 * 4 + 4))  # both means of eight weights, and a count
    memory = OptimiserMemory()
    for index in (0, 1, 2, 0, 3):
        memory.keep(index, [stepped()])
    assert sorted(memory._states) == [0, 2, 3]
    memory.restore(2, [stepped()])
    memory.keep(1, [stepped()])
    assert sorted(memory._states) == [0, 1, 3], "what was given back takes no room"
    memory.keep(9, [stepped(size=10_000)])
    assert [*memory._states] == [9]
    memory.clear()
    assert not len(memory)
