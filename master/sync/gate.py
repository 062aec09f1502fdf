"""The gate: merges the step of a well-formed push as it is, shortens it, or refuses it.

A step is the change that a push makes: its values p minus the values of its base b. Steps are measured by group. A
group is the tensors of one type that one rule merges, because a network's weights and its running statistics move on
different scales. Each field of an array type is a group of its own. Integers belong to no group, because they have no
length. Contributions (`add`, `maximum`) belong to no group either: they are merged whole, and their size says nothing
about their sender.

The usual step is the step of the other workers. Each of them has one vote, however often it pushes. So a worker cannot
move its own bound, and can move the bound of others no further than honest workers differ. `StepHistory` keeps the
recent steps of each worker.

The guarantee with n >= 3 workers: a push moves the replica at most `OUTLIER` times as far as the longest recent step of
the median other worker. It also moves the replica by at most three quarters of the replica's length (`REPLICA_SHARE`),
or by `ALWAYS_ALLOWED` usual steps if that is more. A longer step is shortened to the usual length. With two workers it
is unknown which one is right: the longer step is shortened, though never below a twentieth of the replica's length
(`FREE_SHARE`), and neither worker is flagged. Contributions and integers have no bound. A tensor that starts at zero,
or whose rule does not average, is bounded only by its dtype until another worker has pushed.
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
#: With one other worker, a step of this share of the replica's length is always allowed, however short the other
#: worker's steps are.
FREE_SHARE = 0.05
#: Longest step as a share of the replica's length. A longer step nearly replaces the replica: a push of zeros has 1.
REPLICA_SHARE = 0.75
#: A step of this many usual steps is always allowed, however short the replica is.
ALWAYS_ALLOWED = 2.0
#: A step longer than this many times its bound is refused instead of shortened, because no training moves so far.
REFUSED_BEYOND = 1000.0
#: A step shorter than this share of the shortest step of any other worker trained nothing.
UNMOVED = 1e-4
#: A step shorter than this share of the median other worker's shortest step did little of the work that it claims.
TOO_SHORT = 0.05
#: Seconds for which unmoved pushes are refused, unless another worker has pushed an unmoved replica, too.
MAX_WAIT_S = 60.0
#: Recent steps that are kept per worker and group. The longest of them bounds the steps of other workers. Once a
#: network fits its data, its steps are tiny, except after a rare surprising batch, whose momentum lasts for several
#: pushes. Four steps were too few, because they seldom include such a batch: in one of eight long runs honest workers
#: were quarantined.
MAX_STEPS = 16
#: Number of a worker's newest steps. The shortest of them is a lower bound on the steps of other workers. A worker with
#: at least this many steps is settled.
NEWEST_STEPS = 4
#: Number of other workers that must agree before a worker is flagged.
MAJORITY = 2


def step_size(sumsq: float, vertices: int) -> float:
    """Return the length of a step per √vertices, which is comparable between pushes of different sizes."""
    return math.sqrt(sumsq) / math.sqrt(max(1, vertices))


@dataclass(frozen=True)
class RecentSteps:
    """Recent steps of one other worker in one group of tensors."""

    #: size of the longest step, as `step_size` returns it
    longest: float
    #: size of the shortest of the newest steps, as `step_size` returns it
    shortest: float
    #: vertices of the push that has the most
    vertices: int
    #: number of steps, at most `MAX_STEPS`
    steps: int


@dataclass(frozen=True)
class Step:
    """The step of a push in one group of tensors."""

    #: name of the group, for messages
    group: str
    #: Σ(p−b)², saturating at the largest float64
    sumsq: float
    #: a step with this `sumsq` or more overflows the tensors' dtype
    overflow: float = sys.float_info.max
    #: length of the base; 0 if this length does not bound the step
    own: float = 0.0
    #: one entry for each other worker that has pushed this group
    others: Sequence[RecentSteps] = field(default_factory=tuple)
    #: length up to which a step is accepted if there is exactly one other worker
    free: float = 0.0
    #: share of the base that the step takes back, −(p−b)·b/|b|²: 1 for zeros, 2 for the base's negative
    undone: float = 0.0


class GateResult(NamedTuple):
    """The gate's decision on a push."""

    #: factor in (0, 1] for the push's step; None: the push is refused
    scale: float | None
    reason: str
    #: True: a majority of the other workers behaves differently
    flagged: bool = False
    #: True: the push counts as a failure on the version that it was trained from
    failed: bool = False
    #: length per vertex of a step that is too long; None for any other push
    excess: float | None = None


