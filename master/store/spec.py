"""The specification of a run (program, graph, settings, placement), and its identity, which a resume must match.

The identity covers the data, the order of the vertices and the mutable fields. A resume is allowed to change all
settings except the fixed ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.engine.modules import Modules
from gridml.model.graph import Graph
from gridml.model.order import PlacedParts, Shuffle
from gridml.model.program import Program
from gridml.protocol import bundle
from master.state.options import described
from master.store.rundir import read_named
from master.store.settings import RunSettings
from master.store.versions import ReplicaState

Shared = NDArray[np.int64]
Labels = NDArray[np.int32]
FACT = "placement"  # key of a fact: {"text", "sha256" of the placement file, None if vertices are not placed}


@dataclass(frozen=True)
class SavedPlacement:
    """The placement of the driving vertices."""

    parts: PlacedParts
    shared: Shared  # int64 (parts, parts): bytes of rows touched by both parts; on the diagonal, by the part
    sha256: str  # of the placement file

    @property
    def borders(self) -> list[int]:
        """Positions in an epoch at which a part ends and the next begins."""
        borders: list[int] = self.parts.offsets[1:-1].tolist()
        return borders


def save(path: Path, labels: Labels, sections: Labels, shared: Shared, *, durable: bool = True) -> SavedPlacement:
    """Write a placement. Raises OSError.

    `labels` (vertices,) is the part of each vertex, 0 to len(shared) - 1. `sections` (vertices,) is the section of
    each vertex within its part.
    """
    arrays = {"part": labels, "section": sections}  # in the smallest dtype for labels, usually one byte
    small = {name: each.astype(np.min_scalar_type(int(each.max(initial=0)))) for name, each in arrays.items()}
    payload = bundle.pieces({"parts": len(shared)}, {**small, "shared": shared})
    bundle.write_atomic(path, payload, durable=durable)
    return SavedPlacement(PlacedParts.of(labels, len(shared), sections), shared, bundle.digest(payload))


def read_saved(path: Path, fact: Mapping[str, Any] | None) -> SavedPlacement | None:
    """Read the placement that a fact of the ledger names, None if it names none. Raises DamagedError if the file is
    missing or has another SHA-256, OSError if it cannot be read."""
    sha256 = None if fact is None else fact.get("sha256")
    if sha256 is None:
        return None
    _, arrays = bundle.opened(read_named(path, sha256, "the placement of the vertices"))
    # Files of earlier releases have no sections.
    parts = PlacedParts.of(arrays["part"], len(arrays["shared"]), arrays.get("section"))
    return SavedPlacement(parts, arrays["shared"], sha256)


@dataclass(frozen=True)
class RunSpec:
    """The inputs of a run."""

    settings: RunSettings
    program: Program
    graph: Graph  # built by the program
    placement: SavedPlacement | None = None  # made when the run began

    @property
    def epochs(self) -> int:
        """Epochs to train, if the run does not stop early."""
        return self.settings.epochs or self.program.epochs

    @property
    def shuffle(self) -> Shuffle:
        """The order in which an epoch visits the vertices."""
        return shuffle_of(self.program, self.graph)


def shuffle_of(program: Program, graph: Graph) -> Shuffle:
    """Return the order in which an epoch visits the vertices: the program's, or the default for its graph."""
    if program.shuffle is not None:
        return program.shuffle
    if program.consistency.is_bsp or program.shape.drawn is not None:  # the order says nothing
        return "none"
    return "all" if all(table.type.modules for table in graph.replicated) else "block"


FIXED = {each.field: each.option.fixed for each in described(RunSettings) if each.option.fixed}
"""Settings that a resume must not change, by name, with the reason for each."""


def identity(spec: RunSpec) -> dict[str, Any]:
    """Return the identity of a run, as JSON. Reads all of the graph's data once."""
    program, graph = spec.program, spec.graph
    return {
        "graph": graph.fingerprint(),
        "data": graph.digests(),
        "order": {
            "driver": program.shape.driver.__name__,
            "shuffle": spec.shuffle,
            "supersteps": program.consistency.is_bsp,
            "overlap": program.overlap,
            "placed": None if spec.placement is None else spec.placement.sha256,
            **{name: getattr(spec.settings, name) for name in FIXED},
            **_division(program, graph),
        },
    }


def _division(program: Program, graph: Graph) -> dict[str, Any]:
    division = program.division(graph)
    return {} if division is None else division.facts(program.consistency)


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the differences between two identities."""
    before, after = dict(_flat(then)), dict(_flat(now))
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    return [_in_words(path, before.get(path), after.get(path)) for path in changed]


def tensor_differences(graph: Graph, state: ReplicaState) -> list[str]:
    """Describe how the tensors of the program's factories differ from those of a version. Raises what a factory raises.

    Only the first vertex of each type is made, because all vertices of a type have the same names, dtypes and shapes.
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
