"""What the size of a chunk follows: goodput, or one of the paper's own two formulas, for a run to be compared with it.

The paper's sizes hold for a chunk that counts when it ends, or not at all (`--no-push`); they say nothing of pushes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chunk_model.costs import Costs
    from chunk_model.lifetime import Lifetime

GOODPUT = "goodput"  # `chunk_model.choose`
PAPER = "paper"  # a chunk fills a life
GAUSSIAN = "gaussian"  # the paper's search, for lives that are normal
CHUNK_RULES = (GOODPUT, PAPER, GAUSSIAN)
_CANDIDATES = 2_000  # sizes that the search looks at; two of them differ by 1% where chunks may have a billion vertices


def paper_chunk(rule: str, lifetime: Lifetime, costs: Costs, most: int) -> tuple[int, str]:
    """Return the vertices of a chunk by PAPER or GAUSSIAN, `most` of them at most, and why.

    `chunk_model.paper` has the formulas and how they are read. Raises LifetimeError where lives are normal by the rule
    and `lifetime` is another law, ChunkError where lives are too long to be counted in vertices.
    """
    # Here, not above: a master would wait 0.3 s for scipy as it starts.
    from chunk_model.families import Normal
    from chunk_model.lifetime import LifetimeError
    from chunk_model.paper import deterministic_chunk, normal_chunk_as_printed
    from chunk_model.sizes import grid

    if rule == PAPER:
        mean_s = lifetime.mean()
        chunk = deterministic_chunk(mean_s, costs)
        return min(most, chunk), f"{chunk:,} vertices fill a life of {mean_s:.4g} s (the paper's T/(t_c + t_x))."
    if not isinstance(lifetime, Normal):
        raise LifetimeError(f"chunks by the paper's search need lives that are normal, got {lifetime}")
    chunk = normal_chunk_as_printed(lifetime.mean_s, lifetime.sd_s, costs, grid(1, most, _CANDIDATES))
    return chunk, f"{chunk:,} vertices have the least TotalTime for lives of {lifetime} (the paper's search)."
