"""Edges from a list in any order, and edges by their ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gridml
from gridml.errors import ProgramError
from gridml.model.graph import turned
from gridml.model.transposed import transposed


class Node(gridml.Vertex):
    links = gridml.edge("Node")


@pytest.mark.parametrize("edges", [0, 1, 1000])
def test_edges_of_a_vertex_ascend(edges: int) -> None:
    rng = np.random.default_rng(edges)
    source, target, weight = rng.integers(0, 40, edges), rng.integers(0, 90, edges), rng.random(edges)
    found = gridml.edge_list(source, target, 40, weight, half=weight / 2, one=1)
    order = np.lexsort((target, source))
    np.testing.assert_array_equal(found.lengths, np.bincount(source, minlength=40))
    np.testing.assert_array_equal(found.targets, target[order])
    np.testing.assert_array_equal(found.weight, weight[order])
    np.testing.assert_array_equal(found.fields["half"], weight[order] / 2)
    assert set(found.fields["one"].tolist()) <= {1}
    far = gridml.edge_list(source, target * 2**40, 40)
    np.testing.assert_array_equal(far.targets, target[order] * 2**40)


@pytest.mark.parametrize("edges", [0, 1, 1000])
@pytest.mark.parametrize(
    "fields", [{}, {"weight": np.float64}, {"weight": np.float32}, {"weight": np.float64, "x": np.int8}]
)
def test_edges_that_lead_both_ways_are_those_of_a_list_that_has_each_twice(edges: int, fields: dict[str, Any]) -> None:
    rng = np.random.default_rng(edges)
    source, target = rng.integers(0, 40, (2, edges))
    each = {name: rng.integers(0, 99, edges).astype(dtype) for name, dtype in fields.items()}
    found = gridml.edge_list(source, target, 40, both=True, **each)
    ends = np.concatenate([source, target]), np.concatenate([target, source])
    twice = {name: np.concatenate([values, values]) for name, values in each.items()}
    wanted = gridml.edge_list(*ends, 40, **twice)
    assert found.symmetric and not wanted.symmetric
    np.testing.assert_array_equal(found.offsets, wanted.offsets)
    np.testing.assert_array_equal(found.targets, wanted.targets)
    assert (found.weight is None) == (wanted.weight is None) == ("weight" not in each)
    for one, other in zip(
        (found.weight, *found.fields.values()), (wanted.weight, *wanted.fields.values()), strict=True
    ):
        if one is not None:
            np.testing.assert_array_equal(one, other)
            assert one.dtype == fields["weight" if one is found.weight else "x"]


def test_edges_that_lead_both_ways_are_by_their_ends_as_they_are() -> None:
    g = gridml.Graph()
    g.add(Node, links=gridml.edge_list([0, 0, 3, 1], [1, 2, 0, 1], 4, both=True))
    one_way = gridml.Graph()
    one_way.add(Node, links=replace(g.tables["Node"].edges["links"], symmetric=False))
    for graph in (g, one_way):
        graph.turn("Node", "links")
    (here, there) = (graph.tables["Node"].edges[turned("links")] for graph in (g, one_way))
    assert here.targets is g.tables["Node"].edges["links"].targets
    np.testing.assert_array_equal(here.targets, there.targets)
    np.testing.assert_array_equal(here.offsets, there.offsets)


def test_wrong_lists_are_refused() -> None:
    for source, target in ([0.5], [0]), ([0, 1], [0]), ([[0]], [[0]]):
        with pytest.raises(ProgramError, match="expected one whole number for each edge"):
            gridml.edge_list(source, target, 3)
    for target in ([-1], [3], [2**40]):
        with pytest.raises(ProgramError, match=rf"edge to vertex {target[0]}; expected 0 to 2"):
            gridml.edge_list([0], target, 3, both=True)
    with pytest.raises(ProgramError, match="expected whole numbers"):
        gridml.edge_list([0], ["a"], 3, both=True)
    for source in ([-1], [3], [2**40]):
        with pytest.raises(ProgramError, match=rf"edge from vertex {source[0]}; expected 0 to 2"):
            gridml.edge_list(source, [0], 3)


@pytest.mark.parametrize("edges", [0, 500])
def test_edges_by_their_ends_are_a_stable_sort(edges: int) -> None:
    rng = np.random.default_rng(1)
    offsets = np.concatenate([[0], np.sort(rng.integers(0, edges + 1, 29)), [edges]])
    ends = rng.integers(0, 17, edges)
    begins, sources, places = transposed(offsets, ends, 17, np.arange(edges))
    order = np.argsort(ends, kind="stable")
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(sources, np.repeat(np.arange(30), np.diff(offsets))[order])
    np.testing.assert_array_equal(np.diff(begins), np.bincount(ends, minlength=17))


@pytest.mark.parametrize("labels", [[1, -1, 1], [1.0, 0.0, 1.0], [True, False, True]])
def test_two_classes_are_signs(labels: list[Any]) -> None:
    assert gridml.signs(labels).tolist() == [1.0, -1.0, 1.0]


@pytest.mark.parametrize("labels", [[1, 2, 1], [0, 1, -1], [1.0, np.nan], ["spam", "ham"], [[1], [0]], 1])
def test_other_labels_are_refused(labels: Any) -> None:
    with pytest.raises(ProgramError, match="expected one for each sample, 1 and -1, or 1 and 0"):
        gridml.signs(labels)
