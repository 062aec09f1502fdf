"""Placement of vertices that are linked with one another: parts, ghosts, and results that it does not change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gridml
from gridml.model.loading import load
from gridml.model.order import PlacedParts
from master.placing import placing
from master.placing.placing import PlacementChoice, PlacingFacts, choose, place, plan_placement, worth_keeping
from master.placing.sides import at_random, bipartite_of, ghosts, in_order, sides_of
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.store.spec import RunSpec
from tests.support.effort import examples

LINKED = PlacingFacts("auto", 4, 100_000, 10**6, 100_000, 10**8, 1, 1, shuffled=False, linked=True, parts=16)
SIDE, PARTS = 24, 8
GRID = f'''"""The smallest number in each component of two grids, whose vertices are numbered at random."""

import numpy as np

import gridml

SIDE, PARTS = {SIDE}, {PARTS}


class Shared(gridml.Vertex):
    changed = gridml.accumulator("int64")
    moved = gridml.accumulator("float64")
    aggregate = gridml.owned()


class Node(gridml.Vertex):
    label = gridml.array("int64", mutable=True)
    heat = gridml.array("float64", mutable=True)
    least = gridml.accumulator("int64", by="min")
    flow = gridml.accumulator("float64")
    links = gridml.edge("Node")


@gridml.exchange(over=Node)
def spread(node: Node, linked: Node) -> None:
    linked.least = min(linked.least, node.label)
    linked.flow += 0.3 * node.heat


@gridml.apply(Node)
def settle(node: Node, at: Shared) -> None:
    at.moved += abs(node.flow - node.heat)
    node.heat = node.flow
    if node.least < node.label:
        node.label = node.least
        at.changed += 1


@gridml.global_sync
def enough(shared: Shared) -> bool:
    return bool(shared.changed == 0)


def edges() -> tuple[np.ndarray, np.ndarray]:
    at = np.random.default_rng(3).permutation(2 * SIDE * SIDE).reshape(2, SIDE, SIDE)
    start = np.concatenate([at[:, :, :-1].ravel(), at[:, :-1].ravel()])
    end = np.concatenate([at[:, :, 1:].ravel(), at[:, 1:].ravel()])
    return np.concatenate([start, end]), np.concatenate([end, start])


def graph() -> gridml.Graph:
    (start, end), count, g = edges(), 2 * SIDE * SIDE, gridml.Graph()
    g.add(Shared)
    label = np.arange(count)
    names = [f"node {{i}}" for i in range(count)]
    g.add(Node, ids=names, label=label, heat=1 / (1 + label), links=gridml.edge_list(start, end, count))
    return g


work = gridml.MiniBatch([spread, settle, enough], parts=PARTS, exact=True)
program = gridml.Program(graph, [work], epochs=500)
'''


def file_of(folder: Path, method: str = "none", **batch: Any) -> Path:
    file = folder / f"{method}{''.join(map(str, batch.values()))}.py"
    options = "".join(f", {name}={value}" for name, value in batch.items())
    file.write_text(
        GRID.replace("epochs=500", f"epochs=500, placement={method!r}").replace("exact=True", f"exact=True{options}")
    )
    return file


def placed(folder: Path, file: Path, workers: int = 4) -> tuple[RunSpec, placing.PlacementReport | None]:
    program = load(file)
    directory = RunDirectory(folder)
    spec = RunSpec(Settings(file, workers=workers), program, program.build(file))
    return place(spec, None, directory, lambda *_: None, durable=False)


def test_linked_vertices_get_the_parts_of_their_program_whatever_the_workers() -> None:
    for workers in (1, 4, 100):
        chosen, reason = choose(replace(LINKED, workers=workers))
        assert chosen == PlacementChoice("auto", 16, 1) and reason == "16 parts, as many as the program has"
    assert choose(replace(LINKED, parts=1)) == (None, "the program has one part")
    assert choose(replace(LINKED, row_bytes=10))[0] is None
    assert choose(replace(LINKED, row_bytes=10, requested="parsa"))[0] == PlacementChoice("parsa", 16, 1)


def test_what_is_compared_with_the_graphs_order_says_so() -> None:
    assert (
        worth_keeping("auto", 80.0, 100.0, "in the graph's order")[1]
        == "20% fewer bytes of rows than in the graph's order"
    )
    assert worth_keeping("parsa", 120.0, 100.0, "in the graph's order") == (
        True,
        "20% more bytes of rows than in the graph's order",
    )
    assert not worth_keeping("auto", 99.0, 100.0, "in the graph's order")[0]


def brute_force(links: dict[int, set[int]], labels: NDArray[np.int32], parts: int) -> float:
    members = [{*np.flatnonzero(labels == part).tolist()} for part in range(parts)]
    needed = [set().union(*(links[v] for v in own)) - own for own in members]
    return sum(map(len, needed)) / parts


class Node(gridml.Vertex):
    x = gridml.array("float64", mutable=True)
    to = gridml.edge("Node")


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 10**6), st.booleans())
def test_ghosts_are_the_neighbours_that_other_parts_have(count: int, parts: int, seed: int, turned: bool) -> None:
    rng, parts = np.random.default_rng(seed), min(parts, count)
    source, target = rng.integers(0, count, (2, int(rng.integers(1, 30))))
    g = gridml.Graph()
    g.add(Node, x=np.zeros(count), to=gridml.edge_list(source, target, count))
    if turned:  # a stage that computes at the ends of edges reads their sources
        g.turn("Node", "to")
    sides = [*sides_of(g, "Node", linked=True)]
    assert {(side.is_own, side.row_bytes) for side in sides} == {(True, 8)} and not [*sides_of(g, "Node")]
    graph, _ = bipartite_of(sides, count)
    links: dict[int, set[int]] = {v: set() for v in range(count)}
    for a, b in zip(source.tolist(), target.tolist(), strict=True):
        links[a].add(b)
        if turned:
            links[b].add(a)
    for labels in (at_random(count, parts, seed), in_order(np.arange(count), parts, None)):
        assert ghosts(graph, sides, labels, parts) == pytest.approx(brute_force(links, labels, parts))


@pytest.mark.parametrize("batch", [{}, {"edges": 60}, {"size": 20}])
def test_parts_end_where_those_of_the_program_do(tmp_path: Path, batch: dict[str, int]) -> None:
    spec, report = placed(tmp_path, file := file_of(tmp_path, "multilevel", **batch))
    assert spec.placement is not None and report is not None
    division = spec.program.division(spec.graph)
    assert division is not None
    parts: PlacedParts = spec.placement.parts
    assert parts.offsets[1:-1].tolist() == [*division.mini_batches(parts.members).borders]
    facts = report.facts
    assert facts["ghosts"] < 0.5 * facts["order_ghosts"] and facts["ghosts"] < 0.5 * facts["chance_ghosts"]
    assert f"It reads {facts['ghosts']:,.0f} vertices of other parts (" in report.text
    labels = np.empty(len(parts.members), np.int32)
    labels[parts.members] = np.repeat(np.arange(PARTS), np.diff(parts.offsets))
    links: dict[int, set[int]] = {v: set() for v in range(len(labels))}
    edges = load(file).build(file).tables["Node"].edges["links"]
    for a, b in zip(np.repeat(np.arange(edges.count), edges.lengths).tolist(), edges.targets.tolist(), strict=True):
        links[a].add(b)
    assert facts["ghosts"] == pytest.approx(brute_force(links, labels, PARTS))


def test_results_are_those_without_a_placement_by_the_users_ids_on_any_workers_and_under_kills(tmp_path: Path) -> None:
    plain = gridml.compute(file_of(tmp_path), threads=1)
    names = plain.arrays["Node.ids"]
    assert len(np.unique(plain.arrays["Node.label"])) == 2
    bits = set()
    for workers, killed in ((1, {}), (2, {}), (4, {"lifetime": "exponential(20s)"})):
        costs = {"cost": "t_x=0.01,t_s=1,push=0.1", "seed": 5, **killed}
        run = gridml.simulate(file_of(tmp_path, "parsa"), workers=workers, run_dir=tmp_path / f"{workers}", **costs)
        report, found = run.report(), run.load()
        assert "8 parts, as many as the program has" in str(report.placement)
        assert (report.duplicated, report.lost) == (0, 0) and (report.kills > 0) == bool(killed)
        for name in ("Node.label", "Node.heat"):  # sums at a vertex have one order, whatever the parts
            np.testing.assert_array_equal(found[name], plain.arrays[name])
        assert found["Node.ids"].tolist() == names.tolist() == gridml.table(run, "Node")["ids"].tolist()
        bits.add(found["Shared.moved"].tobytes())
    assert len(bits) == 1


def test_auto_keeps_the_graphs_order_where_nothing_is_gained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "MIN_ROW_BYTES", 0)
    file = file_of(tmp_path, "auto")
    spec, report = placed(tmp_path, file)
    assert report is not None and spec.placement is not None
    ordered = file.read_text().replace(
        "np.random.default_rng(3).permutation(2 * SIDE * SIDE)", "np.arange(2 * SIDE * SIDE)"
    )
    file.write_text(
        ordered.replace("(2, SIDE, SIDE)", "(2, SIDE * SIDE, 1)")
        .replace("[:, :, :-1]", "[:, :-1]")
        .replace("[:, :, 1:]", "[:, 1:]")
    )
    spec, report = placed(tmp_path, file)  # two paths: adjacent vertices are the best parts there are
    assert spec.placement is None and report is not None
    assert (
        "vertices are not placed: parts would touch only" in report.text and "than in the graph's order" in report.text
    )


def test_a_plan_compares_with_the_graphs_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "MIN_ROW_BYTES", 0)
    planned = plan_placement(file_of(tmp_path, "auto"), 1).placement
    assert planned is not None and planned.parts == PARTS and planned.than == "in the graph's order"
    _, report = placed(tmp_path, file_of(tmp_path, "auto"), 1)
    assert report is not None and planned.else_bytes == report.facts["order_bytes"]
