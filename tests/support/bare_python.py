"""A Python that has numpy and nothing else, like those of many machines of a pool."""

from __future__ import annotations

import venv
from pathlib import Path

import numpy as np


def bare_python(folder: Path) -> Path:
    """Make a virtual environment in `folder`, and return its interpreter."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python3*/site-packages")
    for package in ("numpy", "numpy.libs"):
        if (found := Path(np.__file__).parents[1] / package).exists():
            (site / package).symlink_to(found)
    return folder / "bin" / "python3"
