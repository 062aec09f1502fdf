"""Changed elements: what travels of a field in which few elements of the rows changed, instead of the rows.

The message names the rows. For each of them it has the number of changed elements; then, row after row, the positions
of these elements in their rows, and how their values changed. A value and its change are read as integers of the
value's size, and changes are added modulo 2^bits. So the receiver, which has the rows as they were before, gets them
bit for bit, whatever the dtype.

Every part has the smallest dtype that holds it. A change of a count takes 2 bytes if a row has at most 256 elements,
and 3 bytes if it has at most 65,536.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: Bytes of the names and shapes of the three tensors, beyond those of the one tensor that they replace.
OVERHEAD_BYTES = 256
PARTS = ("counts", "elements", "steps")  # of `ChangedElements`, in order


def travels_as_changes(whole: int, changes: int) -> tuple[bool, str]:
    """Return (whether a field travels as changed elements, reason), from the bytes of its rows and of the elements."""
    if changes + OVERHEAD_BYTES < whole:
        return True, f"{changes:,} bytes of changes instead of {whole:,}"
    return False, f"{whole:,} bytes of rows, and their changes would take {changes:,}"


@dataclass(frozen=True)
class ChangedElements:
    """The changed elements of n rows."""

    counts: Array  #: unsigned (n,), the number of changed elements of each row
    elements: Array  #: unsigned (m,), their positions in the flattened rows, ascending in each row
    steps: Array  #: signed (m,), by which the values changed, modulo 2^bits

    @property
    def nbytes(self) -> int:
        return self.counts.nbytes + self.elements.nbytes + self.steps.nbytes

    @property
    def parts(self) -> dict[str, Array]:
        """The three arrays, by their names in `PARTS`."""
        return {name: getattr(self, name) for name in PARTS}

    @classmethod
    def of(cls, before: Array, after: Array) -> ChangedElements | None:
        """Return the change of rows, each (n, *shape) of one dtype; None if the rows themselves are smaller."""
        rows, old, new = len(after), _bits(before), _bits(after)
        width = old.shape[1]
        at = np.flatnonzero(old != new)
        counts_type, elements_type = np.min_scalar_type(width), np.min_scalar_type(max(0, width - 1))
        least = rows * counts_type.itemsize + len(at) * (elements_type.itemsize + 1)
        if not travels_as_changes(after.nbytes, least)[0]:  # however small the steps are
            return None
        row, element = np.divmod(at, max(1, width))
        steps = (new.reshape(-1)[at] - old.reshape(-1)[at]).view(f"i{after.itemsize}")
        steps = steps.astype(_narrowest(steps), copy=False)
        counts = np.bincount(row, minlength=rows).astype(counts_type)
        found = cls(counts, element.astype(elements_type), steps)
        return found if travels_as_changes(after.nbytes, found.nbytes)[0] else None

    def problem(self, rows: int, row: tuple[int, ...], dtype: np.dtype[Any]) -> str | None:
        """Return why this does not fit `rows` rows of a shape and dtype; None if it fits."""
        width, (counts, elements, steps) = int(np.prod(row)), self.parts.values()
        for name, part, kind in zip(PARTS, (counts, elements, steps), "uui", strict=True):
            if part.ndim != 1 or part.dtype.kind != kind:
                return f"has {name} of {part.dtype} {part.shape}, expected {'un' * (kind == 'u')}signed integers (n,)"
        if len(counts) != rows:
            return f"has {len(counts)} counts for {rows} rows"
        if rows and int(counts.max()) > width:
            return f"changes {int(counts.max())} elements of a row of {width}"
        if not len(elements) == len(steps) == int(counts.sum(dtype=np.int64)):
            return f"has {len(elements)} elements, {len(steps)} steps, and counts of {int(counts.sum(dtype=np.int64))}"
        if steps.itemsize > dtype.itemsize:
            return f"has steps of {steps.dtype} for values of {dtype}"
        if len(elements) and int(elements.max()) >= width:
            return f"changes element {int(elements.max())} of a row of {width}"
        at = self._at(width)
        if not (at[1:] > at[:-1]).all():
            return "does not name the elements of a row in ascending order, each once"
        return None

    def added_to(self, before: Array) -> Array:
        """Return the rows after the change, in a copy of `before`. It must fit: see `problem`."""
        after = np.array(before, order="C")
        bits = _bits(after)
        at = self._at(bits.shape[1])
        bits.reshape(-1)[at] += self.steps.astype(f"i{after.itemsize}").view(bits.dtype)
        return after

    def _at(self, width: int) -> NDArray[np.int64]:
        """Return the positions of the elements in all rows, flattened, int64 (m,)."""
        starts = np.arange(len(self.counts), dtype=np.int64) * width
        return np.repeat(starts, self.counts) + self.elements


def _bits(rows: Array) -> Array:
    """Return the bits of values as unsigned integers (n, elements); a view if the rows are contiguous."""
    flat = np.ascontiguousarray(rows).reshape(len(rows), int(np.prod(rows.shape[1:])))
    return flat.view(f"u{rows.itemsize}")


def _narrowest(steps: Array) -> np.dtype[Any]:
    """Return the smallest signed dtype that holds all values."""
    low, high = int(steps.min(initial=0)), int(steps.max(initial=0))
    return np.promote_types(np.min_scalar_type(min(low, -1)), np.min_scalar_type(min(-1, -high - 1)))
