"""The contraction of rows: its measurement, its bound for coupled rows, and its gain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gridml
from gridml.aggregates import Merge, VertexState
from gridml.model.graph import Graph
from gridml.protocol.push import ReplicaPart, RowValues
from master.store.versions import ReplicaState
from master.sync.contraction import MAX_SAMPLED, OVERSHOOT, ROW_FACTOR, Contractions
from tests.master.sync import least_squares
from tests.master.sync.least_squares import VERTICES, Array, Master, Place, Problem
from tests.support.effort import examples

ALONE = Merge(60, 50, 1, 1, 2)


class Row(gridml.Vertex):
    value = gridml.array("float64", (4,))
    aggregate = gridml.stale_mean()


class Counted(gridml.Vertex):
    seen = gridml.array("int64")
    aggregate = gridml.add()


class Point(gridml.Vertex):
    label = gridml.array("float64")
    rows = gridml.edge(Row)
    counted = gridml.edge(Counted)


ROWS = Place(
    lambda state: state.arrays["Row"]["value"],
    lambda rows, ids: ReplicaPart({}, {"Row": RowValues(ids, {"value": rows[ids]})}),
)


def graph_of(problem: Problem) -> Graph:
    g = Graph()
    g.add(Row, value=np.zeros_like(problem.truth))
    counted = g.add(Counted, seen=np.zeros(1, np.int64))
    g.add(Point, label=np.zeros(VERTICES), rows=problem.targets, counted=counted)
    return g


def trained(
    problem: Problem, folder: Path, workers: int, *, pushes: int, driver: str | None = "Point"
) -> tuple[float, Master]:
    """Return the error of the rows after some pushes, and the master that merged them."""
    master = Master(graph_of(problem), folder, workers, driver)
    return least_squares.trained(problem, master, ROWS, workers, pushes), master


def measured(master: Master, n: int = 50) -> Array:
    contraction = master.merger._contractions
    assert contraction is not None
    rows = np.arange(len(master.replica.state.arrays["Row"]["value"]))
    found = contraction.of("Row", "value", rows, Merge(2, 1, n, n, 4))
    assert found is not None
    np.testing.assert_allclose(found.together, 2 * found.push)
    return found.push


def test_many_workers_are_worth_one_where_rows_are_hardly_pulled(tmp_path: Path) -> None:
    """Eight workers progress as far as one worker with all their pushes, unlike with a mean."""
    problem = Problem.drawn(1, rows=100, each=2, rate=0.005)
    one, _ = trained(problem, tmp_path / "one", 1, pushes=400)
    many, _ = trained(problem, tmp_path / "many", 8, pushes=400)
    averaged, _ = trained(problem, tmp_path / "averaged", 8, pushes=400, driver=None)
    assert averaged > 2.5 * one
    assert many - one < 0.4 * (averaged - one)


@settings(max_examples=examples(24), deadline=None)
@given(
    seed=st.integers(0, 1_000),
    rows=st.sampled_from([1, 2, 8, 50, 300]),
    each=st.integers(1, 8),
    rate=st.sampled_from([0.003, 0.02, 0.1]),
    uneven=st.sampled_from([1.0, 5.0]),
    workers=st.sampled_from([2, 5, 16]),
)
def test_however_strongly_rows_are_pulled_workers_do_not_overshoot(
    seed: int, rows: int, each: int, rate: float, uneven: float, workers: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Separate training by several workers stays as stable as with the mean."""
    each = min(each, rows)
    problem = Problem.drawn(seed, rows, each, rate / each / uneven**2, uneven=uneven)
    folder = tmp_path_factory.mktemp("run")
    averaged, _ = trained(problem, folder / "averaged", workers, pushes=150, driver=None)
    summed, _ = trained(problem, folder / "summed", workers, pushes=150)
    assert summed <= 1.1 * averaged + 0.01


@pytest.mark.parametrize("uneven", [1.0, 6.0])
def test_the_bound_holds_and_is_not_far(tmp_path: Path, uneven: float) -> None:
    """The measured pull is between the strongest true one and a few times that, for a known distribution of points."""
    problem = Problem.drawn(3, rows=40, each=2, rate=0.01, uneven=uneven)
    _, master = trained(problem, tmp_path, 4, pushes=300)
    touches = np.bincount(problem.targets.ravel(), minlength=40) / VERTICES
    strongest = 2 * 50 * problem.rate * float((problem.directions**2).mean(0).max()) * touches  # two rows a point
    found = measured(master)
    assert (found > 0.8 * strongest).all()
    assert (found < 5 * strongest).all()


def state_of(values: Array) -> ReplicaState:
    return ReplicaState({}, {"Row": {"value": values}})


