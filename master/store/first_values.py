"""What a run begins from: the replica of another run, or tensors in a file, instead of what factories make."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gridml.aggregates import VertexState
from gridml.engine.modules import Modules
from gridml.errors import GridmlError, UsageError
from gridml.model.graph import Graph
from gridml.protocol import bundle
from gridml.protocol.push import Array, module_key
from gridml.protocol.text import described
from master.store.kept_replica import FINAL, read_replica, replica_named
from master.store.versions import ReplicaState

MOST_SHOWN = 6  # names that do not fit
_EXPECTED = (
    "expected a run's directory (RUN, or RUN:best, RUN:v57, RUN:e3), or a file of tensors, .safetensors, or .pt with a "
    "state dict"
)


@dataclass(frozen=True)
class FirstValues:
    """Tensors by names: a replica's own, or plain keys of the state dict of the only module that there is."""

    source: str
    tensors: Mapping[str, Array]

    @property
    def plain(self) -> bool:
        """Whether the names are keys of a state dict."""
        return not self.tensors or any(not _is_whole(name) for name in self.tensors)


@dataclass(frozen=True)
class Begun:
    """A replica before any training, `taken` of whose `total` tensors come from elsewhere."""

    state: ReplicaState
    taken: int
    total: int


def _is_whole(name: str) -> bool:
    try:
        module_key(name)
    except ValueError:
        return False
    return True


def find_source(text: str) -> tuple[Path, str | None]:
    """Return the run and which of its replicas a text names, or a file and None. Raises UsageError for neither."""
    path, which = replica_named(text)
    if which is not None:
        return path, which
    if path.is_dir():
        return path, FINAL
    if path.is_file():
        return path, None
    raise UsageError(f"--init-from is {text!r}, and nothing is there; {_EXPECTED}.")


def located(text: str) -> str:
    """Return what a text names, wherever this process works later. Raises UsageError."""
    path, which = find_source(text)
    return str(path.absolute()) if which is None else f"{path.absolute()}:{which}"


def read_first_values(text: str) -> FirstValues:
    """Return the tensors of a run or of a file. Raises UsageError for what has none, and as reading a run does."""
    path, which = find_source(text)
    if which is not None:
        return FirstValues(text, read_replica(path, which).tensors)
    try:
        if zipfile.is_zipfile(path):
            return FirstValues(text, _of_torch(path))
        return FirstValues(text, bundle.plain_tensors(path.read_bytes()))
    except GridmlError:
        raise
    except pickle.UnpicklingError as error:  # torch says at length how to run what is in the file
        raise UsageError(
            f"--init-from is {text!r}, which holds other objects than tensors, such as a whole module or an optimiser, "
            f"and nothing in a file is executed; expected what torch.save(module.state_dict(), file) writes."
        ) from error
    except Exception as error:  # whatever torch says of a file
        raise UsageError(f"--init-from is {text!r}, which cannot be read: {described(error)}; {_EXPECTED}.") from error


def _of_torch(path: Path) -> dict[str, Array]:
    """The tensors of a state dict that torch saved. Nothing in the file is executed. Raises what torch does."""
    import torch

    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, Mapping) or not all(torch.is_tensor(tensor) for tensor in state.values()):
        holds = (
            f"with the keys {', '.join(map(str, [*state][:4]))}" if isinstance(state, Mapping) else "of another kind"
        )
        raise UsageError(
            f"--init-from is {str(path)!r}, which holds no state dict but an object {holds}; expected what "
            "torch.save(module.state_dict(), file) writes."
        )
    return {str(name): (t.float() if t.dtype == torch.bfloat16 else t).numpy() for name, t in state.items()}


