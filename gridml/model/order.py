"""The order of an epoch's vertices: a pure function of seed, epoch and size, so that it is never stored.

An epoch is a sequence of positions 0..n-1. Leases and credits are ranges of positions, and `EpochOrder.vertices` maps
them to vertices. The vertices of a connected component (a *unit*) are adjacent, and ranges end between units. If a
placement has divided the graph into *parts*, the vertices of a part are adjacent, too, at the same positions in every
epoch. The module also has operations on sets of ids, which are sorted arrays without duplicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gridml.model.ticks import Ticks

Shuffle = Literal["all", "block", "none"]
# Units per block of Shuffle "block". A block is so small that its pages of a memory-mapped file stay in memory: each
# page is read once, not once for each vertex on it.
BLOCK = 4096


@dataclass(frozen=True)
class Units:
    """Components of local vertices: unit u is `members[offsets[u]:offsets[u+1]]` (int64 vertex indices)."""

    offsets: NDArray[np.int64]
    members: NDArray[np.int64]

    @property
    def largest(self) -> int:
        return int(np.diff(self.offsets).max(initial=0))


@dataclass(frozen=True)
class PlacedParts:
    """The parts of a placed graph, each at the same positions in every epoch. No part is empty.

    A part consists of sections: vertices that touch the same rows, in the graph's order.
    """

    offsets: NDArray[np.int64]  #: part p is `members[offsets[p]:offsets[p+1]]`, at the positions of that range
    members: NDArray[np.int64]  #: vertex indices, int64
    section_borders: NDArray[np.int64]  #: positions between sections, int64, ascending; includes `offsets`

    @staticmethod
    def of(labels: NDArray[np.integer], parts: int, sections: NDArray[np.integer] | None = None) -> PlacedParts:
        """Return the parts. `labels` (count,) has the part of each vertex, from 0 to `parts` - 1; `sections` (count,)
        has the number of each vertex's section within its part. Without `sections`, each part is one section."""
        each = 1 if sections is None else int(sections.max(initial=0)) + 1
        fine = labels.astype(np.int64) * each + (0 if sections is None else sections)
        ends = np.concatenate([[0], np.cumsum(np.bincount(fine, minlength=parts * each))]).astype(np.int64)
        return PlacedParts(ends[::each], np.argsort(fine, kind="stable").astype(np.int64), np.unique(ends))

    @property
    def count(self) -> int:
        return len(self.offsets) - 1

    def part_of(self, position: int) -> int:
        """Return the part of a position."""
        return int(np.searchsorted(self.offsets, position, side="right")) - 1


