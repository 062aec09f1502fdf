"""The specification of a run: what it trains and with which settings, as given, before anything has happened.

The identity of a run is what it was begun with and must go on with: its data, the order of its vertices, what f may
change. Of the settings all but two may change between two masters, for the reasons given beside them.
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
from master.store.settings import Settings
from master.store.versions import ReplicaState

Shared = NDArray[np.int64]
Labels = NDArray[np.int32]
FACT = "placement"  # what the ledger knows of it: "text", and "sha256", None where vertices were not placed


@dataclass(frozen=True)
class SavedPlacement:
    """The `parts` of the vertices that f runs on; `shared` int64 (parts, parts), the bytes of rows that each two of
    them both touch, on the diagonal those that one touches; and the SHA-256 of the file."""

    parts: PlacedParts
    shared: Shared
    sha256: str

    @property
    def borders(self) -> list[int]:
        """The positions in an epoch at which a part ends and the next begins."""
        borders: list[int] = self.parts.offsets[1:-1].tolist()
        return borders


def keep(path: Path, labels: Labels, sections: Labels, shared: Shared, *, durable: bool = True) -> SavedPlacement:
    """Write down the part of each vertex, `labels` (vertices,), each part of 0 to len(shared) - 1, and its section of
    that, `sections` (vertices,). Raises OSError."""
    arrays = {"part": labels.astype(_smallest(labels)), "section": sections.astype(_smallest(sections))}
    payload = bundle.pieces({"parts": len(shared)}, {**arrays, "shared": shared})
    bundle.write_atomic(path, payload, durable=durable)
    return SavedPlacement(PlacedParts.of(labels, len(shared), sections), shared, bundle.digest(payload))


def _smallest(labels: Labels) -> np.dtype[np.generic]:
    """Return the smallest type for labels: a byte for most."""
    return np.min_scalar_type(int(labels.max(initial=0)))


def read_saved(path: Path, fact: Mapping[str, Any] | None) -> SavedPlacement | None:
    """Return the placement that the ledger names, None where there is none. Raises DamagedError where the file is gone
    or another one, OSError where it cannot be read."""
    sha256 = None if fact is None else fact.get("sha256")
    if sha256 is None:
        return None
    _, arrays = bundle.opened(read_named(path, sha256, "the placement of the vertices"))
    parts = PlacedParts.of(
        arrays["part"], len(arrays["shared"]), arrays.get("section")
    )  # earlier releases had no sections
    return SavedPlacement(parts, arrays["shared"], sha256)


@dataclass(frozen=True)
class RunSpec:
    """The user's program, the graph it made, the settings of the run, and the placement that it was begun with, if
    any."""

    settings: Settings
    program: Program
    graph: Graph
    placement: SavedPlacement | None = None

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
