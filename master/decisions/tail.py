"""The tail of an epoch: the versions before its end whose mean, with the last of them, is evaluated and kept.

What several workers push is averaged as it comes, and the replica goes on trembling around where it is heading, the
more the higher the rate is. The mean of a few versions trembles less, and lies as far back as half of what they span
(Polyak and Juditsky 1992; Izmailov et al. 2018, arXiv:1803.05407; Kaddour 2022, arXiv:2209.14981). So the tail is short
while a run is young and still has a way to go, and where the rate has fallen to nothing there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SHARE = 0.25  # of a run, at the full rate
MOST = 8  # versions, with the one that ends the epoch
KEPT_BYTES = 1 << 30  # that they may take on disk, each of all its tensors


def span(credited: int, epoch: int, total: int, rate: float) -> int:
    """Return how many vertices are credited from the begin of a tail to its end, where `credited` of `total` are, of
    which each epoch has `epoch`: a share of what is credited, the less the younger the run is, and the less is left of
    the learning rate; at most an epoch. `rate` (0 to 1) is that of the highest that the run has had."""
    return min(epoch, int(SHARE * rate * credited * credited / total))


def marks(end: int, width: int, nbytes: int) -> list[int]:
    """Return after how many credited vertices the versions of a tail are wanted that ends with `end`, so that versions
    of `nbytes` bytes take no more than `KEPT_BYTES`; the end itself is not among them."""
    versions = min(MOST, KEPT_BYTES // max(1, nbytes), width)
    return [end - width + width * place // versions for place in range(1, versions)]


def tail_of(kept: Mapping[int, int], wanted: Sequence[int], end: int) -> list[int]:
    """Return the versions of a tail, of those that are `kept`, each with the vertices that are credited in it: the
    first that reaches each mark. `end` is the version that ends the epoch, which is not among them."""
    before = sorted(version for version in kept if version < end)
    reached = {next((version for version in before if kept[version] >= mark), None) for mark in wanted}
    return sorted(version for version in reached if version is not None)
