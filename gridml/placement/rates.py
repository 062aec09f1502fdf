"""How quick the parts' machines and their networks are: what the seconds of a round are predicted from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError

Floats = NDArray[np.float64]


class Pace(NamedTuple):
    """What a column costs each part that carries it, and what the part has to bear beside, float64 (parts,) each."""

    cost: Floats
    beside: Floats


@dataclass(frozen=True)
class Rates:
    """`bandwidth` in bytes/s, `speed` in work/s: one number for all parts, or one for each. Without a speed work takes
    no time. `master` is the bandwidth of a master that all parts share (star); None: it is never what one waits for.

    Bytes are the weights of columns, work is the weights of rows; where these have none, a column is one, and so is a
    row.
    """

    bandwidth: tuple[float, ...]
    speed: tuple[float, ...] | None = None
    master: float | None = None

    def __post_init__(self) -> None:
        master = None if self.master is None else (self.master,)
        for name, values in (("bandwidth", self.bandwidth), ("speed", self.speed), ("master's bandwidth", master)):
            if values is not None and not (values and all(0 < value < np.inf for value in values)):
                raise UsageError(f"the {name} is {listed(values)}; expected numbers above 0.")

    def check(self, parts: int) -> None:
        """Raise UsageError where there are numbers for another number of parts."""
        for name, values in (("bandwidth", self.bandwidth), ("speed", self.speed)):
            if values is not None and len(values) not in (1, parts):
                raise UsageError(
                    f"got {len(values):,} numbers of the {name} for {parts:,} parts; expected 1 or {parts:,}."
                )

    def seconds(self, moved: NDArray[np.int64], work: NDArray[np.int64]) -> Floats:
        """Predict the seconds of a round of each part, float64 (parts,), that has `moved` bytes to take and to give
        back, int64 (parts,), and so much `work`: 2·max(moved_i / bandwidth_i, Σ moved / master) + work_i / speed_i."""
        on_the_way = moved / np.array(self.bandwidth)
        if self.master is not None:
            on_the_way = np.maximum(on_the_way, moved.sum() / self.master)
        at_work = np.zeros(len(work)) if self.speed is None else work / np.array(self.speed)
        return np.asarray(2 * on_the_way + at_work)

    def pace(self, work: Floats) -> Pace:
        """Return what a column costs each part, the mean being 1, and what its `work`, float64 (parts,), costs it."""
        cost = np.broadcast_to(1 / np.array(self.bandwidth), work.shape)
        beside = np.zeros(len(work)) if self.speed is None else work / (2 * np.array(self.speed))
        return Pace(cost / cost.mean(), beside / cost.mean())


def listed(values: tuple[float, ...]) -> str:
    """Return numbers as a message shows them."""
    return ", ".join(f"{value:g}" for value in values[:6]) + (", ..." if len(values) > 6 else "") or "empty"
