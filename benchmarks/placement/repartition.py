"""Compare placing a graph again with a fresh placement: after it has grown, and with more or fewer parts.

GRIDML_DATA=... python -m benchmarks.placement.repartition [GRAPH ...]
"""

from __future__ import annotations

import time

import numpy as np
from scipy.optimize import linear_sum_assignment

from benchmarks.arguments import sized, words
from benchmarks.placement.graphs import FILES, graph
from benchmarks.table import Cell, write
from gridml.placement.auto import find
from gridml.placement.base import Method, Options, Parts, Placement
from gridml.placement.bipartite import Bipartite
from gridml.placement.quality import Traffic, improvement, traffic
from gridml.placement.repartition import Before, Moved, Repartition

PARTS = 16
OTHERS = sized((15, 17, 8, 32), (15,))
GROWN = 0.8  # share of the rows before a graph grows
SHOWN = ("ca-condmat", "gowalla", "20news", "email-enron", "slashdot", "imdb words")


def main() -> None:
    chosen = words(__doc__, choices=list(FILES)) or sized([name for name in SHOWN if name in FILES], ["ca-condmat"])
    rows: list[dict[str, Cell]] = []
    for name in chosen:
        rows += compared(name, graph(name))
        print(*rows[-1 - len(OTHERS) :], sep="\n", flush=True)
    write(
        "placement_again",
        f"Graphs placed again, from {PARTS} parts",
        rows,
        [
            "first by multilevel; again: gridml.placement.repartition with its defaults; afresh: by multilevel with "
            "another seed, its parts numbered so that the fewest rows move",
            "M, T, S: improvement over random in %, as in placement.md; moved, columns: of the existing rows and "
            "columns, in %; must: the rows that have to move, for parts of equal size",
            f"grown: a random {GROWN:.0%} of the rows placed first, then all; by chance: the new ones assigned at "
            "random",
            "CPU s: of again, and of afresh",
            "COST, PASSES and the cuts were chosen on the first three graphs; the others are for evaluation",
        ],
    )


def compared(name: str, given: Bipartite) -> list[dict[str, Cell]]:
    """Return the table's lines of one graph."""
    seed = Options()
    first = find("multilevel").place(given, PARTS, seed)
    lines = [_grown(name, given)]
    for parts in OTHERS:
        before = Before.of(first, given)
        again, again_s = _timed(Repartition(before), given, parts, seed)
        afresh, afresh_s = _timed(find("multilevel"), given, parts, Options(seed=1))
        larger = max(parts, PARTS)
        lines.append(
            {
                "graph": name,
                "case": f"on {parts} parts",
                "must %": 100 * (1 - min(parts, PARTS) / larger),
                "moved %": 100 * Moved.between(before, again).rows_moved / given.rows,
                "afresh %": 100 * _moved(first.rows, afresh.rows, larger),
                "columns %": 100 * Moved.between(before, again).columns_moved / given.columns,
                **_figures(given, parts, {"": again, " afresh": afresh}),
                "CPU s": again_s,
                "CPU s afresh": afresh_s,
            }
        )
    return lines


def _grown(name: str, given: Bipartite) -> dict[str, Cell]:
    """Return the table's line of a graph that grows: new rows are added, and the old ones stay."""
    order = np.random.default_rng(0).permutation(given.rows)
    all_rows = _rows_of(given, order)
    old = int(GROWN * given.rows)
    some = Bipartite(all_rows.offsets[: old + 1], all_rows.neighbours[: all_rows.offsets[old]], given.columns)
    before = Before.of(find("multilevel").place(some, PARTS, Options()), all_rows)
    again, again_s = _timed(Repartition(before), all_rows, PARTS, Options())
    afresh, afresh_s = _timed(find("multilevel"), all_rows, PARTS, Options(seed=1))
    dealt = before.rows.copy()
    dealt[old:] = np.random.default_rng(1).permutation(given.rows - old) % PARTS
    chance = Placement(
        PARTS, dealt, Repartition(Before(PARTS, dealt, before.columns)).place(all_rows, PARTS, Options()).columns, ""
    )
    return {
        "graph": name,
        "case": "grown",
        "must %": 0.0,
        "moved %": 100 * Moved.between(before, again).rows_moved / old,
        "columns %": 100 * Moved.between(before, again).columns_moved / given.columns,
        "afresh %": 100 * _moved(before.rows[:old], afresh.rows[:old], PARTS),
        **_figures(all_rows, PARTS, {"": again, " afresh": afresh, " by chance": chance}),
        "CPU s": again_s,
        "CPU s afresh": afresh_s,
    }


def _figures(given: Bipartite, parts: int, placed: dict[str, Placement]) -> dict[str, Cell]:
    chance = traffic(given, find("random").place(given, parts, Options()))
    figures: dict[str, Cell] = {}
    for what, placement in placed.items():
        cost: Traffic = traffic(given, placement)
        figures[f"M{what}"] = improvement(chance.largest_memory, cost.largest_memory)
        figures[f"T{what}"] = improvement(chance.largest_traffic, cost.largest_traffic)
        figures[f"S{what}"] = improvement(chance.total_traffic, cost.total_traffic)
    return figures


def _timed(method: Method, given: Bipartite, parts: int, options: Options) -> tuple[Placement, float]:
    begun = time.process_time()
    return method.place(given, parts, options), time.process_time() - begun


def _moved(before: Parts, after: Parts, parts: int) -> float:
    """Return the share of rows that change their part, for the numbering of parts by which the fewest do."""
    both = np.zeros((parts, parts), np.int64)
    np.add.at(both, (before, after), 1)
    stay = both[linear_sum_assignment(-both)].sum()
    return 1 - float(stay) / len(before)


def _rows_of(given: Bipartite, order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Bipartite:
    degrees = given.degrees[order]
    rows = np.repeat(np.arange(given.rows), degrees)
    offsets = np.concatenate([[0], np.cumsum(degrees)])
    edges = np.arange(offsets[-1]) + np.repeat(given.offsets[order] - offsets[:-1], degrees)
    return Bipartite.from_edges(rows, given.neighbours[edges], (given.rows, given.columns))


if __name__ == "__main__":
    main()
