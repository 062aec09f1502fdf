"""How many workers a run is long enough for.

What workers have trained apart is averaged, and an average is no deeper than one of them has trained: of two runs over
the same vertices the one with more workers moves less far. Each must come back some ten times for its share to count
(`docs/averaging.md`); where a run has too few pushes for that, more workers end it sooner, and with a worse model.
"""

from __future__ import annotations

from dataclasses import dataclass

FEW = 4  # workers are never too many: batches of a quarter give back what four of them lose (`gridml.engine.pace`)
PUSHES_EACH = 10
USUAL = 1_024  # vertices between two pushes, as long as none was measured
NOTABLE = 1.25  # a number that changes by less stays as it is: workers are not sent away and asked back


@dataclass(frozen=True)
class Length:
    """How long a run is: `vertices` of all its epochs, and `interval` of them between two pushes of a worker. Each is
    to push `pushes_each` times, 0: it does not matter."""

    vertices: int
    interval: float = USUAL
    pushes_each: int = PUSHES_EACH


def worth_asking(length: Length, before: int | None = None) -> tuple[int | None, str]:
    """Return how many workers a run is long enough for, and why; None for any number. `before` is in force."""
    if length.pushes_each < 1:
        return None, "however seldom each pushes"
    pushes = length.vertices / length.interval
    count = max(FEW, int(pushes / length.pushes_each))
    if before is not None and before / NOTABLE < count < before * NOTABLE:
        count = before
    return count, (
        f"{length.vertices:,} vertices are {pushes:,.0f} pushes of {length.interval:,.0f}, and of more than {count:,} "
        f"workers each would bring fewer than {length.pushes_each}"
    )
