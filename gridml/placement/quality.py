"""How good a placement is, against one by chance: what `quality.json` says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gridml.placement.base import COLUMN_WEIGHTS, DUAN, ROW_WEIGHTS, Options
from gridml.placement.traffic import Traffic, improvement


@dataclass(frozen=True)
class Quality:
    """What a placement by `method` with these `options` costs, and what one `at_random` does; `weighted` says what had
    weights. `seconds` were spent placing, and `peak_mb` (10⁶ bytes) is the most memory that the process had until then,
    with the reading of the graph."""

    method: str
    why: str
    parts: int
    options: Options
    rows: int
    columns: int
    edges: int
    weighted: frozenset[str]
    placed: Traffic
    at_random: Traffic
    seconds: float
    peak_mb: float

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """What the papers compare, of the placement and of the one at random: the largest memory and traffic of a part
        and the traffic of all, in columns or what they weigh. Where they were asked for, Duan's product of work and
        traffic, and the seconds of a round, if rates are known."""
        both = self.placed, self.at_random
        found: dict[str, tuple[float, float]] = {
            "M_max": (both[0].largest_memory, both[1].largest_memory),
            "T_max": (both[0].largest_traffic, both[1].largest_traffic),
            "T_sum": (both[0].total_traffic, both[1].total_traffic),
        }
        if self.options.objective == DUAN:
            found["duan"] = both[0].duan, both[1].duan
        if self.options.rates is not None:
            placed, chance = (float(each.seconds(self.options.rates).max()) for each in both)
            found["round_s"] = placed, chance
        return found

    def to_json(self) -> dict[str, Any]:
        """Each figure, its improvement over random in percent, and random's own."""
        figures, options = self.figures, self.options
        return {
            "method": self.method,
            "why": self.why,
            "parts": self.parts,
            "seed": options.seed,
            "slack": options.slack,
            "objective": options.objective,
            "topology": options.topology,
            "shares": options.shares,
            "memory_limit": options.memory,
            "row_weights": ROW_WEIGHTS in self.weighted,
            "column_weights": COLUMN_WEIGHTS in self.weighted,
            "rates": None if options.rates is None else asdict(options.rates),
            "rows": self.rows,
            "columns": self.columns,
            "edges": self.edges,
            **{name: placed for name, (placed, _) in figures.items()},
            **{f"{name}_improvement": improvement(chance, placed) for name, (placed, chance) in figures.items()},
            **{f"{name}_random": chance for name, (_, chance) in figures.items()},
            "balance": self.placed.balance,
            "seconds": self.seconds,
            "peak_mb": self.peak_mb,
        }
