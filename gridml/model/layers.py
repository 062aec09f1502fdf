"""The layers of a module that matter beyond their weights: BatchNorm, tables of embeddings, and learning rates.

BatchNorm layers normalise by their batch and keep running statistics of what they have seen. The learning rates are
those that the module's optimiser is made with.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gridml.errors import Interruption
from gridml.model.vertex import VertexType, module

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.nn.modules.batchnorm import _BatchNorm


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # a layer's, by their names in its state_dict


def batch_norms(module: Module) -> Iterator[tuple[str, _BatchNorm]]:
    """The BatchNorm layers of a torch module, each by its path in it."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return ((path, layer) for path, layer in module.named_modules() if isinstance(layer, _BatchNorm))


COMPILED = "_orig_mod"  # where a compiled module has the one that it was made of


class Weight(NamedTuple):
    """A parameter of a torch module, without its values."""

    name: str  # as in the state_dict
    shape: tuple[int, ...]
    dtype: Any  # torch's
    is_trained: bool  # it asks for a gradient


@dataclass(frozen=True)
class Layers:
    """`by_batch`: whether a layer takes statistics of its batch. `tables` are the names, as in its state_dict, of the
    weights whose rows are looked up by number: of nn.Embedding and nn.EmbeddingBag, and of nothing else at once.
    `rates` are the distinct learning rates of the optimiser's groups, () without an optimiser, None where it cannot be
    made."""

    by_batch: bool = False
    tables: frozenset[str] = frozenset()
    rates: tuple[float, ...] | None = ()
    #: all parameters, in the module's order; None where the module cannot be made
    weights: tuple[Weight, ...] | None = field(default=(), compare=False)


def weights_of(made: Module) -> tuple[Weight, ...]:
    """Return the parameters of a torch module, in its order."""
    return tuple(Weight(plain(n), tuple(p.shape), p.dtype, p.requires_grad) for n, p in made.named_parameters())


def plain(name: str) -> str:
    """A parameter's name, or a layer's path, without what torch.compile puts into it."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


@functools.cache
def layers_of(declared: module) -> Layers:
    """Look at a module that is made for it; the random numbers are put back. That it cannot be made is said where it is
    needed."""
    import torch

    with torch.random.fork_rng(devices=[]):
        try:
            made = declared.factory()
            return Layers(
                any(True for _ in batch_norms(made)),
                frozenset(embedding_tables(made)),
                _rates(declared, made),
                weights_of(made),
            )
        except Interruption:
            raise
        except BaseException:
            return Layers(rates=None, weights=None)


def _rates(declared: module, made: Module) -> tuple[float, ...] | None:
    if declared.optimiser is None:
        return ()
    try:
        groups = declared.optimiser(made.parameters()).param_groups
        return tuple(dict.fromkeys(float(group["lr"]) for group in groups))
    except Interruption:
        raise
    except BaseException:  # that it cannot be made is told where it is made to train
        return None


def tables_of(of: VertexType, index: int) -> tuple[str, ...]:
    """The tables of embeddings of vertex `index` of a type with modules, with the names that they have in files."""
    return tuple(f"{of.name}/{index}/{f}/{t}" for f, m in of.modules.items() for t in sorted(layers_of(m).tables))


def embedding_tables(made: Module) -> Iterator[str]:
    """The trained weights of a torch module's embeddings. One that is another layer's, too, as where a language model
    predicts with the table that it reads with, is pulled by every vertex, and no table."""
    from torch.nn import Embedding, EmbeddingBag

    elsewhere = {
        id(parameter)
        for layer in made.modules()
        if not isinstance(layer, Embedding | EmbeddingBag)
        for parameter in layer.parameters(recurse=False)
    }
    for path, layer in made.named_modules():
        if not isinstance(layer, Embedding | EmbeddingBag) or id(layer.weight) in elsewhere:
            continue
        if layer.weight.requires_grad:
            yield plain(f"{path}.weight".lstrip("."))
