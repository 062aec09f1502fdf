"""Decides whose optimiser moments are asked for and taken, and combines what several workers brought into one set.

Moments are advice (`gridml.engine.moments`): a worker that begins without any trains all the same. So what is odd is
left out, and the push that brings it is merged. What a newcomer is given lies, element by element, between what two
different workers brought, as soon as three have: one that lies moves it nowhere that honest ones do not span.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.engine.moments import COUNTERS, FIRST, SECOND

Array = NDArray[Any]
VOTES = 3  # of different workers that are kept: one of three that lies is outvoted
SPARE = 2  # workers that are asked beyond the votes that are missing: some end before they push
EVERY = 16  # pushes, of which one brings them: they are half as long as a replica, and change slowly
MAX_STEPS_PER_VERTEX = 64  # of an optimiser, for each vertex that the run has trained
_INFINITY, _MINUS_ZERO = 0x7F80, 0x8000  # bfloat16, as uint16


class Remembered(NamedTuple):
    """What an optimiser of the program remembers of a weight."""

    shape: tuple[int, ...]
    entries: frozenset[str]


def votes_needed(workers: int) -> int:
    """Return how many different workers must have brought moments before newcomers are given any, in a run of so many
    at once: where one alone trains there is nobody else to ask."""
    return min(VOTES, max(1, workers))


def asks(*, votes: int, has_voted: bool, is_newest: bool, pushes: int, pending: int = 0) -> bool:
    """Whether a worker is to bring its moments, `pushes` after the last one that was asked.

    Until there are enough votes workers that have none are asked for theirs, as many at once as votes are missing and
    `SPARE` more: `pending` others are asked already and have not pushed since. Then it is one push in `EVERY`, and
    rather one of another worker than of the one that brought them last, unless the others are silent.
    """
    if votes < VOTES and not has_voted:
        return pending < VOTES - votes + SPARE
    return pushes >= (2 * EVERY if is_newest and votes > 1 else EVERY)


def examine(
    brought: Mapping[str, Array], known: Mapping[str, Remembered], *, asked: bool, steps: float
) -> tuple[bool, str]:
    """Decide whether what a push brings, by "entry/NAME", is taken, and say why not.

    It must have been asked for, and be whole: of each weight all entries that its optimiser has, of the right shape and
    sign, finite, with no more than `steps` steps behind them. Weights that no gradient has reached may be absent.
    """
    if not asked:
        return False, "the push has optimiser moments that this master did not ask for"
    entries: defaultdict[str, set[str]] = defaultdict(set)
    for whole, values in brought.items():
        entry, _, name = whole.partition("/")
        if name not in known:
            return False, f"the push has moments of {name}; expected none: no optimiser of the program shares them"
        if entry not in known[name].entries:
            return False, f"the push has {entry} of {name}; expected {_listed(known[name].entries)}"
        if (problem := _problem(entry, values, known[name].shape, steps)) is not None:
            return False, f"{entry} of {name} {problem}"
        entries[name].add(entry)
    for name, got in entries.items():
        if got != known[name].entries:
            return False, f"the push has {_listed(got)} of {name}; expected {_listed(known[name].entries)}"
    return True, "complete and valid"


def _problem(entry: str, values: Array, shape: tuple[int, ...], steps: float) -> str | None:
    expected = shape if entry in SECOND else ()
    if values.shape != expected:
        return f"has shape {values.shape}; expected {expected}"
    if values.ndim:
        if not ((values < _INFINITY) | (values == _MINUS_ZERO)).all():
            return "has values that are negative or not finite; expected finite numbers of at least 0"
        return None
    value = float(values)
    if entry in FIRST and value != 0:
        return f"is {value:g}; expected 0: first moments are not shared"
    if entry == "step" and not (0 <= value <= steps and value.is_integer()):
        return f"is {value:g}; expected a whole number of steps from 0 to {steps:g}"
    if entry == "mu_product" and not 0 <= value <= 1:
        return f"is {value:g}; expected a number from 0 to 1"
    if not 0 <= value < np.inf:
        return f"is {value:g}; expected a finite number of at least 0"
    return None


def combined(votes: Sequence[Mapping[str, Array]], needed: int) -> dict[str, Array]:
    """Return what newcomers begin with, by "entry/NAME": of each weight that `needed` votes or more have, the median of
    each element. Of an even number it is the lower one of squares, the higher one of steps: small squares make steps
    longer, which an optimiser bounds, and large ones stop them.
    """
    taken: dict[str, Array] = {}
    for whole in dict.fromkeys(whole for vote in votes for whole in vote):
        values = [vote[whole] for vote in votes if whole in vote]
        if len(values) >= needed:
            middle = len(values) // 2 if whole.startswith("step/") else (len(values) - 1) // 2
            taken[whole] = _nth(values, middle)
    return taken


def _nth(values: Sequence[Array], place: int) -> Array:
    """The element-wise `place`-th smallest. Numbers that are not negative are ordered as their bits in bfloat16 are."""
    if len(values) == 1:
        return values[0]
    if len(values) == 2:
        return np.asarray((np.minimum, np.maximum)[place](*values))  # of arrays () numpy makes numbers
    if len(values) == 3 and place == 1:
        low, high = np.minimum(values[0], values[1]), np.maximum(values[0], values[1])
        return np.asarray(np.maximum(low, np.minimum(high, values[2])))
    return np.asarray(np.sort(np.stack(values), axis=0)[place])


def without_minus_zero(values: Array) -> Array:
    """Return a copy of values in bfloat16 in which a zero has no sign."""
    return np.where(values == _MINUS_ZERO, np.uint16(0), values) if values.ndim else values.copy()


def has_moments(known: Mapping[str, Remembered]) -> bool:
    """Whether any optimiser remembers what others could begin with."""
    return any(each.entries & SECOND for each in known.values())


def _listed(entries: Collection[str]) -> str:
    return ", ".join(sorted(entries)) or "nothing"


assert not SECOND & (FIRST | COUNTERS), "an entry is of one sort"
