"""The synthetic graphs of the placement benchmark have the properties that it describes."""

from __future__ import annotations

import numpy as np

from benchmarks.placement.graphs import clicks, points, ratings, uniform
from tests.support.graphs import grid


def test_rows_of_clicks_touch_what_their_people_like() -> None:
    graph = clicks(2000, 20, 0)
    assert graph.rows == 2000 and 35 < graph.degrees.mean() < 50 and graph.degrees.min() >= 1
    times = np.bincount(graph.neighbours, minlength=graph.columns)
    assert times.min() >= 1, "a column without edges is left out"
    assert times.max() > 20 * times.mean(), "some features are everybody's"


def test_uniform_graphs_have_no_structure() -> None:
    graph = uniform(10, 500)
    assert graph.rows == 500 and graph.columns <= 500 and 9.5 < graph.degrees.mean() <= 10


def test_rows_of_meshes_touch_themselves_and_their_neighbours() -> None:
    square = grid(4)
    assert (square.rows, square.columns, square.edges) == (16, 16, 16 + 2 * 24)
    assert square.neighbours[square.offsets[5] : square.offsets[6]].tolist() == [1, 4, 5, 6, 9]
    near = points(500, 0.05)
    assert near.rows == near.columns == 500 and 3 < near.degrees.mean() < 6
    dense = np.zeros((500, 500), np.bool_)
    dense[np.repeat(np.arange(500), near.degrees), near.neighbours] = True
    assert dense.diagonal().all() and (dense == dense.T).all()


def test_ratings_are_of_a_person_and_an_item() -> None:
    graph = ratings(8000, 0)
    assert graph.columns == 880 and (graph.degrees == 2).all()
    person, item = graph.neighbours.reshape(-1, 2).T
    assert person.max() < 800 <= item.min()
