"""Spot checks: a share of the pushes is trained a second time elsewhere, and the steps are compared.

A push that is checked looks like any other to its worker, so it cannot be made for the check. Who repeats it starts
from the same replica with an optimiser that remembers nothing. So two things can be said:

- Repetitions are the same training, step by step. What those of two machines agree on is true, and who brings something
  else is odd. Where f cannot be repeated no two agree, and nobody is.
- A push and its repetition are alike, and not equal. How alike differs from push to push, so a machine is held against
  the others by many checks together, of which those that look bad were confirmed by a second repetition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

UNLIKE = 0.25  # of the usual likeness: what is less alike is suspicious. Fresh lives and old ones differ by less
SAME = 0.9  # the cosine from which on repetitions agree: what is between them is the rounding of different machines
MACHINES = 2  # others whose pushes must have been confirmed,
CHECKS = 4  # so often together, before anything is usual
ODD = 2  # times that a machine must be odd to be trusted no more: one of a rare sort may round differently once
CLOSER = 0.5  # of the pushes of a machine that looks suspicious are checked: so it is soon known
SURE = 1e-4  # the chance that honest pushes would be less alike than those of others, below which they are not

Likeness = Mapping[str, float]  # by group of tensors: the cosine of the angle between two steps


class Finding(NamedTuple):
    """What a check comes to: whether it must be repeated `again`, which repetitions from 1 on are `odd`, how alike the
    push is to a repetition that can be believed, None where none can, and why."""

    again: bool
    odd: tuple[int, ...]
    likeness: Likeness | None
    reason: str


def usual(confirmed: Sequence[Sequence[Likeness]]) -> dict[str, float]:
    """Return how alike the pushes of other machines are to their repetitions, by group, given those of each machine:
    every machine has one vote. Empty where too little is known."""
    machines = [checks for checks in confirmed if checks]
    if len(machines) < MACHINES or sum(map(len, machines)) < CHECKS:
        return {}
    groups = dict.fromkeys(group for checks in machines for check in checks for group in check)
    votes = {group: [median(seen) for checks in machines if (seen := _of(group, checks))] for group in groups}
    return {group: median(each) for group, each in votes.items() if len(each) >= MACHINES and median(each) > 0}


def find(to_push: Sequence[Likeness], repetitions: Mapping[tuple[int, int], Likeness], expected: Likeness) -> Finding:
    """Judge repetitions of a push, from 1 on: `to_push` says how alike each is to the push, `repetitions` how alike
    each two of them are; `expected` is what is usual, empty where nobody knows."""
    if len(to_push) == 1:
        unlike, reason = _unlike(to_push[0], expected)
        again = unlike or not expected
        return Finding(again, (), None if again else to_push[0], reason)
    agreed = next((pair for pair, alike in repetitions.items() if _agree(alike)), None)
    if agreed is None:
        return Finding(True, (), None, "no two repetitions agree")
    one, other = agreed
    odd = tuple(
        each
        for pair, alike in repetitions.items()
        for each in pair
        if one in pair and each != one and not _agree(alike)
    )
    reason = f"repetitions {one} and {other} of {len(to_push)} agree; {_unlike(to_push[one - 1], expected)[1]}"
    return Finding(False, odd, to_push[one - 1], reason)


def closer(newest: Likeness, times_odd: int, expected: Likeness) -> float:
    """The share of a machine's pushes that are to be checked at least: most of them where its `newest` check, or one of
    its repetitions, looked bad."""
    return CLOSER if times_odd or _unlike(newest, expected)[0] else 0.0


def convicted(times_odd: int) -> tuple[bool, str]:
    """Whether a machine that was odd so often is trusted no more, and why."""
    return times_odd >= ODD, f"in {times_odd} spot checks it repeated what others agree on, and came to something else"


def strays(own: Sequence[Likeness], others: Sequence[Sequence[Likeness]]) -> tuple[bool, str]:
    """Whether the pushes of a machine go where no training leads, held against those of each other machine: far less
    alike to their repetitions than is usual, and surely so (the test of Mann and Whitney, 1947)."""
    from scipy.stats import mannwhitneyu  # deferred: it takes most of a second, which every command would wait for

    expected = usual(others)
    for group, usually in expected.items():
        mine, theirs = _of(group, own), [cosine for checks in others for cosine in _of(group, checks)]
        if not mine or median(mine) >= UNLIKE * usually:
            continue
        chance = float(mannwhitneyu(mine, theirs, alternative="less", method="exact").pvalue)
        if chance < SURE / len(expected):
            return True, (
                f"in {len(mine)} spot checks the cosine between its steps of {group} and their repetitions is "
                f"{median(mine):.3g}, that of others {usually:.3g}; by chance that is so once in {1 / chance:,.0f}"
            )
    return False, "its pushes are what others come to"


def _of(group: str, checks: Sequence[Likeness]) -> list[float]:
    return [check[group] for check in checks if group in check]


def _agree(alike: Likeness) -> bool:
    return all(cosine >= SAME for cosine in alike.values())


def _unlike(likeness: Likeness, expected: Likeness) -> tuple[bool, str]:
    """Whether a push is less alike to a repetition than is usual, in the group in which it is the least, and why."""
    shares = {group: likeness[group] / usually for group, usually in expected.items() if group in likeness}
    if not shares:
        least = min(likeness.values(), default=1.0)
        return False, f"the cosine between push and repetition is {least:.3g}, and nobody knows what is usual"
    worst = min(shares, key=lambda group: shares[group])
    cosine, usually = likeness[worst], expected[worst]
    reason = f"the cosine between push and repetition of {worst} is {cosine:.3g}, usually {usually:.3g}"
    return shares[worst] < UNLIKE, reason
