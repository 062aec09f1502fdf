"""The conduct of workers: what each was credited and flagged for, and which are in quarantine.

It decides whether a worker can have trained what it brings, and when it is trusted no more, by the master's clock
and by what others do. What a worker says of its own speed is no evidence.

Spot checks: a share of the pushes is trained a second time elsewhere, and the steps are compared. A push that is
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

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates.base import same_bits
from gridml.protocol.push import Ids, PushContent, RowValues
from master.state.lease_records import LeaseState
from master.state.worker_records import WorkerRecord
from master.store.ledger import Ledger
from master.store.rundir import command
from master.store.versions import Base
from master.sync.gate import Group

Array = NDArray[Any]


SLACK, SLACK_OF_ANY = 10.0, 100.0  # times as fast as the fastest other of its kind of machine, and of any kind
WITNESSES = 2  # others that must be at work, each with
SETTLED = 3  # pushes, before anybody is compared with them
PUSHES = 8  # of a worker that are looked back on,
BLAMED = 3  # so many of which a majority of others would not have brought
UNLIKE = 4.0  # times as often as the others are blamed: where all of them are, the program is to blame


@dataclass(frozen=True)
class CreditPace:
    """Vertices that a worker was credited in so many seconds since it was first given work, in so many pushes, on a
    machine of some kind."""

    vertices: int
    seconds: float
    pushes: int
    kind: str = ""

    @property
    def rate(self) -> float:
        """Vertices per second."""
        return self.vertices / self.seconds if self.seconds > 0 else 0.0


def too_fast(own: CreditPace, others: Sequence[CreditPace]) -> tuple[bool, str]:
    """Whether a worker brings more than any machine like its own can have trained, and why.

    `own` counts the push in question. Before anything is known of two others that are at work nothing is too fast.
    """
    settled = [other for other in others if other.pushes >= SETTLED and other.rate > 0]
    alike = [other for other in settled if other.kind == own.kind]
    for group, slack, whose in ((alike, SLACK, "of its kind"), (settled, SLACK_OF_ANY, "of any kind")):
        if len(group) >= WITNESSES:
            fastest = max(other.rate for other in group)
            if own.vertices > slack * fastest * own.seconds:
                reason = f"{own.vertices:,} vertices in {own.seconds:.3g} s since its first lease, more than"
                return True, f"{reason} {slack:g} times what the fastest other worker {whose} trains"
    return False, "it can have trained that"


def quarantine(blamed: Sequence[bool], others: Sequence[Sequence[bool]]) -> tuple[bool, str]:
    """Whether a worker is trusted no more, given which of its last pushes and of each other worker's were blamed."""
    mine, known = sum(blamed), [each for each in others if each]
    theirs, all_theirs = sum(map(sum, known)), sum(map(len, known))
    if mine < BLAMED or len(known) < WITNESSES:
        return False, f"{mine} of its last {len(blamed)} pushes were blamed"
    if mine * all_theirs < UNLIKE * theirs * len(blamed):
        return False, f"{mine} of its last {len(blamed)} pushes were blamed, and so are those of others"
    return True, f"{mine} of its last {len(blamed)} pushes are not what others bring"


LOOK_S = 2.0  # between two looks at everybody's pace: with ten thousand workers one costs as much as a hundred pushes


@dataclass
class _Conduct:
    """Of one worker: what it brought since `began_s`, which may have been in the time of an earlier master, what this
    one saw it train since `seen_s`, and which of its last pushes were blamed."""

    began_s: float
    kind: str
    vertices: int = 0
    seen_s: float | None = None
    last_s: float = 0.0
    seen: int = 0  # vertices, in
    pushes: int = 0
    blamed: deque[bool] = field(default_factory=lambda: deque(maxlen=PUSHES))

    def pace(self) -> CreditPace:
        """As a measure for others: that of a whole life would be too slow, for what the masters before this one saw
        of it is not in it."""
        return CreditPace(self.seen, self.last_s - (self.seen_s or 0.0), self.pushes, self.kind)


