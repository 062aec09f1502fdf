"""A module with tensors that cannot be merged is rejected before training, with advice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import gridml
from gridml.engine.modules import Modules
from gridml.errors import ProgramError
from gridml.model.vertex import describe


def holding(make: Callable[[], torch.Tensor], persistent: bool = True) -> nn.Module:
    module = nn.Linear(2, 3)
    module.register_buffer("odd", make(), persistent=persistent)
    return module


class Extra(nn.Linear):
    """It has state that is no tensor."""

    def get_extra_state(self) -> Any:
        return {"calls": 3}


def complex_parameter() -> nn.Module:
    module = nn.Linear(2, 3)
    module.odd = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    return module


def views_of(factory: Callable[[], nn.Module]) -> dict[str, Any]:
    class Network(gridml.Vertex):
        model = gridml.module(factory, partial(torch.optim.SGD, lr=0.1))

    return Modules(describe(Network)).views(0)


def eye() -> torch.Tensor:
    return torch.eye(2)


def sparse() -> torch.Tensor:
    return torch.eye(2).to_sparse()


def fine() -> torch.Tensor:
    return torch.zeros(2).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (partial(nn.LazyLinear, 3), "holds weight, which has no shape yet; .* call the module once in the factory"),
        (partial(nn.Sequential, nn.Linear(2, 3), nn.LazyBatchNorm1d()), "holds 1.weight, which has no shape yet"),
        (partial(holding, sparse), "holds odd as torch.sparse_coo; expected a dense tensor. .*persistent=False"),
        (complex_parameter, "holds odd as torch.complex64; expected real numbers. .*view_as_complex"),
        (partial(holding, fine), "holds odd as torch.float8_e4m3fn; expected a dtype numpy has"),
        (partial(nn.Linear, 2, 3, device="meta"), "holds weight on the meta device; .* without device='meta'"),
        (partial(Extra, 2, 3), "holds _extra_state, a dict; expected tensors .*get_extra_state"),
    ],
    ids=["lazy", "lazy inside", "sparse", "complex", "float8", "meta", "extra state"],
)
def test_what_cannot_be_merged_is_refused(factory: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(ProgramError, match=f"^Network.model {words}"):
        views_of(factory)


@pytest.mark.parametrize("make", [sparse, fine, eye], ids=["sparse", "float8", "dense"])
def test_what_stays_with_each_worker_may_be_anything(make: Callable[[], torch.Tensor]) -> None:
    assert views_of(partial(holding, make, persistent=False)).keys() == {
        "Network/0/model/weight",
        "Network/0/model/bias",
    }


def called() -> nn.Module:
    module = nn.LazyLinear(3)
    module(torch.zeros(1, 2))
    return module


def test_a_lazy_layer_that_was_called_is_as_any_other() -> None:
    assert views_of(called)["Network/0/model/weight"].shape == (3, 2)