def pushes(contraction: Contractions, workers: str, rate: float = 0.3, first: int = 0) -> None:
    """Pushes of one point that pulls every row to its optimum, by workers whose bases are two versions old."""
    chance = np.random.default_rng(2)
    for version in range(first, first + len(workers)):
        base = chance.normal(size=(3, 4))
        part = ReplicaPart({}, {"Row": RowValues(np.arange(3), {"value": (1 - rate) * base})})
        merge = Merge(version + 1, max(0, version - 2), 1, 2, 4)
        contraction.add(workers[version - first], part, state_of(base), merge)


def every(rows: int = 3) -> Graph:
    """One point that touches every row."""
    g = Graph()
    g.add(Row, value=np.zeros((rows, 4)))
    g.add(Point, label=np.zeros(1), rows=np.arange(rows)[None], counted=g.add(Counted, seen=np.zeros(1, np.int64)))
    return g


def test_it_is_known_when_pushes_of_two_workers_were_compared() -> None:
    contraction = Contractions(every(), "Point")
    for workers in ("a", "aaaaaaaa"):
        pushes(contraction, workers)
        assert contraction.of("Row", "value", np.arange(3), ALONE) is None
    pushes(contraction, "abcabcabcabcabc", first=20)
    found = contraction.of("Row", "value", np.arange(2), Merge(60, 50, 10, 30, 4))
    assert found is not None
    assert found.push.shape == found.together.shape == (2,)
    assert (found.push >= 10 * 0.3 * 4).all()  # four rows are coupled: three others, and the counted one
    np.testing.assert_allclose(found.together, 4 * found.push, rtol=1e-3)


def push_tables(contraction: Contractions, pulls: Array, *, pushes: int, first: int = 0) -> None:
    """Pushes of a table whose rows are pulled to their optimum by `pulls` (rows,), of three workers whose bases are two
    versions old."""
    chance = np.random.default_rng(1)
    for version in range(first, first + pushes):
        base = chance.normal(size=(len(pulls), 4))
        merge = Merge(version + 1, max(0, version - 2), 1, 2, 4)
        contraction.add_table("abc"[version % 3], "table", base - pulls[:, None] * base, base, merge)


def test_a_pull_that_grows_is_known_within_a_few_pushes() -> None:
    """The pull grows late, like that of Adam's steps near their optimum, after comparisons of many pushes with little
    pull."""
    contraction = Contractions(every(), "Point")
    push_tables(contraction, np.full(20, 0.01), pushes=90)
    before = contraction.of_table("table", ALONE)
    push_tables(contraction, np.full(20, 0.3), pushes=6, first=100)
    after = contraction.of_table("table", ALONE)
    assert before is not None
    assert after is not None
    assert (after.push > 10 * before.push).all()


def test_a_row_of_a_table_is_pulled_as_its_own_moves_say_where_that_is_more() -> None:
    contraction = Contractions(every(), "Point")
    assert contraction.of_table("table", ALONE) is None
    push_tables(contraction, np.where(np.arange(20) == 3, 0.4, 0.01), pushes=60)
    measured_pull = contraction.of_table("table", ALONE)
    assert measured_pull is not None
    others = np.delete(measured_pull.push, 3)
    assert (others == others[0]).all()
    assert 0.6 * 0.4 * ROW_FACTOR < measured_pull.push[3] < 1.5 * 0.4 * ROW_FACTOR
    assert measured_pull.push[3] > 3 * others[0]


def test_rows_drift_by_what_one_vertex_pulls_them() -> None:
    contraction = Contractions(every(), "Point")
    assert contraction.drift == 0.0
    pushes(contraction, "abcabcabcabcabc")
    assert 0.3 < contraction.drift < 4 * 0.3  # the strongest pull of four numbers is at most four times the mean
    push_tables(contraction, np.full(20, 0.4), pushes=60)
    assert 0.6 * OVERSHOOT * ROW_FACTOR * 0.4 < contraction.drift < 1.5 * OVERSHOOT * ROW_FACTOR * 0.4


def test_rows_that_are_moved_most_say_most_of_the_drift() -> None:
    """A few strongly pulled rows among many with little pull drift as if there were no others."""
    drifts = []
    for strong in (1, 20):
        contraction = Contractions(every(), "Point")
        push_tables(contraction, np.where(np.arange(20) < strong, 0.4, 0.004), pushes=60)
        drifts.append(contraction.drift)
    assert drifts[0] > 0.5 * drifts[1]


def test_a_drift_is_soon_known_and_long_remembered() -> None:
    contraction = Contractions(every(), "Point")
    drifts = []
    for pull, first in ((0.01, 0), (0.4, 100), (0.01, 200)):
        push_tables(contraction, np.full(20, pull), pushes=30, first=first)
        drifts.append(contraction.drift)
    slow, grown, after = drifts
    assert grown > 10 * slow
    assert after > 0.5 * grown


