"""Compare matrix factorisation by examples/mf.py's stage with libmf: CPU seconds to the same error on held-out ratings.

libmf trains for some numbers of iterations; for each, the row says after how many passes gridml's error is as low.
gridml runs as one worker (`benchmarks.graph_programs.one_worker`), libmf with one thread.
`benchmarks.graph_programs.libmf` says how libmf is built.

    python -m benchmarks.graph_programs.against_libmf --libmf libmf.so
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import gridml
from benchmarks.arguments import parser_of, sized, smallest
from benchmarks.graph_programs import libmf
from benchmarks.graph_programs.one_worker import OneWorker, Reached, compared
from benchmarks.graph_programs.ratings import Ratings, drawn
from benchmarks.table import Cell, write
from gridml.model.stages import GlobalSync

MF = Path(__file__).parents[2] / "examples" / "mf.py"
USERS, ITEMS, RATINGS = sized((70_000, 10_000, 10_000_000), (200, 50, 4_000))
ITERATIONS = sized((4, 5, 7, 9, 12), (2,))
PASSES, SIZES = sized((10, (1_000, 16)), (2, (50,)))
# Of each the best of those tried on these ratings: libmf's ridge .02 to .08 with its rate .05 to .2; gridml's rate .05
# to .1, ridge .01 to .03, decay .6, .7 and linear.
PEER_RATE, PEER_RIDGE = 0.1, 0.03
RATE, RIDGE, DECAY = 0.06, 0.025, 0.6
GOAL = 0.7


def program(module: ModuleType, ratings: Ratings, size: int) -> gridml.Program:
    """Return the example as a program for these ratings."""

    def graph() -> gridml.Graph:
        start, g = np.random.default_rng(0), gridml.Graph()
        g.add(module.Shared, mean=ratings.stars.mean(), rate=RATE)
        g.add(module.Item, bias=0, q=start.normal(0, 0.1, (ratings.items, module.RANK)))
        rated = gridml.csr(ratings.offsets, ratings.item, ratings.stars)
        g.add(module.User, bias=0, p=start.normal(0, 0.1, (ratings.users, module.RANK)), rated=rated)
        return g

    def cool(shared: Any) -> None:
        shared.rate *= DECAY

    cool.__annotations__["shared"] = module.Shared
    stages: list[gridml.MiniBatch | GlobalSync] = [
        gridml.MiniBatch([module.learn], size=size),
        gridml.global_sync(cool),
    ]
    return gridml.Program(graph, stages, epochs=PASSES)


def example() -> ModuleType:
    """Return examples/mf.py with the ridge of this benchmark."""
    spec = importlib.util.spec_from_file_location("mf_of_benchmark", MF)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.RIDGE = RIDGE  # type: ignore[attr-defined]
    return module


def passes(module: ModuleType, ratings: Ratings, size: int) -> tuple[list[Reached], OneWorker]:
    """Return what one worker has reached after each pass."""
    OneWorker(program(module, drawn(100, 20, 1_000), 50)).run_pass()  # compiles
    worker, found = OneWorker(program(module, ratings, size)), []
    for number in range(1, PASSES + 1):
        worker.run_pass()
        users, items = worker.graph.tables["User"].columns, worker.values["Item"]
        at, of = ratings.test_user, ratings.test_item
        guess = worker.values["Shared"]["mean"][0] + np.asarray(users["bias"])[at] + items["bias"][of]
        guess += np.einsum("nk,nk->n", np.asarray(users["p"])[at], items["q"][of])
        found.append(Reached(number, worker.worker_s, ratings.rmse(guess)))
    return found, worker


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--libmf", type=Path, metavar="FILE", help="libmf as a shared library")
    library = parser.parse_args().libmf
    if library is None and not smallest():
        print("skipped: libmf is not there; give it by --libmf FILE")
        return
    load = os.getloadavg()[0]
    ratings, module = drawn(USERS, ITEMS, RATINGS), example()
    theirs = []
    for count in ITERATIONS if library else ():
        done = libmf.train(library, ratings, module.RANK, count, PEER_RIDGE, PEER_RATE)
        theirs.append(Reached(count, done.cpu_s, done.rmse))
    rows: list[dict[str, Cell]] = []
    notes = []
    for size in SIZES:
        ours, worker = passes(module, ratings, size)
        rows += [{"users in a mini-batch": size, **compared("libmf", "RMSE", ours, each, 4)} for each in theirs]
        rate = PASSES * len(ratings.stars) / worker.worker_s / 1e6
        notes.append(
            f"{size} users in a mini-batch: {rate:.1f} M ratings per CPU-s of the worker, RMSE after each pass "
            f"{', '.join(f'{each.error:.4f}' for each in ours)}; besides, cutting and encoding the chunk of a pass and "
            f"taking what comes back took {worker.master_s / PASSES:.2f} CPU-s a pass, which is a master's"
        )
    rows = rows or [{"libmf": "not there: give --libmf FILE"}]
    write(
        "graph_libmf",
        "Matrix factorisation: CPU seconds to libmf's error",
        rows,
        [
            f"goal: at most {GOAL} of libmf's CPU seconds",
            f"synthetic ratings, since the largest real set at hand has 100,000: {len(ratings.stars):,} of hidden "
            f"factors with noise, and {len(ratings.test_stars):,} held out; {USERS:,} users, {ITEMS:,} items; rank "
            f"{module.RANK}",
            f"libmf: the source in PyPI's libmf 0.9.2 with AVX, one thread, ridge {PEER_RIDGE}, rate {PEER_RATE}; its "
            f"seconds contain sorting into blocks. gridml: rate {RATE}, times {DECAY} after each pass, ridge {RIDGE}, "
            f"machine code cached; its "
            f"seconds are the worker's: decoding chunks, training, copying what a push carries, taking the reply. Of "
            f"each the best settings of a few that were tried. gridml's model has biases, which libmf's has not",
            *notes,
            f"load of the machine before and after: {load:.1f}, {os.getloadavg()[0]:.1f}",
        ],
    )


if __name__ == "__main__":
    main()
