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
    """Decide on a push of `vertices` newly trained vertices, given its steps by group.

    `alone` means that no other worker has pushed or may push: whatever is finite is then accepted whole, so that one
    worker is exactly plain SGD. Otherwise even the first push is bounded.
    """
    if not_finite is not None:
        return GateResult(None, f"{not_finite} {NOT_FINITE}", failed=True)
    if alone:  # bounds would differ from plain SGD, and protect no other worker's work
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
    flagged = len(step.others) >= MAJORITY  # with fewer it is unknown which of the workers is wrong
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
        # All groups must be unmoved: f may leave some of them alone on this data.
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
    """Limit of a step's length."""

    #: a longer step is an outlier
    length: float
    #: length that an outlier is shortened to
    usual: float
    #: origin of the limit, for the reason
    by: str


def needs_replica_length(step: Step, vertices: int) -> bool:
    """Return whether the bound depends on the length of the replica, which takes a pass over all tensors to compute."""
    return len(step.others) < MAJORITY or step.sumsq > (ALWAYS_ALLOWED * _typical(step, vertices)) ** 2


def _typical(step: Step, vertices: int) -> float:
    """Return the longest step that a push of so many vertices has at the median other worker; 0 where no worker has
    moved.

    For an even number of workers it is the upper median. With two others that is the longer one: if this push is
    hostile both others are honest, and if it is honest a hostile worker with tiny steps cannot lower the bound.
    """
    sizes = sorted(other.longest for other in step.others if other.longest > 0)
    if not sizes:
        return 0.0
    usual = sorted(other.vertices for other in step.others)[len(step.others) // 2]
    # An honest step grows with its vertices at least as a random walk does, and at most as a straight line.
    return sizes[len(sizes) // 2] * math.sqrt(vertices) * math.sqrt(max(1.0, vertices / max(1, usual)))


def _bound(step: Step, vertices: int) -> Bound:
    """Return the limit of a push's step in one group."""
    typical, itself = _typical(step, vertices), REPLICA_SHARE * step.own
    if not typical:
        return Bound(itself or math.inf, itself / OUTLIER, f"{REPLICA_SHARE:g} times the replica itself")
    others = f"{len(step.others)} other workers"
    if len(step.others) < MAJORITY:  # it is unknown which of the two is right
        length = max(OUTLIER * typical, step.free)
        return Bound(length, length, f"{OUTLIER:g} times what another worker does")
    if 0 < itself < OUTLIER * typical:  # early in training the usual step is a large part of the replica
        return Bound(max(itself, ALWAYS_ALLOWED * typical), typical, f"the replica and {others} allow")
    return Bound(OUTLIER * typical, typical, f"{OUTLIER:g} times what {others} do")


def _least_expected(step: Step, vertices: int) -> float:
    """Return the minimum size per √vertices that a step of so many vertices should have: that of the shortest step of
    the median other worker (the lower median of an even number); 0 where fewer than a majority are settled."""
    # A worker counts only with a full history: first steps are long, and would raise the minimum.
    settled = [other for other in step.others if other.steps >= MAX_STEPS]
    if len(settled) < MAJORITY:
        return 0.0
    middle = (len(settled) - 1) // 2
    shortest, usual = (sorted(each)[middle] for each in zip(*((h.shortest, h.vertices) for h in settled), strict=True))
    # A step of fewer vertices that goes straight is shorter than √vertices says.
    return float(shortest * math.sqrt(min(1.0, vertices / max(1, usual))))


def _shortest(step: Step) -> float:
    """Return the shortest recent step of any other worker, per √vertices."""
    return min((other.shortest for other in step.others), default=0.0)


#: Workers that are kept, those that pushed last: enough votes for a median, and few to scan at each push.
MAX_WORKERS = 16


class StepHistory:
    """Recent steps of the workers that pushed last, by worker and group. It is not saved: a new master starts empty."""

    def __init__(self) -> None:
        #: (size per √vertices, vertices) by worker and group; the worker that pushed last is last
        self._steps: OrderedDict[str, dict[str, deque[tuple[float, int]]]] = OrderedDict()
        #: summary of `_steps`, updated with it, so that the gate reads it without a scan
        self._recent: dict[str, dict[str, RecentSteps]] = {}

    def add(self, worker: str, sizes: Mapping[str, float], vertices: int) -> None:
        """Record the step of a worker's push, as sizes per √vertices by group."""
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
        """Return whether a worker's history is full."""
        return any(len(steps) >= MAX_STEPS for steps in self._steps.get(worker, {}).values())

    def forget(self, worker: str) -> None:
        """Drop a worker that has ended. Idempotent."""
        self._steps.pop(worker, None)
        self._recent.pop(worker, None)

    def others(self, worker: str, group: str) -> list[RecentSteps]:
        """Return the recent steps of all other workers in a group."""
        return [recent[group] for name, recent in self._recent.items() if name != worker and group in recent]

    def alone(self, worker: str) -> bool:
        """Return whether no other worker has pushed."""
        return all(name == worker for name in self._steps)


@dataclass(frozen=True)
class Group:
    """A group of tensors whose steps are measured together."""

    name: str
    #: largest Σ(p−b)² that its dtype can hold
    overflow: float
    #: its rule averages, so that a step should be short against the tensors themselves
    near: bool


def group_tensors(tensors: Iterable[tuple[str, Array, Aggregate | None]]) -> dict[str, Group]:
    """Return the group of each floating-point tensor, by its name in files. A tensor comes with its rule, None for the
    user's own."""
    groups = {}
    for name, tensor, rule in tensors:
        if tensor.dtype.kind == "f" and not (rule is not None and rule.is_contribution):
            # Tensors of modules share the group of their type; each array field has one of its own.
            prefix = name.partition("/")[0] if name.count("/") > 1 else name
            overflow = float(np.finfo(np.result_type(tensor.dtype, np.float32)).max)
            label = f"{prefix} ({type(rule).__name__})" if rule is not None else prefix
            groups[name] = Group(label, overflow, near=rule is not None and rule.near)
    return groups


def base_tensors(part: ReplicaPart, base: Base) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of the base that a push was trained from, with their names in files."""
    for key in part.modules:
        yield from base.modules[key].tensors.items()
    for type_name, rows in part.rows.items():
        old = base.rows(type_name, rows.ids)
        yield from ((f"{type_name}/{name}", old[name]) for name in rows.fields)


def norm(tensors: Iterable[tuple[str, Array]]) -> float:
    """Return the Euclidean norm of some tensors together; infinite where it overflows."""
    square = 0.0
    with np.errstate(over="ignore"):  # an overflow is infinite, and refused as such
        for _, tensor in tensors:
            line = np.ravel(tensor if tensor.itemsize > 2 else tensor.astype(np.float32))
            square += float(np.dot(line, line))
    return math.sqrt(square)
