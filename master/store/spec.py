"""The specification of a run: what it trains and with which settings, as given, before anything has happened.

The identity of a run is what it was begun with and must go on with: its data, the order of its vertices, what f may
change. Of the settings all but two may change between two masters, for the reasons given beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from gridml.engine.modules import Modules
from gridml.model.graph import Graph
from gridml.model.order import Shuffle
from gridml.model.program import Program
from master.state.options import described
from master.store.kept_placement import KeptPlacement
from master.store.settings import Settings
from master.store.versions import ReplicaState


@dataclass(frozen=True)
class RunSpec:
    """The user's program, the graph it made, the settings of the run, and the placement that it was begun with, if
    any."""

    settings: Settings
    program: Program
    graph: Graph
    placement: KeptPlacement | None = None

    @property
    def shuffle(self) -> Shuffle:
        """In which order an epoch goes through the vertices."""
        return shuffle_of(self.program, self.graph)


def shuffle_of(program: Program, graph: Graph) -> Shuffle:
    """In which order an epoch goes through the vertices: as the program says, or as suits its graph."""
    if program.shuffle is not None:
        return program.shuffle
    if program.bsp:
        return "none"
    return "all" if all(table.type.modules for table in graph.replicated) else "block"


FIXED = {each.field: each.option.fixed for each in described(Settings) if each.option.fixed}
"""The settings that a run must go on with, and why."""


def identity(spec: RunSpec) -> dict[str, Any]:
    """Return what is compared when a run goes on. Reads all of the graph's data once."""
    program, graph = spec.program, spec.graph
    return {
        "graph": graph.fingerprint(),
        "data": graph.digests(),
        "order": {
            "driver": program.update.driver.__name__,
            "shuffle": spec.shuffle,
            "supersteps": program.bsp,
            "overlap": program.overlap,
            "placed": None if spec.placement is None else spec.placement.sha256,
            **{name: getattr(spec.settings, name) for name in FIXED},
        },
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in words what differs between two identities."""
    before, after = dict(_flat(then)), dict(_flat(now))
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    return [_in_words(path, before.get(path), after.get(path)) for path in changed]


def tensor_differences(graph: Graph, state: ReplicaState) -> list[str]:
    """Return in words how the tensors that the program's factories make differ from those of a version.

    Every type's first vertex is made, and those of the same type are alike. Raises what a factory raises.
    """
    differ = []
    for table in graph.replicated:
        if not table.type.modules or (table.type.name, 0) not in state.modules:
            continue
        then = {name: _form(tensor) for name, tensor in state.modules[table.type.name, 0].tensors.items()}
        now = {name: _form(tensor) for name, tensor in Modules(table.type).views(0).items()}
        differ += [
            f"{name} was {then.get(name, 'not there')}, and is {now.get(name, 'not there')}"
            for name in {**then, **now}
            if then.get(name) != now.get(name)
        ]
    return differ


def _form(tensor: NDArray[Any]) -> str:
    return f"{tensor.dtype} {tensor.shape}"


def _in_words(path: tuple[str, ...], then: Any, now: Any) -> str:
    if path[0] == "data" and then is not None and now is not None:
        return f"{path[1]} holds other values than then (SHA-256 {then[:12]}, now {now[:12]})"
    return f"{'.'.join(path[1:])} was {then}, and is {now}"


def _flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(value, Mapping):
        yield path, value
        return
    for name, part in value.items():
        yield from _flat(part, (*path, name))
