"""What a push stands for: every tensor of the vertices that it names, from what it brings and what its base holds."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from gridml.protocol.push import ModuleTensors, PushContent, ReplicaPart, VertexKey
from gridml.protocol.unchanged import put_back
from master.store.versions import Base

Array = NDArray[Any]


def whole(content: PushContent, base: Base) -> ReplicaPart:
    """Return the part of the replica that was trained from `base`, with all tensors of its vertices.

    Nothing is allocated for a step that does not fit. Raises ValueError for one.
    """
    held = {key: state.tensors for key, state in base.modules.items()}
    modules: dict[VertexKey, ModuleTensors] = dict(content.replica.modules)
    for key, steps in content.steps.items():
        taken: dict[str, Array] = {}
        for name, step in steps.items():
            if key not in held or name not in held[key]:
                raise ValueError(f"the replica has no tensor {name}")
            if held[key][name].dtype.kind != "f":
                raise ValueError(f"{name} is {held[key][name].dtype} and comes in {step.form.name}; expected its value")
            try:
                taken[name] = step.form.taken(step.codes, held[key][name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        modules[key] = {**modules.get(key, {}), **taken}
    return ReplicaPart(put_back(modules, held), content.replica.rows, moments=content.replica.moments)
