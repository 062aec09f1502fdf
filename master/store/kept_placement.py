"""The placement of a run's vertices, as its directory keeps it: the order of every epoch follows from it, and from the
seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.model.order import PlacedParts
from gridml.protocol import bundle
from master.store.rundir import read_named

Shared = NDArray[np.int64]
Labels = NDArray[np.int32]
FACT = "placement"  # what the ledger knows of it: "text", and "sha256", None where vertices were not placed


@dataclass(frozen=True)
class KeptPlacement:
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


def keep(path: Path, labels: Labels, sections: Labels, shared: Shared, *, durable: bool = True) -> KeptPlacement:
    """Write down the part of each vertex, `labels` (vertices,), each part of 0 to len(shared) - 1, and its section of
    that, `sections` (vertices,). Raises OSError."""
    arrays = {"part": labels.astype(_smallest(labels)), "section": sections.astype(_smallest(sections))}
    payload = bundle.pieces({"parts": len(shared)}, {**arrays, "shared": shared})
    bundle.write_atomic(path, payload, durable=durable)
    return KeptPlacement(PlacedParts.of(labels, len(shared), sections), shared, bundle.digest(payload))


def _smallest(labels: Labels) -> np.dtype[np.generic]:
    """Return the smallest type for labels: a byte for most."""
    return np.min_scalar_type(int(labels.max(initial=0)))


def read_kept(path: Path, fact: Mapping[str, Any] | None) -> KeptPlacement | None:
    """Return the placement that the ledger names, None where there is none. Raises DamagedError where the file is gone
    or another one, OSError where it cannot be read."""
    sha256 = None if fact is None else fact.get("sha256")
    if sha256 is None:
        return None
    _, arrays = bundle.opened(read_named(path, sha256, "the placement of the vertices"))
    parts = PlacedParts.of(
        arrays["part"], len(arrays["shared"]), arrays.get("section")
    )  # earlier releases had no sections
    return KeptPlacement(parts, arrays["shared"], sha256)
