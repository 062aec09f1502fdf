"""Which versions of the replica are kept to go back to, beside those that somebody may name."""

from __future__ import annotations

from collections.abc import Collection

KEPT_BYTES = 1 << 30  # that versions to go back to may take on disk, unless fewer than
LEAST = 4  # of them do
DENSE = 2  # of any age so many versions at least are kept within that age


def to_go_back_to(kept: Collection[int], ends: Collection[int], newest: int, nbytes: int) -> set[int]:
    """Return the versions to keep of those that are: the ends of epochs, and a series that thins out with age.

    A version stays while it is no older than `DENSE` times the largest power of two that divides it, so the gaps grow
    with age, and of n versions about 2·log2 n are kept. Of `nbytes` bytes each they take `KEPT_BYTES` at most: the
    newest stay first, the end of the last epoch before all.
    """
    series = {v for v in kept if newest - v <= DENSE * (v & -v if v else newest)}
    closed = sorted(set(ends) & set(kept), reverse=True)
    order = dict.fromkeys([*closed[:1], *sorted(series.union(closed), reverse=True)])
    return set(list(order)[: max(LEAST, KEPT_BYTES // max(1, nbytes))])