def gate(not_finite: str | None, steps: Sequence[Step], vertices: int, *, alone: bool) -> GateResult:
    """Decide on a push of `vertices` newly trained vertices, given its steps by group.

    `alone` is True if no other worker has pushed or may push. Every finite push is then accepted whole, so that the
    training of one worker is exactly plain SGD. Otherwise even the first push is bounded.
    """
    if not_finite is not None:
        return GateResult(None, f"{not_finite} {NOT_FINITE}", failed=True)
    if alone:  # bounds would differ from plain SGD, and protect no other worker's work
        return GateResult(1.0, "accepted")
    worst: tuple[float, Step, Bound] | None = None
    for step in steps:
        if step.sumsq >= step.overflow:
            reason = f"the step of {step.group} overflows: the square of its length is {step.sumsq:.3g}"
            return _refused(reason, step)
        bound = _bound(step, vertices)
        ratio = math.sqrt(step.sumsq) / bound.length
        if ratio > (1.0 if worst is None else worst[0]):
            worst = ratio, step, bound
    if worst is None:
        return GateResult(1.0, "accepted")
    ratio, step, bound = worst
    length, reason = math.sqrt(step.sumsq), f"the step of {step.group} is {ratio:.3g} times as long as {bound.by}"
    flagged = len(step.others) >= MAJORITY  # with fewer other workers it is unknown which worker is wrong
    if length > REFUSED_BEYOND * max(bound.length, REPLICA_SHARE * step.own):
        return _refused(reason, step)
    return GateResult(bound.usual / length, f"{reason}; shortened", flagged, excess=length / vertices)


def _refused(reason: str, step: Step) -> GateResult:
    flagged = len(step.others) >= MAJORITY
    return GateResult(None, reason if flagged else f"{reason}. Lower the learning rate", flagged, failed=True)


def check_movement(
    steps: Sequence[Step], vertices: int, waited_s: float = 0.0, *, is_settled: bool = True
) -> GateResult:
    """Decide whether a push moves the replica far enough. If a push leaves the replica unchanged, or nearly, its worker
    trained nothing, unless f has nothing to change.

    The worker of an unmoved push is flagged if a majority of the other workers moves the replica. If no other worker
    has pushed an unmoved replica yet, the push is refused until `waited_s`, the time in which no push has moved the
    replica, is `MAX_WAIT_S`. Otherwise a worker that trains nothing, and is the first to push, would be credited the
    whole run.

    A push that moves, but less than `TOO_SHORT` in every group, is merged and flagged. It is merged, because honest
    workers have poor batches, too. It is not flagged unless the worker `is_settled`, because the first steps of a
    process are short if f warms up.
    """
    moving = [(step, least) for step in steps if (least := _shortest(step)) > 0 and len(step.others) >= MAJORITY]
    if moving:
        # All groups must be unmoved, because f may leave some groups alone on this data.
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
    """Return whether the bound depends on the length of the replica. If not, a pass over all tensors is saved."""
    return len(step.others) < MAJORITY or step.sumsq > (ALWAYS_ALLOWED * _usual(step, vertices).seen) ** 2


class Usual(NamedTuple):
    """Longest recent step of the median other worker; 0 if no worker has moved."""

    #: extrapolated to the vertices of the push, even if the other workers' pushes have fewer vertices
    grown: float
    #: extrapolated to the vertices of the push, but at most to those of the other workers' pushes
    seen: float