class EpochOrder:
    """The order of one epoch over `count` vertices.

    `shuffle`: "all" permutes all units of the epoch; "block" permutes only within blocks of 4,096 adjacent units, so
    that a memory-mapped file is read nearly sequentially and the locality of a placement is kept; "none" keeps the
    order of the graph. With `parts`, units are single vertices and are permuted only within a section of a part; "all"
    also permutes the sections of a part. With `ticks`, units are single vertices, and ranges end where mini-batches do.
    """

    def __init__(
        self,
        count: int,
        seed: int,
        epoch: int,
        shuffle: Shuffle,
        units: Units | None = None,
        parts: PlacedParts | None = None,
        ticks: Ticks | None = None,
    ) -> None:
        assert units is None or (parts is None and ticks is None), "connected vertices are not placed"
        self.count = count if ticks is None else ticks.positions
        self._units = units
        if parts is None:
            order = np.arange(count if units is None else len(units.offsets) - 1, dtype=np.int64)
            _shuffle(order, (seed, epoch), shuffle)
        else:
            order = np.concatenate(
                [section for part in range(parts.count) for section in _sections(parts, part, seed, epoch, shuffle)]
            )
        self._order = order  # unit numbers (vertex indices without `units`) in the order of training
        # The positions at which ranges may end, ascending: the end of each unit of `_order`, or of each mini-batch.
        self.mini_batches = None if ticks is None else ticks.mini_batches(order)
        self._ends = None if self.mini_batches is None else self.mini_batches.ends
        if units is not None:
            self._ends = np.cumsum(np.diff(units.offsets)[order])

    def vertices(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the vertex indices at positions [start, stop), which must not divide a unit."""
        if self._ends is None or (self._units is None and self._has_one_position):
            return self._order[start:stop]
        first, last = self._unit_at(start), self._unit_at(stop)
        if self._units is None:
            assert self.mini_batches is not None
            return self.mini_batches.vertices(self._order, first, last)
        offsets, members = self._units.offsets, self._units.members
        if first == last:
            return members[:0]
        return np.concatenate([members[offsets[u] : offsets[u + 1]] for u in self._order[first:last]])

    @property
    def _has_one_position(self) -> bool:
        """True if position i is vertex i of the order."""
        return self.mini_batches is None or self.mini_batches.begins is None

    def boundary(self, position: int) -> int:
        """Return the first position at or after `position` that divides no unit and no mini-batch."""
        if self._ends is None or position <= 0:
            return min(max(position, 0), self.count)
        return int(self._ends[min(int(np.searchsorted(self._ends, position)), len(self._ends) - 1)])

    def ends(self, start: int, stop: int) -> NDArray[np.int64] | None:
        """Return the ends of the units, or mini-batches, in [start, stop), relative to `start`; None if a range may end
        anywhere."""
        if self._ends is None:
            return None
        return self._ends[self._unit_at(start) : self._unit_at(stop)] - start

    def _unit_at(self, position: int) -> int:
        assert self._ends is not None
        return 0 if position == 0 else int(np.searchsorted(self._ends, position)) + 1


def _sections(parts: PlacedParts, part: int, seed: int, epoch: int, shuffle: Shuffle) -> list[NDArray[np.int64]]:
    """Return the vertices of each section of a part, in the order of an epoch."""
    first, last = np.searchsorted(parts.section_borders, parts.offsets[part : part + 2])
    sections = [parts.members[begin:end].copy() for begin, end in pairwise(parts.section_borders[first : last + 1])]
    for number, section in enumerate(sections):
        # Section 0 has the seed that parts had before there were sections, so older runs resume with the same order.
        own = (seed, epoch, part, number) if number else (seed, epoch, part)
        _shuffle(section, own, shuffle)
    if shuffle == "all":
        numbers = np.arange(len(sections))
        _shuffle(numbers, (seed, epoch, part, len(sections)), shuffle)
        sections = [sections[number] for number in numbers]
    return sections


def _shuffle(order: NDArray[np.int64], seeds: Sequence[int], shuffle: Shuffle) -> None:
    """Permute `order` in place, seeded by `seeds`."""
    if shuffle == "all":
        np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds))).shuffle(order)
    elif shuffle == "block":
        for block in range(0, len(order), BLOCK):
            rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([*seeds, block])))
            rng.shuffle(order[block : block + BLOCK])


Ids = NDArray[np.int64]
Touched = Mapping[str, Ids]  # sets of vertices by the name of their type
_NONE: Ids = np.empty(0, np.int64)


def is_dense(ids: Ids, count: int) -> bool:
    """Return whether an array by id takes a few times the memory of `count` ids at most. Negative ids have none."""
    return len(ids) > 0 and int(ids.min()) >= 0 and int(ids.max()) < 4 * count


def ascending(*ids: Ids) -> Ids:
    """Return the union of `ids`, (n,) each, sorted, in a new array.

    A stable sort merges runs that are sorted already. `np.unique` hashes, which takes several times as long for 100,000
    ids. Where ids are many for their size, marking them in an array takes a fiftieth of the time of a sort.
    """
    together = ids[0] if len(ids) == 1 else np.concatenate(ids)
    if not _ascends(together):
        if is_dense(together, len(together)):
            found = np.zeros(together.max() + 1, np.bool_)
            found[together] = True
            return np.flatnonzero(found)
        together = np.sort(together, kind="stable")
        distinct: Ids = together[np.concatenate([[True], together[1:] != together[:-1]])]
        return distinct
    return together.copy() if len(ids) == 1 else together


def _ascends(ids: Ids) -> bool:
    """Return whether each of `ids` is larger than the one before."""
    few = ids[:1_000]  # most that do not ascend show it at once, and then the others need not be read
    return bool((few[1:] > few[:-1]).all() and (ids[1:] > ids[:-1]).all())


def places(among: Ids, wanted: Ids) -> tuple[Ids, NDArray[np.bool_]]:
    """Return (position of each of `wanted` in the ascending `among`, mask of the ids that `among` has). The position of
    an id that `among` lacks is its insertion point."""
    at = np.searchsorted(among, wanted)
    found = at < len(among)
    found[found] = among[at[found]] == wanted[found]
    return at, found


def without(touched: Touched, others: Touched) -> dict[str, Ids]:
    """Return the set difference of `touched` and the ascending `others`, by type."""
    # Not np.setdiff1d, which sorts both again: the sorting took a tenth of the time of a reply to a worker.
    return {name: ids[~places(others.get(name, _NONE), ids)[1]] for name, ids in touched.items()}


def union(parts: Iterable[Touched]) -> dict[str, Ids]:
    """Return the union of `parts`, by type."""
    wanted: dict[str, list[Ids]] = {}
    for part in parts:
        for type_name, ids in part.items():
            wanted.setdefault(type_name, []).append(ids)
    return {type_name: ascending(*ids) for type_name, ids in wanted.items()}
