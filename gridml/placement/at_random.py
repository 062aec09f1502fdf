"""Rows dealt out by chance, an equal number or its share to each part: what every other method is compared with."""

from __future__ import annotations

import numpy as np

from gridml.placement.base import EVERYTHING, MEMORY_LIMIT, Options, Parts, Placement, check
from gridml.placement.bipartite import Bipartite
from gridml.placement.serving import serve
from gridml.placement.turns import fill_of, in_turn


class AtRandom:
    """Columns by chance, too, as the papers' baseline has them; `served` places them where they are used instead, which
    alone saves up to a third of the traffic. Whatever the objective, it is chance that decides."""

    honours = EVERYTHING - {MEMORY_LIMIT}

    def __init__(self, *, served: bool = False) -> None:
        self.name = "random-served" if served else "random"
        self._served = served

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        check(graph, parts, options, self)
        rng = np.random.default_rng(options.seed)
        fill = fill_of(graph, parts, options)
        rows = _dealt(graph.rows, parts, rng)
        if fill is not None:
            in_turn(rng.permutation(graph.rows).astype(np.int32), fill, rows)
        columns = _dealt(graph.columns, parts, rng)
        if self._served:
            columns = serve(graph, rows, parts, options.seed)
        return Placement(parts, rows, columns, "by chance")


def _dealt(count: int, parts: int, rng: np.random.Generator) -> Parts:
    return (rng.permutation(count) % parts).astype(np.int32)
