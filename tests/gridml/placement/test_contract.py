"""The contract of every placement method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UsageError
from gridml.placement.auto import METHODS, find
from gridml.placement.base import MEMORY, OBJECTIVES, TOTAL, TRAFFIC, Method, Options, Placement, Rates, requested
from gridml.placement.bipartite import Bipartite
from gridml.placement.quality import traffic
from tests.support.graphs import grouped, uneven

PRINTED = {"parsa-sets", "tsh-printed", "mbp-printed"}  # as printed: slower, and not as good
EVERY = pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))


def same(one: Placement, other: Placement) -> bool:
    return bool(np.array_equal(one.rows, other.rows) and np.array_equal(one.columns, other.columns))


def place(method: Method, graph: Bipartite, parts: int, options: Options) -> Placement | None:
    """Place a graph; None if Parsa's Algorithm 1 failed: its proposition holds for k > θ only."""
    try:
        return method.place(graph, parts, options)
    except UsageError as failed:
        assert method.name == "parsa-sets" and "Algorithm 1 failed" in str(failed)
        return None


def most_rows_of_sets(rows: int, parts: int) -> float:
    """Parsa's Algorithm 1 lets a part have three times its share, and √(n / log n) rows of those that are left."""
    return 3 * rows / parts + np.sqrt(rows / np.log(rows)) + 1


@EVERY
@given(
    edges=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 8)), max_size=60),
    parts=st.integers(1, 12),
    seed=st.integers(0, 3),
)
def test_every_row_and_column_has_a_part(method: Method, edges: list[tuple[int, int]], parts: int, seed: int) -> None:
    graph = Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (12, 9))
    if (placed := place(method, graph, parts, Options(seed=seed))) is None:
        return
    found = traffic(graph, placed)
    assert placed.rows.dtype == placed.columns.dtype == np.int32
    assert found.rows.sum() == 12
    assert found.rows.max() <= (most_rows_of_sets(12, parts) if method.name == "parsa-sets" else -(-12 // parts))
    assert same(placed, method.place(graph, parts, Options(seed=seed))), "the same seed gives the same placement"


@EVERY
@given(
    edges=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 8)), max_size=60),
    works=st.none() | st.lists(st.integers(0, 9), min_size=12, max_size=12).filter(any),
    sizes=st.none() | st.lists(st.integers(0, 9), min_size=9, max_size=9).filter(any),
    shares=st.none() | st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=1, max_size=5).map(tuple),
    slack=st.sampled_from([0.0, 0.3]),
)
def test_weights_and_shares_are_kept_to_or_refused(
    method: Method,
    edges: list[tuple[int, int]],
    works: list[int] | None,
    sizes: list[int] | None,
    shares: tuple[float, ...] | None,
    slack: float,
) -> None:
    graph = Bipartite.from_edges([u for u, _ in edges], [v for _, v in edges], (12, 9)).weighted(works, sizes)
    options, parts = Options(slack=slack, shares=shares), 3 if shares is None else len(shares)
    if requested(graph, options) - method.supports:
        with pytest.raises(UsageError, match=f"{method.name} takes no account of"):
            method.place(graph, parts, options)
        return
    if (placed := place(method, graph, parts, options)) is None:
        return
    work, size, share = works or [1] * 12, sizes or [1] * 9, shares or (1.0,) * parts
    found = traffic(graph, placed, shares=options.fractions)
    for part in range(parts):
        members = np.flatnonzero(placed.rows == part)
        touched = {v for u, v in edges if u in members}
        assert found.work[part] == sum(work[u] for u in members)
        assert found.touched[part] == sum(size[v] for v in touched)
        allowed = (1 + slack) * sum(work) * share[part] / sum(share) + max(work) + 1e-9
        assert found.work[part] <= (most_rows_of_sets(12, parts) if method.name == "parsa-sets" else allowed)
    assert same(placed, method.place(graph, parts, options))


@EVERY
def test_shares_that_are_all_the_same_are_none(method: Method) -> None:
    graph = grouped(200, 100, 6)
    assert same(method.place(graph, 3, Options()), method.place(graph, 3, Options(shares=(2.0, 2.0, 2.0))))


@pytest.mark.parametrize("name", ["greedy", "refined", "multilevel", "mbp"])
def test_columns_that_all_weigh_the_same_are_placed_as_without_weights(name: str) -> None:
    graph = grouped(300, 200, 6)
    placed = find(name).place(graph.weighted(columns=np.full(200, 4096)), 5, Options())
    assert same(placed, find(name).place(graph, 5, Options()))


@pytest.mark.parametrize("name", ["greedy", "refined", "multilevel", "mbp"])
def test_heavy_columns_are_what_is_saved(name: str) -> None:
    """Rows can be grouped by either half of their columns; the half with the heavy columns decides."""
    rng, graphs = np.random.default_rng(0), (grouped(800, 200, 8), grouped(800, 200, 8, seed=1))
    rows = np.repeat(np.arange(800), graphs[0].degrees)
    other = np.repeat(np.arange(800), graphs[1].degrees)
    to = np.concatenate([graphs[0].neighbours, 200 + graphs[1].neighbours])
    both = Bipartite.from_edges(np.concatenate([rows, other]), to, (800, 400))
    heavy = np.ones(400, int)
    heavy[:200] = 50 + rng.integers(0, 5, 200)
    weighted = both.weighted(columns=heavy)
    found = [traffic(weighted, find(name).place(each, 4, Options())) for each in (both, weighted)]
    assert found[1].total_traffic < (0.97 if name == "greedy" else 0.9) * found[0].total_traffic


