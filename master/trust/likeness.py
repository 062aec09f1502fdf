"""Spot checks: how alike two steps are, and what repetitions of a push show.

A share of the pushes is trained a second time elsewhere, and the steps are compared. A push that is
checked looks like any other to its worker, so it cannot be made for the check. The worker that repeats it starts
from the same replica with an optimiser that remembers nothing. So two things can be said:

- Repetitions are the same training, step by step. A result on which two machines agree is true, and a worker that
  brings another one is odd. Where f cannot be repeated no two agree, and no worker is odd.
- A push and its repetition are alike, and not equal. How alike differs from push to push, so a machine is compared
  with the others by many checks together, of which those that look bad were confirmed by a second repetition.

Two steps are compared over the same vertices from the same version. Whole numbers of modules are left out: they are
facts (batches that were counted), and no steps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates.base import same_bits
from gridml.protocol.push import Ids, PushContent, RowValues
from master.store.versions import Base

Array = NDArray[Any]


class _Step(NamedTuple):
    """What a push changed of one tensor, float64; of the rows `ids` where it has some."""

    change: Array
    ids: Ids | None = None


def likeness(
    first: PushContent,
    second: PushContent,
    base: Base,
    group_of: Callable[[str], str],
    before: Callable[[str, RowValues], Mapping[str, Array]],
) -> dict[str, float]:
    """Return the cosine of the angle between the steps of two pushes, by group of tensors; 1 where neither has moved.

    Both were trained from `base`. `group_of` gives the group of a tensor by its name in files, `before` the values that
    local vertices had, by type and for given rows.
    """
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])  # Σab, Σaa, Σbb
    one, other = dict(_steps(first, base, before)), dict(_steps(second, base, before))
    for name in {**one, **other}:
        a, b = _aligned(one.get(name), other.get(name))
        total = sums[group_of(name)]
        for at, (left, right) in enumerate(((a, b), (a, a), (b, b))):
            total[at] += float(np.vdot(left, right))
    return {group: _cosine(*total) for group, total in sums.items()}


def _cosine(product: float, square: float, other_square: float) -> float:
    if square == 0 and other_square == 0:
        return 1.0
    lengths = math.sqrt(square) * math.sqrt(other_square)
    return max(-1.0, min(1.0, product / lengths)) if lengths > 0 else 0.0


def _steps(
    content: PushContent, base: Base, before: Callable[[str, RowValues], Mapping[str, Array]]
) -> Iterator[tuple[str, _Step]]:
    """Yield what a push changed, by names as in files; those of local vertices begin with an @."""
    for key, tensors in content.replica.modules.items():
        for name, values in tensors.items():
            if values.dtype.kind == "f":
                yield name, _Step(_change(values, base.modules[key].tensors[name]))
    for type_name, rows in content.replica.rows.items():
        yield from _of_rows(f"{type_name}/", rows, base.rows(type_name, rows.ids))
    for type_name, rows in content.fields.items():
        yield from _of_rows(f"@{type_name}/", rows, before(type_name, rows))


def _of_rows(prefix: str, rows: RowValues, old: Mapping[str, Array]) -> Iterator[tuple[str, _Step]]:
    order = np.argsort(rows.ids)
    for name, values in rows.fields.items():
        yield prefix + name, _Step(_change(values[order], old[name][order]), rows.ids[order])


def _change(new: Array, old: Array) -> Array:
    """How far a tensor was moved; a constant that holds infinities, as a mask does, was not."""
    if same_bits(new, old):
        return np.zeros(new.shape)
    return np.subtract(new, old, dtype=np.float64) if new.dtype != np.bool_ else new.astype(float) - old


def _aligned(one: _Step | None, other: _Step | None) -> tuple[Array, Array]:
    """Return both changes in one shape: who does not name something has not changed it."""
    if one is None or other is None:
        there = one or other
        assert there is not None, "one of the two has the tensor"
        none = np.zeros_like(there.change)
        return (there.change, none) if one is not None else (none, there.change)
    if one.ids is None or other.ids is None or np.array_equal(one.ids, other.ids):
        return one.change, other.change
    ids = np.union1d(one.ids, other.ids)
    return _spread(one, ids), _spread(other, ids)


def _spread(step: _Step, ids: Ids) -> Array:
    assert step.ids is not None, "only rows are spread"
    spread = np.zeros((len(ids), *step.change.shape[1:]))
    spread[np.searchsorted(ids, step.ids)] = step.change
    return spread


UNLIKE_PUSHES = 0.25  # of the usual likeness: what is less alike is suspicious. Fresh lives and old ones differ by less
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
        if not mine or median(mine) >= UNLIKE_PUSHES * usually:
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
    return shares[worst] < UNLIKE_PUSHES, reason
