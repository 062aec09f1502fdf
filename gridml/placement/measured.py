"""A placement made, timed, and held against one at random."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import replace

from gridml.placement.base import COLUMN_WEIGHTS, ROW_WEIGHTS, Method, Options, Placement, asked
from gridml.placement.bipartite import Bipartite
from gridml.placement.quality import Quality
from gridml.placement.registry import find
from gridml.placement.traffic import traffic


def measured(method: Method, graph: Bipartite, parts: int, options: Options) -> tuple[Placement, Quality]:
    """Place a graph, and count what that costs. Raises UsageError where it cannot be placed so."""
    begun = time.perf_counter()
    placement = method.place(graph, parts, options)
    seconds = time.perf_counter() - begun
    peak_mb = _peak_mb()
    chance = find("random").place(graph, parts, replace(options, memory=None))
    quality = Quality(
        method=method.name,
        why=placement.why,
        parts=parts,
        options=options,
        rows=graph.rows,
        columns=graph.columns,
        edges=graph.edges,
        weighted=asked(graph, options) & {ROW_WEIGHTS, COLUMN_WEIGHTS},
        placed=traffic(graph, placement, options.topology, options.fractions),
        at_random=traffic(graph, chance, options.topology, options.fractions),
        seconds=seconds,
        peak_mb=peak_mb,
    )
    return placement, quality


def _peak_mb() -> float:
    """The most memory this process had, in 10⁶ bytes; macOS counts in bytes, others in 1,024 of them."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
