"""Similarity of two steps, and the decisions of spot checks.

For a share of the pushes, another worker repeats the training, and the two steps (changes of the tensors) are compared.
A worker cannot tell which of its pushes is checked, so it cannot behave well only for the check. The worker that
repeats a push starts from the same replica with fresh optimisers. Two decisions follow:

- Two repetitions are the same training, step by step. A result on which two machines agree is correct, and a repetition
  with another result is odd. If f is not deterministic, no two results agree, and none is odd.
- A push and its repetition are similar, not equal, and their similarity differs from push to push. A machine is
  therefore compared with the others over many checks, and a check that looks bad is confirmed by a second repetition.

The two steps start from the same version and cover the same vertices. Integer tensors of modules are left out: they are
counters, for example of batches, and have no direction.
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
    """The change that a push made to one tensor."""

    #: float64
    change: Array
    #: rows that it covers, in ascending order; None for a whole tensor
    ids: Ids | None = None


def similarity(
    first: PushContent,
    second: PushContent,
    base: Base,
    group_of: Callable[[str], str],
    before: Callable[[str, RowValues], Mapping[str, Array]],
) -> dict[str, float]:
    """Return the cosine of the angle between the steps of two pushes, by group of tensors; 1 if neither push changes
    the group.

    Both pushes were trained from `base`. `group_of` maps a tensor's name in files to its group. `before` is called with
    a type and its rows, and returns the values that these local vertices had before.
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
    """Yield the changes of a push by the tensors' names in files; names for local vertices begin with @."""
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
    """Return the change of a tensor."""
    if same_bits(new, old):  # not by subtraction: the infinities of a mask would give NaN
        return np.zeros(new.shape)
    return np.subtract(new, old, dtype=np.float64) if new.dtype != np.bool_ else new.astype(float) - old


def _aligned(one: _Step | None, other: _Step | None) -> tuple[Array, Array]:
    """Return both changes in the same shape, with zeros for a tensor or row that a push leaves out as unchanged."""
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


#: Share of the usual similarity below which a push is suspicious. A fresh and a
#: long-running worker differ less than that.
MIN_SHARE_OF_USUAL = 0.25
#: Minimum cosine at which two repetitions agree. It is below 1 because machines round differently.
MIN_AGREEMENT = 0.9
#: Minimum number of other machines with confirmed pushes; with fewer, the usual similarity is unknown.
MIN_MACHINES = 2
#: Minimum number of confirmed checks of those other machines together.
MIN_CHECKS = 4
#: Number of odd results from which on a machine counts as malicious. A single odd result may come from a rare kind of
#: machine that rounds differently.
MAX_ODD = 2
#: Share of a suspicious machine's pushes that is checked, so that it is soon confirmed or cleared.
CLOSE_SHARE = 0.5
#: Maximum probability of calling an honest machine an outlier.
MAX_CHANCE = 1e-4

#: The cosine of the angle between two steps, by group of tensors.
Similarity = Mapping[str, float]


class CheckResult(NamedTuple):
    """Result of a check after the repetitions so far."""

    #: one more repetition is needed
    again: bool
    #: repetitions, counted from 1, that differ from those that agree
    odd: tuple[int, ...]
    #: similarity of the push and a repetition that is known to be correct; None: no repetition is known to be correct
    similarity: Similarity | None
    reason: str


def usual_similarity(confirmed: Sequence[Sequence[Similarity]]) -> dict[str, float]:
    """Return the usual similarity of push and repetition by group, given the confirmed checks of each machine. The
    result is empty if too little is known."""
    machines = [checks for checks in confirmed if checks]
    if len(machines) < MIN_MACHINES or sum(map(len, machines)) < MIN_CHECKS:
        return {}
    groups = dict.fromkeys(group for checks in machines for check in checks for group in check)
    # A median of medians: each machine has one vote, however often it was checked.
    votes = {group: [median(seen) for checks in machines if (seen := _of(group, checks))] for group in groups}
    return {group: median(each) for group, each in votes.items() if len(each) >= MIN_MACHINES and median(each) > 0}