class Conduct:
    """The conduct of the workers of one run. Methods must be called inside the ledger's transaction."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._workers: dict[str, _Conduct] = {}
        self._fastest: list[tuple[str, CreditPace]] = []  # as of the last look
        self._slowest = math.inf  # of these: who is no faster is too fast for nobody
        self._look_s = 0.0  # when to look again
        self._quarantined = set(ledger.quarantined())
        self._dismissed: list[tuple[str, str]] = []  # (worker, why) of those that were quarantined of late

    def quarantined(self, worker: str) -> bool:
        """Whether a worker gets no lease, and nothing of it is taken."""
        return worker in self._quarantined

    def take_dismissed(self) -> list[tuple[str, str]]:
        """Return those that were quarantined since this was last asked, and why."""
        dismissed, self._dismissed = self._dismissed, []
        return dismissed

    def check(self, record: WorkerRecord, vertices: int, now: float) -> str | None:
        """Return why a worker cannot have trained what it brings, None if it can."""
        own = self._of(record)
        if own is None:
            return None
        if now >= self._look_s:
            self._look(now)
        seconds = now - own.began_s
        if own.vertices + vertices <= self._slowest * seconds:
            return None
        pace = CreditPace(own.vertices + vertices, seconds, own.pushes + 1, record.measured.kind)
        fast, reason = too_fast(pace, [other for name, other in self._fastest if name != record.name])
        return reason if fast else None

    def _look(self, now: float) -> None:
        """Find the fastest of each kind that can be compared with: enough of them without the one that is compared."""
        kinds: dict[str, list[tuple[str, CreditPace]]] = {}
        for name, each in self._workers.items():
            if each.pushes >= SETTLED:
                kinds.setdefault(each.kind, []).append((name, each.pace()))
        most = [heapq.nlargest(WITNESSES + 1, paces, key=lambda named: named[1].rate) for paces in kinds.values()]
        self._fastest = [named for paces in most for named in paces]
        self._slowest = min((pace.rate for _, pace in self._fastest), default=math.inf)
        self._look_s = now + LOOK_S

    def credit(self, record: WorkerRecord, vertices: int, since_s: float | None, now: float, *, blamed: bool) -> None:
        """A push of a worker was merged that it trained `since_s`, None for what it began in an earlier master's time;
        one that was `blamed` for its length is written down as such already."""
        own = self._of(record)
        if own is None:
            return
        own.vertices, own.kind, own.last_s = own.vertices + vertices, record.measured.kind, now
        if own.seen_s is None:
            own.seen_s = now if since_s is None else since_s
        if since_s is not None:
            own.seen, own.pushes = own.seen + vertices, own.pushes + 1
        if not blamed:
            own.blamed.append(False)

    def blame(self, record: WorkerRecord, lease: LeaseState, reason: str, now: float) -> None:
        """Write down that a push was shortened or refused for what is in it; too often, and its worker is
        quarantined."""
        self._ledger.add_blame(record.name, lease.id, reason, now)
        own = self._workers.setdefault(record.name, _Conduct(now, record.measured.kind))
        own.blamed.append(True)
        others = [each.blamed for name, each in self._workers.items() if name != record.name]
        out, why = quarantine(own.blamed, others)
        if out:
            self.quarantine(record.name, f"{why}; the last one: {reason}", now)

    def quarantine(self, worker: str, reason: str, now: float) -> None:
        """Trust a worker no more. Idempotent."""
        if worker in self._quarantined:
            return
        because = f"{reason}{self._stays(worker)}"
        self._ledger.quarantine(worker, because, now)
        self._quarantined.add(worker)
        self._dismissed.append((worker, because))

    def _stays(self, worker: str) -> str:
        """Say what of a worker's pushes is in the replica, and how a person takes it out."""
        first, vertices = self._ledger.credited_to(worker)
        before = [point.version for point in self._ledger.points() if point.version < first]
        if not vertices or not before:
            return ""
        back = f"{command('rollback', self._ledger.path.parent)} --to v{max(before)}"
        return f"; its {vertices:,} vertices stay credited; to take the run back to before them: {back}"

    def forget(self, worker: str) -> None:
        """A worker has ended: it is no measure for others any more. Idempotent."""
        self._workers.pop(worker, None)

    def _of(self, record: WorkerRecord) -> _Conduct | None:
        """Return the conduct of a worker that this master, or one before it, has heard before: work that comes with a
        first word was trained nobody knows when."""
        if record.measured.message_s is None:
            return None
        own = self._workers.get(record.name)
        if own is None:
            own = self._workers[record.name] = _Conduct(record.measured.message_s, record.measured.kind)
        return own


class _Step(NamedTuple):
    """What a push changed of one tensor, float64; of the rows `ids` where it has some."""

    change: Array
    ids: Ids | None = None


def likeness(
    first: PushContent,
    second: PushContent,
    base: Base,
    groups: Mapping[str, Group],
    before: Callable[[str, RowValues], Mapping[str, Array]],
) -> dict[str, float]:
    """Return the cosine of the angle between the steps of two pushes, by group of tensors; 1 where neither has moved.

    Both were trained from `base`; `before` gives the values that local vertices had, by type and for given rows.
    """
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])  # Σab, Σaa, Σbb
    one, other = dict(_steps(first, base, before)), dict(_steps(second, base, before))
    for name in {**one, **other}:
        a, b = _aligned(one.get(name), other.get(name))
        total = sums[groups[name].name if name in groups else name]
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
