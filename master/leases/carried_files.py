"""What payloads carried, on disk: the next master of a run knows what workers kept of this one's chunks.

A file holds the ids of the rows of one payload, in their order, and which fields came with them. It is called by the
payload's SHA-256 and its own, so that one which a power cut left torn is not believed. None is needed: where one is
missing, or cannot be written, rows are sent again.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gridml.protocol import bundle

Ids = NDArray[np.int64]
Fields = Mapping[str, tuple[str, ...]]  # of each type the fields that its rows came with, in order of their names

_FILE = re.compile(r"([0-9a-f]{64})-([0-9a-f]{64})\.rows")


class CarriedFiles:
    """The files in `folder`, which is made when there is something to keep."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, sha256: str, ids: Mapping[str, Ids], fields: Fields) -> None:
        """Keep the ids (n,) of the rows of each type that a payload carries. A disk that is full is no error."""
        tensors = {f"ids/{name}": bundle.narrowed(rows) for name, rows in ids.items()}
        content = bundle.encode({"fields": {name: list(names) for name, names in fields.items()}}, tensors)
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            bundle.write_atomic(self._folder / f"{sha256}-{bundle.digest(content)}.rows", content, durable=False)

    def read(self) -> Iterator[tuple[str, dict[str, Ids], Fields]]:
        """Yield (SHA-256 of the payload, ids, fields) of each file, the oldest first. Removes those that are torn."""
        for path in self._paths():
            name = _FILE.fullmatch(path.name)
            try:
                content = path.read_bytes()
            except OSError:
                continue
            if name is None or bundle.digest(content) != name[2]:
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            message, tensors = bundle.decode(content)
            ids = {key.removeprefix("ids/"): rows.astype(np.int64) for key, rows in tensors.items()}
            yield name[1], ids, {key: tuple(names) for key, names in message["fields"].items()}

    def remove(self, sha256: str) -> None:
        """Forget a payload, if it is known at all."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"{sha256}-*.rows"):
                path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        with contextlib.suppress(OSError):  # there is no folder before the first payload
            return [path for _, _, path in sorted(map(_age, self._folder.iterdir()))]
        return []


def _age(path: Path) -> tuple[int, str, Path]:
    try:
        return os.stat(path).st_mtime_ns, path.name, path
    except OSError:
        return 0, path.name, path
