"""Ranges of an epoch, the ranges that are free, and the rows of array fields that each worker has.

Free ranges are those that no worker holds, in order, together with which of them the ledger's file does not know
yet.

A worker keeps the rows of its chunks (`gridml.engine.replicated_rows`). A reply need not bring rows that it has. A
reply speaks of the version that it names: of rows that it brings, and of rows that the worker is known to have as
they are. It counts once the next message of the worker has come.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.model.order import Ids, places
from master.state.failures import Failed, standing


@dataclass(frozen=True)
class Span:
    """Positions [start, stop) of an epoch that nobody holds, and the failures of f that stand against them. What is set
    `apart` waits for a worker that it is meant for."""

    epoch: int
    start: int
    stop: int
    failed: tuple[Failed, ...] = ()
    apart: bool = False

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
            yield replace(span, start=start, stop=stop, failed=standing(span.failed, start))
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
        """One more range, joined to what it touches in its part if the same failures stand against that, and it is not
        apart."""
        if span.count <= 0:
            return
        if self._borders and self._inside(span):
            for piece in self._pieces(span):
                self.join(piece)
            return
        at = bisect_left(self.spans, _key(span), key=_key)
        for other in self.spans[max(0, at - 1) : at + 1]:
            alike = other.epoch == span.epoch and other.failed == span.failed and not other.apart
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


Touched = Mapping[str, Ids]  # vertices by the name of their type
UNKNOWN = -1  # the version of a row that a worker lacks: every row has changed since


class _Rows(NamedTuple):
    """`ids` int64 (n,), ascending, and the version of each, int32 (n,)."""

    ids: Ids
    versions: NDArray[np.int32]


class KnownRows:
    """Rows by type, and the version of each. To know too little is safe: what is not known is sent."""

    def __init__(self) -> None:
        self._rows: dict[str, _Rows] = {}

    def clear(self) -> None:
        self._rows.clear()

    @property
    def nbytes(self) -> int:
        return sum(rows.ids.nbytes + rows.versions.nbytes for rows in self._rows.values())

    def counts(self) -> dict[str, int]:
        """How many rows of each type are known."""
        return {type_name: len(rows.ids) for type_name, rows in self._rows.items()}

    def learn(self, rows: Touched, version: int) -> None:
        """The worker has these rows, ids ascending, as they are in `version`."""
        for type_name, ids in rows.items():
            known = self._rows.get(type_name)
            if known is None:
                self._rows[type_name] = _Rows(ids, np.full(len(ids), version, np.int32))
                continue
            at, here = places(known.ids, ids)
            known.versions[at[here]] = version
            new = ~here
            if new.any():
                self._rows[type_name] = _Rows(
                    np.insert(known.ids, at[new], ids[new]), np.insert(known.versions, at[new], version)
                )

    def lacking(self, type_name: str, ids: Ids, changed: Ids) -> Ids:
        """Return those of `ids` that the worker does not have as they are, given the version in which each row of the
        type changed last, int64 (count,)."""
        known = self._rows.get(type_name)
        if known is None:
            return ids
        at, here = places(known.ids, ids)
        versions = np.full(len(ids), UNKNOWN, np.int32)
        versions[here] = known.versions[at[here]]
        lacking: Ids = ids[changed[ids] > versions]
        return lacking


class LeaseRows(NamedTuple):
    """Rows that a lease is trained with."""

    lease: int
    touched: Touched


@dataclass(slots=True)
class RowsHeld:
    """What a worker has: `known` rows, and, if it has heard the `answer`, those `answered`, in `version`. It may have
    trained each lease up to where it was `promised` rows for."""

    answer: str = ""
    known: KnownRows = field(default_factory=KnownRows)
    answered: list[LeaseRows] = field(default_factory=list)
    version: int = UNKNOWN
    promised: dict[int, int] = field(default_factory=dict)

    def clear(self) -> None:
        """It may have nothing."""
        self.known.clear()
        self.answered.clear()
