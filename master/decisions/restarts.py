"""Whether a master begins when those before it were killed one after the other, and how long it waits first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST = 5  # masters in a row that are killed before anything comes of them
FIRST_WAIT_S = 5.0  # of the third in a row; doubled by each further one
LATE_S = 900.0  # between two beginnings: a master that lived longer was not killed by how it begins


class Beginning(NamedTuple):
    """When a master began, with so many vertices `credited` and so many epochs `evaluated`."""

    at_s: float
    credited: int
    evaluated: int

    @property
    def done(self) -> tuple[int, int]:
        return self.credited, self.evaluated


def in_vain(killed: Sequence[Beginning], now: Beginning) -> list[Beginning]:
    """Return those of the masters that were killed, the oldest first, which were so soon, one after the other, and of
    which nothing has come until now."""
    counted: list[Beginning] = []
    after = now
    for beginning in reversed(killed):
        if beginning.done != now.done or after.at_s - beginning.at_s > LATE_S:
            break
        counted.insert(0, beginning)
        after = beginning
    return counted


def may_begin(killed: int) -> tuple[float | None, str]:
    """Seconds that a master waits before it begins after so many `killed` in vain, None where it had better not."""
    reason = f"{killed} master{'s' if killed > 1 else ''} in a row killed before anything was credited or evaluated"
    if killed >= MOST:
        return None, reason
    return (FIRST_WAIT_S * 2.0 ** (killed - 2) if killed > 1 else 0.0), reason
