"""One placement in a process of its own, for `benchmarks.placement`: prints its CPU seconds and memory."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np

from benchmarks.placement import place, seconds, warm
from gridml.placement.bipartite import Bipartite


def main() -> None:
    folder, method, parts, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    warm(method, parts)
    kept = np.load(folder / "graph.npz")
    given = Bipartite(kept["offsets"], kept["neighbours"], int(kept["m"]))
    before_mb, begun = _peak_mb(), seconds()
    placed = place(given, method, parts, seed)
    cpu_s, mb = seconds() - begun, _peak_mb() - before_mb
    np.save(folder / "rows.npy", placed.rows)
    np.save(folder / "columns.npy", placed.columns)
    print(json.dumps({"cpu_s": cpu_s, "mb": mb}))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
