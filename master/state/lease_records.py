"""The records of leases, and their table.

`LeaseTable` mirrors the ledger: its state is that of the last commit plus the changes of the open transaction.
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

# Number of leases at each end of the order that are considered when work is to be stolen. There are several, because a
# lease that cannot be stolen must not hide the others; there are few, because a search must not visit all leases.
MAX_CANDIDATES = 8


@dataclass(frozen=True)
class Footprint:
    """The vertices that a lease's chunk touches."""

    sha256: str  #: of the published chunk
    touched: Touched  #: replicated vertices that it reads or writes
    local: Touched  #: local vertices that f may change under the lease
    borrows: frozenset[str] = frozenset()  #: cached payloads that the chunk needs, by the names that workers use


@dataclass(slots=True, eq=False)
class LeaseState:
    """A lease: positions [start, stop) of an epoch for one worker.

    The fields up to `failed` are in the ledger, the others only in memory. Only `Ledger` changes range, holder and
    credits (`stop`, `upto`, `worker`, `sequence`, `version`, `failed`), and only inside a transaction.
    """

    id: int
    term: int  #: term of the lease; a push with another term is refused
    epoch: int
    start: int
    stop: int
    upto: int  #: positions before it are credited
    worker: str  #: the holder
    sequence: int = 0  #: pushes credited in this term
    trained: int = 0  #: vertices that are known to be trained under it
    version: int | None = None  #: version of the replica that contains its last credit
    #: the reservation, set when the lease ends: until this time, a later attempt of the job may still deliver the last
    #: push
    reserved_until_s: float | None = None
    failed: tuple[Failed, ...] = ()  #: open failures of f in its range
    reserved_versions: tuple[int, ...] = ()  #: versions that a push under the reservation may name as its base
    times_reassigned: int = 0  #: number of times that its range was taken from a holder
    since_s: float | None = None  #: time of its grant or last credit; None: this master does not know the time yet
    due_s: float | None = None  #: time at which it is expected to be fully credited; changed only by `LeaseTable`
    footprint: Footprint | None = None  #: None until this master has cut its chunk

    @property
    def left(self) -> int:
        """Vertices that are not credited yet."""
        return self.stop - self.upto

    @property
    def rest(self) -> Span:
        """The range that is not credited yet."""
        return Span(self.epoch, self.upto, self.stop, self.failed)

    @property
    def cut(self) -> Footprint:
        """The footprint. This master must have cut the lease's chunk."""
        assert self.footprint is not None, f"the chunk of lease {self.id} was never cut"
        return self.footprint


class LeaseTable:
    """The open leases, and the ended leases with a reservation. With n leases, a change costs at most O(log n).

    Open leases are ordered by the time at which they are expected to be fully credited. The first leases are overdue
    and the last leases take longest, so both are worth stealing from. The leases in between are on schedule, as far as
    is known. If a worker slows down after its lease got its place in the order, the lease becomes one of the first when
    it is overdue.
    """

    def __init__(self, leases: Iterable[LeaseState] = (), reserved: Iterable[LeaseState] = ()) -> None:
        self._open: dict[int, LeaseState] = {}  # every open lease, by number
        # The same leases by worker. Only workers that hold a lease have an entry, as `holders` counts the entries.
        self._by_worker: dict[str, dict[int, LeaseState]] = {}
        # (due_s, number) of the open leases whose `due_s` is set, in ascending order.
        self._expected = SortedList()
        self.reserved: dict[int, LeaseState] = {lease.id: lease for lease in reserved}  # ended leases, by number
        self._reserved_spans: list[Span] | None = None  # a cache; None after each change of `reserved`
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
        """Return the leases of a worker by number, in the order of their grants."""
        return self._by_worker.get(worker, {})

    @property
    def holders(self) -> int:
        """Number of workers that hold a lease."""
        return len(self._by_worker)

    def add(self, lease: LeaseState) -> None:
        """Add an open lease. If the lease was reserved, its reservation is removed."""
        if self.reserved.pop(lease.id, None) is not None:
            self._reserved_spans = None
        self._open[lease.id] = lease
        self._by_worker.setdefault(lease.worker, {})[lease.id] = lease

    def end(self, lease: LeaseState) -> None:
        """Remove a lease from the open leases. If it has a reservation, it is added to `reserved`."""
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
        """Drop the reservations that have expired."""
        for lease in [r for r in self.reserved.values() if r.reserved_until_s is None or r.reserved_until_s <= now]:
            del self.reserved[lease.id]
            self._reserved_spans = None

    def drop_reservations(self) -> None:
        """Drop all reservations."""
        self.reserved.clear()
        self._reserved_spans = None

    def reserved_spans(self) -> list[Span]:
        """Return the reserved ranges. A cached list is safe, because the rest of an ended lease does not change."""
        if self._reserved_spans is None:
            self._reserved_spans = [lease.rest for lease in self.reserved.values()]
        return self._reserved_spans

    def expect(self, lease: LeaseState, due_s: float = -math.inf) -> None:
        """Set the time at which an open lease is expected to be fully credited; by default the lease comes first in the
        order. `due_s` must not be NaN, which has no place in the order."""
        self._unplace(lease)
        lease.due_s = due_s
        self._expected.add((due_s, lease.id))

    def steal_candidates(self, exclude: Container[int] = ()) -> list[LeaseState]:
        """Return the first and the last `MAX_CANDIDATES` leases of the order, each once. Leases in `exclude` are
        skipped."""

        def first(order: Iterable[tuple[float, int]]) -> Iterable[int]:
            return islice((lease for _, lease in order if lease not in exclude), MAX_CANDIDATES)

        numbers = dict.fromkeys((*first(self._expected), *first(reversed(self._expected))))
        return [self._open[number] for number in numbers]

    def _unplace(self, lease: LeaseState) -> None:
        if lease.due_s is not None:
            self._expected.remove((lease.due_s, lease.id))
            lease.due_s = None
