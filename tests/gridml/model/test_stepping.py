"""Optimiser steps in f: clipped, accumulated over several batches, scaled."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import gridml
from gridml.engine.modules import Modules
from gridml.errors import NotFiniteError, ProgramError
from gridml.model.stepping import Stepping
from gridml.model.vertex import describe


def linear() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(4, 2)


class Network(gridml.Vertex):
    model = gridml.module(linear, partial(torch.optim.AdamW, lr=0.1))


class Both(gridml.Vertex):
    first = gridml.module(linear, partial(torch.optim.SGD, lr=0.1))
    second = gridml.module(linear, partial(torch.optim.SGD, lr=0.2))
    third = gridml.module(linear)


def loss_of(model: nn.Module, k: int) -> torch.Tensor:
    values = torch.randn(8, 4, generator=torch.Generator().manual_seed(k))
    return (model(values) * 30).square().mean()


def plain(batches: int, accumulate: int, clip_norm: float | None) -> dict[str, torch.Tensor]:
    """The equivalent plain loop; gradients that remain at the end of an epoch are stepped."""
    model = linear()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    for k in range(batches):
        (loss_of(model, k) / accumulate).backward()
        if (k + 1) % accumulate == 0 or k + 1 == batches:
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            optimiser.step()
            optimiser.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize(("accumulate", "clip_norm"), [(1, None), (1, 0.5), (3, None), (3, 0.5), (20, 0.5)])
def test_steps_are_those_of_a_plain_loop_bit_for_bit(accumulate: int, clip_norm: float | None) -> None:
    modules = Modules(describe(Network), Stepping())
    network: Any = modules.vertex(0)
    for k in range(10):
        network.step(loss_of(network.model, k), clip_norm=clip_norm, accumulate=accumulate)
        assert modules.stepping.is_accumulating == bool((k + 1) % accumulate)
    modules.stepping.finish()
    assert not modules.stepping.is_accumulating
    expected = plain(10, accumulate, clip_norm)
    for name, values in network.model.state_dict().items():
        assert torch.equal(values, expected[name]), name
    modules.stepping.finish()  # there is nothing to do
    assert torch.equal(network.model.weight, expected["weight"])


def test_the_programs_window_is_the_default() -> None:
    modules = Modules(describe(Network), Stepping(4))
    network: Any = modules.vertex(0)
    before = network.model.weight.detach().clone()
    for k in range(3):
        network.step(loss_of(network.model, k))
    assert torch.equal(network.model.weight, before)
    network.step(loss_of(network.model, 3))
    assert not torch.equal(network.model.weight, before)


def test_what_is_forgotten_moves_nothing() -> None:
    modules = Modules(describe(Network), Stepping(2))
    network: Any = modules.vertex(0)
    before = network.model.weight.detach().clone()
    network.step(loss_of(network.model, 0))
    modules.stepping.forget()
    modules.stepping.finish()
    assert torch.equal(network.model.weight, before)
    assert network.model.weight.grad is None


def test_vertices_stepped_separately_have_separate_windows() -> None:
    modules = Modules(describe(Network), Stepping(2))
    first: Any = modules.vertex(0)
    second: Any = modules.vertex(1)
    before = second.model.weight.detach().clone()
    first.step(loss_of(first.model, 0))
    second.step(loss_of(second.model, 0))
    first.step(loss_of(first.model, 1))
    assert torch.equal(second.model.weight, before)
    with pytest.raises(ProgramError, match="same vertices in both"):
        first.step(loss_of(first.model, 2), second)


def test_gradients_that_are_not_finite_touch_nothing_where_they_are_clipped() -> None:
    network: Any = Modules(describe(Network)).vertex(0)
    before = network.model.weight.detach().clone()
    with pytest.raises(NotFiniteError, match="gradients have norm"):
        network.step((network.model.weight * 0).sqrt().sum() * 0 + network.model.bias.sum(), clip_norm=1.0)
    assert torch.equal(network.model.weight, before)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"clip_norm": 0}, "clip_norm=0;"), ({"clip_norm": "1"}, "clip_norm='1';"), ({"accumulate": 0}, "accumulate=0;")],
    ids=["no norm", "text", "no batch"],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    network: Any = Modules(describe(Network)).vertex(0)
    with pytest.raises(ProgramError, match=said):
        network.step(loss_of(network.model, 0), **options)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_scaler_scales_and_leaves_out_steps_that_overflow(accumulate: int) -> None:
    network: Any = Modules(describe(Network)).vertex(0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)  # type: ignore[attr-defined]
    plainly = plain(4, accumulate, 0.5)
    for k in range(4):
        network.step(loss_of(network.model, k), clip_norm=0.5, accumulate=accumulate, scaler=scaler)
    assert torch.allclose(network.model.weight, plainly["weight"], atol=1e-6)
    before, scale = network.model.weight.detach().clone(), scaler.get_scale()
    for _ in range(accumulate):
        overflowing = network.model.weight.sum() * 1e37
        network.step(overflowing, clip_norm=0.5, accumulate=accumulate, scaler=scaler)
    assert torch.equal(network.model.weight, before)
    assert scaler.get_scale() < scale


def test_optimisers_are_had_by_the_field_they_step() -> None:
    network: Any = Modules(describe(Network)).vertex(0)
    assert isinstance(network.optimiser, torch.optim.AdamW)
    both: Any = Modules(describe(Both)).vertex(0)
    assert {name: o.param_groups[0]["lr"] for name, o in both.optimisers.items()} == {"first": 0.1, "second": 0.2}
    with pytest.raises(ProgramError, match="several, of the fields first, second"):
        _ = both.optimiser


def test_a_vertex_without_an_optimiser_says_what_to_write() -> None:
    class Frozen(gridml.Vertex):
        model = gridml.module(linear)

    with pytest.raises(ProgramError, match=r"Frozen\.optimiser.*torch\.optim\.SGD"):
        _ = Modules(describe(Frozen)).vertex(0).optimiser


def test_where_only_statistics_are_gathered_no_optimiser_steps() -> None:
    modules = Modules(describe(Network))
    network: Any = modules.vertex(0)
    before = network.model.weight.detach().clone()
    modules.gather_statistics()
    loss_of(network.model, 0).backward()
    network.optimiser.step()
    network.step(loss_of(network.model, 0))
    assert torch.equal(network.model.weight, before)


def test_a_compiled_module_keeps_its_names_and_steps_under_autocast() -> None:
    def compiled() -> nn.Module:
        module = linear()
        module.compile(backend="eager")
        return module

    class Compiled(gridml.Vertex):
        model = gridml.module(compiled, partial(torch.optim.SGD, lr=0.1))

    modules = Modules(describe(Compiled), Stepping(2))
    network: Any = modules.vertex(0)
    assert [*modules.views(0)] == ["Compiled/0/model/weight", "Compiled/0/model/bias"]
    before = network.model.weight.detach().clone()
    for k in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(network.model, k)
        network.step(loss, clip_norm=1.0)
    assert network.model.weight.dtype == torch.float32
    assert not torch.equal(network.model.weight, before)
