"""The synthetic graphs of the placement benchmark are what it says they are."""

from __future__ import annotations

import numpy as np

from benchmarks.placement.graphs import clicks, uniform


def test_rows_of_clicks_touch_what_their_people_like() -> None:
    graph = clicks(2000, 20, 0)
    assert graph.rows == 2000 and 35 < graph.degrees.mean() < 50 and graph.degrees.min() >= 1
    times = np.bincount(graph.neighbours, minlength=graph.columns)
    assert times.min() >= 1, "a column that nobody touches is left out"
    assert times.max() > 20 * times.mean(), "some features are everybody's"


def test_uniform_graphs_have_no_structure() -> None:
    graph = uniform(10, 500)
    assert graph.rows == 500 and graph.columns <= 500 and 9.5 < graph.degrees.mean() <= 10
