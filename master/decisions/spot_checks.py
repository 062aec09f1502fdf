"""Spot checks: a share of the pushes is trained a second time elsewhere, and the two steps are compared.

A push that is checked looks like any other to its worker, so it cannot be made for the check. The second worker starts
from the same replica with an optimiser that remembers nothing, so honest steps are alike and not equal: how alike, the
checks of other machines tell. A step that is less alike is trained a third time; of three the odd one out is to blame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

UNLIKE = 0.5  # of the usual likeness: below, a step is suspicious
MACHINES = 2  # others of which a check must have passed, and
CHECKS = 4  # of them together, before anybody is compared with them

Likeness = Mapping[str, float]  # by group of tensors: the cosine of the angle between two steps


class Among(NamedTuple):
    """How alike three steps are: the first is the push that was checked, the others began with a fresh optimiser."""

    first_second: Likeness
    first_third: Likeness
    second_third: Likeness


def usual(passed: Sequence[Sequence[Likeness]]) -> dict[str, float]:
    """Return how alike the steps of other machines are to their repetitions, by group, given the checks that each of
    them passed: every machine has one vote. Empty where too little is known."""
    machines = [checks for checks in passed if checks]
    if len(machines) < MACHINES or sum(map(len, machines)) < CHECKS:
        return {}
    groups = dict.fromkeys(group for checks in machines for check in checks for group in check)
    votes = {
        group: [median(seen) for checks in machines if (seen := [check[group] for check in checks if group in check])]
        for group in groups
    }
    return {group: median(each) for group, each in votes.items() if len(each) >= MACHINES}


def suspicious(likeness: Likeness, expected: Likeness) -> tuple[bool, str]:
    """Whether two steps over the same vertices are less alike than honest ones are, and why."""
    worst = _least(likeness, expected)
    if worst is None:
        return False, "nobody knows yet how alike honest steps are" if not expected else "they are alike"
    reason = f"the cosine between the two steps of {worst} is {likeness[worst]:.3g}, usually {expected[worst]:.3g}"
    return likeness[worst] < UNLIKE * expected[worst], reason


def odd_one_out(among: Among, expected: Likeness) -> tuple[int | None, str]:
    """(which of the three is to blame, 0 to 2, or None; why). The first two are suspicious together."""
    group = _least(among.first_second, expected)
    if group is None:
        return None, "nobody knows how alike honest steps are"
    limit = UNLIKE * expected[group]
    first_second, first_third, second_third = (each.get(group, 1.0) for each in among)
    reason = f"the cosines between the three steps of {group} are {first_second:.3g}, {first_third:.3g} and " + (
        f"{second_third:.3g}"
    )
    if first_third < limit and second_third >= expected[group]:  # two fresh starts are the same training
        return 0, reason
    if first_third >= limit and second_third < limit:
        return 1, reason
    return None, f"{reason}: no two of them agree" if second_third < limit else reason


def _least(likeness: Likeness, expected: Likeness) -> str | None:
    """Return the group that is least alike against what is usual; None where nothing usual is alike at all."""
    ratios = {group: likeness.get(group, 1.0) / usually for group, usually in expected.items() if usually > 0}
    known = {group: ratio for group, ratio in ratios.items() if group in likeness}
    return min(known, key=lambda group: known[group]) if known else None