@pytest.mark.parametrize("name", ["refined", "multilevel", "mbp", "tsh", "parsa", "greedy", "auto"])
def test_unequal_shares_and_work_are_placed_better_than_at_random(name: str) -> None:
    graph = grouped(3000, 1500, 10, groups=6)
    graph, options = graph.weighted(rows=graph.degrees), Options(shares=(4.0, 2.0, 1.0, 1.0))
    best, chance = (
        traffic(graph, find(each).place(graph, 4, options), shares=options.fractions) for each in (name, "random")
    )
    assert best.total_traffic < 0.8 * chance.total_traffic and best.balance < 1.03


@EVERY
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(shares=(1.0, 2.0)), "got 2 shares for 3 parts; expected 3"),
        (Options(rates=Rates((1.0, 2.0))), "got 2 numbers of the bandwidth for 3 parts; expected 1 or 3"),
        (Options(rates=Rates((1.0,), (1.0, 2.0))), "got 2 numbers of the speed for 3 parts; expected 1 or 3"),
    ],
)
def test_numbers_for_other_parts_are_refused(method: Method, options: Options, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        method.place(grouped(20, 10, 3), 3, options)


@EVERY
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_objective_or_a_limit_is_honoured_or_refused(method: Method, objective: str) -> None:
    graph = grouped(60, 40, 4)
    for memory in (None, 40):
        options = Options(objective=objective, memory=memory, rates=Rates((1.0, 2.0, 4.0)))
        if requested(graph, options) <= method.supports:
            assert traffic(graph, method.place(graph, 3, options)).largest_memory <= 40
        else:
            with pytest.raises(UsageError, match=f"{method.name} takes no account of"):
                method.place(graph, 3, options)


@EVERY
def test_more_parts_than_bits_of_a_word(method: Method) -> None:
    graph = grouped(900, 400, 6)
    placed = method.place(graph, 130, Options())
    assert set(placed.rows.tolist()) == set(range(130))
    assert traffic(graph, placed).rows.max() <= -(-900 // 130)


@EVERY
def test_one_huge_row_and_rows_without_any(method: Method) -> None:
    huge = Bipartite.from_edges([3] * 5000 + [5, 6, 6], [*range(5000), 1, 2, 3], (8, 5000))
    assert traffic(huge, method.place(huge, 3, Options())).touched.max() >= 5000
    empty = Bipartite.from_edges([], [], (5, 3))
    assert traffic(empty, method.place(empty, 5, Options())).total_traffic == 0


@EVERY
@pytest.mark.parametrize(("rows", "parts", "said"), [(0, 1, "no rows"), (3, 4, "3 rows.* 4 parts"), (3, 0, "0 parts")])
def test_what_cannot_be_placed_is_refused(method: Method, rows: int, parts: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        method.place(Bipartite.from_edges([], [], (rows, 2)), parts, Options())


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"random", "random-served"} - PRINTED))
def test_groups_are_found(name: str) -> None:
    """Rows of a group touch the same columns, so a good method nearly halves the traffic; one that sees each row only
    once may save a third."""
    graph = grouped(4000, 2000, 12)
    best, chance = (traffic(graph, find(each).place(graph, 4, Options())) for each in (name, "random"))
    assert best.largest_memory < (0.8 if name == "greedy" else 0.75) * chance.largest_memory
    assert best.total_traffic < (0.67 if name == "greedy" else 0.55) * chance.total_traffic


def test_a_name_that_no_method_has() -> None:
    with pytest.raises(UsageError, match="expected random"):
        find("metis")


@pytest.mark.parametrize("name", ["refined", "multilevel", "auto"])
def test_each_objective_has_its_way(name: str) -> None:
    """The objectives conflict on a graph in which a third of the rows touch far more columns than the others."""
    graph, found = uneven(3000, 2000), {}
    for each in (MEMORY, TRAFFIC, TOTAL):
        trials = [traffic(graph, find(name).place(graph, 6, Options(seed, objective=each))) for seed in range(3)]
        found[each] = [
            np.mean([getattr(trial, figure) for trial in trials])
            for figure in ("largest_memory", "largest_traffic", "total_traffic")
        ]
    assert found["total"][2] < found["memory"][2] and found["traffic"][1] < found["memory"][1]
    assert name == "refined" or found["memory"][0] < found["total"][0]


def test_an_objective_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="the objective is 'speed'; expected memory, traffic, total, duan, seconds"):
        Options(objective="speed")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"shares": ()}, "shares of the parts are empty; expected numbers above 0"),
        ({"shares": (1.0, 0.0)}, "shares of the parts are 1, 0; expected numbers above 0"),
        ({"shares": (1.0, float("nan"))}, "are 1, nan"),
        ({"shares": (float("inf"),)}, "are inf"),
        ({"memory": 0}, "the memory limit is 0; expected at least 1"),
        ({"topology": "ring"}, "the topology is 'ring'; expected mesh, star"),
        ({"objective": "seconds"}, "the bandwidth of the parts is not known"),
        ({"slack": -1.0}, "slack of the parts is -1.0"),
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Options(**wrong)
