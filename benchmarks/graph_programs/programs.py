"""Graph programs on workers that are killed, against the same programs in one process.

Each program runs on 4 processes of this machine, and on 64 simulated workers, whose lives are exponential. What it
leaves is compared with `gridml.compute`. Matrix factorisation and topic models are in graph_workers.

    python -m benchmarks.graph_programs.programs [PROGRAM ...]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import gridml
from benchmarks.arguments import sized, words
from benchmarks.graph_programs.workers import Task
from benchmarks.table import Cell, write
from master.simulation.result import verify_credits, verify_ticks
from master.views.report import Report

LEASE_S, PUSH_S, LEASES = 1.0, 0.1, 2  # simulated seconds of a lease and of a push; leases of a life, on average
LIFE_S = 4.0  # of a worker on this machine: some ten leases


@dataclass(frozen=True)
class Compared:
    """A program and what of it is compared."""

    program: str
    vertices: int  #: of a pass
    named: str  #: the array, as gridml.load names it
    last: str  #: the stages' list, behind which the number of parts goes
    replaced: Mapping[str, str] = field(default_factory=dict)

    def task(self, parts: int) -> Task:
        replaced = {**self.replaced, self.last: f"{self.last}, parts={parts}"}
        return Task(self.program, self.vertices, "", replaced)


ALL = {
    "pagerank": Compared(
        "examples/pagerank.py",
        82_168,
        "Page.rank",
        "[send, settle, enough]",
        {"ENOUGH, EPOCHS = 0.85, 1e-8": "ENOUGH, EPOCHS = 0.85, 1e-3"},
    ),
    "components": Compared("examples/components.py", 36_692, "Node.label", "[spread, settle, enough]"),
    "shortest paths": Compared("examples/shortest_paths.py", 82_168, "Place.distance", "[reach, settle, enough]"),
    "label propagation": Compared("examples/label_propagation.py", 4_039, "Person.label", "[listen, enough]"),
    "l1 regression": Compared(
        "examples/lr.py", 1_070, "Feature.w", "carry], size=1500", {", parts=4)": ")", "epochs=100": "epochs=6"}
    ),
    "two phases": Compared("tests/programs/phases.py", 240, "Feature.w", "slack=0", {", parts=4": ""}),
}
TINY = {"two phases": replace(ALL["two phases"], replaced={", parts=4": "", "epochs=40": "epochs=2"})}
PROGRAMS = sized(ALL, TINY)
WORKERS = sized(64, 4)
NOTES = [
    "as unkilled: as one worker leaves it that is never killed, with as many parts (simulated); as alone: as "
    "gridml.compute does, whose mini-batches are the same, and whose sums over parts, which PageRank's end and the "
    "regressions have, are in another order. Yes: bit for bit; otherwise the largest difference in parts of the "
    "largest value",
    f"killed here: 4 processes of this machine on 4 parts, whose lives are exponential, {LIFE_S:g} s on average, half "
    f"of them without grace; simulated: {WORKERS} workers on as many parts, lives of {LEASES} leases on average",
    "in both every vertex is counted once in each phase of each pass, and no part began before the others had done "
    "what it waits for (asserted from the ledger)",
    "wall s: of the run, with processes that start; of the simulation, computing it; in one process with building the "
    "graph, machine code is cached. The machine was busy otherwise, and wall seconds say little",
    "pagerank, shortest paths: Slashdot's links; components: Enron's mail; label propagation: Facebook; l1 regression: "
    "six passes over the Bible; two phases: tests/programs/phases.py. PageRank ends at a change of 0.001, where the "
    "example has 1e-8",
    "left out: HTCondor, slow networks, graphs that one machine cannot hold",
]


def main() -> None:
    rows: list[dict[str, Cell]] = []
    for name in words(__doc__, choices=list(PROGRAMS)) or PROGRAMS:
        rows.append(row_of(name, PROGRAMS[name]))
        print(rows[-1], flush=True)
        write("graph_in_pieces", "Graph programs on workers that are killed", rows, NOTES)


def row_of(name: str, program: Compared) -> dict[str, Cell]:
    """Return the line of a program."""
    row: dict[str, Cell] = {"program": name, "array": program.named}
    for column, parts, run in (("killed here", 4, _here), ("simulated", WORKERS, _simulated)):
        with tempfile.TemporaryDirectory() as folder:
            file, root = program.task(parts).write(Path(folder)), Path(folder) / "run"
            began_s = time.perf_counter()
            alone = gridml.compute(file, seed=0)
            alone_s, began_s = time.perf_counter() - began_s, time.perf_counter()
            found = run(file, root, program.vertices)
            wall_s = time.perf_counter() - began_s
            unkilled = Path(folder) / "unkilled"
            _unkilled(file, unkilled, program.vertices)
            verify_credits(root)
            leases, _ = verify_ticks(root, 0)
            assert alone.passes == len(found.epochs)
            row |= {"one process, wall s": round(alone_s, 1)}
            row |= {f"{column}: passes": len(found.epochs), f"{column}: kills": found.kills}
            row |= {f"{column}: leases": leases, f"{column}: wall s": round(wall_s, 1)}
            left = gridml.load(root)[program.named]
            row[f"{column}: as unkilled"] = _alike(gridml.load(unkilled)[program.named], left)
            row[f"{column}: as alone"] = _alike(alone.arrays[program.named], left)
    return row


def _here(file: Path, root: Path, vertices: int) -> Report:
    options: dict[str, Any] = {"workers": 4, "lifetime": f"exponential({LIFE_S}s)", "seed": 0}
    return gridml.run(file, run_dir=root, **options).report()


def _simulated(file: Path, root: Path, vertices: int) -> Report:
    cost = f"t_x={LEASE_S * WORKERS / vertices},t_s=0.1,push={PUSH_S}"
    life_s = LEASES * (LEASE_S + PUSH_S)
    options: dict[str, Any] = {"workers": WORKERS, "cost": cost, "lifetime": f"exponential({life_s}s)", "seed": 0}
    return gridml.simulate(file, run_dir=root, **options).report()


def _unkilled(file: Path, root: Path, vertices: int) -> None:
    options: dict[str, Any] = {"workers": 1, "cost": f"t_x={LEASE_S / vertices},t_s=0.1,push={PUSH_S}", "seed": 0}
    gridml.simulate(file, run_dir=root, **options)


def _alike(one: np.ndarray, other: np.ndarray) -> Cell:
    """Return "yes" for the same bits, otherwise the largest difference in parts of the largest value."""
    if one.tobytes() == other.tobytes():
        return "yes"
    finite = np.isfinite(one)
    if (finite != np.isfinite(other)).any():
        return "no"
    return f"{np.abs(one[finite] - other[finite]).max() / np.abs(one[finite]).max():.1e}"


if __name__ == "__main__":
    main()
