"""Compare programs whose vertices are linked with one another, in one process, with scipy, networkit and igraph.

PageRank, connected components and shortest paths by `gridml.compute`, with machine code that is cached and loaded, on a
random graph, on one whose vertices are unequally popular, and on a grid, which takes as many passes as it is wide and
is here for that reason. Peers that are not installed are left out. All take turns on one thread, and their answers are
compared. Two threads: of one thread, the CPU seconds of each job are taken, and shared by two, the longest first.

    python -m benchmarks.graph_programs.linked
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components, dijkstra

import gridml
from benchmarks.arguments import numbers, sized
from benchmarks.graph_programs.threads import longest_of_two
from benchmarks.table import Cell, write
from gridml.engine import stage_jobs
from gridml.model.program import Program

EXAMPLES = Path(__file__).parents[2] / "examples"
VERTICES, EDGES, SIDE, ROUNDS = sized((500_000, 5_000_000, 500, 3), (300, 2_000, 12, 1))
FIELDS = {"pagerank": "Page.rank", "components": "Node.label", "shortest_paths": "Place.distance"}
ENOUGH, SKEW = 1e-8, 3.0
Array = NDArray[Any]


class Drawn(NamedTuple):
    """A graph with directions and without two edges between the same vertices; the first reaches many others."""

    name: str
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    length: NDArray[np.float64]
    vertices: int


class Spent(NamedTuple):
    """Seconds of one piece of work."""

    cpu_s: float
    wall_s: float


class Peer(NamedTuple):
    """One way to solve a problem: what it makes of a graph, and how it solves that."""

    build: Callable[[Drawn], Any]
    solve: Callable[[Any], Array]


def drawn(name: str, skew: float) -> Drawn:
    """Draw ends as u ** skew of the vertices: 1 is uniform; with 3 a hundredth of the vertices has a fifth of them."""
    rng = np.random.default_rng(1)
    place = rng.permutation(VERTICES)
    ends = place[(VERTICES * rng.random((2, EDGES)) ** skew).astype(np.int64)]
    return _named(name, np.unique(ends[0] * VERTICES + ends[1]), VERTICES)


def grid() -> Drawn:
    """Return a square in which each vertex leads to its four neighbours."""
    at = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    upper = np.concatenate([at[1:].ravel(), at[:, 1:].ravel()])
    lower = np.concatenate([at[:-1].ravel(), at[:, :-1].ravel()])
    return _named("grid", np.concatenate([upper * at.size + lower, lower * at.size + upper]), at.size)


def _named(name: str, keys: NDArray[np.int64], vertices: int) -> Drawn:
    rng = np.random.default_rng(2)
    keys = rng.permutation(keys)  # a list of edges comes in any order
    return Drawn(name, keys // vertices, keys % vertices, 0.01 + rng.random(len(keys)), vertices)


def _matrix(drawn: Drawn, values: Array) -> Any:
    return csr_matrix((values, (drawn.source, drawn.target)), (drawn.vertices, drawn.vertices))


def _by_target(drawn: Drawn) -> tuple[Any, Array]:
    share = (np.ones(len(drawn.source)), (drawn.target, drawn.source))
    return csr_matrix(share, (drawn.vertices, drawn.vertices)), np.bincount(drawn.source, minlength=drawn.vertices)


def _powers(built: tuple[Any, Array]) -> Array:
    matrix, degree = built
    count, hanging, each = len(degree), np.flatnonzero(degree == 0), 1.0 / np.maximum(degree, 1)
    rank, moved = np.full(count, 1 / count), 1.0
    while moved >= ENOUGH:
        after = (0.15 + 0.85 * rank[hanging].sum()) / count + 0.85 * (matrix @ (rank * each))
        moved, rank = np.abs(after - rank).sum(), after
    return rank


def scipys() -> dict[str, Peer]:
    return {
        "pagerank": Peer(_by_target, _powers),
        "components": Peer(
            lambda g: _matrix(g, np.ones(len(g.source))), lambda m: connected_components(m, directed=False)[1]
        ),
        "shortest_paths": Peer(lambda g: _matrix(g, g.length), lambda m: dijkstra(m, indices=0)),
    }


def networkits() -> dict[str, Peer]:
    networkit: Any = importlib.import_module("networkit")
    networkit.setNumberOfThreads(1)

    def build(drawn: Drawn, *, weighted: bool) -> Any:
        ends = drawn.source.astype(np.uint64), drawn.target.astype(np.uint64)
        coo = (drawn.length, ends) if weighted else ends
        return networkit.GraphFromCoo(coo, n=drawn.vertices, weighted=weighted, directed=True)

    def pagerank(graph: Any) -> Array:
        sinks = networkit.centrality.SinkHandling.DistributeSinks
        ranks = networkit.centrality.PageRank(graph, 0.85, ENOUGH, distributeSinks=sinks)
        ranks.norm = networkit.centrality.Norm.L1_NORM
        scores: Array = np.array(ranks.run().scores())
        scores /= scores.sum()
        return scores

    def components(graph: Any) -> Array:
        found = networkit.components.WeaklyConnectedComponents(graph).run().getPartition()
        return np.array(found.getVector())

    def paths(graph: Any) -> Array:
        found: Array = np.array(
            networkit.distance.Dijkstra(graph, 0, storePaths=False).run().getDistances(asarray=True)
        )
        return np.where(found > 1e300, np.inf, found)

    plain, weighted = partial(build, weighted=False), partial(build, weighted=True)
    return {
        "pagerank": Peer(plain, pagerank),
        "components": Peer(plain, components),
        "shortest_paths": Peer(weighted, paths),
    }


def igraphs() -> dict[str, Peer]:
    igraph: Any = importlib.import_module("igraph")

    def build(drawn: Drawn) -> Any:
        ends = np.column_stack([drawn.source, drawn.target])
        return igraph.Graph(n=drawn.vertices, edges=ends, directed=True), drawn.length.tolist()

    def components(built: Any) -> Array:
        getattr(built[0], "__invalidate_cache")()  # in which a graph keeps that it is connected
        return np.array(built[0].connected_components(mode="weak").membership)

    return {
        "pagerank": Peer(build, lambda built: np.array(built[0].pagerank(damping=0.85))),
        "components": Peer(build, components),
        "shortest_paths": Peer(build, lambda built: np.array(built[0].distances(source=[0], weights=built[1])[0])),
    }


class Ours:
    """An example on a graph of the benchmark."""

    def __init__(self, problem: str) -> None:
        self.field = FIELDS[problem]
        path = EXAMPLES / f"{problem}.py"
        spec = importlib.util.spec_from_file_location(f"example_{problem}", path)
        assert spec is not None and spec.loader is not None
        self.module: ModuleType = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = self.module  # where an edge's type is looked up
        spec.loader.exec_module(self.module)
        self.passes = 0
        self.turning = Spent(0.0, 0.0)  # of the last `solve`: the graph's checks, and its edges by their ends
        self.saved_s = 0.0  # CPU seconds that a second thread would have taken over

    def build(self, drawn: Drawn) -> Program:
        lengths = (drawn.length,) if self.field == "Place.distance" else ()
        made = self.module.network(drawn.source, drawn.target, *lengths, drawn.vertices)
        program: Program = replace(self.module.program, graph=lambda: made, evaluate=None)
        return program

    def solve(self, program: Program, threads: int = 1) -> Array:
        with self._timed():
            found = gridml.compute(program, threads=threads)
        self.passes = found.passes
        return found.arrays[self.field]

    @contextmanager
    def _timed(self) -> Iterator[None]:
        build = Program.build

        def timed(program: Program, source: Path) -> Any:
            made, self.turning = took(lambda: build(program, source))
            return made

        Program.build = timed  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            Program.build = build  # type: ignore[method-assign]

    def solve_in_jobs(self, program: Program) -> Array:
        """Solve with the jobs of two threads, one after the other."""
        do_all, self.saved_s = stage_jobs.do_all, 0.0

        def alone(calls: Sequence[Callable[[], None]], threads: int) -> None:
            took_s = [took(call)[1].cpu_s for call in calls]
            self.saved_s += sum(took_s) - longest_of_two(took_s)

        stage_jobs.do_all = alone
        try:
            return self.solve(program, 2)
        finally:
            stage_jobs.do_all = do_all


def took(work: Callable[[], Any]) -> tuple[Any, Spent]:
    """Return (what work returns, the seconds that it takes)."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    made = work()
    return made, Spent(time.process_time() - cpu_s, time.perf_counter() - wall_s)


