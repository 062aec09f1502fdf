"""Compare array layout with hash tables, as Figure 8 of TUX2 (Xiao et al., NSDI 2017), where arrays are up to 2.4 times
as fast.

Stages find the end of an edge by its row, an index. Here the same generated kernels also find it by an id of 62 bits:
in a table with open addressing, and in numba's typed dict. Matrix factorisation goes over synthetic ratings; topics are
sampled of the texts of `benchmarks.graph_programs.texts`; BlockPG sums up slopes of features over drawn samples. CPU
seconds of the kernels, one thread.

    python -m benchmarks.graph_programs.hash_tables
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.typed import Dict
from numpy.typing import NDArray

import gridml
from benchmarks.arguments import numbers, sized, smallest
from benchmarks.graph_programs import texts
from benchmarks.graph_programs.against_tomotopy import module as topics
from benchmarks.graph_programs.example_mf import OURS, example
from benchmarks.graph_programs.example_mf import program as factors
from benchmarks.graph_programs.one_worker import OneWorker
from benchmarks.graph_programs.ratings import drawn
from benchmarks.graph_programs.topics import Settings
from benchmarks.table import Cell, write
from gridml.codegen.cache import module_of
from gridml.model.loading import load
from gridml.model.program import Program

Array = NDArray[Any]
USERS, ITEMS, RATINGS = sized((28_000, 10_000, 4_000_000), (100, 20, 1_000))
PASSES, WARM = sized((9, 2), (2, 1))  # all, and those that are not counted
TOPICS = sized(100, 10)
SAMPLES, FEATURES, NONZERO = sized((40_000, 20_000, 60), (100, 50, 5))
LR = Path(__file__).parents[2] / "examples" / "lr.py"
EMPTY = -1
_OPEN = """
def _found(table, key):  # open addressing with linear probing; half of the places are empty
    mask = len(table) - 1
    at = np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
    while table[at, 0] != key:
        at = (at + 1) & mask
    return table[at, 1]


_found = compiled(_found, keep=False)


"""
_DICT = """
def _found(table, key):
    return table[key]


_found = compiled(_found, keep=False)


