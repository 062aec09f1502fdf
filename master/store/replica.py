"""The master replica: the authoritative value of every replicated vertex, its versions on disk, and what changed when.

Tensor names are "Type/index/field/parameter" for modules, "Type/field" for arrays (one row per vertex), and the same
with "#buffer" for what a merge rule must remember.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.engine.lazy_dynamo import import_dynamo_lazily
from gridml.engine.modules import Modules
from gridml.errors import LedgerError
from gridml.model.graph import Graph
from gridml.protocol import bundle

Array = NDArray[Any]
Ids = NDArray[np.int64]
Touched = Mapping[str, Ids]  # by type: indices of the replicated vertices that something needs


def initial(graph: Graph, seed: int) -> dict[str, Array]:
    """The replica before any training: modules from their factories under `seed`, arrays as they were added."""
    found: dict[str, Array] = {}
    for table in graph.replicated:
        if table.type.modules:
            import torch

            import_dynamo_lazily()
            torch.manual_seed(seed)
            modules = Modules(table.type)
            for index in range(table.count):
                found.update({name: view.copy() for name, view in modules.views(index).items()})
        else:
            found.update({f"{table.type.name}/{name}": np.array(column) for name, column in table.columns.items()})
    return found


def piece(name: str) -> tuple[str, int | None]:
    """(type, vertex index) of a tensor, the index None for an array field that holds the rows of all vertices."""
    parts = name.split("#", 1)[0].split("/")
    return parts[0], int(parts[1]) if len(parts) > 2 else None


class Versions:
    """Version files in a folder: `v00000012.safetensors`, whole and durable before the ledger names them."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder = folder
        self._durable = durable
        folder.mkdir(exist_ok=True)

    def path(self, version: int) -> Path:
        return self.folder / f"v{version:08d}.safetensors"

    def write(self, version: int, tensors: Mapping[str, Array], changed: Mapping[str, Array]) -> str:
        """Write a version and return its SHA-256; `changed` is kept beside the tensors. Raises OSError."""
        extra = {f"@changed/{name}": array for name, array in changed.items()}
        payload = bundle.encode({"version": version}, {**tensors, **extra})
        bundle.write_atomic(self.path(version), payload, durable=self._durable)
        return bundle.digest(payload)

    def read(self, version: int, sha256: str | None) -> tuple[dict[str, Array], dict[str, Array]]:
        """(tensors, changed) of a version. Raises LedgerError when the file is not what the ledger says."""
        try:
            payload = self.path(version).read_bytes()
        except OSError as error:
            raise LedgerError(f"version {version} of the replica cannot be read: {error}") from error
        if sha256 is not None and bundle.digest(payload) != sha256:
            raise LedgerError(f"{self.path(version)} is damaged: its SHA-256 is not the one in the ledger.")
        _, tensors = bundle.decode(payload)
        changed = {n.removeprefix("@changed/"): t for n, t in tensors.items() if n.startswith("@changed/")}
        return {n: t for n, t in tensors.items() if not n.startswith("@changed/")}, changed

    def remove(self, version: int) -> None:
        self.path(version).unlink(missing_ok=True)


class Replica:
    """The newest version in memory, and the older ones that pushes may still name as their base.

    `changed[type]` int64 (count,): the version in which each vertex changed last. Staleness is per vertex: a vertex
    that did not change since a push's base is merged as if nobody else had trained.
    """

    def __init__(self, graph: Graph, versions: Versions) -> None:
        self._versions = versions
        self._graph = graph
        self.version = -1
        self.tensors: dict[str, Array] = {}
        self.changed: dict[str, Array] = {}
        self._bases: dict[int, dict[str, Array]] = {}
        self._merging = False  # tensors are ahead of `version`

    def start(self, tensors: dict[str, Array]) -> str:
        """Make version 0 and return its SHA-256."""
        self.tensors = tensors
        self.changed = {t.type.name: np.zeros(t.count, np.int64) for t in self._graph.replicated}
        self.version = 0
        return self._versions.write(0, self.tensors, self.changed)

    def load(self, version: int, sha256: str | None) -> None:
        self.tensors, self.changed = self._versions.read(version, sha256)
        self.version = version

    def base(self, version: int, sha256: str | None) -> dict[str, Array]:
        """The tensors of an older version. Module tensors are never changed in place, so versions share them."""
        if version == self.version and version not in self._bases and not self._merging:
            return self.tensors
        if version not in self._bases:
            self._bases[version] = self._versions.read(version, sha256)[0]
        return self._bases[version]

    def put(self, new: Mapping[str, Array], rows: Mapping[str, Ids], version: int) -> None:
        """Take merged values into what will be `version`: module tensors whole, array fields by row."""
        self._merging = True
        for name, values in new.items():
            kind, index = piece(name)
            if index is None:
                at = rows[kind]
                self.tensors[name][at] = values
                self.changed[kind][at] = version
            else:
                self.tensors[name] = values
                self.changed[kind][index] = version

    def begin_version(self) -> None:
        """Keep what is newest now as a base, before a group of pushes is merged on top of it."""
        if any(table.type.arrays for table in self._graph.replicated):
            return  # rows are changed in place: a base is read from its file when a push names it
        self._bases[self.version] = dict(self.tensors)

    def commit_version(self, version: int) -> str:
        """Write what was put as `version`; returns its SHA-256. Raises OSError."""
        self.version, self._merging = version, False
        return self._versions.write(version, self.tensors, self.changed)

    def forget(self, version: int) -> None:
        self._bases.pop(version, None)
        self._versions.remove(version)

    def outgoing(self, touched: Touched, have: int, fresh: Touched) -> dict[str, Array]:
        """What a worker at version `have` lacks: vertices in `touched` that changed since, and all of `fresh`."""
        sent: dict[str, Array] = {}
        wanted = {}
        for kind in {*touched, *fresh}:
            none = np.empty(0, np.int64)
            old = touched.get(kind, none)
            wanted[kind] = np.union1d(old[self.changed[kind][old] > have], fresh.get(kind, none))
        for name, values in self.tensors.items():
            kind, index = piece(name)
            if "#" in name or kind not in wanted:
                continue
            if index is not None and index in wanted[kind]:
                sent[name] = values
            elif index is None and len(wanted[kind]):
                sent[name] = values[wanted[kind]]
                sent[f"@rows/{kind}"] = wanted[kind]
        return sent


def without(touched: Touched, known: Touched) -> dict[str, Ids]:
    """The vertices of `touched` that are not in `known`."""
    none = np.empty(0, np.int64)
    return {kind: np.setdiff1d(ids, known.get(kind, none)) for kind, ids in touched.items()}


def union(parts: Iterable[Touched]) -> dict[str, Ids]:
    found: dict[str, Ids] = {}
    for part in parts:
        for kind, ids in part.items():
            found[kind] = np.union1d(found[kind], ids) if kind in found else ids
    return found
