"""Consistency, parts and ticks: how stale a read may be, and how a pass is divided into mini-batches for that.

A program has one consistency. A read of what others train is bounded by passes (BSP: it sees what the last pass left),
by ticks within a pass (slack), or by nothing. The rest of gridml asks `Consistency` what follows from that: whether
passes overlap, whether leases are granted ahead, whether pushes wait for their tick.

The positions of a pass are divided into parts, and each part into as many mini-batches as every other. Tick t is the
t-th mini-batch of every part. With slack s the t-th mini-batch of a part begins only when all parts have completed
t-s-1 (stale synchronous parallel, Ho et al., NIPS 2013, with clocks of parts). Clocks belong to parts and not to
workers, so that a worker's death stops no clock: another worker trains the part's next mini-batch.

Where a mini-batch is vertices of a replicated type, all vertices of a part have edges to them: then a part's vertices
are not divided, and have as many positions as there are such mini-batches, its `blocks`.

A mini-batch may have several phases, between which the parts' pushes are merged. Then each is P ticks, one after the
other: tick t is phase t mod P of mini-batch t // P, and a pass has P positions for every vertex. A phase but the first
begins when all parts have completed the one before, whatever the slack.

Mini-batches have equally many vertices, or nearly equally many edges. Then a vertex counts as its edges, but as one at
least, and as the edges that are asked for at most: so a mini-batch has no more vertices than these, and a vertex with
more edges than these is the last of its mini-batch.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ReadBound(Enum):
    """The unit in which the staleness of a read is bounded."""

    PASS = "pass"  #: nothing is replicated: f reads its neighbours as the last pass left them (supersteps, BSP)
    TICKS = "ticks"  #: a mini-batch reads a replica that lacks `slack` ticks at most
    NONE = "none"  #: workers never wait for one another within a pass


@dataclass(frozen=True)
class Consistency:
    """How stale the values may be that f, or a stage, reads."""

    bound: ReadBound
    slack: float = math.inf  #: ticks that a part may be ahead of another; infinity unless ticks are the bound
    #: the pushes of a tick are merged together, in the order of parts, so that a replica has whole ticks
    merges_whole_ticks: bool = False
    #: a pass begins when the one before is credited and merged, so that it reads all of that
    is_sequential: bool = False
    #: a pass, or each of its phases, is a superstep, on a uniform partition: linked local vertices read one another as
    #: the last one left them
    is_bsp: bool = False

    @staticmethod
    def of(
        *,
        replicates: bool,
        slack: float = math.inf,
        at_owner: bool = False,
        is_sequential: bool = False,
        is_linked: bool = False,
    ) -> Consistency:
        """Return the consistency of a program. `replicates`: it has a replicated type. `at_owner`: stages read the sums
        of a tick at its end. `is_sequential`: the program wants its passes one after the other, whatever the bound.
        `is_linked`: stages walk edges between local vertices."""
        if not (replicates or is_linked):
            return Consistency(ReadBound.PASS, is_sequential=True, is_bsp=True)
        if math.isinf(slack):
            return Consistency(ReadBound.NONE, is_sequential=is_sequential)
        whole = slack == 0 or at_owner
        return Consistency(ReadBound.TICKS, slack, merges_whole_ticks=whole, is_sequential=True, is_bsp=is_linked)

    @property
    def waits(self) -> bool:
        """True if workers wait for one another within a pass: a lease is one mini-batch, which its clock lets begin."""
        return self.bound is ReadBound.TICKS

    @property
    def grants_ahead(self) -> bool:
        """True if a worker can get its next lease while it trains one. Where staleness is bounded, the chunk of the
        next depends on the last."""
        return self.bound is ReadBound.NONE


@dataclass(frozen=True, eq=False)
class MiniBatches:
    """The ticks of one pass."""

    ends: NDArray[np.int64]  #: (parts * count,) the position at which each ends: those of part 0, of part 1, and so on
    count: int  #: ticks of each part
    #: (parts * count,) where the vertices of each begin in the order of the pass; None: vertices have one position each
    begins: NDArray[np.int64] | None = None

    @cached_property
    def borders(self) -> tuple[int, ...]:
        """The positions at which two parts meet."""
        return tuple(self._ends[self.count - 1 : -1 : self.count])

    def place(self, position: int) -> tuple[int, int]:
        """Return (part, tick) of a position in the pass."""
        return divmod(bisect_right(self._ends, position), self.count)

    def stop(self, position: int) -> int:
        """Return the end of the mini-batch that has a position."""
        return self._ends[bisect_right(self._ends, position)]

    @cached_property
    def _ends(self) -> list[int]:
        ends: list[int] = self.ends.tolist()  # bisect on a list takes a tenth of the time of numpy on an array
        return ends

    def vertices(self, order: NDArray[np.int64], first: int, last: int) -> NDArray[np.int64]:
        """Return the vertices of ticks [first, last), as numbered in `ends`, of a pass in this `order`."""
        assert self.begins is not None
        lengths = np.diff(self.ends[first:last], prepend=self.ends[first - 1] if first else 0)
        spans = zip(self.begins[first:last].tolist(), lengths.tolist(), strict=True)
        return np.concatenate([order[:0], *(order[begin : begin + length] for begin, length in spans)])

    def clocks(self, uncredited: Iterable[int]) -> list[int]:
        """Return how many ticks of each part are complete. `uncredited` are the starts of the ranges that are not
        credited; a part's ticks are credited in order, each at once."""
        clocks = [self.count] * (len(self._ends) // self.count)
        for position in uncredited:
            part, tick = self.place(position)
            clocks[part] = min(clocks[part], tick)
        return clocks


@dataclass(frozen=True)
class Ticks:
    """The division of every pass of a run into mini-batches."""

    vertices: int  #: in a pass
    parts: int  #: from 1 to `vertices`
    count: int  #: ticks of each part in a pass: those of each of its mini-batches, which have at least one vertex
    largest: int  #: vertices that a mini-batch has at most
    edges: int | None = None  #: of a mini-batch, about, if edges are counted
    #: what each vertex counts, int32 (vertices,) by vertex: mini-batches then have nearly equal sums; None: all alike
    work: NDArray[np.int32] | None = field(default=None, compare=False, repr=False)
    phases: int = 1  #: ticks of a mini-batch
    blocks: int = 1  #: mini-batches of a replicated type, in each of which a part has all its vertices

    @staticmethod
    def of(vertices: int, parts: int, size: int | None, phases: int = 1, blocks: int = 1) -> Ticks:
        """Return the ticks of `vertices` in up to `parts` parts, with mini-batches of up to `size` vertices; None: each
        part is one, or has `blocks`. Where a part lacks one vertex of as many mini-batches of one vertex, the larger
        parts have one mini-batch of two."""
        parts = max(1, min(parts, vertices))
        largest = math.ceil(vertices / parts)
        count = 1 if size is None else max(1, min(math.ceil(largest / size), vertices // parts))
        each = math.ceil(largest / count)
        return Ticks(vertices, parts, count * phases * blocks, each, phases=phases, blocks=blocks)

    @staticmethod
    def by_edges(edges: NDArray[Any], parts: int, wanted: int, phases: int = 1) -> Ticks:
        """Return the ticks of vertices with `edges`, integers (vertices,), in up to `parts` parts, with mini-batches of
        about `wanted` edges, and fewer vertices each."""
        vertices, work = len(edges), np.clip(edges, 1, wanted).astype(np.int32)
        parts, total = max(1, min(parts, vertices)), int(work.sum(dtype=np.int64))
        count = max(1, min(math.ceil(total / (parts * wanted)), vertices // parts))
        largest = min(vertices, math.ceil(total / (parts * count)))
        return Ticks(vertices, parts, count * phases, largest, wanted, work, phases)

    @property
    def positions(self) -> int:
        """Positions of a pass: in each phase, every vertex is trained and credited."""
        return self.vertices * self.phases * self.blocks

    def block(self, tick: int) -> int:
        """Return the mini-batch of a replicated type at a tick."""
        return tick // self.phases % self.blocks

    def slack_of(self, tick: int, slack: int) -> int:
        """Return how many ticks a part may be behind one that begins a tick, if it may be `slack` mini-batches."""
        return slack * self.phases if tick % self.phases == 0 else 0

    def in_words(self, slack: float, drawn: str | None) -> str:
        """Describe a pass. `drawn`: the replicated type whose vertices make mini-batches, if one does."""
        size = f"up to {self.largest:,} vertices" if self.edges is None else f"about {self.edges:,} edges"
        of = f"of each of {self.parts:,} parts, of {size}"
        if drawn is not None:
            of = f"of {drawn} vertices, in each of which {self.parts:,} parts have {size}"
        count, phases = self.count // self.phases, f", in {self.phases} phases" if self.phases > 1 else ""
        batches = f"{count:,} mini-batch{'es' * (count > 1)}"
        return (
            f"a pass is {batches} {of}{phases}, with slack {slack:g}; each is a lease, and a push: "
            f"{self.count * self.parts:,} a pass"
        )

    def facts(self, consistency: Consistency) -> dict[str, Any]:
        """Return the facts, as JSON by name, without which a run would have other mini-batches, or clocks."""
        slack = consistency.slack if consistency.waits else None
        phases = None if self.phases == 1 else self.phases
        count = self.count // self.phases
        facts = {"slack": slack, "parts": self.parts, "mini-batches": count, "edges": self.edges, "phases": phases}
        return {name: fact for name, fact in facts.items() if fact is not None}

    def mini_batches(self, order: NDArray[np.int64]) -> MiniBatches:
        """Return the mini-batches of the pass that has vertices in this `order` (vertices,)."""
        times = self.phases * self.blocks
        count = self.count // times
        if self.work is not None:
            ends = _equal_sums(self.work[order], self.parts * count)
        else:
            starts = np.arange(self.parts + 1, dtype=np.int64) * self.vertices // self.parts
            steps = np.arange(1, count + 1, dtype=np.int64)
            ends = (starts[:-1, None] + np.diff(starts)[:, None] * steps // count).reshape(-1)
        if times == 1:
            return MiniBatches(ends, self.count)
        begins, lengths = np.concatenate([[0], ends[:-1]]), np.diff(ends, prepend=0)
        return MiniBatches(np.cumsum(lengths.repeat(times)), self.count, begins.repeat(times))


def _equal_sums(work: NDArray[np.int32], pieces: int) -> NDArray[np.int64]:
    """Return the ends of consecutive `pieces` of `work`, int32 (n,) of numbers from 1 on, with nearly equal sums.

    Piece i ends with the element that brings the sum to i+1 shares of the whole, so no piece exceeds a share by more
    than its last element. Where an element is larger than a share, the pieces behind it have one element each until
    they are as far.
    """
    sums, at = np.cumsum(work, dtype=np.int64), np.arange(pieces)
    shares = -(-(at + 1) * int(sums[-1]) // pieces)
    ends = np.searchsorted(sums, shares) + 1
    ends = np.maximum.accumulate(ends - at) + at
    return np.minimum(ends, len(work) - at[::-1]).astype(np.int64)


def may_begin(clocks: Sequence[int], part: int, tick: int, slack: int) -> tuple[bool, str]:
    """Return (whether a mini-batch may begin, reason). `clocks` are the completed mini-batches of each part."""
    if tick != clocks[part]:
        return False, f"mini-batch {clocks[part] + 1} of part {part + 1} is not complete"
    slowest = min(clocks)
    if tick - slowest > slack:
        behind = clocks.index(slowest)
        return False, f"part {behind + 1} is at mini-batch {slowest + 1}, and slack {slack} lets none be further ahead"
    return True, f"mini-batch {tick + 1} of part {part + 1}, the slowest part is at {slowest + 1}"
