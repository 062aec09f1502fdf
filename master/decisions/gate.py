"""Whether a replica that is well-formed may be merged as it is, with a shorter step, or not at all.

A step is measured in the tensors of one type that one rule merges: a network's weights and its running statistics move
on scales of their own. What is usual is what other workers do, each with one vote however often it pushes: a worker
moves its own bound by nothing that it does, and that of others no further than honest ones lie apart.

What holds for one of n >= 3 workers: per credited vertex it moves the replica no further than `OUTLIER` times as far as
the longest recent step of the median other worker. Of two workers nobody can say which is right, so the longer step is
shortened and neither is blamed. Whole numbers are facts, and have no bound; so has what begins at zero, or is merged by
a rule that does not average, until another worker has pushed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

OUTLIER = 5.0  # a step this many times the usual one is an outlier
ITSELF = 0.75  # of the replica's own length: as far as a step may go while nothing is known of others; zeros go 1.0
FAR = 1000.0  # bounds: what goes further is no step of training
STILL = 1e-4  # of the shortest step that any other worker took: what goes no further has trained nothing
REMEMBERED = 4  # steps of each worker that are looked back on
MAJORITY = 2  # other workers that must agree before anybody is blamed


def step_size(sumsq: float, vertices: int) -> float:
    """The length of a step per root of its vertices: comparable between pushes of different size."""
    return math.sqrt(sumsq) / math.sqrt(max(1, vertices))


@dataclass(frozen=True)
class Habit:
    """What one other worker did of late in one group of tensors: step sizes per root vertex, vertices of a push, and
    how many steps these are."""

    longest: float
    shortest: float
    vertices: int
    steps: int


@dataclass(frozen=True)
class Step:
    """A push's step in one group of tensors, named for people.

    `sumsq` is Σ(p−b)², saturating; from `overflow` on it is no number of the tensors' dtype. `own` is the length of the
    replica that was trained from, 0 where a step need not be short against it or a majority of others says more.
    """

    group: str
    sumsq: float
    overflow: float = sys.float_info.max
    own: float = 0.0
    others: Sequence[Habit] = field(default_factory=tuple)


class Passage(NamedTuple):
    """What becomes of a push: the scale of its step, None to refuse it, and why. `blamed`: a majority of others does
    otherwise."""

    scale: float | None
    reason: str
    blamed: bool = False


def gate(not_finite: str | None, steps: Sequence[Step], vertices: int, *, alone: bool) -> Passage:
    """Decide on a push of `vertices` newly trained vertices.

    `alone` says that no other worker has pushed or may push: then nobody else's work is at stake, and what is finite is
    taken whole, which keeps one worker exactly plain SGD. Otherwise the first push is bounded, too.
    """
    if not_finite is not None:
        return Passage(None, f"{not_finite} is not finite (NaN or infinity)")
    if alone:
        return Passage(1.0, "accepted")
    worst, ratio, by, far = None, 1.0, "", False
    for step in steps:
        if step.sumsq >= step.overflow:
            return Passage(None, f"the step of {step.group} overflows: the square of its length is {step.sumsq:.3g}")
        length, (longest, of) = math.sqrt(step.sumsq), _bound(step, vertices)
        if length > ratio * longest:
            worst, ratio, by, far = step, length / longest, of, length > FAR * max(longest, ITSELF * step.own)
    if worst is not None:
        blamed, reason = (
            len(worst.others) >= MAJORITY,
            f"the step of {worst.group} is {ratio:.3g} times as long as {by}",
        )
        return Passage(None, reason, blamed) if far else Passage(1 / ratio, f"{reason}; shortened to that", blamed)
    moving = [step for step in steps if _moving(step)]
    if moving and all(step_size(step.sumsq, vertices) < STILL * _shortest(step) for step in moving):
        return Passage(None, "its replica is the one that it was given, where others change theirs", True)
    return Passage(1.0, "accepted")


def _bound(step: Step, vertices: int) -> tuple[float, str]:
    """The length beyond which a step is shortened, infinite where there is no bound, and what it comes from."""
    sizes = sorted(habit.longest for habit in step.others if habit.longest > 0)
    if sizes:
        usual = sorted(habit.vertices for habit in step.others)[len(step.others) // 2]
        # An honest step grows with its vertices at least as a random walk does, and at most as a straight line.
        reach = math.sqrt(vertices) * math.sqrt(max(1.0, vertices / max(1, usual)))
        return OUTLIER * sizes[len(sizes) // 2] * reach, f"{OUTLIER:g} times what {len(sizes)} other workers do"
    return (ITSELF * step.own, f"{ITSELF:g} times the replica itself") if step.own > 0 else (math.inf, "any")


def _shortest(step: Step) -> float:
    """The shortest step that any other worker took of late, per root vertex."""
    return min((habit.shortest for habit in step.others), default=0.0)


def _moving(step: Step) -> bool:
    """Whether a majority of others has moved these tensors for some time, and none has not."""
    settled = sum(habit.steps >= REMEMBERED for habit in step.others)
    return settled >= MAJORITY and _shortest(step) > 0
