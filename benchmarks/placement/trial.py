"""One placement in a process of its own, for `benchmarks.placement`; prints its CPU seconds and memory."""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.placement.peers import PEERS
from gridml.placement.auto import METHODS
from gridml.placement.base import TOTAL, TRAFFIC, Options, Placement
from gridml.placement.bipartite import Bipartite
from gridml.placement.serving import serve
from tests.support.graphs import grid, grouped

OURS = {
    **dict.fromkeys(METHODS, Options()),
    "refined, 3%": Options(slack=0.03),
    "multilevel, 3%": Options(slack=0.03),
    "multilevel, traffic, 3%": Options(objective=TRAFFIC, slack=0.03),
    "multilevel, total": Options(objective=TOTAL),
    "multilevel, total, 3%": Options(objective=TOTAL, slack=0.03),
}


def main() -> None:
    folder, method, parts, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    for small in (grouped(20 * parts, 50, 5), grid(int((100 * parts) ** 0.5))):
        _place(small, method, parts, 0)  # loads the compiled code; only the grid reaches that of bisection
    kept = np.load(folder / "graph.npz")
    given = Bipartite(kept["offsets"], kept["neighbours"], int(kept["m"]))
    before_mb, begun = _peak_mb(), time.process_time()
    placed = _place(given, method, parts, seed)
    cpu_s, mb = time.process_time() - begun, _peak_mb() - before_mb
    np.save(folder / "rows.npy", placed.rows)
    np.save(folder / "columns.npy", placed.columns)
    print(json.dumps({"cpu_s": cpu_s, "mb": mb}))


def _place(given: Bipartite, method: str, parts: int, seed: int) -> Placement:
    """Place by a method of gridml or by a peer."""
    if method in OURS:
        return METHODS[method.partition(",")[0]].place(given, parts, replace(OURS[method], seed=seed))
    rows = PEERS[method](given, parts, seed)
    return Placement(parts, rows, serve(given, rows, parts, seed), method)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
