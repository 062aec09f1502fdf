"""Placement of a program's graph for a run: the counted edges, the saved data, the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gridml
from gridml.errors import DamagedError
from gridml.model.graph import Graph
from gridml.placement.auto import METHODS
from master.placing import placing
from master.placing.placing import NOT_PLACED, PlacementReport, place
from master.placing.sides import bipartite_of, sides_of
from master.store import spec
from master.store.rundir import EventFacts, RunDirectory
from master.store.settings import Settings
from master.store.spec import RunSpec, read_saved

WIDTH, GROUPS, ITEMS, USERS = 100, 4, 1_000, 2_000  # of 400 bytes a row


class Item(gridml.Vertex):
    factor = gridml.array("float32", (WIDTH,))
    aggregate = gridml.stale_mean()


class Shelf(gridml.Vertex):
    where = gridml.array("float64")
    aggregate = gridml.stale_mean()


class Total(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class User(gridml.Vertex):
    age = gridml.array("int64")
    bought = gridml.edge(Item)
    liked = gridml.edge(Item)
    shelf = gridml.edge(Shelf)
    total = gridml.edge(Total)


@gridml.update(batch=8)
def fit(users: gridml.Batch[User], shelves: gridml.Batch[Shelf]) -> None:
    """Do nothing: the graph is only placed."""


def grouped() -> tuple[np.ndarray, np.ndarray]:
    """Return the group of each user, and two items of that group for each."""
    rng = np.random.default_rng(1)
    group = rng.integers(0, GROUPS, USERS)
    return group, rng.integers(0, ITEMS // GROUPS, (USERS, 2)) * GROUPS + group[:, None]


def graph(*, any_item: bool = False) -> Graph:
    group, bought = grouped()
    rng, g = np.random.default_rng(2), Graph()
    g.add(Item, factor=np.zeros((ITEMS * 3, WIDTH), np.float32))
    g.add(Shelf, where=np.zeros(GROUPS))
    total = g.add(Total, count=np.zeros(1, np.int64))
    if any_item:
        bought = np.repeat(np.arange(ITEMS)[None], USERS, 0)
    degrees = rng.integers(0, 3, USERS)
    liked = np.repeat(bought[:, 0], degrees)
    offsets = np.concatenate([[0], np.cumsum(degrees)])
    g.add(
        User, age=np.zeros(USERS, np.int64), bought=bought, liked=gridml.csr(offsets, liked), shelf=group, total=total
    )
    return g


def spec_of(made: Graph, *, asked: str | None = None, said: str = "auto", workers: int = GROUPS) -> RunSpec:
    program = gridml.Program(lambda: made, fit, placement=said)
    return RunSpec(Settings(Path("users.py"), workers=workers, placement=asked), program, made)


def placed(spec: RunSpec, folder: Path) -> tuple[RunSpec, PlacementReport | None]:
    return place(spec, None, RunDirectory(folder), lambda *said: None, durable=False)


def test_the_graph_has_every_edge_to_rows_of_arrays_once() -> None:
    made = graph()
    bipartite, weights = bipartite_of([*sides_of(made, "User")], USERS)
    assert weights.tolist() == [4 * WIDTH] * 3 * ITEMS + [8] * GROUPS, "one vertex that all lead to does not count"
    edges = made.tables["User"].edges
    for user in (0, 7, USERS - 1):
        row = np.array([user])
        items = {*edges["bought"].of(row)[1].tolist(), *edges["liked"].of(row)[1].tolist()}
        expected = sorted(items | {3 * ITEMS + int(edges["shelf"].of(row)[1][0])})
        assert bipartite.neighbours[bipartite.offsets[user] : bipartite.offsets[user + 1]].tolist() == expected


def test_users_that_buy_the_same_are_placed_together_and_that_is_kept(tmp_path: Path) -> None:
    spec, report = placed(spec_of(graph()), tmp_path)
    assert spec.placement is not None
    assert report is not None
    parts, shared = spec.placement.parts, spec.placement.shared
    group, bought = grouped()
    for part in range(GROUPS):
        members = parts.members[parts.offsets[part] : parts.offsets[part + 1]]
        items = {3 * ITEMS + int(g) for g in group[members]} | {int(item) for item in bought[members].ravel()}
        assert shared[part, part] == sum(8 if item >= 3 * ITEMS else 4 * WIDTH for item in items)
    assert report.facts["method"] in report.text
    assert not report.is_quiet and report.facts.keys() == NOT_PLACED.keys()
    assert report.facts["parts"] == GROUPS
    assert report.facts["placed_bytes"] == np.diag(shared).mean() < 0.7 * report.facts["chance_bytes"]
    saved = 1 - report.facts["placed_bytes"] / report.facts["chance_bytes"]
    assert f"{saved:.0%} fewer bytes of rows than at random" in report.text
    again = read_saved(RunDirectory(tmp_path).placement, {"sha256": spec.placement.sha256})
    assert again is not None
    np.testing.assert_array_equal(again.parts.members, parts.members)
    np.testing.assert_array_equal(again.parts.offsets, parts.offsets)
    np.testing.assert_array_equal(again.parts.section_borders, parts.section_borders)
    assert len(parts.section_borders) == GROUPS * report.facts["sections"] + 1 > GROUPS + 1
    np.testing.assert_array_equal(again.shared, shared)
    other = placed(spec_of(graph()), tmp_path)[0].placement
    assert other is not None and other.sha256 == spec.placement.sha256, "the same seed places them alike"


@pytest.mark.parametrize(
    "method", sorted(METHODS.keys() - {"auto", "tsh", "mbp", "parsa-sets", "tsh-printed", "mbp-printed"})
)
def test_any_method_can_be_asked_for_and_the_command_line_goes_before_the_program(method: str, tmp_path: Path) -> None:
    spec, report = placed(spec_of(graph(), asked=method, said="none"), tmp_path)
    assert spec.placement is not None and report is not None
    assert report.facts["method"] == method
    np.testing.assert_array_equal(np.sort(spec.placement.parts.members), np.arange(USERS))


def test_a_graph_whose_order_is_kept_has_no_sections(tmp_path: Path) -> None:
    spec = spec_of(graph())
    spec, report = placed(replace(spec, program=replace(spec.program, shuffle="none")), tmp_path)
    assert spec.placement is not None and report is not None
    assert report.facts["sections"] == 1
    np.testing.assert_array_equal(spec.placement.parts.section_borders, spec.placement.parts.offsets)


def test_a_part_that_touches_nearly_everything_is_not_worth_it(tmp_path: Path) -> None:
    spec, report = placed(spec_of(graph(any_item=True)), tmp_path)
    assert spec.placement is None and report is not None
    assert report.text == "vertices are not placed: parts would touch only 0% fewer bytes of rows than at random"
    assert report.facts["method"] is None
    assert report.facts["placed_bytes"] == pytest.approx(report.facts["chance_bytes"], rel=1e-3)
    assert [*tmp_path.iterdir()] == []


def test_a_skipped_placement_is_explained_if_it_could_surprise(tmp_path: Path) -> None:
    dense = Graph()
    total = dense.add(Total, count=np.zeros(1, np.int64))
    dense.add(Item, factor=np.zeros((1, WIDTH), np.float32))
    dense.add(Shelf, where=np.zeros(1))
    zeros = np.zeros(USERS, np.int64)
    dense.add(User, age=zeros, bought=zeros, liked=zeros, shelf=zeros, total=total)
    assert placed(spec_of(dense), tmp_path)[1] is None
    report = placed(spec_of(dense, asked="parsa"), tmp_path)[1]
    assert report is not None
    assert report.text == "vertices are not placed: no vertex leads to rows of arrays of its own"
    assert placed(spec_of(graph(), asked="none"), tmp_path)[1] is None
    report = placed(spec_of(graph(), workers=1), tmp_path)[1]
    assert report is not None
    assert "one worker" in report.text
    assert report.is_quiet, "no placement was asked for"
    assert [*tmp_path.iterdir()] == []


def test_it_is_said_before_it_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notified: list[tuple[str, EventFacts]] = []
    given = spec_of(graph(), asked="greedy"), None, RunDirectory(tmp_path), lambda *said: notified.append(said)
    place(*given, durable=False)
    assert not notified, "it takes no time"
    monkeypatch.setattr(placing, "LONG_WORK", 1)
    place(*given, durable=False)
    ((text, facts),) = notified
    edges = sum(len(side.edges.targets) for side in sides_of(graph(), "User"))
    assert facts == {"vertices": USERS, "edges": edges, "parts": GROUPS}
    assert text == f"2,000 vertices with {edges:,} edges on 4 parts; --placement none does without"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "is gone"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "SHA-256"),
    ],
)
def test_a_file_that_is_another_one_is_not_taken(damage: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    path, labels = tmp_path / "placement.safetensors", np.array([0, 1, 0], np.int32)
    kept = spec.save(path, labels, np.zeros_like(labels), np.eye(2, dtype=np.int64), durable=False)
    damage(path)
    with pytest.raises(DamagedError, match=said):
        read_saved(path, {"sha256": kept.sha256})
    assert read_saved(path, {"sha256": None, "text": "vertices are not placed"}) is None
    assert read_saved(path, None) is None
