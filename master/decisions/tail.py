"""The tail of an epoch: the versions before its end whose mean, with the one that ends it, is evaluated and kept.

What several workers push is averaged as it comes, and the replica goes on trembling around where it is heading, the
more the higher the rate is. The mean of a few versions trembles less, and lies as far back as they do (Polyak and
Juditsky 1992; Izmailov et al. 2018, arXiv:1803.05407; Kaddour 2022, arXiv:2209.14981). So a tail is short while a run
is young and still has a way to go, and where the rate has fallen to nothing there is none.
"""

from __future__ import annotations

from collections.abc import Mapping

SHARE = 0.25  # of a run, at the full rate
MOST = 8  # versions, with the one that ends the epoch
KEPT_BYTES = 1 << 30  # that they may take on disk, each of all its tensors


def width_of(credited: int, epoch: int, total: int, rate: float) -> int:
    """Return how many vertices are credited from the beginning of a tail to its end, where `credited` of `total` are,
    of which each epoch has `epoch`: a share of what is credited, the less the younger the run is, and the less is left
    of the learning rate; at most an epoch. `rate` (0 to 1) is that of the highest that the run has had."""
    return min(epoch, int(SHARE * rate * credited * credited / total))


def kept_for(kept: Mapping[int, int], newest: int, width: int, nbytes: int) -> list[int]:
    """Return which versions to keep, oldest first, so that any that ends an epoch from `newest` on has its tail: of
    those that are `kept`, each with the vertices that are credited in it, and of `nbytes` bytes each.

    All that is credited is cut into pieces, a share of `width` each, and the first version in each of the last few is
    kept: what is of the tail of a later end, and is there already, is of this one's, too.
    """
    most = _most(nbytes)
    if width == 0 or most < 2 or newest not in kept:
        return []
    piece, firsts = max(1, width // most), dict[int, int]()
    for version in sorted(kept):
        if version <= newest:
            firsts.setdefault(kept[version] // piece, version)
    return [version for place, version in firsts.items() if place > kept[newest] // piece - most]


def tail_of(kept: Mapping[int, int], end: int, width: int, nbytes: int) -> list[int]:
    """Return the versions of the tail that `end` ends, oldest first, without it; arguments as those of `kept_for`.
    Together they take no more than `KEPT_BYTES`."""
    before = [version for version in kept_for(kept, end, width, nbytes) if kept[version] < kept[end]]
    return before[-(_most(nbytes) - 1) :] if before else []


def _most(nbytes: int) -> int:
    return min(MOST, KEPT_BYTES // max(1, nbytes))
