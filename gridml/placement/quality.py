"""How good a placement is, against one by chance: what `quality.json` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gridml.placement.traffic import Traffic, improvement


@dataclass(frozen=True)
class Quality:
    """What a placement by `method` costs, and what one `at_random` does. `seconds` were spent placing, and `peak_mb`
    (10⁶ bytes) is the most memory that the process had until then, with the reading of the graph."""

    method: str
    why: str
    parts: int
    seed: int
    slack: float
    rows: int
    columns: int
    edges: int
    placed: Traffic
    at_random: Traffic
    seconds: float
    peak_mb: float

    @property
    def figures(self) -> dict[str, tuple[int, int]]:
        """What the papers compare, of the placement and of the one at random: the largest memory and traffic of a part
        and the traffic of all, in columns."""
        placed, chance = self.placed, self.at_random
        return {
            "M_max": (placed.largest_memory, chance.largest_memory),
            "T_max": (placed.largest_traffic, chance.largest_traffic),
            "T_sum": (placed.total_traffic, chance.total_traffic),
        }

    def to_json(self) -> dict[str, Any]:
        """Each figure, its improvement over random in percent, and random's own."""
        return {
            "method": self.method,
            "why": self.why,
            "parts": self.parts,
            "seed": self.seed,
            "slack": self.slack,
            "rows": self.rows,
            "columns": self.columns,
            "edges": self.edges,
            **{name: placed for name, (placed, _) in self.figures.items()},
            **{f"{name}_improvement": improvement(chance, placed) for name, (placed, chance) in self.figures.items()},
            **{f"{name}_random": chance for name, (_, chance) in self.figures.items()},
            "balance": self.placed.balance,
            "seconds": self.seconds,
            "peak_mb": self.peak_mb,
        }
