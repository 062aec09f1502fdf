"""Edges from a list in any order, and edges by their ends."""

from __future__ import annotations

import numpy as np
import pytest

import gridml
from gridml.errors import ProgramError
from gridml.model.transposed import transposed


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


def test_wrong_lists_are_refused() -> None:
    for source, target in ([0.5], [0]), ([0, 1], [0]), ([[0]], [[0]]):
        with pytest.raises(ProgramError, match="expected one whole number for each edge"):
            gridml.edge_list(source, target, 3)
    for source in ([-1], [3], [2**40]):
        with pytest.raises(ProgramError, match=rf"edge from vertex {source[0]}; expected 0 to 2"):
            gridml.edge_list(source, [0], 3)


@pytest.mark.parametrize("edges", [0, 500])
def test_edges_by_their_ends_are_a_stable_sort(edges: int) -> None:
    rng = np.random.default_rng(1)
    offsets = np.concatenate([[0], np.sort(rng.integers(0, edges + 1, 29)), [edges]])
    ends = rng.integers(0, 17, edges)
    begins, sources, places = transposed(offsets, ends, 17, places=True)
    order = np.argsort(ends, kind="stable")
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(sources, np.repeat(np.arange(30), np.diff(offsets))[order])
    np.testing.assert_array_equal(np.diff(begins), np.bincount(ends, minlength=17))