def agree(problem: str, ours: Array, theirs: Array) -> bool:
    """Return whether two answers are the same."""
    if problem == "pagerank":  # each ends as soon as a pass moves ranks by less
        return bool(np.abs(ours - theirs).sum() < 10 * ENOUGH)
    if problem == "shortest_paths":
        return bool(np.allclose(ours, theirs, rtol=1e-9))
    pairs = len(np.unique(np.stack([ours, theirs]), axis=1).T)
    return pairs == len(np.unique(ours)) == len(np.unique(theirs))


def compared(
    problem: str, graph: Drawn, peers: dict[str, dict[str, Peer]], kept: dict[Any, tuple[Any, Spent]]
) -> list[dict[str, Cell]]:
    """Return rows of the table for one problem on one graph. `kept` has what peers made of the graph, by how."""
    ours = Ours(problem)
    ours.solve(ours.build(graph))  # compiles
    program, making = took(lambda: ours.build(graph))
    for made in (peer[problem].build for peer in peers.values()):
        if made not in kept:
            kept[made] = took(partial(made, graph))
    built = {name: kept[peer[problem].build] for name, peer in peers.items()}
    spent: dict[str, list[Spent]] = {name: [] for name in ("gridml", *peers)}
    turning, allowed, walls = [], [], []
    for _ in range(ROUNDS):
        answer, solving = took(lambda: ours.solve(program))
        turning.append(ours.turning)
        spent["gridml"].append(Spent(solving.cpu_s - ours.turning.cpu_s, solving.wall_s - ours.turning.wall_s))
        for name, peer in peers.items():
            theirs, solving = took(partial(peer[problem].solve, built[name][0]))
            assert agree(problem, answer, theirs), f"{name} has another answer to {problem}"
            spent[name].append(solving)
        jobs, solving = took(lambda: ours.solve_in_jobs(program))
        cpu_s = solving.cpu_s - ours.turning.cpu_s
        allowed.append(cpu_s / (cpu_s - ours.saved_s))
        threads, solving = took(lambda: ours.solve(program, 2))
        walls.append(spent["gridml"][-1].wall_s / (solving.wall_s - ours.turning.wall_s))
        assert answer.tobytes() == jobs.tobytes() == threads.tobytes(), "the number of threads changed the result"
    rows: list[dict[str, Cell]] = []
    make = {name: spent_s.cpu_s for name, (_, spent_s) in built.items()}
    make["gridml"] = making.cpu_s + statistics.median(each.cpu_s for each in turning)
    for name, each in spent.items():
        others = [other for other in peers if other != name] if name == "gridml" else []
        ratios = [now.cpu_s / min(spent[o][i].cpu_s for o in others) for i, now in enumerate(each) if others]
        solve_s = statistics.median(now.cpu_s for now in each)
        best = min((make[o] + statistics.median(now.cpu_s for now in spent[o]) for o in others), default=0.0)
        own = name == "gridml"
        rows.append({
            "graph": graph.name,
            "problem": problem.replace("_", " "),
            "by": name,
            "build, CPU-s": round(make[name], 3),
            "solve, CPU-s": round(solve_s, 3),
            "solve, wall s": round(statistics.median(now.wall_s for now in each), 3),
            "to the best peer": round(statistics.median(ratios), 2) if ratios else None,
            "with building": round((make[name] + solve_s) / best, 2) if ratios else None,
            "passes": ours.passes if own else None,
            "two cores allow": round(statistics.median(allowed), 2) if own else None,
            "two threads, wall": round(statistics.median(walls), 2) if own else None,
        })  # fmt: skip
    return rows


