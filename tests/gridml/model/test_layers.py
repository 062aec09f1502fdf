"""Layers of a module with special treatment: BatchNorm, and embedding tables."""

from __future__ import annotations

import torch
from torch import nn

import gridml
from gridml.model.layers import COMPILED, Layers, layers_of


class Reader(nn.Module):
    """Embeddings of every kind; words are predicted with the table of their input."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(7, 4)
        self.place = nn.Embedding(5, 4)
        self.bags = nn.ModuleList([nn.EmbeddingBag(3, 4)])
        self.frozen = nn.Embedding(2, 4)
        self.frozen.weight.requires_grad_(False)
        self.word.weight.requires_grad_(True)
        self.predicted = nn.Linear(4, 7, bias=False)
        self.predicted.weight = self.word.weight


def test_tables_are_trained_embeddings_that_are_nothing_else() -> None:
    assert layers_of(gridml.module(Reader)) == Layers(False, frozenset({"place.weight", "bags.0.weight"}))


def test_an_embedding_may_be_all_that_a_module_is() -> None:
    assert layers_of(gridml.module(lambda: nn.Embedding(3, 2))).tables == {"weight"}


def test_names_are_those_of_what_was_compiled() -> None:
    def compiled() -> nn.Module:
        outer = nn.Module()
        outer.add_module(COMPILED, nn.Embedding(3, 2))
        return nn.Sequential(outer, nn.BatchNorm1d(2))

    made = gridml.module(compiled)
    assert layers_of(made) == Layers(True, frozenset({"0.weight"}))


def test_a_module_that_cannot_be_made_has_none_and_draws_no_random_number() -> None:
    def broken() -> nn.Module:
        torch.rand(3)
        raise ValueError("no such network")

    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    assert layers_of(gridml.module(broken)) == Layers(rates=None)
    assert torch.equal(torch.random.get_rng_state(), state)
