"""The gate: merges the step of a well-formed push as it is, shortens it, or refuses it.

Steps are measured by group. A group is the tensors of one type that one rule merges, because a network's weights and
its running statistics move on different scales; each field of an array type is a group of its own. Integers belong to
no group: they have no length. Contributions (`add`, `maximum`) do not either: they are merged whole, and their size
says nothing about the worker that sends them.

The usual step is that of the other workers. Each has one vote, however often it pushes, so a worker cannot move its
own bound, and can move the bound of others no further than honest workers differ. `StepHistory` keeps the recent steps
of each worker.

The guarantee with n >= 3 workers: a push moves the replica at most `OUTLIER` times as far as the longest recent step of
the median other worker. It also moves it at most three quarters of the way to zero, unless that is less than
`ALWAYS_ALLOWED` usual steps. A longer step is shortened to the usual length. With two workers it is unknown which is
right: the longer step is shortened, though never below a twentieth of the replica (`FREE_SHARE`), and neither worker is
flagged. Contributions and integers have no bound. A tensor that starts at zero, or whose rule does not average, is
bounded only by its dtype until another worker has pushed.
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
#: A step longer than this many usual steps is an outlier.
OUTLIER = 5.0
#: Share of the replica's length that a step may always have with one other worker, however short that one's steps are.
FREE_SHARE = 0.05
#: Share of the replica's length. A longer step nearly replaces the replica; the step to all zeros is 1.
REPLICA_SHARE = 0.75
#: Usual steps that are always allowed, however short the replica is.
ALWAYS_ALLOWED = 2.0
#: Bounds beyond which a step is refused instead of shortened: no training moves so far.
REFUSED_BEYOND = 1000.0
#: Share of the shortest step of any other worker. A step that is shorter trained nothing.
UNMOVED = 1e-4
#: Share of the shortest step of the median other worker. A step that is shorter did little of the work it is credited.
TOO_SHORT = 0.05
#: Seconds that a push that changes nothing is refused while no other worker has shown the same.
MAX_WAIT_S = 60.0
#: Recent steps that are kept of each worker and group.
MAX_STEPS = 4
#: Other workers that must agree before a worker is flagged.
MAJORITY = 2


def step_size(sumsq: float, vertices: int) -> float:
    """Return the length of a step per √vertices, which is comparable between pushes of different sizes."""
    return math.sqrt(sumsq) / math.sqrt(max(1, vertices))


@dataclass(frozen=True)
class RecentSteps:
    """Recent steps of one other worker in one group of tensors."""

    #: sizes per √vertices, as of `step_size`
    longest: float
    shortest: float
    #: of the largest of these pushes
    vertices: int
    #: at most `MAX_STEPS`
    steps: int


@dataclass(frozen=True)
class Step:
    """The step of a push in one group of tensors."""

    #: name of the group, for messages
    group: str
    #: Σ(p−b)², saturating at the largest float64
    sumsq: float
    #: from this `sumsq` on the step overflows the tensors' dtype
    overflow: float = sys.float_info.max
    #: length of the replica that was trained from; 0 where a step need not be short against it
    own: float = 0.0
    #: one entry per other worker that has pushed this group
    others: Sequence[RecentSteps] = field(default_factory=tuple)
    #: length up to which a step is accepted when there is exactly one other worker
    free: float = 0.0


class GateResult(NamedTuple):
    """The gate's decision on a push."""

    #: factor in (0, 1] for its step; None refuses the push
    scale: float | None
    reason: str
    #: a majority of the other workers behaves differently
    flagged: bool = False
    #: counts as a failure on the version that it was trained from
    failed: bool = False


