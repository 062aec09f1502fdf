"""Decides whether a push changes a tensor of a module that no optimiser trains: a buffer, or a frozen weight.

f changes such a tensor at every worker, as BatchNorm's counters, or at none, as positions, masks and a frozen backbone.
So one worker alone does not change it: what it brings waits until another one changes it too. A worker keeps its own
values and brings them again with each push, so an honest one loses nothing by that. Where two others were seen to
leave it alone, the change is left out. Whole numbers that f does change grow no faster than `OUTLIER` times as with the
others. Nobody is blamed: the data of one worker alone may hold what f counts, and it brings that again with each push.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from master.decisions.gate import MAJORITY, OUTLIER, PATIENT_S


class Growth(NamedTuple):
    """How far another worker moved an element of it in one push, at most: of late, and for each vertex of the push."""

    largest: float
    per_vertex: float


@dataclass(frozen=True)
class Change:
    """A tensor that no optimiser trains, as a push changes it."""

    name: str
    #: integers or truth values: there is no step between two of them, and the maximum is merged
    is_whole: bool
    #: how far an element moves at most
    growth: float
    #: it holds one number, such as a counter does
    is_number: bool
    #: all its values lie between the smallest and the largest that it had
    is_within: bool
    #: vertices of this push and of those before it that waited
    vertices: int
    #: of each other worker that changes it
    others: Sequence[Growth]
    #: other workers that have left it alone
    still: int
    #: workers of the run, at once
    workers: int
    #: for how long it has waited
    waited_s: float = 0.0
    #: nothing is trained after this push
    is_last: bool = False


class Taking(NamedTuple):
    """Whether a change is taken, and why. One that `waits` is not lost."""

    is_taken: bool
    reason: str
    waits: bool = False


def decide(change: Change) -> Taking:
    """Decide on a change of a tensor that no optimiser trains."""
    if change.others:
        return _as_others_do(change)
    if change.still >= min(MAJORITY, max(1, change.workers - 1)):
        number = change.still
        others = f"{number} other workers leave" if number > 1 else "the other worker leaves"
        return Taking(False, f"it changes {change.name}, which {others} alone")
    if not change.still and (change.is_last or change.waited_s >= PATIENT_S):
        return _plausible(change)
    return Taking(False, f"{change.name} waits until another worker changes it, too", waits=True)


def _as_others_do(change: Change) -> Taking:
    """Others change it too: of whole numbers, which have no bound by a length, no further than they do."""
    if not change.is_whole:
        return Taking(True, "others change it, too")
    most = max(OUTLIER * max(max(each.largest, each.per_vertex * change.vertices) for each in change.others), 1.0)
    if change.growth <= (most if len(change.others) >= MAJORITY else max(most, change.vertices)):
        return Taking(True, "others change it, too")
    reason = (
        f"{change.name} grows by {change.growth:.3g} in {change.vertices:,} vertices, where others do by {most:.3g}"
    )
    return Taking(False, f"{reason} at most")


def _plausible(change: Change) -> Taking:
    """Nobody else has shown anything: whole numbers stay among those that were there, and a counter counts vertices."""
    if not change.is_whole or change.is_within:
        return Taking(True, "nobody else has brought anything")
    if change.is_number and change.growth <= change.vertices:
        return Taking(True, "nobody else has brought anything")
    return Taking(False, f"{change.name} leaves the values that it was made with", waits=True)
