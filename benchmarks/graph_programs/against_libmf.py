"""Compare matrix factorisation by examples/mf.py's stage with libmf: CPU seconds to the same error on held-out ratings.

libmf trains for some numbers of iterations; for each, the row says after how many passes gridml's error is as low.
gridml runs as one worker (`benchmarks.graph_programs.one_worker`), libmf with one thread.
`benchmarks.graph_programs.libmf` says how libmf is built. `--choose` compares settings of both on one set of ratings,
of which the best are `PEER` and `OURS`; without it they are judged on others.

    python -m benchmarks.graph_programs.against_libmf --libmf libmf.so [--choose]
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import gridml
from benchmarks.arguments import parser_of, sized, smallest
from benchmarks.graph_programs import libmf
from benchmarks.graph_programs.one_worker import OneWorker, Reached, judged, tried
from benchmarks.graph_programs.ratings import Kind, Ratings, drawn, of_movielens
from benchmarks.table import write
from gridml.errors import DataError
from gridml.model.stages import GlobalSync

MF = Path(__file__).parents[2] / "examples" / "mf.py"
USERS, ITEMS, RATINGS = sized((70_000, 10_000, 10_000_000), (200, 50, 4_000))
CHOOSE_ON = sized((28_000, 10_000, 4_000_000), (200, 50, 4_000))  # users, items, ratings; of the first `Kind`, seed 0
ITERATIONS = sized((5, 8, 12), (2,))
SEEDS = sized((1, 2, 3), (1,))
PASSES = sized(20, 2)
RANK = 32  # of examples/mf.py
GOAL = 0.7


@dataclass(frozen=True)
class Peer:
    """Settings of libmf, whose schedule of rates is its own."""

    rate: float
    ridge: float


@dataclass(frozen=True)
class Settings:
    """Settings of gridml."""

    rate: float
    ridge: float
    decay: float  #: times which the rate is taken after each pass
    size: int = 1_000  #: users in a mini-batch


PEER, OURS = Peer(0.1, 0.03), Settings(0.08, 0.025, 0.6)
PEERS = [Peer(*each) for each in itertools.product(sized((0.05, 0.1, 0.2), (0.1,)), sized((0.02, 0.03, 0.05), (0.03,)))]
TRIED = [
    Settings(*each)
    for each in itertools.product(
        sized((0.04, 0.06, 0.08), (0.06,)), sized((0.015, 0.025, 0.04), (0.025,)), sized((0.6, 0.7, 0.8), (0.6,))
    )
]
JUDGED: dict[str, Callable[[int], Ratings]] = {
    "rank 30, noise 1, flat": lambda seed: drawn(USERS, ITEMS, RATINGS, seed, Kind(30, 1.0, 1.5)),
    "rank 6, noise .4, steep": lambda seed: drawn(USERS, ITEMS, RATINGS, seed, Kind(6, 0.4, 4.0)),
    **sized({"MovieLens-100k": of_movielens}, {}),
}


def program(module: ModuleType, ratings: Ratings, settings: Settings, seed: int = 0) -> gridml.Program:
    """Return the example as a program for these ratings."""

    def graph() -> gridml.Graph:
        start, g = np.random.default_rng(seed), gridml.Graph()
        g.add(module.Shared, mean=ratings.stars.mean(), rate=settings.rate)
        g.add(module.Item, bias=0, q=start.normal(0, 0.1, (ratings.items, module.RANK)))
        rated = gridml.csr(ratings.offsets, ratings.item, ratings.stars)
        g.add(module.User, bias=0, p=start.normal(0, 0.1, (ratings.users, module.RANK)), rated=rated)
        return g

    def cool(shared: Any) -> None:
        shared.rate *= settings.decay

    cool.__annotations__["shared"] = module.Shared
    stages: list[gridml.MiniBatch | GlobalSync] = [
        gridml.MiniBatch([module.learn], size=settings.size),
        gridml.global_sync(cool),
    ]
    return gridml.Program(graph, stages, epochs=PASSES)


def example(settings: Settings) -> ModuleType:
    """Return examples/mf.py with the ridge of these settings."""
    spec = importlib.util.spec_from_file_location("mf_of_benchmark", MF)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.RIDGE = settings.ridge  # type: ignore[attr-defined]
    return module


def passes(ratings: Ratings, settings: Settings, seed: int, until: float = 0.0) -> list[Reached]:
    """Return what one worker has reached after each pass, until its error is as low as `until`."""
    module = example(settings)
    OneWorker(program(module, drawn(100, 20, 1_000), settings)).run_pass()  # compiles
    worker = OneWorker(program(module, ratings, settings, seed))
    found: list[Reached] = []
    while worker.passes < PASSES and (not found or found[-1].error > until):
        worker.run_pass()
        users, items = worker.graph.tables["User"].columns, worker.values["Item"]
        at, of = ratings.test_user, ratings.test_item
        guess = worker.values["Shared"]["mean"][0] + np.asarray(users["bias"])[at] + items["bias"][of]
        guess += np.einsum("nk,nk->n", np.asarray(users["p"])[at], items["q"][of])
        found.append(Reached(worker.passes, worker.worker_s, ratings.rmse(guess), worker.master_s))
    return found


def peer(library: Path, ratings: Ratings, settings: Peer, iterations: int) -> Reached:
    done = libmf.train(library, ratings, RANK, iterations, settings.ridge, settings.rate)
    return Reached(iterations, done.cpu_s, done.rmse)


def choose(library: Path | None) -> None:
    """Compare settings of both on one set of ratings."""
    ratings, rows, lowest = drawn(*CHOOSE_ON), [], 0.0
    if library is not None:
        theirs = [peer(library, ratings, each, ITERATIONS[-1]) for each in PEERS]
        lowest = min(each.error for each in theirs)
        rows = [tried("libmf", each, "RMSE", last, 5) for each, last in zip(PEERS, theirs, strict=True)]
    rows += [tried("gridml", each, "RMSE", passes(ratings, each, 0, lowest)[-1], 5) for each in TRIED]
    write(
        "graph_libmf_choice",
        "Matrix factorisation: settings of libmf and of gridml",
        rows,
        [
            f"{len(ratings.stars):,} ratings of {Kind()}, seed 0, which judge nothing",
            "gridml stops where its error is as low as libmf's lowest. Chosen are libmf's lowest error, and gridml's "
            "fewest CPU seconds to it",
        ],
    )


def judge(library: Path | None) -> None:
    """Compare both on ratings that chose nothing."""
    load, rows, notes = os.getloadavg()[0], [], []
    for name, made in JUDGED.items():
        ours, theirs = [], []
        for seed in SEEDS:
            try:
                ratings = made(seed)
            except DataError as error:
                notes.append(f"{name} is left out: {error}")
                break
            if library:
                theirs.append([peer(library, ratings, PEER, count) for count in ITERATIONS])
            lowest = min((each.error for each in theirs[-1]), default=0.0) if theirs else 0.0
            ours.append(passes(ratings, OURS, seed, lowest))
        rows += [{"ratings": name, **line} for line in judged("libmf", "RMSE", ours, theirs, 4, GOAL)]
        print(*rows[-len(ITERATIONS) :], sep="\n", flush=True)
    write(
        "graph_libmf",
        "Matrix factorisation: CPU seconds to libmf's error",
        rows or [{"libmf": "not there: give --libmf FILE"}],
        [
            f"medians of seeds {', '.join(map(str, SEEDS))}, with which the ratings are drawn (of MovieLens, what is "
            f"held out) and gridml's factors begin; the ratio is that of one seed",
            f"{RATINGS:,} ratings drawn of hidden factors with noise, a tenth held out; {USERS:,} users, {ITEMS:,} "
            f"items; trained at rank {RANK}",
            f"settings were chosen on ratings of another kind, {Kind()} (graph_libmf_choice.md): {PEER}, {OURS}. "
            "gridml's model has biases, which libmf's has not",
            "libmf: the source in PyPI's libmf 0.9.2 with AVX, one thread; its seconds contain sorting into blocks. "
            "gridml's are the worker's: decoding chunks, training, copying what a push carries, taking the reply; "
            "machine code cached. With a master: also cutting and encoding the chunk of a pass, and taking what comes "
            "back",
            *notes,
            f"load of the machine before and after: {load:.1f}, {os.getloadavg()[0]:.1f}",
        ],
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--libmf", type=Path, metavar="FILE", help="libmf as a shared library")
    parser.add_argument("--choose", action="store_true", help="compare settings on one set of ratings instead")
    given = parser.parse_args()
    if given.libmf is None and not smallest():
        print("skipped: libmf is not there; give it by --libmf FILE")
        return
    if given.choose or smallest():
        choose(given.libmf)
    if not given.choose:
        judge(given.libmf)


if __name__ == "__main__":
    main()
