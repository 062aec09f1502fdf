"""Sets of ids, as arrays in which each stands once, in order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def ascending(*ids: Ids) -> Ids:
    """Return each id that is in any of `ids`, (n,) each, once and in order, in an array of its own.

    What ascends already is only merged. `np.unique` hashes: of 100,000 ids that takes several times as long.
    """
    together = np.concatenate(ids)
    if not (together[1:] > together[:-1]).all():
        together = np.sort(together, kind="stable")
        together = together[np.concatenate([[True], together[1:] != together[:-1]])]
    return together


def places(among: Ids, wanted: Ids) -> tuple[Ids, NDArray[np.bool_]]:
    """Return where each of `wanted` stands in `among`, which ascends, or would stand; and whether it is there."""
    at = np.searchsorted(among, wanted)
    here = at < len(among)
    here[here] = among[at[here]] == wanted[here]
    return at, here