def gate(not_finite: str | None, steps: Sequence[Step], vertices: int, *, alone: bool) -> GateResult:
    """Decide on a push of `vertices` newly trained vertices.

    `alone` says that no other worker has pushed or may push: then nobody else's work is at stake, and what is finite is
    taken whole, which keeps one worker exactly plain SGD. Otherwise the first push is bounded, too.
    """
    if not_finite is not None:
        return GateResult(None, f"{not_finite} {NOT_FINITE}", failed=True)
    if alone:
        return GateResult(1.0, "accepted")
    worst: tuple[float, Step, Bound] | None = None
    for step in steps:
        if step.sumsq >= step.overflow:
            reason = f"the step of {step.group} overflows: the square of its length is {step.sumsq:.3g}"
            return GateResult(None, reason, len(step.others) >= MAJORITY, failed=True)
        bound = _bound(step, vertices)
        ratio = math.sqrt(step.sumsq) / bound.length
        if ratio > (1.0 if worst is None else worst[0]):
            worst = ratio, step, bound
    if worst is None:
        return GateResult(1.0, "accepted")
    ratio, step, bound = worst
    length, reason = math.sqrt(step.sumsq), f"the step of {step.group} is {ratio:.3g} times as long as {bound.by}"
    flagged = len(step.others) >= MAJORITY  # more than half of them go less far
    if length > REFUSED_BEYOND * max(bound.length, REPLICA_SHARE * step.own):
        return GateResult(None, reason, flagged, failed=True)
    return GateResult(bound.usual / length, f"{reason}; shortened", flagged)


def check_movement(
    steps: Sequence[Step], vertices: int, waited_s: float = 0.0, *, is_settled: bool = True
) -> GateResult:
    """Decide on a push that returns the replica unchanged, or nearly: its worker trained nothing, unless f has nothing
    to change.

    The worker is flagged where a majority of the others moves the replica. As long as no other worker has shown either,
    an unmoved push is refused for up to `MAX_WAIT_S`: a worker that trains nothing may be the first to push, and would
    otherwise be credited the whole run.

    A push that moves, but less than `TOO_SHORT` in every group, is merged and flagged: honest workers have poor
    batches, too. It is not flagged before the worker `is_settled`: the first steps of a process are short where f warms
    up.
    """
    moving = [(step, least) for step in steps if (least := _shortest(step)) > 0 and len(step.others) >= MAJORITY]
    if moving:
        still = all(step_size(step.sumsq, vertices) < UNMOVED * least for step, least in moving)
        reason = "its replica is the one that it was given, where others change theirs"
        if still:
            return GateResult(None, reason, flagged=True)
        if is_settled and all(
            step_size(step.sumsq, vertices) < TOO_SHORT * _least_expected(step, vertices) for step, _ in moving
        ):
            reason = f"its step of {moving[0][0].group} is less than {TOO_SHORT:g} times as long as those of others"
            return GateResult(1.0, reason, flagged=True)
        return GateResult(1.0, "it has moved")
    agreed = any(other.shortest == 0 for step in steps for other in step.others)
    if steps and not agreed and waited_s < MAX_WAIT_S and all(step.sumsq == 0 for step in steps):
        return GateResult(None, "its replica is the one that it was given; another worker has to find the same")
    return GateResult(1.0, "accepted")


class Bound(NamedTuple):
    """The length beyond which a step is an outlier, what it is shortened to then, and where that comes from."""

    length: float
    usual: float
    by: str


def needs_replica_length(step: Step, vertices: int) -> bool:
    """Whether the bound depends on the length of the replica, which costs a look at all of it."""
    return len(step.others) < MAJORITY or step.sumsq > (ALWAYS_ALLOWED * _typical(step, vertices)) ** 2