def begin_from(graph: Graph, state: ReplicaState, values: FirstValues, *, partial: bool) -> Begun:
    """Return a replica, as factories and the graph made it, with the tensors of `values` instead of its own of the same
    names; all of them, or where `partial`, those whose names and shapes fit. Values of floating point are converted.

    Raises UsageError for names that only one of them has, for another shape or kind, and for NaN and infinity.
    """
    own = _own_tensors(state)
    called = _keys(graph) if values.plain else _whole_names(graph, own)
    taken: dict[str, Array] = {}
    odd: list[str] = []
    for name, tensor in values.tensors.items():
        first = called.get(_without_wrappers(name))
        if first is None:
            odd.append(f"{name} {tensor.shape} is none of the program's")
        elif (problem := _problem(own[first], tensor)) is not None:
            odd.append(f"{name} {problem}")
        else:
            taken[first] = tensor.astype(own[first].dtype)
    there = {called.get(_without_wrappers(name)) for name in values.tensors}
    odd += [f"{name} {own[name].shape} is not there" for name in own if name not in there]
    if (odd and not partial) or not taken:
        raise UsageError(_refusal(values, odd, len(own), partial=partial))
    return Begun(_with(state, taken), len(taken), len(own))


def _refusal(values: FirstValues, odd: list[str], total: int, *, partial: bool) -> str:
    more = f"; {len(odd) - MOST_SHOWN} more" if len(odd) > MOST_SHOWN else ""
    listed = f": {'; '.join(odd[:MOST_SHOWN])}{more}" if odd else ""
    if partial:
        return f"--init-from is {values.source!r}, of which nothing fits the program's {total:,} tensors{listed}."
    return (
        f"--init-from is {values.source!r}, which does not fit the program's {total:,} tensors{listed}. Give "
        "--init-partial, too, to take those that fit and begin the others as the program makes them."
    )


def _without_wrappers(name: str) -> str:
    """A name without what torch.compile puts into it."""
    return name.replace("_orig_mod.", "")


def _own_tensors(state: ReplicaState) -> dict[str, Array]:
    arrays = {f"{name}/{field}": column for name, fields in state.arrays.items() for field, column in fields.items()}
    return {**{n: t for vertex in state.modules.values() for n, t in vertex.tensors.items()}, **arrays}


def _keys(graph: Graph) -> dict[str, str]:
    """Return the replica's name of each key of the program's only module. Raises UsageError where there are others."""
    tables = [table for table in graph.replicated if table.type.modules]
    if len(tables) != 1 or tables[0].count != 1 or len(tables[0].type.modules) != 1:
        raise UsageError(
            "--init-from names a file with the keys of one state dict, and the program has several modules, or none. "
            "Call its tensors Type/index/field/KEY, as final.safetensors of a run does."
        )
    ((_, names),) = Modules(tables[0].type).names(0).items()
    return names


def _whole_names(graph: Graph, own: Mapping[str, Array]) -> dict[str, str]:
    """Return the replica's name of each tensor, which differs from its own where it is tied to an earlier one."""
    called = {name: name for name in own}
    for table in graph.replicated:
        modules = Modules(table.type)
        for index in range(table.count) if table.type.modules else ():
            for field, names in modules.names(index).items():
                called |= {f"{table.type.name}/{index}/{field}/{key}": first for key, first in names.items()}
            modules.keep_only(())
    return called


def _problem(own: Array, tensor: Array) -> str | None:
    """Return why a tensor cannot stand for one of the program's, None if it can."""
    if tensor.shape != own.shape:
        return f"is {tensor.shape} there, and {own.shape} here"
    if tensor.dtype != own.dtype and (tensor.dtype.kind, own.dtype.kind) != ("f", "f"):
        return f"is {tensor.dtype} there, and {own.dtype} here"
    if own.dtype.kind == "f" and np.isfinite(own).all() and not np.isfinite(tensor).all():
        return "holds NaN or infinity"
    return None


def _with(state: ReplicaState, taken: Mapping[str, Array]) -> ReplicaState:
    modules = {
        key: VertexState({n: taken.get(n, t) for n, t in vertex.tensors.items()}, dict(vertex.buffers))
        for key, vertex in state.modules.items()
    }
    arrays = {
        name: {field: taken.get(f"{name}/{field}", column) for field, column in fields.items()}
        for name, fields in state.arrays.items()
    }
    return replace(state, modules=modules, arrays=arrays)
