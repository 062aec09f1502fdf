"""When what was merged last is undone: where several workers fail on a replica on which nobody succeeds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

SEVERAL = 2  # workers that must fail, each on a range of its own
MOST_TIMES = 3  # that a run is taken back by itself: a program that fails for reasons of its own must come to its end


@dataclass(frozen=True)
class FailedOn:
    """A worker failed on a range that begins at `start` of `epoch`, with a replica of `version`."""

    worker: str
    epoch: int
    start: int
    version: int


def go_back(
    failed: Sequence[FailedOn], succeeded_on: int | None, kept: Collection[int], times: int
) -> tuple[int | None, str]:
    """(version to go back to, why), None to go on as it is.

    `failed` is what failed since anybody succeeded, `succeeded_on` the newest version on which work was based that has
    been merged in this master's time, and `times` how often the run was taken back before. Who fails on the vertices
    that another failed on says nothing of the replica; nor does a program that has not worked on any.
    """
    if succeeded_on is None:
        return None, "nothing has succeeded yet"
    recent = [each for each in failed if each.version > succeeded_on]
    workers = {each.worker for each in recent}
    if min(len(workers), len({(each.epoch, each.start) for each in recent})) < SEVERAL:
        return None, f"{len(workers)} workers fail on what was merged since version {succeeded_on}"
    bad = min(each.version for each in recent)
    older = [version for version in kept if version < bad]
    reason = f"{', '.join(sorted(workers))} fail on version {bad} or later, and nobody succeeds on one"
    if times >= MOST_TIMES:
        return None, f"{reason}; the run was taken back {times} times already"
    if not older:
        return None, f"{reason}; no version before it is kept"
    return max(older), reason
