"""What the master does at the end of ticks and passes, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import gridml
from gridml.errors import NotFiniteError, UserCodeError
from gridml.model.graph import Graph
from master.store.versions import ReplicaState, initial
from master.sync.owner_work import OwnerWork


class Shared(gridml.Vertex):
    rate = gridml.array("float32")
    steps = gridml.array("int64", (2,))
    loss = gridml.accumulator("float64")
    sizes = gridml.accumulator("int64", (2,))
    aggregate = gridml.owned()


class Other(gridml.Vertex):
    seen = gridml.accumulator("int64")
    aggregate = gridml.owned()


@pytest.fixture
def graph() -> Graph:
    g = Graph()
    g.add(Shared, rate=0.5, steps=0, loss=3.0, sizes=np.array([[4, 5]]))
    g.add(Other, seen=7)
    return g


@pytest.fixture
def state(graph: Graph) -> ReplicaState:
    return initial(graph, 0)


def cool(shared: Shared) -> None:
    shared.rate *= 0.5
    shared.steps[0] = shared.sizes[1]


def keep(shared: Shared) -> None:
    shared.steps[1] = int(shared.loss)


def test_functions_run_in_order_and_accumulators_begin_again(graph: Graph, state: ReplicaState) -> None:
    ended = OwnerWork((), [gridml.global_sync(cool), gridml.global_sync(keep)]).end_pass(graph.tables, state)
    fields = {f"{n}.{f}": v.tolist() for n, rows in ended.rows.items() for f, v in rows.fields.items()}
    assert fields == {
        "Shared.rate": [0.25], "Shared.steps": [[5, 3]], "Shared.loss": [0.0], "Shared.sizes": [[0, 0]],
        "Other.seen": [0],
    }  # fmt: skip
    assert ended.totals == {"Shared.loss": 3.0, "Other.seen": 7.0}
    assert state.arrays["Shared"]["loss"].tolist() == [3.0]  # unchanged


def test_without_functions_accumulators_begin_again(graph: Graph, state: ReplicaState) -> None:
    assert OwnerWork().end_pass(graph.tables, state).rows["Other"].fields["seen"].tolist() == [0]
    assert OwnerWork().end_pass({}, state).rows == {}


def fails(shared: Shared) -> None:
    raise SystemExit(0)


def returns(shared: Shared) -> int:
    return 1


def ends(shared: Shared) -> bool:
    return bool(shared.loss > 2)


def test_a_function_that_returns_true_ends_the_run(graph: Graph, state: ReplicaState) -> None:
    work = [gridml.global_sync(keep), gridml.global_sync(ends)]
    assert OwnerWork((), work).end_pass(graph.tables, state).enough == ("ends",)
    ended = OwnerWork([work, [gridml.global_sync(keep)]])
    first = ended.end_tick(0, {}, state)
    assert first.enough == ("ends",) and first.rows["Shared"].fields["loss"].tolist() == [0.0]
    assert ended.end_tick(3, {}, state).enough == ()
    assert "Shared.loss" not in ended.end_pass(graph.tables, state).totals  # ticks read it


def breaks(shared: Shared) -> None:
    shared.rate /= 1e-300


def test_what_is_refused(graph: Graph, state: ReplicaState) -> None:
    with pytest.raises(UserCodeError, match="fails failed after a pass: SystemExit") as failed:
        OwnerWork((), [gridml.global_sync(fails)]).end_pass(graph.tables, state)
    assert "raise SystemExit(0)" in failed.value.traceback_text
    with pytest.raises(UserCodeError, match="returns returned int; a global_sync changes the context"):
        OwnerWork((), [gridml.global_sync(returns)]).end_pass(graph.tables, state)
    with np.errstate(all="ignore"), pytest.raises(NotFiniteError, match=r"Shared\.rate is not finite after a pass"):
        OwnerWork((), [gridml.global_sync(breaks)]).end_pass(graph.tables, state)
