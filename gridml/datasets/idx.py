"""idx files of unsigned bytes, as MNIST comes: in a folder, or on a mirror."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gridml.datasets.fetching import gunzip, open_address
from gridml.datasets.sources import Arrays, Report
from gridml.errors import DataError


def decode_idx(payload: bytes) -> NDArray[np.uint8]:
    """Return the array in an unpacked idx file of unsigned bytes.

    Layout: two zero bytes, the type (8: unsigned byte), the number of axes, one big-endian uint32 per axis, the items.
    Raises DataError when the header says another type or the length does not fit it.
    """
    if len(payload) < 4 or payload[:3] != b"\0\0\x08" or payload[3] == 0:
        raise DataError(f"not an idx file of unsigned bytes: it starts with {payload[:4]!r}")
    start = 4 + 4 * payload[3]
    if len(payload) < start:
        raise DataError(f"the idx file ends inside its header: {len(payload)} bytes, expected at least {start}")
    shape = tuple(int(n) for n in np.frombuffer(payload, ">u4", payload[3], offset=4))
    if len(payload) - start != math.prod(shape):
        raise DataError(f"the idx file holds {len(payload) - start} items, its header says {shape}")
    return np.frombuffer(payload, np.uint8, offset=start).reshape(shape)


def from_folder(folder: Path | None, names: Sequence[str], report: Report) -> Arrays:
    """Read the idx files `NAME.gz` of a folder."""
    if folder is None:
        raise DataError("it is not set")
    arrays = {}
    for name in names:
        with (folder / f"{name}.gz").open("rb") as packed:
            arrays[name] = decode_idx(gunzip(packed))
    return arrays


def from_mirror(base: str, names: Sequence[str], report: Report) -> Arrays:
    """Fetch the idx files `NAME.gz` below the address `base`, which ends in a slash."""
    arrays = {}
    for name in names:
        report(f"fetching {base}{name}.gz")
        with open_address(f"{base}{name}.gz") as response:
            arrays[name] = decode_idx(gunzip(response))
    return arrays
