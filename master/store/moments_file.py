"""The second moments that workers have gathered, on disk: who resumes a run whose workers have all gone has them.

The file is called by its SHA-256, so that one which a power cut left torn is not believed. None is needed: where it is
missing, or cannot be written, those who come new gather their own.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from numpy.typing import NDArray

from gridml.protocol import bundle

Array = NDArray[Any]
_FILE = re.compile(r"([0-9a-f]{64})\.safetensors")


@final
class MomentsFile:
    """The one file in `folder`, which is made when there is something to keep."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, moments: Mapping[str, Array]) -> None:
        """Keep `moments` in place of those that were kept. A disk that is full is no error: then none are kept."""
        self.remove()
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            content = bundle.pieces({}, moments)
            bundle.write_named(lambda sha256: self._folder / f"{sha256}.safetensors", content, durable=False)

    def read(self) -> dict[str, Array]:
        """Return what is kept; nothing where that is torn, or no file."""
        for path in self._paths():
            name = _FILE.fullmatch(path.name)
            with contextlib.suppress(OSError, ValueError):
                content = path.read_bytes()
                if name is not None and bundle.digest(content) == name[1]:
                    return bundle.decode(content)[1]
        return {}

    def remove(self) -> None:
        """Keep nothing any more."""
        with contextlib.suppress(OSError):
            for path in self._paths():
                path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        with contextlib.suppress(OSError):  # there is no folder before anything was kept
            return [*self._folder.iterdir()]
        return []
