"""Where data may come from: a place is one function that gives raw arrays, or fails in one of a few plain ways."""

from __future__ import annotations

import http.client
import os
import pickle
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import DataError

Report = Callable[[str], None]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Source:
    """One place a data set may come from; `fetch` gives raw arrays by pin name, in any shape of the right size."""

    name: str
    fetch: Callable[[Report], Arrays]


@dataclass(frozen=True)
class Split:
    """One part of a data set, read-only: `images` uint8 (n, channels, height, width), `labels` int64 (n,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


# What a source that cannot deliver may raise. Anything else is a defect and keeps its traceback.
FAILURES = (
    DataError,
    OSError,  # includes URLError and BadGzipFile
    EOFError,
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
    subprocess.SubprocessError,
    http.client.HTTPException,
)


def folders(environ: Mapping[str, str]) -> tuple[Path, Path | None]:
    """Return the cache, and the user's folder of data sets if one is named. Nothing else here reads the environment."""
    user_caches = environ.get("XDG_CACHE_HOME") or "~/.cache"
    cache = environ.get("GRIDML_CACHE") or os.path.join(user_caches, "gridml")
    data = environ.get("GRIDML_DATA")
    return Path(cache).expanduser(), Path(data).expanduser() if data else None