"""


def open_table(keys: Array) -> Array:
    """Return the row of each key in a table of open addressing: int64 (places, 2), keys and rows."""
    places = 1 << int(2 * len(keys) - 1).bit_length()
    table = np.full((places, 2), EMPTY, np.int64)
    for row, key in enumerate(keys.tolist()):
        at = (key * 0x9E3779B97F4A7C15 % (1 << 64) >> 32) & (places - 1)
        while table[at, 0] != EMPTY:
            at = (at + 1) & (places - 1)
        table[at] = key, row
    return table


def typed_dict(keys: Array) -> Any:
    """Return the row of each key in a typed dict of numba."""
    table = Dict.empty(numba.int64, numba.int64)
    for row, key in enumerate(keys.tolist()):
        table[key] = row
    return table


LAYOUTS: dict[str, tuple[str, Callable[[Array], Any]] | None] = {
    "index": None,
    "open addressing": (_OPEN, open_table),
    "typed dict": (_DICT, typed_dict),
}


class Timed:
    """The kernel of an exchange, which finds ends by `layout`; counts its CPU seconds."""

    def __init__(self, text: str, layout: str, call: Callable[..., Any]) -> None:
        self.cpu_s = 0.0
        self._call, self._made = call, LAYOUTS[layout]
        self._given: tuple[Any, ...] = ()
        self._ends: Any = None
        if self._made is not None:
            helper, _ = self._made
            changed = re.sub(r"_ends\[(\w+)\]", r"_found(_table, _ends[\1])", text)
            changed = changed.replace("_to, _ends,", "_to, _ends, _table,", 1)
            self._call = module_of(changed.replace("def kernel(", f"{helper}def kernel(", 1), "hashed").kernel

    def __call__(self, start: int, stop: int, begins: Array, stops: Array, ends: Array, *rest: Any) -> Any:
        given: tuple[Any, ...] = (ends,)
        if self._made is not None:
            if self._ends is not ends:  # of a new chunk
                keys = np.random.default_rng(0).permutation(1 << 20)[: int(ends.max()) + 1] * ((1 << 42) - 11)
                self._ends, self._given = ends, (keys[ends], self._made[1](keys))
            given = self._given
        began = time.process_time()
        found = self._call(start, stop, begins, stops, *given, *rest)
        self.cpu_s += time.process_time() - began
        return found


def slopes() -> Program:
    """Return the first exchange of examples/lr.py over drawn samples, with every feature active."""
    example_of = load(LR).graph.__globals__
    rng, shape = np.random.default_rng(3), (SAMPLES, NONZERO)
    feature, x = np.sort((FEATURES * rng.random(shape) ** 2).astype(np.int64), 1), rng.normal(size=shape)

    def graph() -> gridml.Graph:
        g = gridml.Graph()
        g.add(example_of["Shared"], theta=0, eta=1, last=0, share=1, full=True)
        g.add(example_of["Feature"], w=np.zeros(FEATURES), stride=0, reach=1, active=True)
        edges = gridml.csr(np.arange(SAMPLES + 1) * NONZERO, feature.ravel(), weight=x.ravel())
        g.add(example_of["Sample"], label=np.where(rng.random(SAMPLES) < 0.5, 1.0, -1.0), dual=1, words=edges)
        return g

    return gridml.Program(graph, [gridml.MiniBatch([example_of["slope"]], parts=1)], epochs=100)


def seconds(made: Callable[[], Program]) -> dict[str, list[float]]:
    """Return the CPU seconds of the exchange in each pass, by layout. The layouts take turns, each with a worker of its
    own, and all do the same work."""
    workers = {}
    for layout in LAYOUTS:
        worker = OneWorker(made())
        stage = worker.engine.stages[-1]
        stage.call = Timed(stage.kernel.text, layout, stage.call)
        workers[layout] = worker, stage.call
    found: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
    for _ in range(PASSES):
        for layout, (worker, timed) in workers.items():
            before = timed.cpu_s
            worker.run_pass()
            found[layout].append(timed.cpu_s - before)
    return {layout: each[WARM:] for layout, each in found.items()}


def main() -> None:
    numbers(__doc__)
    if not smallest() and not texts.are_there():
        print("skipped: not there: the texts; set GRIDML_DATA")
        return
    load = os.getloadavg()[0]
    module, ratings = example(OURS), drawn(USERS, ITEMS, RATINGS)
    found = texts.drawn() if smallest() else texts.newsgroups()
    sample = topics(TOPICS).program(found, Settings(), 0)
    tokens = len(found.word)
    rows: list[dict[str, Cell]] = []
    for name, edges, made in (
        ("matrix factorisation", len(ratings.stars), lambda: factors(module, ratings, OURS)),
        (f"topics ({TOPICS})", tokens, lambda: sample),
        ("BlockPG, slopes", SAMPLES * NONZERO, slopes),
    ):
        spent = seconds(made)
        for layout, each in spent.items():
            ratio = statistics.median(hashed / index for hashed, index in zip(each, spent["index"], strict=True))
            rate = statistics.median(edges / cpu_s / 1e6 for cpu_s in each)
            rows.append({
                "program": name, "ends are found by": layout, "M edges per CPU-s": round(rate, 1),
                "arrays are faster": round(ratio, 2),
            })  # fmt: skip
    write(
        "graph_hash_tables",
        "Array layout against hash tables",
        rows,
        [
            f"{len(ratings.stars):,} ratings of {USERS:,} users and {ITEMS:,} items, rank {module.RANK}; {tokens:,} "
            f"tokens; {SAMPLES:,} samples of {NONZERO} of {FEATURES:,} features; medians of {PASSES - WARM} passes, in "
            f"which the layouts take turns; arrays are faster: the median ratio of CPU seconds within a turn (paper: "
            f"up to 2.4)",
            "only the kernels are timed; of an edge only the end is looked up, and the vertex at which it starts is an "
            "index in all rows; a table holds rows of the same arrays, so fields lie as close together as in arrays",
            f"load of the machine before and after: {load:.1f}, {os.getloadavg()[0]:.1f}",
        ],
    )


if __name__ == "__main__":
    main()
