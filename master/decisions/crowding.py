"""How many workers a run is long enough for.

What workers have trained apart is averaged, and an average is no deeper than one of them has trained: of two runs over
the same vertices the one with more workers moves less far, however often they push (`docs/averaging.md`). So what
counts is how many steps each takes. Where these are too few, more workers end a run sooner, and with a worse model.
"""

from __future__ import annotations

from dataclasses import dataclass

FEW = 4  # workers are never too many: batches of a quarter give back what four of them lose (`gridml.engine.pace`)
STEPS_EACH = 150  # batches of the program's own size


@dataclass(frozen=True)
class Length:
    """How long a run is: `vertices` of all its epochs, in batches of `batch`. A worker is to train `steps_each` of
    these at least, 0: any number."""

    vertices: int
    batch: int
    steps_each: int = STEPS_EACH


def worth_asking(length: Length) -> tuple[int | None, str]:
    """Return how many workers a run is long enough for, and why; None for any number."""
    if length.steps_each < 1:
        return None, "however little each trains"
    count = max(FEW, length.vertices // (length.batch * length.steps_each))
    return count, (
        f"{length.vertices:,} vertices are {length.vertices // length.batch:,} batches of {length.batch:,}, and of "
        f"more than {count:,} workers each would train fewer than {length.steps_each:,}"
    )
