"""Lazy loading of torch's compiler.

An optimiser imports `torch._dynamo`, and with it sympy, only to mark functions that must not be compiled. At every
start of a worker that would take longer than the import of torch. The stand-in module here handles those marks. On the
first access to anything else it turns into the real module, in place.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any


class _Postponed(types.ModuleType):
    """Loads the real module on the first access to a missing attribute. `__path__` is missing as well, so importing a
    submodule, which reads it, loads the real module."""

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
    """Install the stand-in for the compiler, unless the compiler is loaded already or this torch has none."""
    import torch

    if "torch._dynamo" in sys.modules:
        return
    spec = importlib.util.find_spec("torch._dynamo")
    if spec is None or spec.loader is None:
        return
    module: Any = _Postponed(spec.name)
    module.__spec__ = module._real = spec
    module.__file__ = spec.origin  # set, as `inspect` reads it of every loaded module and must not cause the load
    module.graph_break = _nothing
    module.disable = _identity
    sys.modules[spec.name] = module
    torch._dynamo = module


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing: outside a compiled function there is no graph to break."""


def _identity(function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
    """Return the function unchanged: while nothing is compiled, `disable` has no effect."""
    return _identity if function is None else function
