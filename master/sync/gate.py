"""The gate: whether a replica that is well-formed may be merged as it is, with a shorter step, or not at all.

Steps are measured by groups of tensors: those of one type that one rule merges. A network's weights and its running
statistics move on scales of their own; of the fields of an array type each is a group. Integers are in none: they
are facts, and have no length. Nor are contributions (`add`, `maximum`): they are taken whole, and their size is no
measure of the worker that brings them.

The usual step is what other workers do, each with one vote however often it pushes: a worker does not move its own
bound, and moves that of others no further than the distance between honest ones. `Habits` remembers each worker's
recent steps.

What holds for one of n >= 3 workers: a push moves the replica no further than `OUTLIER` times the longest recent
step of the median other worker, nor, where that is more than `AMONG` of them, three quarters of the way to zeros;
what goes further is shortened to what is usual. Of two workers it cannot be said which is right, so the longer step
is shortened, but to no less than a twentieth of the replica (`BESIDE_ONE`), and neither is flagged. Contributions
and whole numbers are facts, and have no bound; what begins at zero, or is merged by a rule that does not average,
has none but that of its dtype until another worker has pushed.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Aggregate
from gridml.protocol.push import ReplicaPart
from master.store.versions import Base

Array = NDArray[Any]


NOT_FINITE = "is not finite (NaN or infinity)"
OUTLIER = 5.0  # a step this many times the usual one is an outlier
BESIDE_ONE = 0.05  # of the replica's own length: so far one may go beside one other, however short its steps are
ITSELF = 0.75  # of the replica's own length: a step that goes further nearly replaces it; that to zeros has length 1
AMONG = 2.0  # times the usual step: so far one may go however long the replica is
FAR = 1000.0  # bounds: what goes further is no step of training
STILL = 1e-4  # of the shortest step that any other worker took: what goes no further has trained nothing
SHORT = 0.05  # of the shortest steps of the median other worker: it takes next to nothing of what it is credited for
PATIENT_S = 60.0  # for so long a push that changes nothing waits for another worker to find the same
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
    replica that was trained from, 0 where a step need not be short against it. Beside one other worker a step that is
    no longer than `free` is not held against its steps.
    """

    group: str
    sumsq: float
    overflow: float = sys.float_info.max
    own: float = 0.0
    others: Sequence[Habit] = field(default_factory=tuple)
    free: float = 0.0


class Passage(NamedTuple):
    """What becomes of a push: the scale of its step, None to refuse it, and why. `blamed`: a majority of others does
    otherwise. `failed`: it counts as a failure on what it was trained on."""

    scale: float | None
    reason: str
    blamed: bool = False
    failed: bool = False


def gate(not_finite: str | None, steps: Sequence[Step], vertices: int, *, alone: bool) -> Passage:
    """Decide on a push of `vertices` newly trained vertices.

    `alone` says that no other worker has pushed or may push: then nobody else's work is at stake, and what is finite is
    taken whole, which keeps one worker exactly plain SGD. Otherwise the first push is bounded, too.
    """
    if not_finite is not None:
        return Passage(None, f"{not_finite} {NOT_FINITE}", failed=True)
    if alone:
        return Passage(1.0, "accepted")
    worst: tuple[float, Step, Bound] | None = None
    for step in steps:
        if step.sumsq >= step.overflow:
            reason = f"the step of {step.group} overflows: the square of its length is {step.sumsq:.3g}"
            return Passage(None, reason, len(step.others) >= MAJORITY, failed=True)
        bound = _bound(step, vertices)
        ratio = math.sqrt(step.sumsq) / bound.length
        if ratio > (1.0 if worst is None else worst[0]):
            worst = ratio, step, bound
    if worst is None:
        return Passage(1.0, "accepted")
    ratio, step, bound = worst
    length, reason = math.sqrt(step.sumsq), f"the step of {step.group} is {ratio:.3g} times as long as {bound.by}"
    blamed = len(step.others) >= MAJORITY  # more than half of them go less far
    if length > FAR * max(bound.length, ITSELF * step.own):
        return Passage(None, reason, blamed, failed=True)
    return Passage(bound.usual / length, f"{reason}; shortened", blamed)