def judge(
    to_push: Sequence[Similarity], repetitions: Mapping[tuple[int, int], Similarity], expected: Similarity
) -> CheckResult:
    """Decide on the repetitions of a push.

    `to_push` has the similarity of each repetition to the push. `repetitions` has the similarity of each pair of
    repetitions, which are counted from 1. `expected` is the usual similarity, empty if it is unknown.
    """
    if len(to_push) == 1:
        unlike, reason = _unlike(to_push[0], expected)
        again = unlike or not expected
        return CheckResult(again, (), None if again else to_push[0], reason)
    agreed = next((pair for pair, alike in repetitions.items() if _agree(alike)), None)
    if agreed is None:
        return CheckResult(True, (), None, "no two repetitions agree")
    one, other = agreed
    odd = tuple(
        each
        for pair, alike in repetitions.items()
        for each in pair
        if one in pair and each != one and not _agree(alike)
    )
    reason = f"repetitions {one} and {other} of {len(to_push)} agree; {_unlike(to_push[one - 1], expected)[1]}"
    return CheckResult(False, odd, to_push[one - 1], reason)


def min_share(newest: Similarity, times_odd: int, expected: Similarity) -> float:
    """Return the minimum share of a machine's pushes to check, given its `newest` check and its number of odd
    repetitions."""
    return CLOSE_SHARE if times_odd or _unlike(newest, expected)[0] else 0.0


def is_malicious(times_odd: int) -> tuple[bool, str]:
    """Return whether a machine with this many odd repetitions is malicious, and why."""
    return times_odd >= MAX_ODD, f"in {times_odd} spot checks its repetition differs from those that agree"


def is_outlier(own: Sequence[Similarity], others: Sequence[Sequence[Similarity]]) -> tuple[bool, str]:
    """Return whether the pushes of a machine are not results of training, and why.

    The machine is an outlier if its pushes are far less similar to their repetitions than usual, and the difference is
    significant (Mann and Whitney, 1947).
    """
    from scipy.stats import mannwhitneyu  # deferred: this import takes most of a second

    expected = usual_similarity(others)
    for group, usually in expected.items():
        mine, theirs = _of(group, own), [cosine for checks in others for cosine in _of(group, checks)]
        if not mine or median(mine) >= MIN_SHARE_OF_USUAL * usually:
            continue
        chance = float(mannwhitneyu(mine, theirs, alternative="less", method="exact").pvalue)
        if chance < MAX_CHANCE / len(expected):  # one test per group (Bonferroni)
            return True, (
                f"in {len(mine)} spot checks the cosine between its steps of {group} and their repetitions is "
                f"{median(mine):.3g}, that of others {usually:.3g}; by chance that is so once in {1 / chance:,.0f}"
            )
    return False, "its pushes are as similar to their repetitions as those of others"


def _of(group: str, checks: Sequence[Similarity]) -> list[float]:
    return [check[group] for check in checks if group in check]


def _agree(alike: Similarity) -> bool:
    return all(cosine >= MIN_AGREEMENT for cosine in alike.values())


def _unlike(similarity: Similarity, expected: Similarity) -> tuple[bool, str]:
    """Return whether a push is far less similar to a repetition than is usual, and why. Its least similar group
    decides."""
    shares = {group: similarity[group] / usually for group, usually in expected.items() if group in similarity}
    if not shares:
        least = min(similarity.values(), default=1.0)
        return False, f"the cosine between push and repetition is {least:.3g}, and it is not known yet what is usual"
    worst = min(shares, key=lambda group: shares[group])
    cosine, usually = similarity[worst], expected[worst]
    reason = f"the cosine between push and repetition of {worst} is {cosine:.3g}, usually {usually:.3g}"
    return shares[worst] < MIN_SHARE_OF_USUAL, reason
