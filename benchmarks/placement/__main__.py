"""Measure the costs and savings of each placement method on many graphs, in comparison with other partitioners.

Each placement is made in a process of its own, whose CPU seconds and memory are those of the placement alone: the
graph is read before, and a small graph loads the machine code first.

    GRIDML_DATA=... python -m benchmarks.placement [--parts K] [--trials N] [--graph GRAPH ...] [--method METHOD ...]

Lines that are not requested stay in the table.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.arguments import parser_of, sized
from benchmarks.placement.graphs import graph, names
from benchmarks.placement.peers import ALL_PEERS, PEERS
from benchmarks.placement.trial import OURS
from benchmarks.table import Cell, results, write
from gridml.placement.auto import METHODS
from gridml.placement.base import Options, Placement
from gridml.placement.bipartite import Bipartite
from gridml.placement.quality import Traffic, improvement, traffic

PARTS = 16  # by default; other numbers of parts have a table of their own
LIMIT_S = 900.0  # timeout for one placement
MIN_PARSA_TRIALS = 10  # as in its paper
SMALL = 200_000  # edges; placements of smaller graphs differ by a few percent, so every method gets as many trials
# Methods as printed are too slow for the larger graphs; benchmarks.placement.published measures them.
LEFT_OUT = ("random", "auto", "parsa-sets", "tsh-printed", "mbp-printed")
SHOWN = [*(name for name in OURS if name not in LEFT_OUT), *PEERS]


def main() -> None:
    asked = parser_of(__doc__)
    asked.add_argument("--parts", type=int, default=sized(PARTS, 2))
    asked.add_argument("--trials", type=int, default=sized(2, 1))
    asked.add_argument("--graph", nargs="+", choices=names(), default=sized(names(), ["grid, 200 × 200"]))
    asked.add_argument("--method", nargs="+", choices=SHOWN, default=sized(SHOWN, ["tsh"]))
    chosen = asked.parse_args()
    parts = chosen.parts
    result = "placement" if parts == PARTS else f"placement_on_{parts}"
    path = results() / f"{result}.json"
    kept: list[dict[str, Cell]] = json.loads(path.read_text())["rows"] if path.exists() else []
    found = {(row["graph"], row["method"]): row for row in kept}
    for name in chosen.graph:
        with tempfile.TemporaryDirectory(prefix="placement-") as folder:
            given = graph(name)
            np.savez(Path(folder) / "graph.npz", offsets=given.offsets, neighbours=given.neighbours, m=given.columns)
            chance = traffic(given, METHODS["random"].place(given, parts, Options()))
            for method in chosen.method:
                trials = chosen.trials
                if method == "parsa" or given.edges <= SMALL:
                    trials = max(trials, sized(MIN_PARSA_TRIALS, 1))
                measured = _measured(folder, given, method, parts, trials, chance)
                found[name, method] = {"graph": name, "method": method, **measured}
                print(found[name, method], flush=True)
    write(
        result,
        f"Placements on {parts} parts",
        sorted(found.values(), key=lambda row: _place(row, [*OURS, *ALL_PEERS])),
        [
            f"means over `seeds` seeds, at least {MIN_PARSA_TRIALS} for parsa and for graphs of up to {SMALL:,} edges; "
            "M, T, S: improvement over random in %, (random − placed)/placed, of the largest memory and traffic of a "
            "part and of the total traffic (gridml.placement.quality)",
            "multilevel, traffic and total: with the objective of the largest traffic, and of the total; 3%: parts may "
            "be 3% larger, like those of peers",
            "balance: rows of the largest part over the mean; peers are allowed 3%",
            "CPU s: of the process during the placement, all threads; MB: peak memory beyond that of reading the graph",
            "columns are assigned by gridml's sweeps for all methods",
            "METIS cuts edges of the bipartite graph; peers' seconds include the time to pass them the graph",
            "the machine had other load; auto is multilevel here; methods that are not installed were left out",
        ],
    )


def _place(row: Mapping[str, Cell], methods: list[str]) -> tuple[int, int]:
    """Return the sort key of a line of the table; graphs that are not available come last."""
    graphs = names()
    return graphs.index(str(row["graph"])) if row["graph"] in graphs else len(graphs), methods.index(str(row["method"]))


def _measured(folder: str, given: Bipartite, method: str, parts: int, trials: int, chance: Traffic) -> dict[str, Cell]:
    """Return the means over `trials` seeds, or the reason why there are none."""
    found: list[tuple[float, float, Traffic]] = []
    for seed in range(trials):
        command = [sys.executable, "-m", "benchmarks.placement.trial", folder, method, str(parts), str(seed)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        except subprocess.TimeoutExpired:
            return {"why not": f"over {LIMIT_S:g} s"}
        except subprocess.CalledProcessError as error:
            return {"why not": error.stderr.strip().rpartition("\n")[2][:80]}
        said = json.loads(done.stdout.splitlines()[-1])
        placed = np.load(Path(folder) / "rows.npy"), np.load(Path(folder) / "columns.npy")
        found.append((said["cpu_s"], said["mb"], traffic(given, Placement(parts, *placed, method))))
    costs = [each for _, _, each in found]
    return {
        "CPU s": statistics.mean(cpu_s for cpu_s, _, _ in found),
        "edges/s, millions": given.edges / statistics.mean(cpu_s for cpu_s, _, _ in found) / 1e6,
        "MB": statistics.mean(mb for _, mb, _ in found),
        "M": statistics.mean(improvement(chance.largest_memory, each.largest_memory) for each in costs),
        "T": statistics.mean(improvement(chance.largest_traffic, each.largest_traffic) for each in costs),
        "S": statistics.mean(improvement(chance.total_traffic, each.total_traffic) for each in costs),
        "balance": max(each.balance for each in costs),
        "seeds": trials,
    }


if __name__ == "__main__":
    main()
