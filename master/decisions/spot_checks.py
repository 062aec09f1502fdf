"""Spot checks: a share of the pushes is trained a second time elsewhere, and the steps are compared.

A push that is checked looks like any other to its worker, so it cannot be made for the check. Who repeats it starts
from the same replica with an optimiser that remembers nothing, so an honest push and its repetition are alike and not
equal. How alike they usually are, the checks of other machines tell. While too little is known of that, and where a
push is less alike, others repeat it until two repetitions agree: those are the same training, step by step, so what two
machines agree on is true, and who brings something else is odd. Where f cannot be repeated no two agree, and nobody is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

UNLIKE = 0.5  # of the usual likeness: a push that is less alike is suspicious
SAME = 0.9  # the cosine from which on repetitions agree: what is between them is the rounding of different machines
MACHINES = 2  # others whose pushes must have been confirmed,
CHECKS = 4  # so often together, before anybody's is compared with them
ODD = 2  # times that a machine must be odd to be trusted no more: one of a rare sort may round differently once

Likeness = Mapping[str, float]  # by group of tensors: the cosine of the angle between two steps


class Finding(NamedTuple):
    """What a check comes to: whether it must be repeated `again`, who is `odd`, 0 for the push and i for repetition i,
    how alike the push is to a repetition that is `confirmed`, None where none is, and why."""

    again: bool
    odd: tuple[int, ...]
    confirmed: Likeness | None
    reason: str


def usual(confirmed: Sequence[Sequence[Likeness]]) -> dict[str, float]:
    """Return how alike the pushes of other machines are to their repetitions, by group, given those of each machine
    that were confirmed: every machine has one vote. Empty where too little is known."""
    machines = [checks for checks in confirmed if checks]
    if len(machines) < MACHINES or sum(map(len, machines)) < CHECKS:
        return {}
    groups = dict.fromkeys(group for checks in machines for check in checks for group in check)
    votes = {
        group: [median(seen) for checks in machines if (seen := [check[group] for check in checks if group in check])]
        for group in groups
    }
    return {group: median(each) for group, each in votes.items() if len(each) >= MACHINES and median(each) > 0}


def find(to_push: Sequence[Likeness], repetitions: Mapping[tuple[int, int], Likeness], expected: Likeness) -> Finding:
    """Judge a push by its repetitions from 1 on: `to_push` says how alike each is to the push, `repetitions` how alike
    each two of them are; `expected` is what is usual, empty where nobody knows."""
    if len(to_push) == 1:
        unlike, reason = _unlike(to_push[0], expected)
        again = unlike or not expected
        return Finding(again, (), None if again else to_push[0], reason)
    agreed = next((pair for pair, alike in repetitions.items() if _agree(alike)), None)
    if agreed is None:
        return Finding(True, (), None, "no two repetitions agree")
    one, other = agreed
    odd = [each for pair, alike in repetitions.items() if one in pair and not _agree(alike) for each in pair]
    odd = [each for each in odd if each != one]
    unlike, reason = _unlike(to_push[one - 1], expected)
    reason = f"repetitions {one} and {other} of {len(to_push)} agree; {reason}"
    return Finding(False, (*([0] if unlike else []), *odd), None if unlike else to_push[one - 1], reason)


def convicted(times_odd: int) -> tuple[bool, str]:
    """Whether a machine that was odd so often is trusted no more, and why."""
    return times_odd >= ODD, f"in {times_odd} spot checks it was not with what others agree on"


def _agree(alike: Likeness) -> bool:
    return all(cosine >= SAME for cosine in alike.values())


def _unlike(likeness: Likeness, expected: Likeness) -> tuple[bool, str]:
    """Whether a push is less alike to a repetition than is usual, in the group in which it is the least, and why."""
    shares = {group: likeness[group] / usually for group, usually in expected.items() if group in likeness}
    if not shares:
        least = min(likeness.values(), default=1.0)
        return False, f"the cosine between push and repetition is {least:.3g}, and nobody knows what is usual"
    worst = min(shares, key=lambda group: shares[group])
    reason = (
        f"the cosine between push and repetition of {worst} is {likeness[worst]:.3g}, usually {expected[worst]:.3g}"
    )
    return shares[worst] < UNLIKE, reason