def _typical(step: Step, vertices: int) -> float:
    """How far a push of so many vertices goes with the median other worker, at most; 0 where none has moved.

    Of an even number it is the upper median. Of three workers that is the longer of the two others: where the push is a
    liar's both of these are honest, and where it is honest a liar that makes tiny steps is no measure for it.
    """
    sizes = sorted(other.longest for other in step.others if other.longest > 0)
    if not sizes:
        return 0.0
    usual = sorted(other.vertices for other in step.others)[len(step.others) // 2]
    # An honest step grows with its vertices at least as a random walk does, and at most as a straight line.
    return sizes[len(sizes) // 2] * math.sqrt(vertices) * math.sqrt(max(1.0, vertices / max(1, usual)))


def _bound(step: Step, vertices: int) -> Bound:
    typical, itself = _typical(step, vertices), REPLICA_SHARE * step.own
    if not typical:
        return Bound(itself or math.inf, itself / OUTLIER, f"{REPLICA_SHARE:g} times the replica itself")
    others = f"{len(step.others)} other workers"
    if len(step.others) < MAJORITY:  # which of the two is right nobody can say
        length = max(OUTLIER * typical, step.free)
        return Bound(length, length, f"{OUTLIER:g} times what another worker does")
    if 0 < itself < OUTLIER * typical:  # early steps are long, and zeros only a few of them away
        return Bound(max(itself, ALWAYS_ALLOWED * typical), typical, f"the replica and {others} allow")
    return Bound(OUTLIER * typical, typical, f"{OUTLIER:g} times what {others} do")


def _least_expected(step: Step, vertices: int) -> float:
    """The size that a step of so many vertices has at least, going by the shortest one of the median other worker (of
    an even number the lower median). Only those count that have taken `MAX_STEPS` steps, so that the long first ones
    do not: 0 where there are fewer than a majority of them."""
    settled = [other for other in step.others if other.steps >= MAX_STEPS]
    if len(settled) < MAJORITY:
        return 0.0
    middle = (len(settled) - 1) // 2
    shortest, usual = (sorted(each)[middle] for each in zip(*((h.shortest, h.vertices) for h in settled), strict=True))
    # Of fewer vertices a step that goes straight on is shorter than its root says.
    return float(shortest * math.sqrt(min(1.0, vertices / max(1, usual))))


def _shortest(step: Step) -> float:
    """The shortest step that any other worker took of late, per root vertex."""
    return min((other.shortest for other in step.others), default=0.0)


MAX_WORKERS = 16  # that are remembered, those that pushed last: enough votes, and few to count at each push


class StepHistory:
    """The last steps of the workers that pushed last, by worker and group of tensors. It ends with its master."""

    def __init__(self) -> None:
        self._steps: OrderedDict[str, dict[str, deque[tuple[float, int]]]] = OrderedDict()
        self._recent: dict[str, dict[str, RecentSteps]] = {}

    def add(self, worker: str, sizes: Mapping[str, float], vertices: int) -> None:
        """Take note of the step that a worker's push took, in sizes per root vertex by group."""
        steps = self._steps.setdefault(worker, {})
        self._steps.move_to_end(worker)
        recent = self._recent.setdefault(worker, {})
        for group, size in sizes.items():
            last = steps.setdefault(group, deque(maxlen=MAX_STEPS))
            last.append((size, vertices))
            taken = [each for each, _ in last]
            recent[group] = RecentSteps(max(taken), min(taken), max(n for _, n in last), len(last))
        if len(self._steps) > MAX_WORKERS:
            self.forget(next(iter(self._steps)))

    def is_settled(self, worker: str) -> bool:
        """Whether a worker has pushed so often that its steps are known."""
        return any(len(steps) >= MAX_STEPS for steps in self._steps.get(worker, {}).values())

    def forget(self, worker: str) -> None:
        """What a worker does is no measure for others any more. Idempotent."""
        self._steps.pop(worker, None)
        self._recent.pop(worker, None)

    def others(self, worker: str, group: str) -> list[RecentSteps]:
        """Return what all workers but one did in a group of tensors."""
        return [recent[group] for name, recent in self._recent.items() if name != worker and group in recent]

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


def group_tensors(tensors: Iterable[tuple[str, Array, Aggregate | None]]) -> dict[str, Group]:
    """Return the group of each floating-point tensor, by its name in files, given its rule, None for the user's own."""
    groups = {}
    for name, tensor, rule in tensors:
        if tensor.dtype.kind == "f" and not (rule is not None and rule.is_contribution):
            place = name.partition("/")[0] if name.count("/") > 1 else name
            overflow = float(np.finfo(np.result_type(tensor.dtype, np.float32)).max)
            called = f"{place} ({type(rule).__name__})" if rule is not None else place
            groups[name] = Group(called, overflow, near=rule is not None and rule.near)
    return groups


def base_tensors(part: ReplicaPart, base: Base) -> Iterator[tuple[str, Array]]:
    """Yield what of the base a push was trained from, with names as in files."""
    for key in part.modules:
        yield from base.modules[key].tensors.items()
    for type_name, rows in part.rows.items():
        old = base.rows(type_name, rows.ids)
        yield from ((f"{type_name}/{name}", old[name]) for name in rows.fields)


def norm(tensors: Iterable[tuple[str, Array]]) -> float:
    """Return the length of some tensors together, as one vector; infinite where it overflows."""
    square = 0.0
    with np.errstate(over="ignore"):
        for _, tensor in tensors:
            line = np.ravel(tensor if tensor.itemsize > 2 else tensor.astype(np.float32))
            square += float(np.dot(line, line))
    return math.sqrt(square)