def test_moves_that_overflow_say_nothing_of_the_drift() -> None:
    contraction = Contractions(every(), "Point")
    push_tables(contraction, np.full(20, 0.4), pushes=60)
    before, table = contraction.drift, np.full((20, 4), 1e300)
    contraction.add_table("a", "table", table, np.zeros((20, 4)), Merge(80, 70, 1, 1, 4))
    contraction.add_table("b", "table", np.zeros((20, 4)), np.zeros((20, 4)), Merge(81, 70, 1, 1, 4))
    assert contraction.drift == before


def test_what_one_push_had_seen_of_another_is_not_compared() -> None:
    """A move that the other push's base already contains would be taken for a pull back."""
    contraction = Contractions(every(), "Point")
    chance = np.random.default_rng(0)
    for version in range(50):
        base = chance.normal(size=(3, 4))
        part = ReplicaPart({}, {"Row": RowValues(np.arange(3), {"value": 0.5 * base})})
        contraction.add("ab"[version % 2], part, state_of(base), Merge(version + 1, version, 1, 0, 2))
    assert contraction.of("Row", "value", np.arange(3), ALONE) is None


def rounds(contraction: Contractions, workers: int, pull: float, *, seed: int = 3, passes: int = 6) -> None:
    """Pushes of workers in step: all train from one base, which is then the mean of what they push. `pull` moves rows
    to their optimum, 0, and each push adds noise. A pass has three rounds, and begins far from the optimum."""
    chance, version = np.random.default_rng(seed), 0
    for _ in range(passes):
        base = chance.normal(size=(200, 4))
        for _ in range(3):
            moves = [chance.normal(0, 0.3, base.shape) - pull * base for _ in range(workers)]
            for k, move in enumerate(moves):
                part = ReplicaPart({}, {"Row": RowValues(np.arange(200), {"value": base + move})})
                contraction.add(f"w{k}", part, state_of(base), Merge(version + 1, version, 1, k, workers))
            base, version = base + np.mean(moves, 0), version + 1
        contraction.end_pass()


@pytest.mark.parametrize("pull", [0.05, 0.5])
def test_workers_in_step_measure_the_pull_of_rows_that_are_trained_by_edge(pull: float) -> None:
    """Concurrent pushes have one base, and earlier ones are in the later base, with their noise."""
    contraction, unknown = Contractions(every(200), "Point", ["Row"]), Contractions(every(200), "Point")
    for each in (contraction, unknown):
        rounds(each, 8, pull)
    assert unknown.of("Row", "value", np.arange(200), ALONE) is None
    found = contraction.of("Row", "value", np.arange(200), ALONE)
    assert found is not None
    assert (found.push > 0.9 * pull).all()
    assert (found.push < 2 * pull + 0.1).all()  # two standard errors, and one field, so that nothing is coupled


def test_the_fields_of_a_row_that_is_trained_by_edge_are_coupled_and_other_rows_are_not() -> None:
    class Both(gridml.Vertex):
        bias, value = gridml.array("float64"), gridml.array("float64", (4,))
        seen = gridml.array("int64")
        aggregate = gridml.by_name({"*/seen": gridml.add(), "*": gridml.stale_mean()})

    class From(gridml.Vertex):
        rows = gridml.edge(Both)

    g, found = Graph(), []
    g.add(Both, bias=np.zeros(20), value=np.zeros((20, 4)), seen=np.zeros(20, np.int64))
    g.add(From, rows=np.arange(20)[None])
    for by_edge in ((), ("Both",)):
        contraction, chance = Contractions(g, "From", by_edge), np.random.default_rng(2)
        for version in range(20):
            base = chance.normal(size=(20, 4))
            part = ReplicaPart({}, {"Both": RowValues(np.arange(20), {"value": 0.7 * base})})
            state = ReplicaState({}, {"Both": {"value": base}})
            contraction.add("abc"[version % 3], part, state, Merge(version + 1, max(0, version - 2), 1, 2, 4))
        measures = contraction.of("Both", "value", np.arange(20), ALONE)
        assert measures is not None
        found.append(measures.push[0])
    assert found[0] / found[1] == pytest.approx(20 / 2, rel=1e-3)


def test_counts_and_rules_that_do_not_ask_are_left_alone(tmp_path: Path) -> None:
    problem = Problem.drawn(1, rows=10, each=2, rate=0.02)
    _, master = trained(problem, tmp_path, 2, pushes=40)
    contraction = master.merger._contractions
    assert contraction is not None
    assert set(contraction._fields) == {("Row", "value")}