def _usual(step: Step, vertices: int) -> Usual:
    """Return the longest step that a push of this many vertices has at the median other worker.

    For an even number of other workers it is the upper median. With two other workers the upper median is the longer
    step. This is safe: if this push is hostile, both other workers are honest; if this push is honest, a hostile worker
    with tiny steps cannot lower the bound.
    """
    sizes = sorted(other.longest for other in step.others if other.longest > 0)
    if not sizes:
        return Usual(0.0, 0.0)
    size = sizes[len(sizes) // 2]
    pushed = max(1, sorted(other.vertices for other in step.others)[len(step.others) // 2])
    # An honest step grows with its vertices at least as a random walk does, and at most as a straight line.
    grown = size * math.sqrt(vertices) * math.sqrt(max(1.0, vertices / pushed))
    return Usual(grown, min(grown, size * math.sqrt(pushed)))


def _bound(step: Step, vertices: int) -> Bound:
    """Return the limit of a push's step in one group."""
    (typical, seen), itself = _usual(step, vertices), REPLICA_SHARE * step.own
    if not typical:
        return Bound(itself or math.inf, itself / OUTLIER, f"{REPLICA_SHARE:g} times the replica itself")
    others = f"{len(step.others)} other workers"
    if len(step.others) < MAJORITY:  # it is unknown which of the two workers is right
        length = max(OUTLIER * typical, step.free)
        return Bound(length, length, f"{OUTLIER:g} times what another worker does")
    if 0 < itself < OUTLIER * typical:  # early in training the usual step is a large part of the replica
        # A worker that claims ten times the vertices of others could otherwise replace the replica by its negative. An
        # honest step may be much longer than a replica that begins near zero, but it does not undo the replica.
        usual = seen if step.undone > REPLICA_SHARE else typical
        return Bound(max(itself, ALWAYS_ALLOWED * usual), usual, f"the replica and {others} allow")
    return Bound(OUTLIER * typical, typical, f"{OUTLIER:g} times what {others} do")


def _least_expected(step: Step, vertices: int) -> float:
    """Return the minimum size per √vertices that a step of this many vertices should have. It is the size of the
    shortest step of the median settled other worker (the lower median of an even number); 0 if fewer than `MAJORITY`
    are settled."""
    # A worker counts only once it is settled, because the first steps of a run are longer than later steps and would
    # raise the minimum.
    settled = [other for other in step.others if other.steps >= NEWEST_STEPS]
    if len(settled) < MAJORITY:
        return 0.0
    middle = (len(settled) - 1) // 2
    shortest, usual = (sorted(each)[middle] for each in zip(*((h.shortest, h.vertices) for h in settled), strict=True))
    # A step grows with √vertices if its moves have random directions. If all moves have the same direction, the step
    # grows with the number of vertices, so a push of fewer vertices has a shorter step than √vertices predicts.
    return float(shortest * math.sqrt(min(1.0, vertices / max(1, usual))))


def _shortest(step: Step) -> float:
    """Return the shortest recent step of any other worker, per √vertices."""
    return min((other.shortest for other in step.others), default=0.0)


#: Maximum number of workers in the history; the workers that pushed last stay. They are enough for a median, and few
#: enough to visit at each push.
MAX_WORKERS = 16


class StepHistory:
    """Recent steps of the workers that pushed last, by worker and group. It is not saved: a new master starts empty."""

    def __init__(self) -> None:
        #: (size per √vertices, vertices) of each step, by worker and group; the worker that pushed last is last
        self._steps: OrderedDict[str, dict[str, deque[tuple[float, int]]]] = OrderedDict()
        #: summary of `_steps`, updated together with it, so that the gate need not scan all steps
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
            recent[group] = RecentSteps(max(taken), min(taken[-NEWEST_STEPS:]), max(n for _, n in last), len(last))
        if len(self._steps) > MAX_WORKERS:
            self.forget(next(iter(self._steps)))

    def is_settled(self, worker: str) -> bool:
        """Return whether a worker has taken enough steps to be compared with others."""
        return any(len(steps) >= NEWEST_STEPS for steps in self._steps.get(worker, {}).values())

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
    #: True: its rule averages, so a step should be short compared with the tensors themselves
    near: bool


def group_tensors(tensors: Iterable[tuple[str, Array, Aggregate | None]]) -> dict[str, Group]:
    """Return the group of each floating-point tensor, by its name in files. `tensors` are (name, tensor, rule); the
    rule is None if the user's own g merges the tensor."""
    groups = {}
    for name, tensor, rule in tensors:
        if tensor.dtype.kind == "f" and not (rule is not None and rule.is_contribution):
            # Tensors of modules share the group of their type; each array field has a group of its own.
            prefix = name.partition("/")[0] if name.count("/") > 1 else name
            overflow = float(np.finfo(np.result_type(tensor.dtype, np.float32)).max)
            label = f"{prefix} ({type(rule).__name__})" if rule is not None else prefix
            groups[name] = Group(label, overflow, near=rule is not None and rule.near)
    return groups


def pushed_tensors(part: ReplicaPart, base: Base) -> Iterator[tuple[str, Array, Array]]:
    """Yield (name in files, pushed tensor, tensor in the base that the push was trained from)."""
    for key, tensors in part.modules.items():
        yield from ((name, tensors.get(name, old), old) for name, old in base.modules[key].tensors.items())
    for type_name, rows in part.rows.items():
        before = base.rows(type_name, rows.ids)
        yield from ((f"{type_name}/{name}", rows.fields[name], before[name]) for name in rows.fields)


def norm(tensors: Iterable[Array]) -> float:
    """Return the Euclidean norm of all these tensors together; infinite if it overflows."""
    square = 0.0
    with np.errstate(over="ignore"):  # an overflow is infinite, and refused as such
        for tensor in tensors:
            line = np.ravel(tensor if tensor.itemsize > 2 else tensor.astype(np.float32))
            square += float(np.dot(line, line))
    return math.sqrt(square)
