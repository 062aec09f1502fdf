"""The published figures on placement, repeated on the available graphs: `results/placement_figures.md`, and the
plots of docs/placement.md.

    GRIDML_DATA=... python -m benchmarks.placement.figures [--quick | --draw]

`--quick` uses small graphs and few points, and keeps the results and docs unchanged; `--draw` only draws the recorded
measurements.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import parser_of, smallest
from benchmarks.placement import figures_duan, figures_parsa
from benchmarks.placement.figures_plot import draw
from benchmarks.placement.graphs import clicks, graph, names, uniform
from benchmarks.placement.points import Point, Scale
from benchmarks.placement.rounds import loopback
from benchmarks.table import RESULTS, write
from gridml.placement.bipartite import Bipartite

DOCS = Path(__file__).resolve().parents[2] / "docs"
REAL = ("20news", "gowalla", "imdb words")
NAME = "placement_figures"
PARSA, DUAN = "placement_parsa.png", "placement_duan.png"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    if options.draw:
        rows = json.loads((RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))["rows"]
        plot([Point.of(row) for row in rows], DOCS)
    elif options.quick or smallest():
        with tempfile.TemporaryDirectory(prefix="figures-") as folder:
            run(quick_graphs(), QUICK, Path(folder), Path(folder))
    else:
        run(full_graphs(), Scale(), RESULTS, DOCS)


QUICK = Scale(
    parts=(2, 4), blocks=(1, 4), warm_ups=(0, 2), shares=(0.5, 1.0), delays=(0, 1), degrees=(5, 20), ratios=(0.5, 2.0),
    methods=("parsa", "tsh"), trials=1, vertices=400
)  # fmt: skip


def quick_graphs() -> dict[str, Bipartite]:
    return {"clicks": clicks(1000, 10, 4), "uniform": uniform(10, 400)}


def full_graphs() -> dict[str, Bipartite]:
    """Return graphs of words, check-ins and clicks, and one without structure."""
    real = {name: graph(name) for name in REAL if name in names()}
    return {**real, "clicks, 30k rows": clicks(30_000, 100, 4), "uniform, degree 10": uniform(10)}


def run(graphs: dict[str, Bipartite], scale: Scale, results: Path, plots: Path) -> list[Point]:
    """Measure every figure, and write the table and the two plots."""
    bandwidth = loopback()
    points: list[Point] = []
    for figure in (*figures_parsa.FIGURES, *figures_duan.figures(bandwidth)):
        for point in figure(graphs, scale):
            points.append(point)
            print(point, flush=True)
    plot(points, plots)
    write(
        NAME,
        "The figures of the papers, repeated",
        [point.cells() for point in points],
        [
            f"means of {scale.trials} seeds; M, T, S: improvement over random in %, as in placement.md; x: the "
            "figure's x-axis; s: CPU seconds of the placement, for Parsa 10 the shortest wall-clock time",
            "Parsa 1: x is the share of the rows; traffic: columns that travel in a round for each edge",
            "Parsa 8: x is b, or a of 16 blocks; Parsa 9: x is the share of the rows in % that are assigned first, "
            "before eight of 64 blocks at once; Parsa 10: x is the number of the 64 blocks that are assigned at once",
            "Duan 8: x is edges a row; Duan 9: x is rows over columns, at constant density (2 in 1,000 possible edges)",
            f"Duan 11: training: {figures_duan.ROUNDS:,} rounds, at the bandwidth measured through loopback "
            f"({bandwidth / 1e6:,.0f} MB/s) and at 1 Gbit/s. A round is the edges of the largest part, times the "
            "seconds of an edge (a sparse matrix times a vector, and its transpose times another, measured here), and "
            f"the largest traffic at {figures_duan.BYTES} bytes a column. Left out: latency, sending during "
            "computation, waiting machines, merging and evaluation",
        ],
        results,
    )
    return points


def plot(points: Sequence[Point], folder: Path) -> None:
    draw(figures_parsa.PANELS, points, folder / PARSA)
    draw(figures_duan.PANELS, points, folder / DUAN)


if __name__ == "__main__":
    main()