def main() -> None:
    numbers(__doc__)
    peers, absent = {"scipy": scipys()}, []
    for name, made in (("networkit", networkits), ("igraph", igraphs)):
        if importlib.util.find_spec(name) is None:
            absent.append(name)
        else:
            peers[name] = made()
    load = os.getloadavg()[0]
    rows: list[dict[str, Cell]] = []
    for graph in (drawn("random", 1.0), drawn("power law", SKEW), grid()):
        kept: dict[Any, tuple[Any, Spent]] = {}
        for problem in FIELDS:
            rows += compared(problem, graph, peers, kept)
    write(
        "graph_linked",
        "Programs whose vertices are linked, in one process, and peers",
        rows,
        [
            f"random and power law: {VERTICES:,} vertices, {EDGES:,} edges drawn, each kept once; power law: both ends "
            f"are u ** {SKEW:g} of the vertices; grid: {SIDE} x {SIDE}, both directions. One thread, medians of "
            f"{ROUNDS} rounds, in which all take turns",
            "build: the graph from an unsorted list of edges, for gridml with its checks and the edges by their ends; "
            "of scipy the matrix by targets for PageRank. solve, of gridml: all the rest of gridml.compute, machine "
            "code loaded before",
            "to the best peer: CPU seconds to solve, of the fastest peer in the round; with building: both columns of "
            "medians, of the peer that is then best",
            "PageRank ends when a pass moves ranks by less than 1e-8 in all (igraph solves it exactly); components "
            "without directions; shortest paths from vertex 0 with lengths from 0.01 to 1.01. Answers were compared in "
            "each round",
            "two cores allow: solving on one thread against what two free cores take, if they share the CPU seconds of "
            "each job; two threads, wall: of the same, measured, where other work shares the cores. Same bits",
            f"not installed: {', '.join(absent) or 'none'}; load of the machine before and after: {load:.1f}, "
            f"{os.getloadavg()[0]:.1f}",
        ],
    )


if __name__ == "__main__":
    main()
