"""The multilevel method: the effect of a level, and the gain of several levels over none."""

from __future__ import annotations

import numpy as np
import pytest

from gridml.errors import UsageError
from gridml.placement.base import Options
from gridml.placement.bipartite import Bipartite
from gridml.placement.mbp import Mbp, MbpOptions, even_out, improve, pair
from gridml.placement.quality import Traffic, traffic
from gridml.placement.serving import dense_counts
from gridml.placement.tsh import Tsh


def uniform(rows: int, columns: int, degree: int, seed: int) -> Bipartite:
    rng = np.random.default_rng(seed)
    edges = rows * degree
    return Bipartite.from_edges(rng.integers(0, rows, edges), rng.integers(0, columns, edges), (rows, columns))


def test_rows_are_paired_with_those_that_are_like_them() -> None:
    rows = np.repeat(np.arange(20), 5)
    graph = Bipartite.from_edges(rows, rows % 10 * 5 + np.tile(np.arange(5), 20))  # row i is as row i + 10
    order, group, one = np.arange(20, dtype=np.int32), np.empty(20, np.int32), np.ones(20, np.int64)
    assert pair(graph.both_sides, one, order, 2, group) == 10
    assert (group[:10] == group[10:]).all()
    assert pair(graph.both_sides, one, order, 1, group) == 20, "a pair would be too heavy"


def test_moves_lower_the_total_and_keep_what_they_count() -> None:
    graph = uniform(500, 400, 6, 0)
    rng = np.random.default_rng(0)
    rows = (rng.permutation(500) % 4).astype(np.int32)
    even, loose = np.full(4, 125), np.full(4, 140)
    weighed, counts = dense_counts(graph, graph.works, rows, 4)
    touched, load = counts.touched, counts.load
    before, most = int(touched.sum()), int(touched.max())
    assert improve(weighed, rng.permutation(500).astype(np.int32), loose, most, counts)
    assert touched.sum() < before and touched.max() <= most and load.max() <= 140
    while even_out(weighed, even, 0, most, counts):
        pass
    assert load.tolist() == np.bincount(rows).tolist() == [125] * 4
    _, counted_anew = dense_counts(graph, graph.works, rows, 4)
    assert np.array_equal(counts.times, counted_anew.times) and np.array_equal(touched, counted_anew.touched)


def test_levels_are_better_than_the_heuristic_alone() -> None:
    graph = uniform(3000, 3000, 8, 1)
    levels, heuristic = (traffic(graph, method.place(graph, 4, Options())) for method in (Mbp(), Tsh()))
    assert levels.total_traffic < 0.97 * heuristic.total_traffic
    assert levels.rows.tolist() == [750] * 4


def test_the_memory_limit_holds_and_one_that_cannot_be_kept_says_what_can() -> None:
    graph = uniform(1000, 900, 6, 2)

    def place(memory: int | None) -> Traffic:
        return traffic(graph, Mbp().place(graph, 4, MbpOptions(slack=0.3, coarsest=32, memory=memory)))

    free = place(None)
    limited = place(free.largest_memory - 10)
    assert limited.largest_memory <= free.largest_memory - 10
    assert free.rows.max() < limited.rows.max() <= 325, "others take the rows"
    with pytest.raises(UsageError, match=f"more than 30 columns.*one of {free.largest_memory} was found"):
        place(30)
    assert place(free.largest_memory).largest_memory == free.largest_memory


@pytest.mark.parametrize(("wrong", "said"), [({"coarsest": 0}, "has 0 rows"), ({"passes": -1}, "over -1 times")])
def test_options_that_make_no_sense_are_refused(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        MbpOptions(**wrong)
