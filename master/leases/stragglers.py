"""Which ranges were taken from a straggler, or from who fell silent, before."""

from __future__ import annotations

from sortedcontainers import SortedDict

from master.decisions.leasing import Span


class TakenRanges:
    """Ranges that were taken from their holders, and how often. Finding m of n costs O(m + log n)."""

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
