"""Ranges of an epoch, and the ranges that are free.

Free ranges are those that no worker holds, in order, together with which of them the ledger's file does not know
yet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from master.state.failures import Failed, open_failures


@dataclass(frozen=True)
class Span:
    """Positions [start, stop) of an epoch that no worker holds, and the open failures of f in them."""

    epoch: int
    start: int
    stop: int
    failed: tuple[Failed, ...] = ()
    isolated: bool = False  # joined to no neighbour: kept for one worker, as a spot check is

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Delay:
    """What passes beside training from a grant to the last credit of its lease, in seconds: its start and its end, the
    copying of a vertex, what a push keeps a worker from training, and a push's way to the master and the answer's back.
    """

    start_s: float = 0.0
    copy_s: float = 0.0
    push_s: float = 0.0
    travel_s: float = 0.0

    def of(self, vertices: int, rate: float, push_every: int = 0) -> float:
        """Seconds for so many vertices at `rate`, with a push every `push_every` of them (0: one at the end), but none
        before the last is answered. The answer with the lease travels one way, and the last push both: it may wait for
        the answer to the one before."""
        pushes = 1 + vertices / max(push_every, self.travel_s * rate) if push_every > 0 else 1
        return self.start_s + self.copy_s * vertices + self.push_s * pushes + 1.5 * self.travel_s


Key = tuple[int, int]  # (epoch, start)


def _key(span: Span) -> Key:
    return span.epoch, span.start


class FreeSpans:
    """Spans in the order of epoch and start. Every change costs a search, however many there are.

    None crosses one of the `borders`, the positions in every epoch at which a part ends and another begins: a longer
    one is cut there.
    """

    def __init__(self, spans: Iterable[Span], borders: Sequence[int] = ()) -> None:
        self.spans = sorted(spans, key=_key)
        self._borders = borders
        self._counts: Counter[int] = Counter()  # by epoch
        self._left: Counter[int] = Counter()  # by part, if there are several
        for span in self.spans:
            self._count(span, 1)
        self._added: dict[Key, Span] = {}  # since the last `changes`
        self._removed: set[Key] = set()
        for span in [span for span in self.spans if self._inside(span)]:
            self.remove(span)
            for piece in self._pieces(span):
                self.add(piece)

    def count(self, epoch: int) -> int:
        """Vertices of an epoch that nobody holds."""
        return self._counts[epoch]

    def left(self) -> list[int]:
        """Vertices of all epochs that nobody holds, by part, where borders part them."""
        return [self._left[part] for part in range(len(self._borders) + 1)]

    def _count(self, span: Span, sign: int) -> None:
        self._counts[span.epoch] += sign * span.count
        if self._borders:
            self._left[bisect_right(self._borders, span.start)] += sign * span.count

    def _inside(self, span: Span) -> Sequence[int]:
        """The borders within a span."""
        return self._borders[bisect_right(self._borders, span.start) : bisect_left(self._borders, span.stop)]

    def _pieces(self, span: Span) -> Iterator[Span]:
        """A span, cut at the borders within it."""
        start = span.start
        for stop in (*self._inside(span), span.stop):
            yield replace(span, start=start, stop=stop, failed=open_failures(span.failed, start))
            start = stop

    def add(self, span: Span) -> None:
        """One more range, within a part; nothing is joined. An empty one is passed over."""
        if span.count <= 0:
            return
        self.spans.insert(bisect_left(self.spans, _key(span), key=_key), span)
        self._count(span, 1)
        self._added[_key(span)] = span

    def remove(self, span: Span) -> None:
        """Raises ValueError where it is not free."""
        at = bisect_left(self.spans, _key(span), key=_key)
        if at == len(self.spans) or self.spans[at] != span:
            raise ValueError(f"{span} is not free")
        del self.spans[at]
        self._count(span, -1)
        if self._added.pop(_key(span), None) is None:
            self._removed.add(_key(span))

    def join(self, span: Span) -> None:
        """Add a range, joined to its neighbours in the same part that have the same failures and are not isolated."""
        if span.count <= 0:
            return
        if self._borders and self._inside(span):
            for piece in self._pieces(span):
                self.join(piece)
            return
        at = bisect_left(self.spans, _key(span), key=_key)
        for other in self.spans[max(0, at - 1) : at + 1]:
            alike = other.epoch == span.epoch and other.failed == span.failed and not other.isolated
            meets = max(other.start, span.start)
            if alike and meets in (other.stop, span.stop) and meets not in self._borders:
                self.remove(other)
                span = replace(span, start=min(span.start, other.start), stop=max(span.stop, other.stop))
        self.add(span)

    def around(self, epoch: int, position: int) -> Span | None:
        """The span that holds a position, if it is free."""
        at = bisect_right(self.spans, (epoch, position), key=_key) - 1
        span = self.spans[at] if at >= 0 else None
        return span if span is not None and span.epoch == epoch and position < span.stop else None

    def changes(self) -> tuple[list[Key], list[Span]]:
        """(keys to delete, spans to insert) since the last call."""
        removed, added = list(self._removed), list(self._added.values())
        self._removed, self._added = set(), {}
        return removed, added