def stands_still(steps: Sequence[Step], vertices: int, waited_s: float = 0.0, *, is_settled: bool = True) -> Passage:
    """Decide on a push that brings back what was given out: nothing was trained, unless f has nothing to change.

    Where a majority of others changes it the worker is to blame. Where no other has shown either, its first such push
    is refused for `PATIENT_S`, so that somebody else can: it may have come first, and would earn the whole run.

    One that moves, but in every group `SHORT` of what others do at least, is merged and blamed: a batch that teaches
    little happens to honest workers, too, and several in a row where all have them. Not so before it `is_settled`: the
    first steps of a process may be short, as where f warms up.
    """
    moving = [(step, least) for step in steps if (least := _shortest(step)) > 0 and len(step.others) >= MAJORITY]
    if moving:
        still = all(step_size(step.sumsq, vertices) < STILL * least for step, least in moving)
        reason = "its replica is the one that it was given, where others change theirs"
        if still:
            return Passage(None, reason, blamed=True)
        if is_settled and all(
            step_size(step.sumsq, vertices) < SHORT * _least_expected(step, vertices) for step, _ in moving
        ):
            reason = f"its step of {moving[0][0].group} is less than {SHORT:g} times as long as those of others"
            return Passage(1.0, reason, blamed=True)
        return Passage(1.0, "it has moved")
    agreed = any(habit.shortest == 0 for step in steps for habit in step.others)
    if steps and not agreed and waited_s < PATIENT_S and all(step.sumsq == 0 for step in steps):
        return Passage(None, "its replica is the one that it was given; another worker has to find the same")
    return Passage(1.0, "accepted")


class Bound(NamedTuple):
    """The length beyond which a step is an outlier, what it is shortened to then, and where that comes from."""

    length: float
    usual: float
    by: str


def compares_with_itself(step: Step, vertices: int) -> bool:
    """Whether the bound depends on the length of the replica, which costs a look at all of it."""
    return len(step.others) < MAJORITY or step.sumsq > (AMONG * _typical(step, vertices)) ** 2


