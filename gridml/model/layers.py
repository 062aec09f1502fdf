"""Properties of a torch module that need special treatment: BatchNorm layers, embedding tables and learning rates.

BatchNorm layers normalise by their batch and keep running statistics. The learning rates are those with which the
module's optimiser is made.
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


# State of a BatchNorm layer, by its names in the state_dict.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def batch_norms(module: Module) -> Iterator[tuple[str, _BatchNorm]]:
    """Yield (path, layer) of every BatchNorm layer of a torch module."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return ((path, layer) for path, layer in module.named_modules() if isinstance(layer, _BatchNorm))


COMPILED = "_orig_mod"  # attribute of a compiled module that holds the original one


class Weight(NamedTuple):
    """A parameter of a torch module, without its values."""

    name: str  # its name in the state_dict
    shape: tuple[int, ...]
    dtype: Any  # a torch.dtype
    is_trained: bool  # True if it requires a gradient


@dataclass(frozen=True)
class Layers:
    """Properties of a declared module."""

    by_batch: bool = False  #: True if it has a BatchNorm layer
    #: weights of nn.Embedding and nn.EmbeddingBag that no other layer uses, by their names in the state_dict
    tables: frozenset[str] = frozenset()
    #: distinct learning rates of the optimiser's groups; () without an optimiser, None if making the optimiser fails
    rates: tuple[float, ...] | None = ()
    #: all parameters, in the module's order; None if the module cannot be made
    weights: tuple[Weight, ...] | None = field(default=(), compare=False)


def weights_of(made: Module) -> tuple[Weight, ...]:
    """Return the parameters of a torch module, in its order."""
    return tuple(Weight(plain(n), tuple(p.shape), p.dtype, p.requires_grad) for n, p in made.named_parameters())


def plain(name: str) -> str:
    """Return a parameter's name, or a layer's path, without the parts that torch.compile inserts."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


@functools.cache
def layers_of(declared: module) -> Layers:
    """Make the module once and return its properties. The random number state is restored.

    If the module cannot be made, `weights` is None. The error is raised later, when the module is made for training.
    """
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
    except BaseException:  # the error is raised later, when the optimiser is made for training
        return None


def tables_of(of: VertexType, index: int) -> tuple[str, ...]:
    """Return the embedding tables of vertex `index` of a type with modules, by their names in files."""
    return tuple(f"{of.name}/{index}/{f}/{t}" for f, m in of.modules.items() for t in sorted(layers_of(m).tables))


def embedding_tables(made: Module) -> Iterator[str]:
    """Yield the names of the trained embedding weights of a torch module. A weight that is shared with another layer,
    such as a language model's tied output layer, is no table here, because every vertex gives a gradient to each of its
    rows."""
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
