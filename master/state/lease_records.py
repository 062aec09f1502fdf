"""The records of leases, and their table.

`LeaseTable` is the ledger's mirror: it stands as after the last commit, plus what the open transaction has changed.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from sortedcontainers import SortedList

from gridml.model.order import Touched
from master.state.failures import Failed
from master.state.spans import Span

FEW = 8  # leases at either end of the order that a look takes: one that leads nowhere must not hide the others


@dataclass(frozen=True)
class Footprint:
    """What a lease's chunk touches: the digest of the published chunk, the replicated vertices it touches, and the
    local ones that f may change under the lease, and the payloads that it borrows from, as workers name them."""

    sha256: str
    touched: Touched
    local: Touched
    borrows: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class LeaseState:
    """A lease: positions [start, stop) of `epoch`, credited up to `upto` by `sequence` pushes in the lease's `term`.

    `failed` are the failures of f that stand against its range, `trained` the vertices trained under it as far as is
    known, `version` is that of its last credit.
    `reserved_until_s` is set once it has ended: until then a later attempt of its job may bring what it left.
    The rest lives in memory: the versions that such an attempt may name as a base, how often its range was overtaken,
    when its holder was last credited, when it is expected to be done, what it touches.
    """

    id: int
    term: int
    epoch: int
    start: int
    stop: int
    upto: int
    worker: str
    sequence: int = 0
    trained: int = 0
    version: int | None = None
    reserved_until_s: float | None = None
    failed: tuple[Failed, ...] = ()
    reserved_versions: tuple[int, ...] = ()
    times_reassigned: int = 0
    since_s: float | None = None
    due_s: float | None = None
    footprint: Footprint | None = None

    @property
    def left(self) -> int:
        """Vertices that are not credited."""
        return self.stop - self.upto

    @property
    def rest(self) -> Span:
        """The range that is not credited."""
        return Span(self.epoch, self.upto, self.stop, self.failed)

    @property
    def cut(self) -> Footprint:
        """What its chunk touches; a lease that this master answers for has one."""
        assert self.footprint is not None, f"the chunk of lease {self.id} was never cut"
        return self.footprint


class LeaseTable:
    """Open leases by number and by worker, in the order in which they are expected to be done, and the ended ones that
    have a reservation. Every change costs O(log n) of n leases at most.

    In the order, those that have become late come first, whatever was expected of their workers, and those that will
    take longest come last. What lies between them is on schedule as far as is known: a worker that has become slower
    since its lease was placed is found when it is late.
    """

    def __init__(self, leases: Iterable[LeaseState] = (), reserved: Iterable[LeaseState] = ()) -> None:
        self._open: dict[int, LeaseState] = {}
        self._by_worker: dict[str, dict[int, LeaseState]] = {}  # nobody who holds none is in it
        self._expected = SortedList()  # of (due_s, lease): those due at once by their numbers
        self.reserved: dict[int, LeaseState] = {lease.id: lease for lease in reserved}
        self._reserved_spans: list[Span] | None = None  # until a reservation is made, used up or expires
        for lease in leases:
            self.add(lease)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[LeaseState]:
        return iter(self._open.values())

    def __getitem__(self, number: int) -> LeaseState:
        return self._open[number]

    def get(self, number: int) -> LeaseState | None:
        return self._open.get(number)

    def of(self, worker: str) -> Mapping[int, LeaseState]:
        """The leases that a worker holds, by number, in the order they were granted."""
        return self._by_worker.get(worker, {})

    @property
    def holders(self) -> int:
        """How many workers hold a lease."""
        return len(self._by_worker)

    def add(self, lease: LeaseState) -> None:
        """Open a lease (again); a reservation of it is used up."""
        if self.reserved.pop(lease.id, None) is not None:
            self._reserved_spans = None
        self._open[lease.id] = lease
        self._by_worker.setdefault(lease.worker, {})[lease.id] = lease

    def end(self, lease: LeaseState) -> None:
        """Close an open lease, whatever it was expected to do. It is remembered only if it is reserved."""
        del self._open[lease.id]
        held = self._by_worker[lease.worker]
        del held[lease.id]
        if not held:
            del self._by_worker[lease.worker]
        self._unplace(lease)
        if lease.reserved_until_s is not None:
            self.reserved[lease.id] = lease
            self._reserved_spans = None

    def expire(self, now: float) -> None:
        """Forget the reservations whose time is over."""
        for lease in [r for r in self.reserved.values() if r.reserved_until_s is None or r.reserved_until_s <= now]:
            del self.reserved[lease.id]
            self._reserved_spans = None

    def drop_reservations(self) -> None:
        """Forget all reservations."""
        self.reserved.clear()
        self._reserved_spans = None

    def reserved_spans(self) -> list[Span]:
        """Return what ended leases left that is reserved: it does not change while it is."""
        if self._reserved_spans is None:
            self._reserved_spans = [lease.rest for lease in self.reserved.values()]
        return self._reserved_spans

    def expect(self, lease: LeaseState, due_s: float = -math.inf) -> None:
        """Expect an open lease to be done at `due_s`, which is no NaN; without it the next look takes it among the
        first."""
        self._unplace(lease)
        lease.due_s = due_s
        self._expected.add((due_s, lease.id))

    def ends(self, but: Container[int] = ()) -> list[LeaseState]:
        """Return the `FEW` first leases in the expected order and the `FEW` last ones beside those in `but`, each once
        and in order from either end."""

        def few(order: Iterable[tuple[float, int]]) -> Iterable[int]:
            return islice((lease for _, lease in order if lease not in but), FEW)

        numbers = dict.fromkeys((*few(self._expected), *few(reversed(self._expected))))
        return [self._open[number] for number in numbers]

    def _unplace(self, lease: LeaseState) -> None:
        if lease.due_s is not None:
            self._expected.remove((lease.due_s, lease.id))
            lease.due_s = None