def _typical(step: Step, vertices: int) -> float:
    """How far a push of so many vertices goes with the median other worker, at most; 0 where none has moved.

    Of an even number it is the upper median. Of three workers that is the longer of the two others: where the push is a
    liar's both of these are honest, and where it is honest a liar that makes tiny steps is no measure for it.
    """
    sizes = sorted(habit.longest for habit in step.others if habit.longest > 0)
    if not sizes:
        return 0.0
    usual = sorted(habit.vertices for habit in step.others)[len(step.others) // 2]
    # An honest step grows with its vertices at least as a random walk does, and at most as a straight line.
    return sizes[len(sizes) // 2] * math.sqrt(vertices) * math.sqrt(max(1.0, vertices / max(1, usual)))


def _bound(step: Step, vertices: int) -> Bound:
    typical, itself = _typical(step, vertices), ITSELF * step.own
    if not typical:
        return Bound(itself or math.inf, itself / OUTLIER, f"{ITSELF:g} times the replica itself")
    others = f"{len(step.others)} other workers"
    if len(step.others) < MAJORITY:  # which of the two is right nobody can say
        length = max(OUTLIER * typical, step.free)
        return Bound(length, length, f"{OUTLIER:g} times what another worker does")
    if 0 < itself < OUTLIER * typical:  # early steps are long, and zeros only a few of them away
        return Bound(max(itself, AMONG * typical), typical, f"the replica and {others} allow")
    return Bound(OUTLIER * typical, typical, f"{OUTLIER:g} times what {others} do")


def _least_expected(step: Step, vertices: int) -> float:
    """The size that a step of so many vertices has at least, going by the shortest one of the median other worker (of
    an even number the lower median). Only those count that have taken `REMEMBERED` steps, so that the long first ones
    do not: 0 where there are fewer than a majority of them."""
    settled = [habit for habit in step.others if habit.steps >= REMEMBERED]
    if len(settled) < MAJORITY:
        return 0.0
    middle = (len(settled) - 1) // 2
    shortest, usual = (sorted(each)[middle] for each in zip(*((h.shortest, h.vertices) for h in settled), strict=True))
    # Of fewer vertices a step that goes straight on is shorter than its root says.
    return float(shortest * math.sqrt(min(1.0, vertices / max(1, usual))))


def _shortest(step: Step) -> float:
    """The shortest step that any other worker took of late, per root vertex."""
    return min((habit.shortest for habit in step.others), default=0.0)


WORKERS = 16  # that are remembered, those that pushed last: enough votes, and few to count at each push


class Habits:
    """The last steps of the workers that pushed last, by worker and group of tensors. It ends with its master."""

    def __init__(self) -> None:
        self._steps: OrderedDict[str, dict[str, deque[tuple[float, int]]]] = OrderedDict()
        self._habits: dict[str, dict[str, Habit]] = {}

    def add(self, worker: str, sizes: Mapping[str, float], vertices: int) -> None:
        """Take note of the step that a worker's push took, in sizes per root vertex by group."""
        steps = self._steps.setdefault(worker, {})
        self._steps.move_to_end(worker)
        habits = self._habits.setdefault(worker, {})
        for group, size in sizes.items():
            last = steps.setdefault(group, deque(maxlen=REMEMBERED))
            last.append((size, vertices))
            taken = [each for each, _ in last]
            habits[group] = Habit(max(taken), min(taken), max(n for _, n in last), len(last))
        if len(self._steps) > WORKERS:
            self.forget(next(iter(self._steps)))

    def is_settled(self, worker: str) -> bool:
        """Whether a worker has pushed so often that its steps are known."""
        return any(len(steps) >= REMEMBERED for steps in self._steps.get(worker, {}).values())

    def forget(self, worker: str) -> None:
        """What a worker does is no measure for others any more. Idempotent."""
        self._steps.pop(worker, None)
        self._habits.pop(worker, None)

    def others(self, worker: str, group: str) -> list[Habit]:
        """Return what all workers but one did in a group of tensors."""
        return [habits[group] for name, habits in self._habits.items() if name != worker and group in habits]

    def alone(self, worker: str) -> bool:
        """Whether no other worker has pushed."""
        return all(name == worker for name in self._steps)


@dataclass(frozen=True)
class Group:
    """`overflow` is what the square of a length in its dtype stays below. Where its tensors are `near`, a replica's
    step is short against them."""

    name: str
    overflow: float
    near: bool


def grouped(tensors: Iterable[tuple[str, Array, Aggregate | None]]) -> dict[str, Group]:
    """Return the group of each floating-point tensor, by its name in files, given its rule, None for the user's own."""
    groups = {}
    for name, tensor, rule in tensors:
        if tensor.dtype.kind == "f" and not (rule is not None and rule.is_contribution):
            place = name.partition("/")[0] if name.count("/") > 1 else name
            overflow = float(np.finfo(np.result_type(tensor.dtype, np.float32)).max)
            called = f"{place} ({type(rule).__name__})" if rule is not None else place
            groups[name] = Group(called, overflow, near=rule is not None and rule.near)
    return groups


def pushed_from(part: ReplicaPart, base: Base) -> Iterator[tuple[str, Array]]:
    """Yield what of the base a push was trained from, with names as in files."""
    for key in part.modules:
        yield from base.modules[key].tensors.items()
    for type_name, rows in part.rows.items():
        old = base.rows(type_name, rows.ids)
        yield from ((f"{type_name}/{name}", old[name]) for name in rows.fields)


def length(tensors: Iterable[tuple[str, Array]]) -> float:
    """Return the length of some tensors together, as one vector; infinite where it overflows."""
    square = 0.0
    with np.errstate(over="ignore"):
        for _, tensor in tensors:
            line = np.ravel(tensor if tensor.itemsize > 2 else tensor.astype(np.float32))
            square += float(np.dot(line, line))
    return math.sqrt(square)
