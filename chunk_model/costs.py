"""What a chunk costs besides the training itself, in seconds: the paper's t_x, t_c, t_s and t_e, and what it left out.

The paper trains n vertices in a job that starts (t_s), copies and trains each vertex (t_c + t_x) and ends (t_e). Here
a job can also push what it has learnt while it runs, wait for a machine, and share the machine's boot with others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


class CostError(ValueError):
    """A cost is not a time: negative, NaN or infinite; or pushes are wanted without saying what one costs."""


@dataclass(frozen=True)
class Costs:
    """Seconds, each finite and not negative, `exec_s` above zero (CostError). Only training counts as useful time.

    exec_s   t_x, to train a vertex
    copy_s   t_c, to copy a vertex
    start_s  t_s, the start of a chunk; at risk: the machine may die in it
    end_s    t_e, the end of a chunk; at risk
    push_s   one push, at risk; None: no pushes, a chunk is all or nothing
    wait_s   from asking for a machine until its life begins, once per life; not at risk
    boot_s   once per life before the first chunk, at risk; only where a life holds many chunks
    """

    exec_s: float
    copy_s: float = 0.0
    start_s: float = 0.0
    end_s: float = 0.0
    push_s: float | None = None
    wait_s: float = 0.0
    boot_s: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "push_s":
                continue
            if not (math.isfinite(value) and value >= 0):
                raise CostError(f"{field.name} must be a time in seconds, finite and at least 0, got {value!r}")
        if self.exec_s == 0:
            raise CostError("exec_s, the time to train a vertex, must be above 0: measure it on one chunk")

    @property
    def vertex_s(self) -> float:
        """t_c + t_x: to copy and train one vertex."""
        return self.copy_s + self.exec_s
