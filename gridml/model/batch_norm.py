"""BatchNorm: layers that normalise by their batch, and keep running statistics of what they have seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.nn.modules.batchnorm import _BatchNorm

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # a layer's, by their names in its state_dict


def batch_norms(module: Module) -> Iterator[tuple[str, _BatchNorm]]:
    """The BatchNorm layers of a torch module, each by its path in it."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return ((path, layer) for path, layer in module.named_modules() if isinstance(layer, _BatchNorm))