def test_touches_count_edges_of_every_form() -> None:
    class Other(gridml.Vertex):
        label = gridml.array("float64")
        many = gridml.edge(Row)
        one = gridml.edge(Row)

    g = Graph()
    rows = g.add(Row, value=np.zeros((3, 4)))
    first = gridml.model.graph.VertexSet(Row, rows.start, rows.start + 1)
    g.add(Other, label=np.zeros(4), many=gridml.csr([0, 2, 2, 3, 3], [0, 2, 2]), one=first)
    contraction = Contractions(g, "Other")
    np.testing.assert_allclose(contraction._touches["Row"], [5 / 4, 0, 2 / 4])
    assert contraction._coupled == pytest.approx((9 + 1 + 4 + 1) / (3 + 1 + 2 + 1))


def test_rows_that_no_edge_leads_to_teach_nothing() -> None:
    g = Graph()
    g.add(Row, value=np.zeros((2, 4)))
    counted = g.add(Counted, seen=np.zeros(1, np.int64))
    g.add(Point, label=np.zeros(1), rows=gridml.csr([0, 0], []), counted=counted)
    contraction = Contractions(g, "Point")
    chance = np.random.default_rng(2)
    for version in range(30):
        base = chance.normal(size=(2, 4))
        part = ReplicaPart({}, {"Row": RowValues(np.arange(2), {"value": 0.5 * base})})
        contraction.add("ab"[version % 2], part, state_of(base), Merge(version + 1, max(0, version - 2), 1, 2, 4))
    assert contraction.of("Row", "value", np.arange(2), ALONE) is None


def test_a_large_table_is_sampled_where_it_is_touched_most() -> None:
    rows = MAX_SAMPLED // 4 + 1_000
    g = Graph()
    g.add(Row, value=np.zeros((rows, 4)))
    targets = np.concatenate([np.arange(rows), np.arange(500, 700)])
    counted = g.add(Counted, seen=np.zeros(1, np.int64))
    g.add(Point, label=np.zeros(len(targets)), rows=targets, counted=counted)
    contraction = Contractions(g, "Point")
    sampled = contraction._field("Row", "value")._sampled
    assert sampled.sum() == MAX_SAMPLED // 4
    assert sampled[500:700].all()


@pytest.mark.parametrize("value", [np.inf, 1e200])
def test_what_cannot_be_measured_is_not_known(value: float) -> None:
    """Invalid steps raise nothing, and no rule gets a value."""
    contraction = Contractions(every(), "Point")
    pushes(contraction, "abcabcabcabcabc")
    with np.errstate(all="ignore"):
        base = np.zeros((3, 4))
        part = ReplicaPart({}, {"Row": RowValues(np.arange(3), {"value": np.full((3, 4), value)})})
        contraction.add("z", part, state_of(base), Merge(20, 10, 1, 2, 4))
        found = contraction.of("Row", "value", np.arange(3), ALONE)
    assert found is None or np.isfinite(found.push).all()


def test_a_vertex_state_is_not_needed() -> None:
    """Modules are not measured."""
    part: Any = ReplicaPart({("Net", 0): VertexState().tensors}, {})
    Contractions(every(), "Point").add("a", part, ReplicaState(), Merge(2, 1, 1, 1, 2))


def test_what_overflows_is_forgotten() -> None:
    contraction = Contractions(every(), "Point")
    pushes(contraction, "abcabcabcabcabc")
    before = contraction.of("Row", "value", np.arange(3), ALONE)
    for value in (1e308, 1e200, np.nan):
        part = ReplicaPart({}, {"Row": RowValues(np.arange(3), {"value": np.full((3, 4), value)})})
        contraction.add("z", part, state_of(np.zeros((3, 4))), Merge(20, 10, 1, 2, 4))
    after = contraction.of("Row", "value", np.arange(3), ALONE)
    assert before is not None and after is not None
    np.testing.assert_array_equal(before.push, after.push)


def test_types_with_equal_numbers_of_vertices_are_distinguished() -> None:
    class Other(gridml.Vertex):
        label = gridml.array("float64")
        row = gridml.edge(Row)

    class Another(gridml.Vertex):
        label = gridml.array("float64")
        row = gridml.edge(Row)

    g = Graph()
    rows = g.add(Row, value=np.zeros((1, 4)))
    for kind in (Other, Another):
        g.add(kind, label=np.zeros(5), row=rows)
    assert Contractions(g, "Other")._coupled == 1.0


def test_a_push_that_the_gate_shortens_says_nothing_of_rows(tmp_path: Path) -> None:
    problem = Problem.drawn(1, rows=100, each=2, rate=0.005)
    _, master = trained(problem, tmp_path, 4, pushes=100)
    before = measured(master)
    base = master.state
    wild = base.arrays["Row"]["value"] + 100 * np.random.default_rng(1).normal(size=(100, 4))
    master.push("w0", base, master.version - 3, ROWS.pushed(wild, np.arange(100)), 50)
    np.testing.assert_array_equal(measured(master), before)
