"""Weights of rows or columns in a file of numpy's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError


def read_weights(path: Path) -> NDArray[Any]:
    """Read an array from a .npy. Raises UsageError where there is none; what is in it is for `Bipartite.weighted`."""
    try:
        weights = np.load(path, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}. Name a .npy of weights.") from error
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path} is no .npy of numbers, or not all of one. Write it with numpy.save.") from error
    if not isinstance(weights, np.ndarray):
        raise UsageError(f"{path} holds several arrays; expected a .npy of one, as numpy.save writes it.")
    return weights
