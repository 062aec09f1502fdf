"""Count the ghosts of parts of linked vertices: placed, dealt out at random, and in the order of the file.

examples/components.py runs on SNAP's graphs (GRIDML_DATA names the folder with the files) and on a grid, whose vertices
are numbered row by row, or at random. The master places the vertices in 16 parts and says how many vertices of other
parts a part reads. The run is simulated, with the real master, for three passes; `MB a pass` is all that workers get,
without a placement and with it. Labels after these passes must be equal.

    GRIDML_DATA=... python -m benchmarks.graph_programs.placed
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gridml
from benchmarks.arguments import numbers, sized
from benchmarks.table import Cell, write

Array = NDArray[Any]
COMPONENTS = Path(__file__).parents[2] / "examples" / "components.py"
GRAPHS = ("facebook", "enron", "slashdot")
SIDE = sized(300, 12)
PASSES = 3
METHODS = ("parsa", "multilevel")
CHANGES = (
    ('gridml.datasets.snap("enron")', "np.load({data!r})"),
    ("edges.source, edges.target, edges.vertices", 'edges["source"], edges["target"], int(edges["vertices"])'),
    ("epochs=EPOCHS)", "epochs={passes}, placement={method!r})"),
)


def graphs() -> Iterator[tuple[str, Array, Array, int]]:
    """Yield (name, source (edges,), target (edges,), vertices) of each graph that is there."""
    for name in GRAPHS if sized("GRIDML_DATA" in os.environ, False) else ():
        read = gridml.datasets.snap(name)
        yield name, read.source, read.target, read.vertices
    at = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    source, target = (
        np.concatenate([at[:, :-1].ravel(), at[:-1].ravel()]),
        np.concatenate([at[:, 1:].ravel(), at[1:].ravel()]),
    )
    yield "grid", source, target, at.size
    shuffled = np.random.default_rng(0).permutation(at.size)
    yield "grid, shuffled", shuffled[source], shuffled[target], at.size


def run(folder: Path, data: Path, method: str) -> tuple[gridml.Run, dict[str, Any]]:
    """Return a simulated run, and the facts of its placement, if there is one."""
    text = COMPONENTS.read_text()
    for old, new in CHANGES:
        assert old in text, f"examples/components.py has no {old} any more"
        text = text.replace(old, new.format(data=str(data), method=method, passes=PASSES))
    file = folder / f"{method}.py"
    file.write_text(text)
    made = gridml.simulate(file, workers=4, cost="t_x=1e-6,t_s=1,push=0.1", run_dir=folder / f"run-{method}")
    placed = made.events("placement")
    return made, dict(placed[0].facts) if placed else {}


def main() -> None:
    numbers(__doc__)
    rows: list[dict[str, Cell]] = []
    for name, source, target, vertices in graphs():
        with tempfile.TemporaryDirectory() as temporary:
            folder, data = Path(temporary), Path(temporary) / "graph.npz"
            np.savez(data, source=source, target=target, vertices=vertices)
            plain, _ = run(folder, data, "none")
            for method in METHODS:
                placed, facts = run(folder, data, method)
                np.testing.assert_array_equal(placed.load()["Node.label"], plain.load()["Node.label"])
                rows.append(
                    {
                        "graph": name,
                        "vertices": vertices,
                        "edges": len(source),
                        "method": method,
                        "ghosts a part": round(facts["ghosts"]),
                        "in order": round(facts["order_ghosts"]),
                        "at random": round(facts["chance_ghosts"]),
                        "MB a pass, placed": round(placed.report().bytes_down / 1e6 / PASSES, 3),
                        "in order: MB": round(plain.report().bytes_down / 1e6 / PASSES, 3),
                    }
                )
                print(rows[-1], flush=True)
    notes = [
        "ghosts: vertices that a part reads and does not have, a mean over 16 parts; `in order` is what a run without "
        "a placement has: parts are adjacent vertices of the file",
        "MB are all that workers get in a pass: edges, too, which are most of it and do not depend on the placement",
        "the labels of all runs of a graph are equal after three passes",
    ]
    write("graph_placed", "Ghosts of placed graphs", rows, notes)


if __name__ == "__main__":
    main()
