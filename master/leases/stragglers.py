"""Where a straggler may be found without looking at every lease, and which ranges were taken from one before."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from itertools import islice

from sortedcontainers import SortedDict, SortedList

from master.decisions.leasing import Span

FEW = 8  # leases at either end of the order that a look takes: one that leads nowhere must not hide the others


class Expected:
    """Open leases in the order in which they are expected to be credited whole.

    Those that have become late come first, whatever was expected of their workers, and those that will take longest
    come last. What lies between them is on schedule as far as is known: a worker that has become slower since its lease
    was placed is found when it is late. A change costs O(log n) of n leases, and a look at both ends less.
    """

    def __init__(self) -> None:
        self._due: dict[int, float] = {}
        self._order = SortedList()  # of (due_s, lease): the same, and leases that are due at once by their numbers

    def __len__(self) -> int:
        return len(self._due)

    def add(self, lease: int, due_s: float = -math.inf) -> None:
        """Expect a lease at `due_s`, which is no NaN; one that is known moves there. Without it the next look finds the
        lease among the first."""
        self.drop(lease)
        self._due[lease] = due_s
        self._order.add((due_s, lease))

    def drop(self, lease: int) -> None:
        """A lease that is not known is ignored."""
        due_s = self._due.pop(lease, None)
        if due_s is not None:
            self._order.remove((due_s, lease))

    def ends(self, but: Container[int] = ()) -> list[int]:
        """The `FEW` first leases and the `FEW` last ones beside those in `but`, each once and in order from either
        end."""

        def few(order: Iterable[tuple[float, int]]) -> Iterable[int]:
            return islice((lease for _, lease in order if lease not in but), FEW)

        return list(dict.fromkeys((*few(self._order), *few(reversed(self._order)))))


class Overtaken:
    """Ranges that were taken from a straggler, and how often. Finding m of n costs O(m + log n)."""

    def __init__(self) -> None:
        self._ranges: dict[int, SortedDict] = {}  # by epoch: start -> (stop, times), no two of which overlap

    @property
    def epochs(self) -> list[int]:
        """Those that have such ranges."""
        return list(self._ranges)

    def add(self, span: Span, times: int) -> None:
        """All of a range was taken `times` times by now, whatever was known of parts of it."""
        if span.count <= 0:
            return
        met = self._met(span)
        ranges = self._ranges.setdefault(span.epoch, SortedDict())
        for start, stop, before in met:
            del ranges[start]
            if start < span.start:
                ranges[start] = span.start, before
            if stop > span.stop:
                ranges[span.stop] = stop, before
        ranges[span.start] = span.stop, times

    def times(self, span: Span) -> int:
        """How often any part of a range was taken, at most."""
        return max((times for _, _, times in self._met(span)), default=0)

    def drop(self, epoch: int) -> None:
        """Forget an epoch that is complete; one that is not known is ignored."""
        self._ranges.pop(epoch, None)

    def _met(self, span: Span) -> list[tuple[int, int, int]]:
        """(start, stop, times) of the ranges that have a position of the span, in order."""
        ranges = self._ranges.get(span.epoch)
        if ranges is None or span.count <= 0:
            return []
        first = max(0, ranges.bisect_right(span.start) - 1)  # the last that begins before it may reach into it
        met = []
        for start in ranges.islice(first):
            if start >= span.stop:
                break
            stop, times = ranges[start]
            if stop > span.start:
                met.append((start, stop, times))
        return met
