"""The order in which an epoch trains its vertices: a pure function of seed, epoch and size.

So it need not be stored. An epoch is a line of positions 0..n-1; leases and credits are ranges of positions.
`EpochOrder.vertices` says which vertex stands at each. Vertices of one connected component (a *unit*) stand side by
side and ranges end between units. Where vertices are placed, those of a part stand side by side, too, at the same
positions in every epoch. Sets of ids are arrays in which each id stands once, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Shuffle = Literal["all", "block", "none"]
BLOCK = 4096  # positions per block of Shuffle "block": one page of file-backed rows is read once, not once per vertex


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
    """Placed vertices: part p is `members[offsets[p]:offsets[p+1]]` (int64 vertex indices), and stands at the positions
    from offsets[p] to offsets[p+1]. No part is empty. A part is whole sections, vertices that touch the same rows: they
    lie between two neighbouring `section_borders` (int64, of parts, too), each in the graph's order."""

    offsets: NDArray[np.int64]
    members: NDArray[np.int64]
    section_borders: NDArray[np.int64]

    @staticmethod
    def of(labels: NDArray[np.integer], parts: int, sections: NDArray[np.integer] | None = None) -> PlacedParts:
        """Return the parts of vertices whose parts are `labels` (count,), each from 0 to `parts` - 1, and whose
        `sections` in their part are numbered from 0 (count,); None: a part is one section."""
        each = 1 if sections is None else int(sections.max(initial=0)) + 1
        fine = labels.astype(np.int64) * each + (0 if sections is None else sections)
        ends = np.concatenate([[0], np.cumsum(np.bincount(fine, minlength=parts * each))]).astype(np.int64)
        return PlacedParts(ends[::each], np.argsort(fine, kind="stable").astype(np.int64), np.unique(ends))

    @property
    def count(self) -> int:
        return len(self.offsets) - 1

    def part_of(self, position: int) -> int:
        """Return the part that a position of an epoch is in."""
        return int(np.searchsorted(self.offsets, position, side="right")) - 1


class EpochOrder:
    """The order of one epoch over `count` vertices.

    `shuffle`: "all" permutes every unit of the epoch; "block" permutes only inside blocks of 4,096 neighbouring units,
    which reads a memory-mapped file nearly in sequence and keeps the locality of a placement; "none" keeps the order
    of the graph. With `parts` each of them holds inside of a section of a part, and vertices are units of their own;
    "all" permutes the sections of a part, too.
    """

    def __init__(
        self,
        count: int,
        seed: int,
        epoch: int,
        shuffle: Shuffle,
        units: Units | None = None,
        parts: PlacedParts | None = None,
    ) -> None:
        assert units is None or parts is None, "connected vertices are not placed"
        self.count = count
        self._units = units
        if parts is None:
            order = np.arange(count if units is None else len(units.offsets) - 1, dtype=np.int64)
            _shuffle(order, (seed, epoch), shuffle)
        else:
            order = np.concatenate(
                [section for part in range(parts.count) for section in _sections(parts, part, seed, epoch, shuffle)]
            )
        self._order = order
        self._ends = None if units is None else np.cumsum(np.diff(units.offsets)[order])

    def vertices(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the vertex indices at positions [start, stop); both must be boundaries."""
        if self._units is None or self._ends is None:
            return self._order[start:stop]
        first, last = self._unit_at(start), self._unit_at(stop)
        offsets, members = self._units.offsets, self._units.members
        if first == last:
            return members[:0]
        return np.concatenate([members[offsets[u] : offsets[u + 1]] for u in self._order[first:last]])

    def boundary(self, position: int) -> int:
        """Return the first position at or after `position` that does not cut a unit."""
        if self._ends is None or position <= 0:
            return min(max(position, 0), self.count)
        return int(self._ends[min(int(np.searchsorted(self._ends, position)), len(self._ends) - 1)])

    def ends(self, start: int, stop: int) -> NDArray[np.int64] | None:
        """Return the ends of the units in [start, stop), relative to `start`; None where every vertex is a unit of its
        own."""
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
        own = (seed, epoch, part, number) if number else (seed, epoch, part)  # a run that has no sections goes on
        _shuffle(section, own, shuffle)
    if shuffle == "all":
        numbers = np.arange(len(sections))
        _shuffle(numbers, (seed, epoch, part, len(sections)), shuffle)
        sections = [sections[number] for number in numbers]
    return sections


def _shuffle(order: NDArray[np.int64], seeds: Sequence[int], shuffle: Shuffle) -> None:
    """Permute in place, as the seeds have it."""
    if shuffle == "all":
        np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds))).shuffle(order)
    elif shuffle == "block":
        for block in range(0, len(order), BLOCK):
            rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([*seeds, block])))
            rng.shuffle(order[block : block + BLOCK])


Ids = NDArray[np.int64]
Touched = Mapping[str, Ids]  # vertices by the name of their type
_NONE: Ids = np.empty(0, np.int64)


def ascending(*ids: Ids) -> Ids:
    """Return each id that is in any of `ids`, (n,) each, once and in order, in an array of its own.

    What ascends already is only merged. `np.unique` hashes: of 100,000 ids that takes several times as long.
    """
    together = np.concatenate(ids)
    if not (together[1:] > together[:-1]).all():
        together = np.sort(together, kind="stable")
        together = together[np.concatenate([[True], together[1:] != together[:-1]])]
    return together


def places(among: Ids, wanted: Ids) -> tuple[Ids, NDArray[np.bool_]]:
    """Return where each of `wanted` stands in `among`, which ascends, or would stand; and whether it is there."""
    at = np.searchsorted(among, wanted)
    here = at < len(among)
    here[here] = among[at[here]] == wanted[here]
    return at, here


def without(touched: Touched, others: Touched) -> dict[str, Ids]:
    """Return the vertices of `touched` that are not in `others`."""
    return {type_name: np.setdiff1d(ids, others.get(type_name, _NONE)) for type_name, ids in touched.items()}


def union(parts: Iterable[Touched]) -> dict[str, Ids]:
    """Return the vertices that are in any of `parts`."""
    wanted: dict[str, list[Ids]] = {}
    for part in parts:
        for type_name, ids in part.items():
            wanted.setdefault(type_name, []).append(ids)
    return {type_name: ascending(*ids) for type_name, ids in wanted.items()}
