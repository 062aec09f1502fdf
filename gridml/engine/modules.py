"""The torch modules of replicated vertices: made once per process, seen as named numpy arrays on the same memory."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.model.vertex import Vertex, VertexId, VertexType

Array = NDArray[Any]


class Modules:
    """All module vertices of one type that this process holds; positions are vertex indices.

    Tensor names are "Type/index/field/name in state_dict".
    """

    def __init__(self, kind: VertexType) -> None:
        self.kind = kind
        self._made: dict[int, dict[str, Any]] = {}
        self._optimisers: dict[int, list[Any]] = {}
        self._base_rates: dict[int, list[list[float]]] = {}

    def make(self, index: int) -> None:
        """Make vertex `index` unless it is there. Raises ProgramError when its factory makes no module."""
        if index in self._made:
            return
        import torch

        made, optimisers = {}, []
        for name, declared in self.kind.modules.items():
            found = declared.factory()
            if not isinstance(found, torch.nn.Module):
                raise ProgramError(
                    f"the factory of {self.kind.name}.{name} made a {type(found).__name__}; expected a torch.nn.Module."
                )
            found.average_with = MethodType(average_with, found)  # type: ignore[assignment]
            made[name] = found
            if declared.optimiser is not None:
                optimisers.append(declared.optimiser(found.parameters()))
        self._made[index] = made
        self._optimisers[index] = optimisers
        self._base_rates[index] = [[group["lr"] for group in o.param_groups] for o in optimisers]

    def vertex(self, index: int) -> Vertex:
        self.make(index)
        return self.kind.cls._view(self, index)

    def views(self, index: int) -> dict[str, Array]:
        """Every tensor of vertex `index` as a numpy array on the module's own memory.

        Tied weights, one tensor under several names, go by the first of them: rebased twice, they would be wrong.
        """
        self.make(index)
        found = {}
        seen = set()
        for field, made in self._made[index].items():
            for name, tensor in made.state_dict().items():
                memory = tensor.data_ptr(), tensor.shape, tensor.stride()
                if tensor.numel() and memory in seen:
                    continue
                seen.add(memory)
                try:
                    found[f"{self.kind.name}/{index}/{field}/{name}"] = tensor.detach().numpy()
                except TypeError as error:
                    raise ProgramError(
                        f"{self.kind.name}.{field} holds {name} as {tensor.dtype} on {tensor.device}; expected a dtype "
                        f"numpy has, on the CPU. Keep the master copy in float32."
                    ) from error
        return found

    def judge(self) -> None:
        """Put every module into the mode for judging: no dropout, BatchNorm by its running statistics."""
        for made in self._made.values():
            for module in made.values():
                module.eval()

    def set_rate(self, factor: float) -> None:
        """Every optimiser's learning rate becomes the user's times `factor`."""
        for index, optimisers in self._optimisers.items():
            for optimiser, rates in zip(optimisers, self._base_rates[index], strict=True):
                for group, rate in zip(optimiser.param_groups, rates, strict=True):
                    group["lr"] = rate * factor

    def forget_optimisers(self) -> None:
        """Start every optimiser's state afresh, after work that was refused."""
        for index, made in self._made.items():
            declared = [d.optimiser for d in self.kind.modules.values()]
            self._optimisers[index] = [
                o(m.parameters()) for o, m in zip(declared, made.values(), strict=True) if o is not None
            ]

    def identify(self, at: int) -> VertexId:
        return VertexId(self.kind.name, at)

    def read(self, name: str, at: int) -> Any:
        return self._made[at][name]

    def write(self, name: str, at: int, value: Any) -> None:
        """Give the vertex the state of another module, or of a state dict."""
        mine = self._made[at][name]
        if value is not mine:
            mine.load_state_dict(value.state_dict() if hasattr(value, "state_dict") else value)

    def neighbours(self, name: str, at: int) -> list[Vertex]:
        return []

    def weights(self, name: str, at: int) -> list[Any]:
        return []

    def optimisers(self, at: int) -> list[Any]:
        return self._optimisers[at]


def average_with(self: Any, other: Any, weight: float) -> None:
    """Move every floating-point tensor of a module by `weight` towards the other's; integer ones take the maximum."""
    import torch

    with torch.no_grad():
        theirs = other.state_dict()
        for name, mine in self.state_dict().items():
            if mine.is_floating_point():
                mine.lerp_(theirs[name], weight)
            else:
                mine.copy_(torch.maximum(mine, theirs[name]))


class ModuleRows:
    """The module vertices one chunk leads to, by their position in the chunk.

    (type, index) of those that f writes or steps goes into `used`.
    """

    def __init__(self, modules: Modules, ids: NDArray[np.int64], used: set[VertexId]) -> None:
        self.kind = modules.kind
        self.ids = ids
        self._modules = modules
        self._used = used
        for index in ids:
            modules.make(int(index))

    def identify(self, at: int) -> VertexId:
        return self._modules.identify(int(self.ids[at]))

    def read(self, name: str, at: int) -> Any:
        return self._modules.read(name, int(self.ids[at]))

    def write(self, name: str, at: int, value: Any) -> None:
        self._used.add(self.identify(at))
        self._modules.write(name, int(self.ids[at]), value)

    def neighbours(self, name: str, at: int) -> list[Vertex]:
        return []

    def weights(self, name: str, at: int) -> list[Any]:
        return []

    def optimisers(self, at: int) -> list[Any]:
        self._used.add(self.identify(at))
        return self._modules.optimisers(int(self.ids[at]))
