"""Building a graph: rejected values, columns that stay on disk, and components."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.format import open_memmap

import gridml
from gridml.errors import ProgramError
from gridml.model import graph as graph_module
from gridml.model.graph import Edges, components, csr


class Hub(gridml.Vertex):
    total = gridml.array("float64")
    aggregate = gridml.add()


class Node(gridml.Vertex):
    value = gridml.array("float32", (2,))
    hub = gridml.edge(Hub)


class Person(gridml.Vertex):
    knows = gridml.edge("Person")
    hubs = gridml.edge(Hub, weight="float32")


class Order(gridml.Vertex):
    by = gridml.edge(Person)


def hubs(g: gridml.Graph, count: int) -> gridml.VertexSet:
    return g.add(Hub, total=np.zeros(count))


def ends(edges: Edges) -> list[list[int]]:
    """Return the targets of every vertex."""
    offsets, targets, _ = edges.of(np.arange(edges.count))
    if offsets is None:
        offsets = np.arange(edges.count + 1) * edges.degree
    return [targets[a:b].tolist() for a, b in itertools.pairwise(offsets)]


def test_vertices_are_numbered_as_they_are_added() -> None:
    g = gridml.Graph()
    first, second = hubs(g, 2), hubs(g, 3)
    assert (first.start, first.stop, second.start, second.stop) == (0, 2, 2, 5)
    assert len(second) == 3
    assert g.tables["Hub"].count == 5


def test_some_of_the_vertices_that_were_added_are_their_indices_in_the_graph() -> None:
    g = gridml.Graph()
    hubs(g, 2)
    second = hubs(g, 3)
    assert second[np.array([2, 0, 0])].tolist() == [4, 2, 2]
    assert second[np.array([False, True, True])].tolist() == [3, 4]
    assert (second[1].tolist(), second[-1].tolist(), second[:2].tolist()) == ([3], [4], [2, 3])
    with pytest.raises(IndexError):
        second[3]


def test_unequal_lengths_are_refused_with_all_of_them() -> None:
    class Pair(gridml.Vertex):
        a = gridml.array("int64")
        b = gridml.array("int64")
        hub = gridml.edge(Hub)

    g = gridml.Graph()
    hub = hubs(g, 1)
    with pytest.raises(ProgramError, match="unequal length for Pair: a: 3, b: 4"):
        g.add(Pair, a=np.zeros(3, int), b=np.zeros(4, int), hub=hub)
    with pytest.raises(ProgramError, match="a: 3, b: 3, count: 5"):
        g.add(Pair, 5, a=np.zeros(3, int), b=np.zeros(3, int), hub=hub)
    with pytest.raises(ProgramError, match="hub has edges of 2 vertices, the other fields 3"):
        g.add(Pair, a=np.zeros(3, int), b=np.zeros(3, int), hub=np.zeros(2, int))
    with pytest.raises(ProgramError, match="count=-1"):
        g.add(Person, -1, knows=[], hubs=gridml.csr([0], [], np.zeros(0)))


def test_unknown_and_missing_fields_are_named() -> None:
    g = gridml.Graph()
    with pytest.raises(ProgramError, match=re.escape("unknown fields ['colour'] and misses ['total']")):
        g.add(Hub, colour=np.zeros(1))
    with pytest.raises(ProgramError, match=re.escape("graph.add(Hub, n, ...)")):
        g.add(Hub, count=1, total=np.zeros(1))


def test_shapes_and_dtypes_must_be_as_declared() -> None:
    g = gridml.Graph()
    hub = hubs(g, 1)
    for value, message in [
        (np.zeros((3, 5), np.float32), r"shape \(3, 5\); expected \(count, 2\)"),
        (np.zeros(3, np.float32), r"shape \(3,\); expected \(count, 2\) as declared; or declare the shape"),
        (
            np.zeros(2, np.float32),
            r"expected \(count, 2\) as declared; .* For a single vertex give it as values\[None\]",
        ),
        (np.zeros((3, 2), np.complex64), "got dtype complex64; declared is float32"),
        (np.array([["a", "b"]]), "got dtype <U1; declared is float32"),
    ]:
        with pytest.raises(ProgramError, match=message):
            g.add(Node, value=value, hub=hub)
    g.add(Node, value=[[1, 2], [3, 4]], hub=hub)  # lists and narrower types are converted
    assert g.tables["Node"].columns["value"].dtype == np.float32


def test_integers_are_converted_only_where_they_fit() -> None:
    class Pixel(gridml.Vertex):
        level = gridml.array("uint8")

    g = gridml.Graph()
    g.add(Pixel, level=[0, 255])
    assert g.tables["Pixel"].columns["level"].tolist() == [0, 255]
    for bad in ([0, 256], [-1, 3]):
        with pytest.raises(ProgramError, match="uint8 cannot hold"):
            g.add(Pixel, level=bad)
    with pytest.raises(ProgramError, match="got dtype float64; declared is uint8"):
        g.add(Pixel, level=[0.5])


def test_a_value_that_would_become_infinite_is_named() -> None:
    g = gridml.Graph()
    hub = hubs(g, 1)
    expected = r"Node.value got 1e\+300 in row 1, which float32 cannot hold. Declare float64, or scale"
    with pytest.raises(ProgramError, match=expected):
        g.add(Node, value=[[np.inf, 1.0], [np.nan, 1e300]], hub=hub)
    g.add(Node, value=[[np.inf, 1.0], [np.nan, 1e-300]], hub=hub)
    assert g.tables["Node"].columns["value"][0, 0] == np.inf


def test_edges_in_every_form() -> None:
    for given_edges, expected in [
        ("one", [[1], [1], [1]]),
        ("each", [[0], [1], [2]]),
        (np.array([2, 0, 2]), [[2], [0], [2]]),
        (np.array([[2, 0], [1, 1], [0, 2]], np.uint8), [[2, 0], [1, 1], [0, 2]]),
        (gridml.csr([0, 2, 2, 3], [0, 1, 2]), [[0, 1], [], [2]]),
        (gridml.csr([0, 0, 0, 0], []), [[], [], []]),
        (np.zeros((3, 0), int), [[], [], []]),
    ]:
        g = gridml.Graph()
        if isinstance(given_edges, str):
            hubs(g, 1 if given_edges == "one" else 0)
            target: Any = hubs(g, 1 if given_edges == "one" else 3)
        else:
            hubs(g, 3)
            target = given_edges
        g.add(Node, value=np.zeros((3, 2), np.float32), hub=target)
        g.check()
        assert ends(g.tables["Node"].edges["hub"]) == expected


def test_edges_of_the_wrong_kind_are_refused() -> None:
    g = gridml.Graph()
    hub = hubs(g, 3)
    node = g.add(Node, value=np.zeros((3, 2), np.float32), hub=hub)
    for bad, message in [
        (node, "leads to Hub, but got Node"),
        (np.zeros(3), "float64 targets"),
        (np.zeros((3, 1, 1), int), r"shape \(3, 1, 1\)"),
        (gridml.csr([0, 1, 2, 3], [0, 1, 2], [1.0, 2.0, 3.0]), "declared with no weight"),
    ]:
        with pytest.raises(ProgramError, match=message):
            g.add(Node, value=np.zeros((3, 2), np.float32), hub=bad)


@pytest.mark.parametrize(
    ("offsets", "targets", "weight", "message"),
    [
        ([1, 2], [0, 0], None, "offsets that do not describe 2 targets"),
        ([0, 1], [0, 0], None, "offsets that do not describe"),
        ([0, 2, 1, 2], [0, 0], None, "non-decreasing"),
        ([], [], None, "float64 offsets"),
        (np.zeros(0, int), [], None, "offsets that do not describe"),
        ([0, 2], [0, 0], [1.0], r"weights of shape \(1,\) for 2 targets"),
        ([0, 2], [0, 0], [[1.0], [1.0]], r"weights of shape \(2, 1\)"),
        ([0, 2], [0.0, 1.0], None, "float64 targets"),
        ([0.0, 2.0], [0, 1], None, "float64 offsets"),
        ([0, 1], [[0, 1]], None, r"targets of shape \(1, 2\)"),
    ],
)
def test_csr_refuses_what_does_not_fit(offsets: Any, targets: Any, weight: Any, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        gridml.csr(offsets, targets, weight)


def test_weights_get_the_declared_dtype() -> None:
    g = gridml.Graph()
    hubs(g, 2)
    g.add(Person, 1, knows=np.zeros((1, 0), int), hubs=gridml.csr([0, 2], [0, 1], [0.5, 2]))
    weight = g.tables["Person"].edges["hubs"].weight
    assert weight is not None
    assert (weight.dtype, weight.tolist()) == (np.float32, [0.5, 2.0])
    with pytest.raises(ProgramError, match="declared with a float32 weight"):
        g.add(Person, 1, knows=np.zeros((1, 0), int), hubs=np.zeros((1, 1), int))
    with pytest.raises(ProgramError, match=r"the weight of Person\.hubs got dtype complex128"):
        g.add(Person, 1, knows=np.zeros((1, 0), int), hubs=gridml.csr([0, 1], [0], [1j]))


@pytest.mark.parametrize(("bad", "message"), [(3, "Hub 3, but there are 3"), (-1, "Hub -1")])
def test_an_edge_to_a_missing_vertex_is_reported_before_the_run(bad: int, message: str) -> None:
    g = gridml.Graph()
    hubs(g, 3)
    g.add(Node, value=np.zeros((2, 2), np.float32), hub=[0, bad])
    with pytest.raises(ProgramError, match=rf"Node\.hub has an edge to {message}"):
        g.check()


def test_an_edge_to_a_type_that_was_never_added_is_reported_before_the_run() -> None:
    g = gridml.Graph()
    g.add(Node, value=np.zeros((2, 2), np.float32), hub=np.zeros((2, 0), int))
    with pytest.raises(ProgramError, match=r"Node\.hub leads to Hub, but no Hub vertices were added"):
        g.check()


def test_two_types_of_one_name_are_refused() -> None:
    other = type("Hub", (gridml.Vertex,), {"total": gridml.array("float64"), "aggregate": gridml.add()})
    g = gridml.Graph()
    hubs(g, 1)
    with pytest.raises(ProgramError, match="two vertex types are called Hub"):
        g.add(other, total=np.zeros(1))


@pytest.mark.parametrize("second", ["same constant", "other constant", "two each", "csr"])
def test_adding_to_a_type_twice_joins_fields_and_edges(second: str) -> None:
    g = gridml.Graph()
    a, b = hubs(g, 1), hubs(g, 1)
    g.add(Node, value=np.ones((2, 2), np.float32), hub=a)
    forms: dict[str, tuple[Any, list[list[int]]]] = {
        "same constant": (a, [[0], [0]]),
        "other constant": (b, [[1], [1]]),
        "two each": (np.array([[0, 1], [1, 0]]), [[0, 1], [1, 0]]),
        "csr": (gridml.csr([0, 0, 1], [1]), [[], [1]]),
    }
    edges, expected = forms[second]
    added = g.add(Node, value=np.full((2, 2), 2, np.float32), hub=edges)
    g.check()
    table = g.tables["Node"]
    assert (added.start, added.stop, table.count) == (2, 4, 4)
    assert table.columns["value"][:, 0].tolist() == [1, 1, 2, 2]
    assert ends(table.edges["hub"]) == [[0], [0], *expected]
    if "constant" in second:
        assert (table.edges["hub"].offsets, table.edges["hub"].degree) == (None, 1)  # f may still take one Hub


def test_adding_twice_joins_weights() -> None:
    g = gridml.Graph()
    hubs(g, 2)
    for weight in (0.5, 1.5):
        g.add(Person, 1, knows=np.zeros((1, 0), int), hubs=gridml.csr([0, 2], [0, 1], [weight, 9]))
    offsets, targets, weight = g.tables["Person"].edges["hubs"].of(np.array([1, 0]))
    assert offsets is not None
    assert weight is not None
    assert (offsets.tolist(), targets.tolist(), weight.tolist()) == ([0, 2, 4], [0, 1, 0, 1], [1.5, 9, 0.5, 9])


def test_memory_mapped_columns_and_edges_stay_memory_mapped(tmp_path: Path) -> None:
    class Big(gridml.Vertex):
        rows = gridml.array("float32", (2,))
        hubs = gridml.edge(Hub, weight="float32")

    rows = open_memmap(tmp_path / "rows.npy", "w+", np.float32, (100, 2))
    targets = open_memmap(tmp_path / "targets.npy", "w+", np.int64, (100,))
    weight = open_memmap(tmp_path / "weight.npy", "w+", np.float32, (100,))
    g = gridml.Graph()
    hubs(g, 1)
    g.add(Big, rows=rows, hubs=gridml.csr(np.arange(101), targets, weight))
    g.check()
    table = g.tables["Big"]
    assert table.columns["rows"] is rows
    assert np.shares_memory(table.edges["hubs"].targets, targets)
    assert table.edges["hubs"].weight is weight
    rows[7] = 3
    assert table.columns["rows"][7].tolist() == [3, 3]


def test_converting_a_memory_mapped_array_behind_the_users_back_is_refused(tmp_path: Path) -> None:
    rows = open_memmap(tmp_path / "rows.npy", "w+", np.float64, (100, 2))
    g = gridml.Graph()
    hub = hubs(g, 1)
    with pytest.raises(ProgramError, match=r"Node\.value is a memory-mapped array of float64; declared is float32"):
        g.add(Node, value=rows, hub=hub)


def test_the_fingerprint_distinguishes_graphs() -> None:
    prints = []
    for count in (1, 2):
        g = gridml.Graph()
        hubs(g, count)
        prints.append(g.fingerprint())
    assert prints[0] != prints[1]


# --- components


def people(knows: Any, count: int, *, orders: Any = None) -> gridml.Graph:
    g = gridml.Graph()
    hub = gridml.csr([*range(count + 1)], [0] * count, np.ones(count))  # all vertices touch the one hub
    hubs(g, 1)
    g.add(Person, count, knows=knows, hubs=hub)
    if orders is not None:
        g.add(Order, by=orders)
    return g


def groups(g: gridml.Graph, name: str) -> set[frozenset[int]]:
    parts_of = components(g)
    assert parts_of is not None
    units = parts_of.units[name]
    parts = [units.members[a:b] for a, b in itertools.pairwise(units.offsets)]
    assert all(len(set(parts_of.label[name][part])) == 1 for part in parts)
    return {frozenset(part.tolist()) for part in parts}


def test_replicated_vertices_join_nothing() -> None:
    g = gridml.Graph()
    hub = hubs(g, 1)
    g.add(Node, value=np.zeros((3, 2), np.float32), hub=hub)
    assert components(g) is None


def test_components_of_one_type() -> None:
    g = people(gridml.csr([0, 1, 1, 2, 2, 3], [1, 3, 4]), 5)
    assert groups(g, "Person") == {frozenset({0, 1}), frozenset({2, 3}), frozenset({4})}


def test_components_through_another_local_type() -> None:
    g = people(gridml.csr([0] * 6, []), 5, orders=np.array([0, 3, 3, 1]))
    assert groups(g, "Person") == {frozenset({i}) for i in range(5)}
    assert groups(g, "Order") == {frozenset({0}), frozenset({1, 2}), frozenset({3})}
    parts_of = components(g)
    assert parts_of is not None
    assert parts_of.label["Order"].tolist() == parts_of.label["Person"][[0, 3, 3, 1]].tolist()


def test_an_edge_field_of_degree_nothing_joins_nothing() -> None:
    assert groups(people(np.zeros((3, 0), int), 3), "Person") == {frozenset({i}) for i in range(3)}


def test_many_equal_edges_still_join() -> None:
    g = people(gridml.csr([0, 256, 256], np.ones(256, int)), 2)
    assert groups(g, "Person") == {frozenset({0, 1})}


@given(st.data())
def test_components_are_those_of_a_union_find(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    pairs = data.draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=12))
    orders = data.draw(st.lists(st.integers(0, count - 1), max_size=5))
    parent = list(range(count))

    def root(v: int) -> int:
        while parent[v] != v:
            v = parent[v]
        return v

    for a, b in pairs:
        parent[root(a)] = root(b)
    by_source = sorted(pairs)
    offsets = np.searchsorted([a for a, _ in by_source], np.arange(count + 1))
    g = people(gridml.csr(offsets, [b for _, b in by_source]), count, orders=np.array(orders, int))
    expected: dict[int, set[int]] = {}
    for v in range(count):
        expected.setdefault(root(v), set()).add(v)
    assert groups(g, "Person") == {frozenset(part) for part in expected.values()}


def test_what_is_missing_alone_is_said_alone() -> None:
    with pytest.raises(ProgramError, match=re.escape("graph.add(Hub, ...) misses ['total'];")):
        gridml.Graph().add(Hub)


def test_edges_of_some_rows_and_to_some_vertices() -> None:
    edges = csr([0, 2, 2, 5], [0, 3, 1, 3, 0], weight=[1.0, 2.0, 3.0, 4.0, 5.0], topic=np.arange(5))
    taken = edges.take(np.array([2, 0]))
    assert taken.offsets is not None and taken.weight is not None
    assert (taken.offsets.tolist(), taken.targets.tolist()) == ([0, 3, 5], [1, 3, 0, 0, 3])
    assert (taken.weight.tolist(), taken.fields["topic"].tolist()) == ([3, 4, 5, 1, 2], [2, 3, 4, 0, 1])
    some = taken.only(np.array([True, False, False, True]))
    assert some.offsets is not None and some.weight is not None
    assert (some.offsets.tolist(), some.targets.tolist()) == ([0, 2, 4], [3, 0, 0, 3])
    assert (some.weight.tolist(), some.fields["topic"].tolist()) == ([4, 5, 1, 2], [3, 4, 0, 1])
    pairs = Edges(2, np.array([0, 1, 1, 0]), degree=2).only(np.array([False, True]))
    assert pairs.offsets is not None and (pairs.offsets.tolist(), pairs.targets.tolist()) == ([0, 1, 2], [1, 1])
    assert Edges(4, np.empty(0, np.int64), constant=7).take(np.arange(2)).targets.tolist() == [7, 7]


@given(st.lists(st.integers(0, 5), max_size=12), st.data())
def test_edges_are_the_same_in_any_parts(degrees: list[int], data: st.DataObject) -> None:
    offsets = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    targets = np.arange(100, 100 + offsets[-1], dtype=np.int32)
    edges = csr(offsets, targets, targets / 4, topic=np.stack([targets, targets], 1))
    rows = np.array(data.draw(st.lists(st.integers(0, len(degrees) - 1)) if degrees else st.just([])), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_module, "EDGES_AT_ONCE", data.draw(st.integers(1, 8)))
        taken, places = edges.take(rows), edges.places(rows)
    expected = [place for row in rows for place in range(offsets[row], offsets[row + 1])]
    assert places.dtype == taken.targets.dtype == np.int64 and taken.offsets is not None and taken.weight is not None
    assert places.tolist() == expected
    assert taken.targets.tolist() == [100 + place for place in expected]
    assert taken.weight.tolist() == [(100 + place) / 4 for place in expected]
    assert taken.fields["topic"].tolist() == [[100 + place] * 2 for place in expected]
    assert np.diff(taken.offsets).tolist() == [degrees[row] for row in rows]
