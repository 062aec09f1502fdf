"""A graph, and what its rows and columns are called where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gridml.placement.bipartite import Bipartite

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Numbered:
    """The numbers that rows and columns have in a file, ascending, int64 (rows,) and (columns,). None: their places are
    their numbers, or, of rows that are edges or cliques, they have none."""

    graph: Bipartite
    rows: Numbers | None = None
    columns: Numbers | None = None
