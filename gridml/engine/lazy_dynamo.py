"""torch's compiler, loaded when something of it is used.

An optimiser imports `torch._dynamo`, and sympy with it, only to say that it is not to be compiled. That takes longer
than importing torch, at every start of a worker. What stands in for it says the same without it, and becomes the real
module, in place, as soon as anything else is wanted.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any


class _Postponed(types.ModuleType):
    """Loads itself at the first look at an attribute that it has not; `__path__` too, so importing parts of it does."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__dict__["_real"]
        self.__class__ = types.ModuleType  # type: ignore[assignment]
        self.__dict__.update(
            __spec__=spec,
            __path__=spec.submodule_search_locations,
            __loader__=spec.loader,
            __file__=spec.origin,
            __package__=spec.name,
        )
        spec.loader.exec_module(self)
        return getattr(self, name)


def import_dynamo_lazily() -> None:
    """Put a stand-in for the compiler into this process, unless it is loaded already. A torch without one stays
    alone."""
    import torch

    if "torch._dynamo" in sys.modules:
        return
    spec = importlib.util.find_spec("torch._dynamo")
    if spec is None or spec.loader is None:
        return
    module: Any = _Postponed(spec.name)
    module.__spec__ = module._real = spec
    module.__file__ = spec.origin  # `inspect` looks at that of every module, in the midst of other imports
    module.graph_break = _nothing
    module.disable = _identity
    sys.modules[spec.name] = module
    torch._dynamo = module


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing: outside a compiled function there is no graph to break."""


def _identity(function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
    """Return the function as it is: what is not compiled needs nobody to keep the compiler away."""
    return _identity if function is None else function
