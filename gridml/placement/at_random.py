"""Rows dealt out by chance, an equal number to each part: what every other method is compared with."""

from __future__ import annotations

import numpy as np

from gridml.placement.base import Options, Parts, Placement, check
from gridml.placement.bipartite import Bipartite
from gridml.placement.serving import serve


class AtRandom:
    """Columns by chance, too, as the papers' baseline has them; `served` places them where they are used instead, which
    alone saves up to a third of the traffic."""

    def __init__(self, *, served: bool = False) -> None:
        self.name = "random-served" if served else "random"
        self._served = served

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        check(graph, parts)
        rng = np.random.default_rng(options.seed)
        rows, columns = _dealt(graph.rows, parts, rng), _dealt(graph.columns, parts, rng)
        if self._served:
            columns = serve(graph, rows, parts, options.seed)
        return Placement(parts, rows, columns, "by chance")


def _dealt(count: int, parts: int, rng: np.random.Generator) -> Parts:
    return (rng.permutation(count) % parts).astype(np.int32)
