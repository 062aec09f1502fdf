"""The ranges that nobody holds, in order, and which of them the ledger's file does not know yet."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from master.decisions.leasing import Span

Key = tuple[int, int]  # (epoch, start)


def _key(span: Span) -> Key:
    return span.epoch, span.start


class FreeSpans:
    """Spans in the order of epoch and start. Every change costs a search, however many there are."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans = sorted(spans, key=_key)
        self._counts: Counter[int] = Counter()
        for span in self.spans:
            self._counts[span.epoch] += span.count
        self._added: dict[Key, Span] = {}  # since the last `changes`
        self._removed: set[Key] = set()

    def count(self, epoch: int) -> int:
        """Vertices of an epoch that nobody holds."""
        return self._counts[epoch]

    def add(self, span: Span) -> None:
        """One more range; nothing is joined. An empty one is passed over."""
        if span.count <= 0:
            return
        self.spans.insert(bisect_left(self.spans, _key(span), key=_key), span)
        self._counts[span.epoch] += span.count
        self._added[_key(span)] = span

    def remove(self, span: Span) -> None:
        """Raises ValueError where it is not free."""
        at = bisect_left(self.spans, _key(span), key=_key)
        if at == len(self.spans) or self.spans[at] != span:
            raise ValueError(f"{span} is not free")
        del self.spans[at]
        self._counts[span.epoch] -= span.count
        if self._added.pop(_key(span), None) is None:
            self._removed.add(_key(span))

    def join(self, span: Span) -> None:
        """One more range, joined to what it touches if the same failures stand against that, and it is not apart."""
        if span.count <= 0:
            return
        at = bisect_left(self.spans, _key(span), key=_key)
        for other in self.spans[max(0, at - 1) : at + 1]:
            alike = other.epoch == span.epoch and other.failed == span.failed and not other.apart
            if alike and (other.stop == span.start or other.start == span.stop):
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
