"""Ranges of an epoch, and the ordered list of its free ranges, which are not credited yet and not leased to a worker.

`FreeSpans` also records the changes that the ledger's file does not contain yet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from master.state.failures import Failed, open_failures


@dataclass(frozen=True)
class Span:
    """Positions [start, stop) of an epoch."""

    epoch: int
    start: int
    stop: int
    failed: tuple[Failed, ...] = ()  #: open failures of f in this range
    isolated: bool = False  #: kept for one worker, for example for a spot check, so it is never joined to a neighbour

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Delay:
    """Seconds between the grant of a lease and its last credit during which the worker does not train."""

    start_s: float = 0.0  #: per chunk: to start and to end it
    copy_s: float = 0.0  #: per vertex: to copy it into the chunk
    push_s: float = 0.0  #: per push: the time that it keeps the worker from training
    travel_s: float = 0.0  #: per push: from sending it to its reply

    def of(self, vertices: int, rate: float, push_every: int = 0) -> float:
        """Return the delay of a lease of this many vertices, trained at `rate` vertices per second with a push every
        `push_every` vertices; 0: one push at the end."""
        # A worker sends its next push only after the reply to the last push, so there is at most one push per
        # `travel_s`. 1.5 round trips: half of one for the reply with the lease, and one for the last push. The last
        # push takes half of one to arrive, and up to half of one before that, because the worker may wait for the
        # previous reply.
        pushes = 1 + vertices / max(push_every, self.travel_s * rate) if push_every > 0 else 1
        return self.start_s + self.copy_s * vertices + self.push_s * pushes + 1.5 * self.travel_s


Key = tuple[int, int]  # (epoch, start)
Borders = Callable[[int], Sequence[int]]


def _key(span: Span) -> Key:
    return span.epoch, span.start


class FreeSpans:
    """The free spans: disjoint, ordered by epoch and start. A change costs a binary search and a shift of the list.

    A placed graph is divided into parts. `borders(epoch)` returns the positions at which one part ends and the next
    begins, ascending and equally many in every epoch. A span that crosses a border is cut there, so each free span
    belongs to one part.
    """

    def __init__(self, spans: Iterable[Span], borders: Borders | None = None) -> None:
        self.spans = sorted(spans, key=_key)  # changed only by `add` and `remove`, which keep the counts below exact
        self._borders = borders
        self._counts: Counter[int] = Counter()  # free vertices by epoch
        self._left: Counter[int] = Counter()  # free vertices by part; empty without borders
        for span in self.spans:
            self._count(span, 1)
        # Changes since the last call of `changes`. A span that was added and removed since then is in neither.
        self._added: dict[Key, Span] = {}
        self._removed: set[Key] = set()
        # A ledger of an earlier master may hold spans that cross a border. Cutting them here records the changes.
        for span in [span for span in self.spans if self._inside(span)]:
            self.remove(span)
            for piece in self._pieces(span):
                self.add(piece)

    def count(self, epoch: int) -> int:
        """Return the free vertices of an epoch."""
        return self._counts[epoch]

    def left(self) -> list[int]:
        """Return the free vertices of all epochs, by part."""
        # Of an epoch in use: the borders of one that has ended may have to be computed anew.
        borders = self._of(self.spans[0].epoch if self.spans else 0)
        return [self._left[part] for part in range(len(borders) + 1)]

    def _count(self, span: Span, sign: int) -> None:
        self._counts[span.epoch] += sign * span.count
        if borders := self._of(span.epoch):
            self._left[bisect_right(borders, span.start)] += sign * span.count

    def _of(self, epoch: int) -> Sequence[int]:
        return () if self._borders is None else self._borders(epoch)

    def _inside(self, span: Span) -> Sequence[int]:
        """Return the borders strictly inside a span."""
        borders = self._of(span.epoch)
        return borders[bisect_right(borders, span.start) : bisect_left(borders, span.stop)]

    def _pieces(self, span: Span) -> Iterator[Span]:
        """Yield the pieces of a span, cut at the borders inside it."""
        start = span.start
        for stop in (*self._inside(span), span.stop):
            yield replace(span, start=start, stop=stop, failed=open_failures(span.failed, start))
            start = stop

    def add(self, span: Span) -> None:
        """Add a span that crosses no border, without joining it to its neighbours. An empty span is ignored."""
        if span.count <= 0:
            return
        self.spans.insert(bisect_left(self.spans, _key(span), key=_key), span)
        self._count(span, 1)
        self._added[_key(span)] = span

    def remove(self, span: Span) -> None:
        """Remove a span. Raises ValueError if it is not exactly one of the free spans."""
        at = bisect_left(self.spans, _key(span), key=_key)
        if at == len(self.spans) or self.spans[at] != span:
            raise ValueError(f"{span} is not free")
        del self.spans[at]
        self._count(span, -1)
        if self._added.pop(_key(span), None) is None:
            self._removed.add(_key(span))

    def join(self, span: Span) -> None:
        """Add a span, cut at borders. Each piece is joined to its neighbours in the same part, if they have the same
        failures and are not isolated."""
        if span.count <= 0:
            return
        if self._inside(span):
            for piece in self._pieces(span):
                self.join(piece)
            return
        at, borders = bisect_left(self.spans, _key(span), key=_key), self._of(span.epoch)
        for other in self.spans[max(0, at - 1) : at + 1]:
            alike = other.epoch == span.epoch and other.failed == span.failed and not other.isolated
            meets = max(other.start, span.start)
            if alike and meets in (other.stop, span.stop) and meets not in borders:
                self.remove(other)
                span = replace(span, start=min(span.start, other.start), stop=max(span.stop, other.stop))
        self.add(span)

    def containing(self, epoch: int, position: int) -> Span | None:
        """Return the free span that contains a position; None if the position is not free."""
        at = bisect_right(self.spans, (epoch, position), key=_key) - 1
        span = self.spans[at] if at >= 0 else None
        return span if span is not None and span.epoch == epoch and position < span.stop else None

    def changes(self) -> tuple[list[Key], list[Span]]:
        """Return (keys of rows to delete, spans to insert) since the last call."""
        removed, added = list(self._removed), list(self._added.values())
        self._removed, self._added = set(), {}
        return removed, added
