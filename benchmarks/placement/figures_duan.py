"""Figures 8 to 11 of Duan, Wang and Wu: sparsity, the ratio of rows to columns, the number of parts, and the seconds of
training and placement."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.placement.points import Figure, Panel, Point, Scale, made
from benchmarks.placement.rounds import edge_s
from gridml.placement.auto import find
from gridml.placement.base import Method, Options
from gridml.placement.bipartite import Bipartite
from gridml.placement.tsh import TshOptions

PARTS = 8
ROUNDS = 1000
WORDS = "20news"  # a real graph, to compare with the uniform one
BYTES = 8  # of a travelling column: its number and its value
GIGABIT = 125e6  # bytes a second
DENSITY = 20 / 10_000


def sparsity(graphs: dict[str, Bipartite], scale: Scale) -> Iterator[Point]:
    """Yield figure 8, on uniform graphs with as many rows as columns."""
    for degree in scale.degrees:
        given = _uniform(scale.vertices, scale.vertices, degree / scale.vertices)
        yield from _all("Duan 8", "uniform", given, PARTS, degree, scale)


def rows_over_columns(graphs: dict[str, Bipartite], scale: Scale) -> Iterator[Point]:
    """Yield figure 9, on uniform graphs of equal density and number of edges."""
    for ratio in scale.ratios:
        rows = int(scale.vertices * ratio**0.5)
        given = _uniform(rows, int(scale.vertices / ratio**0.5), DENSITY)
        yield from _all("Duan 9", "uniform", given, PARTS, ratio, scale)


def number_of_parts(graphs: dict[str, Bipartite], scale: Scale) -> Iterator[Point]:
    """Yield figure 10, on a uniform graph and on `WORDS`."""
    chosen = {"uniform": _uniform(scale.vertices, scale.vertices, 10 / scale.vertices)}
    if WORDS in graphs:
        chosen[WORDS] = graphs[WORDS]
    for name, given in chosen.items():
        for parts in scale.parts:
            yield from _all("Duan 10", name, given, parts, parts, scale)


def seconds(bandwidth: float, graphs: dict[str, Bipartite], scale: Scale) -> Iterator[Point]:
    """Yield figure 11: the seconds of a training's rounds, and of the placement."""
    for name, given in graphs.items():
        each_s = edge_s(given)
        for method in ("random", *scale.methods):
            placements = made(given, _method(method), PARTS, partial(_options, method), scale.trials)
            work_s = each_s * statistics.mean(placements.edges)
            sent = BYTES * statistics.mean(cost.largest_traffic for cost in placements.costs)
            values = {
                "s": statistics.mean(placements.cpu_s),
                "training s": ROUNDS * (work_s + sent / bandwidth),
                "training s, 1 Gbit/s": ROUNDS * (work_s + sent / GIGABIT),
            }
            yield Point("Duan 11", name, method, PARTS, values)


def figures(bandwidth: float) -> tuple[Figure, ...]:
    """Return all figures; `bandwidth` is that of a round's columns, in bytes per second."""
    return sparsity, rows_over_columns, number_of_parts, partial(seconds, bandwidth)


PANELS = (
    Panel("Duan 8", "8: sparsity (counted)", "edges a row", "T", "method"),
    Panel("Duan 9", "9: rows over columns (counted)", "n / m", "T", "method"),
    Panel("Duan 10", "10: the number of parts, uniform (counted)", "parts", "T", "method", "uniform"),
    Panel("Duan 10", "10: the number of parts, 20news (counted)", "parts", "T", "method", WORDS),
    Panel("Duan 10", "11: the cost of placing 20news (measured)", "parts", "s", "method", WORDS),
    Panel(
        "Duan 11",
        "11: training (modelled) over placement (measured)",
        "CPU s of placement",
        "training s, 1 Gbit/s",
        "cost",
    ),
)


def _all(figure: str, name: str, given: Bipartite, parts: int, x: float, scale: Scale) -> Iterator[Point]:
    for method in scale.methods:
        placements = made(given, _method(method), parts, partial(_options, method), scale.trials)
        yield Point(figure, name, method, x, placements.values)


def _method(name: str) -> Method:
    return find("tsh" if name == "tsh-1" else name)


def _options(name: str, seed: int) -> Options:
    return TshOptions(seed, step=1) if name == "tsh-1" else Options(seed)


def _uniform(rows: int, columns: int, density: float) -> Bipartite:
    rng = np.random.default_rng(1)
    count = int(rows * columns * density)
    return Bipartite.from_edges(rng.integers(0, rows, count), rng.integers(0, columns, count), (rows, columns))
