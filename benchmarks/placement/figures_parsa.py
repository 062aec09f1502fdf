"""Figures 1 and 7 to 10 of Parsa's paper: traffic over data, the number of parts, blocks and warm-up, and blocks in
parallel."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.placement.points import Figure, Panel, Point, Scale, made
from gridml.placement.auto import find
from gridml.placement.base import Options
from gridml.placement.bipartite import Bipartite
from gridml.placement.parsa import ParsaOptions

PARTS = 16
BLOCKS = 64  # in figures that vary another option: enough to assign 16 at once
TOGETHER = 8


def traffic_against_data(graphs: dict[str, Bipartite], scale: Scale) -> Iterator[Point]:
    """Yield figure 1: the columns that travel in a round for each edge, of a growing share of the rows."""
    for name, given in graphs.items():
        order = np.random.default_rng(0).permutation(given.rows)
        for share in scale.shares:
            some = _some(given, np.sort(order[: int(share * given.rows)]))
            placements = made(some, find("parsa"), PARTS, Options, scale.trials)
            for method, costs in (("random", placements.chance), ("parsa", placements.costs)):
                travelling = statistics.mean(cost.total_traffic for cost in costs) / some.edges
                yield Point("Parsa 1", name, method, share, {"traffic": travelling})


def number_of_parts(graphs: dict[str, Bipartite], scale: Scale) -> Iterator[Point]:
    """Yield figure 7: the number of parts."""
    for name, given in graphs.items():
        for parts in scale.parts:
            placements = made(given, find("parsa"), parts, Options, scale.trials)
            yield Point("Parsa 7", name, "parsa", parts, placements.values)


def blocks_and_warm_up(graphs: dict[str, Bipartite], scale: Scale) -> Iterator[Point]:
    """Yield figure 8: b blocks, each of which starts from the parts of the last one; a blocks assigned beforehand."""
    for name, given in graphs.items():
        for blocks in scale.blocks:
            placements = made(
                given, find("parsa"), PARTS, partial(ParsaOptions, blocks=blocks, warm_up=0), scale.trials
            )
            yield Point("Parsa 8, b", name, "parsa", blocks, placements.values)
        for warm_up in scale.warm_ups:
            placements = made(
                given, find("parsa"), PARTS, partial(ParsaOptions, blocks=16, warm_up=warm_up), scale.trials
            )
            yield Point("Parsa 8, a", name, "parsa", warm_up, placements.values)


def begun_together(graphs: dict[str, Bipartite], scale: Scale) -> Iterator[Point]:
    """Yield figure 9: neighbour sets of a share of the rows, from which all blocks start, eight of them at once."""
    for name, given in graphs.items():
        for blocks in scale.warm_ups:
            placements = made(
                given,
                find("parsa"),
                PARTS,
                partial(ParsaOptions, blocks=BLOCKS, warm_up=blocks, delay=TOGETHER - 1),
                scale.trials,
            )
            yield Point("Parsa 9", name, "parsa", 100 * max(1, blocks) / BLOCKS, placements.values)


def workers(graphs: dict[str, Bipartite], scale: Scale) -> Iterator[Point]:
    """Yield figure 10: blocks assigned at once. Threads do not change the result, so the quality for more blocks at
    once than there are cores can be measured, too."""
    for name, given in graphs.items():
        for delay in scale.delays:
            seconds: dict[str, float] = {}
            for threads in (1, 2):
                placements = made(
                    given,
                    find("parsa"),
                    PARTS,
                    partial(ParsaOptions, blocks=BLOCKS, delay=delay, threads=threads),
                    scale.trials,
                )
                seconds[f"s, {threads} threads"] = min(placements.clock_s)
            values = {key: value for key, value in placements.values.items() if key != "s"}
            yield Point("Parsa 10", name, "parsa", delay + 1, {**values, **seconds})


FIGURES: tuple[Figure, ...] = (
    traffic_against_data,
    number_of_parts,
    blocks_and_warm_up,
    begun_together,
    workers,
)
PANELS = (
    Panel("Parsa 1", "1: traffic against data (counted)", "share of the rows", "traffic", "share", logarithmic=False),
    Panel("Parsa 7", "7: the number of parts (counted)", "parts", "T"),
    Panel("Parsa 7", "7: the cost (measured)", "parts", "s"),
    Panel("Parsa 8, b", "8: blocks, none beforehand (counted)", "b", "T"),
    Panel("Parsa 8, b", "8: the cost (measured)", "b", "s"),
    Panel("Parsa 8, a", "8: of 16 blocks, assigned beforehand (counted)", "a", "T", logarithmic=False),
    Panel("Parsa 9", "9: eight blocks at once, after a share (counted)", "% of the rows", "T", logarithmic=False),
    Panel("Parsa 10", "10: blocks assigned at once (counted)", "blocks", "T"),
)


def _some(given: Bipartite, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Bipartite:
    degrees = given.degrees[rows]
    offsets = np.concatenate([[0], np.cumsum(degrees)])
    edges = np.arange(offsets[-1]) + np.repeat(given.offsets[rows] - offsets[:-1], degrees)
    return Bipartite.from_rows(offsets, given.neighbours[edges], given.columns)
