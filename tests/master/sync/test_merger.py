"""Merging a push: each vertex by its rule, stale rows as stale, outliers shortened, a user's own g within bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gridml
from gridml.aggregates import Merge, VertexState
from gridml.caching.master_copy import reconstruct
from gridml.errors import ProgramError, UserCodeError
from gridml.model.graph import Graph
from gridml.model.vertex import Vertex
from gridml.protocol.changes import ChangedElements
from gridml.protocol.push import PushContent, ReplicaPart, RowValues, decode, encode_replica
from master.store.replica import Replica
from master.store.versions import ReplicaState, Versions, initial
from master.sync.gate import FREE_SHARE, MAX_STEPS, MAX_WAIT_S, OUTLIER, REFUSED_BEYOND, REPLICA_SHARE, GateResult
from master.sync.merger import Merged, Merger

torch = pytest.importorskip("torch")
Array = NDArray[np.generic]
COUNT = 4


def merger_of(folder: Path, *types: tuple[type[Vertex], int], workers: int = 1) -> tuple[Merger, Replica]:
    """A merger over `count` vertices of each type, arrays beginning with zeros."""
    g = Graph()
    for cls, count in types:
        added = g.add(cls, count, **{n: np.zeros((count, *a.shape), a.dtype) for n, a in arrays(cls).items()})
        assert len(added) == count
    replica = Replica(g, Versions(folder / "versions"))
    merger = Merger(g, replica, workers)
    state = initial(g, 0)
    merger.add_buffers(state)
    replica.start(state)
    return merger, replica


def arrays(cls: type[Vertex]) -> dict[str, gridml.array]:
    return {n: a for n, a in vars(cls).items() if isinstance(a, gridml.array)}


def circumstances(others: int = 0, vertices: int = 10, base: int = 0) -> Merge:
    return Merge(version=1, base=base, vertices=vertices, credited_by_others=others, live=2)


def merged(result: tuple[Merged | None, GateResult]) -> Merged:
    assert result[0] is not None, result[1].reason
    return result[0]


def rows(type_name: str, at: list[int], **fields: Any) -> dict[str, Array]:
    """Return rows with the names of a message."""
    return {f"@rows/{type_name}": np.array(at, np.int64), **{f"{type_name}/{n}": v for n, v in fields.items()}}


def part(pushed: dict[str, Array]) -> ReplicaPart:
    return decode(pushed).replica


def copy(state: ReplicaState) -> ReplicaState:
    """Return a copy of the current version, independent of the replica."""
    modules = {key: VertexState({n: t.copy() for n, t in v.tensors.items()}) for key, v in state.modules.items()}
    columns = {name: {n: c.copy() for n, c in fields.items()} for name, fields in state.arrays.items()}
    return ReplicaState(modules, columns)


def tensors_of(result: Merged) -> dict[str, Array]:
    """Return the replica after a push, by name."""
    modules = {key: state.tensors for key, state in result.modules.items()}
    return {n: t for n, t in encode_replica(ReplicaPart(modules, result.rows)).items() if n[0] != "@"}


def check(merger: Merger, pushed: dict[str, Array]) -> str | None:
    """Read and check a push; return the answer to the worker."""
    try:
        return merger.check(part(pushed))
    except ValueError as error:
        return str(error)


class Word(gridml.Vertex):
    count = gridml.array("int64")
    vector = gridml.array("float32", (2,))
    aggregate = gridml.by_name({"*/count": gridml.add()})


def words(at: list[int], count: int, value: float) -> dict[str, Array]:
    return rows("Word", at, count=np.full(len(at), count, np.int64), vector=np.full((len(at), 2), value, np.float32))


# --- pushes that do not fit the program


def test_a_push_that_fits_passes(tmp_path: Path) -> None:
    merger, _ = merger_of(tmp_path, (Word, COUNT))
    assert check(merger, words([1, 3], 1, 1.0)) is None
    assert check(merger, words([], 1, 1.0)) is None
    assert check(merger, {}) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"@rows/Word": np.array([1, COUNT])}, "not among the 4"),
        ({"@rows/Word": np.array([-1, 1])}, "not among the 4"),
        ({"@rows/Word": np.array([0.0, 1.0])}, "float64 (2,); expected int32 or int64 (n,)"),
        ({"@rows/Page": np.array([0])}, "not among the 0"),
        ({"Word/count": np.zeros(3, np.int64)}, "int64 (3,); expected 2 rows"),
        ({"Word/count": np.zeros(2, np.int32)}, "expected int64 (2,)"),
        ({"Word/vector": np.zeros((2, 3), np.float32)}, "expected float32 (2, 2)"),
        ({"Word/colour": np.zeros(2)}, "no tensor Word/colour"),
        ({"Word/count": None}, "Word/count is missing"),
        ({"Word/count": None, "Word/vector": None}, "is missing"),
        ({"@rows/Word": None}, "without the ids of its rows"),
    ],
)
def test_a_push_that_does_not_fit_is_explained(tmp_path: Path, change: dict[str, Array | None], says: str) -> None:
    merger, _ = merger_of(tmp_path, (Word, COUNT))
    pushed = {n: t for n, t in {**words([1, 3], 1, 1.0), **change}.items() if t is not None}
    message = check(merger, pushed)
    assert message is not None
    assert says in message


# --- changed elements of rows


class Topic(gridml.Vertex):
    count = gridml.array("int32", (500,))
    weight = gridml.array("float32", (500,))
    aggregate = gridml.add()


def topics(replica: Replica, at: list[int], seed: int) -> tuple[PushContent, PushContent]:
    """Return (a push of whole rows with few changes, the same push as changed elements)."""
    rng, ids = np.random.default_rng(seed), np.array(at, np.int64)
    old = replica.state.rows("Topic", ids)
    new = {name: column.copy() for name, column in old.items()}
    for row in range(len(at)):
        for column in new.values():
            column[row, rng.integers(0, 500, 9)] += rng.integers(-200, 900, 9).astype(column.dtype)
    changes = {name: ChangedElements.of(old[name], column) for name, column in new.items()}
    assert all(changes.values())
    whole = ReplicaPart(rows={"Topic": RowValues(ids, new)})
    fields = {"Topic": {name: each for name, each in changes.items() if each is not None}}
    return PushContent(whole), PushContent(ReplicaPart(rows={"Topic": RowValues(ids, {})}), changes=fields)


@pytest.mark.parametrize("seed", range(5))
def test_changes_are_merged_as_the_rows_are_bit_for_bit(tmp_path: Path, seed: int) -> None:
    merger, replica = merger_of(tmp_path, (Topic, COUNT))
    assert merger.added == {"Topic"}
    base, found = copy(replica.state), []
    other, mine = topics(replica, [0, 2, 3], seed), topics(replica, [1, 2, 3], seed + 100)
    replica.put({}, dict(merged(merger.merge(other[0].replica, base, circumstances())).rows), 1)
    for content in mine:
        assert merger.check(content.replica, content.changes) is None
        whole = reconstruct(content, {}, base.rows)
        found.append(merged(merger.merge(whole, base, circumstances(others=10))).rows["Topic"].fields)
    for name, values in found[0].items():
        assert values.tobytes() == found[1][name].tobytes()


def test_changes_that_make_nan_are_refused_like_rows_that_hold_it(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Topic, COUNT))
    content = topics(replica, [1], 0)[1]
    wrong = ChangedElements(np.array([1], "u2"), np.array([7], "u2"), np.array([0x7FC00000], "i4"))
    hostile = replace(content, changes={"Topic": {**content.changes["Topic"], "weight": wrong}})
    assert merger.check(hostile.replica, hostile.changes) is None
    result, decision = merger.merge(reconstruct(hostile, {}, replica.state.rows), replica.state, circumstances())
    assert result is None and "Topic/weight" in decision.reason


@pytest.mark.parametrize(
    ("name", "parts", "says"),
    [
        ("colour", ([1], [7], [1]), "no tensor Topic/colour"),
        ("count", ([1, 1], [7, 8], [1, 1]), "2 counts for 1 rows"),
        ("count", ([1], [500], [1]), "element 500 of a row of 500"),
        ("count", ([2], [7, 7], [1, 1]), "ascending order, each once"),
        ("count", ([501], [7], [1]), "changes 501 elements"),
    ],
)
def test_changes_that_do_not_fit_are_explained(
    tmp_path: Path, name: str, parts: tuple[list[int], list[int], list[int]], says: str
) -> None:
    merger, replica = merger_of(tmp_path, (Topic, COUNT))
    content = topics(replica, [1], 0)[1]
    counts, elements, steps = parts
    wrong = ChangedElements(np.array(counts, "u2"), np.array(elements, "u2"), np.array(steps, "i1"))
    changes = {"Topic": {**content.changes["Topic"], name: wrong}}
    assert says in str(merger.check(content.replica, changes))
    assert "is missing" in str(merger.check(content.replica, {}))


# --- rows


def test_a_fresh_row_is_taken_and_a_stale_one_is_averaged(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Word, COUNT))
    base = copy(replica.state)
    replica.put({}, part(words([1], 5, 1.0)).rows, 1)
    replica.commit_version(1)
    pushed = words([1, 3], 2, 3.0)
    result = merged(merger.merge(part(pushed), base, circumstances(others=50)))
    alpha = 5 / (5 + 5)
    overshoot = 1 + (1 - alpha)
    expected = 1.0 + alpha * (0.0 - 1.0) + alpha * overshoot * 3.0
    np.testing.assert_allclose(tensors_of(result)["Word/vector"], [[expected] * 2, [3.0] * 2])
    np.testing.assert_array_equal(tensors_of(result)["Word/count"], [7, 2])  # counts add up, stale or not
    np.testing.assert_array_equal(result.rows["Word"].ids, [1, 3])
    np.testing.assert_array_equal(replica.state.arrays["Word"]["count"], [0, 5, 0, 0])  # nothing is changed yet


def test_a_push_from_the_newest_version_is_a_fast_forward(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Word, COUNT))
    pushed = words([0, 1], 4, 0.1)
    result = merged(merger.merge(part(pushed), replica.state, circumstances()))
    assert result.fast_forward
    for name in ("Word/count", "Word/vector"):
        np.testing.assert_array_equal(tensors_of(result)[name], pushed[name])
    assert not merged(merger.merge(part(pushed), replica.state, circumstances(others=1))).fast_forward


def test_a_row_that_is_not_finite_refuses_the_push(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Word, COUNT))
    for value in (np.nan, np.inf):
        result, decision = merger.merge(part(words([0], 1, value)), replica.state, circumstances(others=3))
        assert result is None
        assert decision.reason == "Word/vector is not finite (NaN or infinity)"


def test_rows_cannot_have_rules_that_buffer_pushes(tmp_path: Path) -> None:
    class Buffered(gridml.Vertex):
        value = gridml.array("float32")
        aggregate = gridml.fedbuff()

    with pytest.raises(ProgramError, match=r"Buffered.value is merged by row with FedBuff"):
        merger_of(tmp_path, (Buffered, 1))


def test_a_type_without_fields_is_no_trouble(tmp_path: Path) -> None:
    class Bare(gridml.Vertex):
        def aggregate(self, replica: Bare, merge: gridml.Merge) -> None:  # type: ignore[override, name-defined]
            raise AssertionError("there is nothing to merge")

    merger, replica = merger_of(tmp_path, (Bare, 2), (Word, COUNT))
    pushed = rows("Bare", [0, 1]) | words([1], 3, 0.5)
    assert check(merger, pushed) is None
    result = merged(merger.merge(part(pushed), replica.state, circumstances()))
    assert result.fast_forward and result.rows.keys() == {"Word"}
    for state in (replica.state, Versions(tmp_path / "versions").read(0, None)):
        assert not state.part({"Bare": np.array([0, 1])})


# --- the gate


def push(
    merger: Merger, replica: Replica, worker: str, value: float, others: int = 0, now: float = 0.0
) -> tuple[Merged | None, GateResult]:
    """One push of word 0, with a vector of length 2, from zeros."""
    return merger.merge(part(words([0], 1, value)), replica.state, circumstances(others=others), worker, now)


def settle(merger: Merger, replica: Replica, *workers: str, value: float = 1.0) -> None:
    """Let workers push until the usual step is known."""
    for _ in range(MAX_STEPS):
        for worker in workers:
            merged(push(merger, replica, worker, value))


def test_an_outlying_step_is_shortened_to_what_others_do(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Word, COUNT), workers=3)
    settle(merger, replica, "a", "b")
    for others in (0, 1):  # on the newest base, too
        usual, outlier = (push(merger, replica, "c", value, others) for value in (1.0, 100 * OUTLIER))
        assert push(merger, replica, "c", OUTLIER, others)[1] == (1.0, "accepted", False, False, None)
        longest = tensors_of(merged(usual))["Word/vector"]
        np.testing.assert_allclose(tensors_of(merged(outlier))["Word/vector"], longest, rtol=1e-5)
        np.testing.assert_array_equal(tensors_of(merged(outlier))["Word/count"], [1])  # counts are facts
        assert "the step of Word/vector (StaleMean) is 100 times as long as 5 times what" in outlier[1].reason
        assert outlier[1].flagged
        assert not merged(outlier).fast_forward  # so that its worker takes what was merged


def test_one_worker_with_frequent_pushes_does_not_move_the_bound(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Word, COUNT), workers=3)
    settle(merger, replica, "a", "b")
    for k in range(100):
        _, decision = push(merger, replica, "c", 20.0)
        assert decision.scale == pytest.approx(1 / 20.0) and decision.flagged, k
    assert push(merger, replica, "a", 1.0)[1].scale == 1.0


def test_what_has_become_usual_for_all_is_no_outlier_any_more(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Word, COUNT), workers=3)
    settle(merger, replica, "a", "b", "c")
    settle(merger, replica, "a", "b", "c", value=20.0)
    assert push(merger, replica, "c", 20.0)[1].reason == "accepted"


def test_the_first_push_of_all_is_bounded_by_the_replica_itself(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Network, 1), workers=3)
    before = state(replica, "Network/")
    zeros = {name: np.zeros_like(tensor) for name, tensor in before.items()}
    result, decision = merger.merge(part(zeros), replica.state, circumstances(), "a")
    assert decision.scale == pytest.approx(REPLICA_SHARE / OUTLIER) and not decision.flagged  # no other steps are known
    for name, tensor in tensors_of(merged((result, decision))).items():
        np.testing.assert_allclose(tensor, (1 - REPLICA_SHARE / OUTLIER) * before[name], rtol=1e-5)


def test_of_two_workers_one_that_hardly_moves_has_the_other_shortened_at_most(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Network, 1), workers=2)
    before = state(replica, "Network/")
    for size, worker in ((1e-6, "a"), (0.5, "b")):
        pushed = {n: t + np.float32(size) * np.abs(t) for n, t in before.items()}
        assert merger.merge(part(pushed), replica.state, circumstances(), worker)[0] is not None


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_beside_one_other_a_step_is_free_up_to_a_share_of_the_replica_and_no_further(
    tmp_path: Path, workers: int
) -> None:
    """A worker with tiny steps does not throttle the others further, and an outlier never gets further over time."""
    merger, replica = merger_of(tmp_path, (Network, 1), workers=workers)
    before = state(replica, "Network/")

    def scale(size: float, worker: str) -> float | None:
        pushed = {n: t + np.float32(size) * np.abs(t) for n, t in before.items()}
        return merger.merge(part(pushed), replica.state, circumstances(), worker)[1].scale

    for _ in range(2 * MAX_STEPS):
        assert scale(1e-6, "a") == 1.0
        assert scale(0.9 * FREE_SHARE, "b") == 1.0
        assert scale(0.5, "b") == pytest.approx(FREE_SHARE / 0.5, rel=1e-3)


def test_beside_one_other_statistics_move_as_far_as_they_are_long(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Normed, 1), workers=3)
    before = state(replica, "Normed/")
    still = {n: t + np.float32(1e-6) if t.dtype.kind == "f" else t for n, t in before.items()}
    merged(merger.merge(part(still), replica.state, circumstances(), "a"))
    honest = {n: t * np.float32(1.9) if n.endswith("var") else t for n, t in before.items()}
    assert merger.merge(part(honest), replica.state, circumstances(), "b")[1].scale == 1.0
    astray = {n: t * np.float32(1e6) if n.endswith("var") else t for n, t in before.items()}
    assert merger.merge(part(astray), replica.state, circumstances(), "b")[1].scale != 1.0


@pytest.mark.parametrize("value", [1e30, 3e38])
def test_a_step_that_overflows_is_refused_and_raises_nothing(tmp_path: Path, value: float) -> None:
    for workers in ((), ("a", "b")):
        merger, replica = merger_of(tmp_path, (Word, COUNT), workers=3)
        settle(merger, replica, *workers)
        for others in (0, 5):
            result, decision = push(merger, replica, "c", value, others)
            assert result is None
            assert "overflows" in decision.reason
    assert "Word/vector" in decision.reason


def test_a_step_that_is_none_of_training_is_refused(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Word, COUNT), workers=3)
    settle(merger, replica, "a", "b")
    assert push(merger, replica, "c", 1.1 * REFUSED_BEYOND * OUTLIER)[0] is None
    merged(push(merger, replica, "c", 0.9 * REFUSED_BEYOND * OUTLIER))


def test_one_worker_alone_is_bounded_by_nothing(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Word, COUNT))
    settle(merger, replica, "a")
    assert push(merger, replica, "a", 1e30)[1].scale == 1.0
    assert merged(push(merger, replica, "a", 1e30)).fast_forward
    assert push(merger, replica, "b", 1e30)[0] is None, "where another has pushed, it is not alone"


def test_an_unchanged_replica_is_refused_where_others_change_theirs(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Word, COUNT), workers=3)
    settle(merger, replica, "a")
    assert not push(merger, replica, "c", 0.0)[1].flagged, "one other is no measure"
    merger, replica = merger_of(tmp_path, (Word, COUNT), workers=3)
    settle(merger, replica, "a", "b")
    for value in (0.0, 1e-6):
        result, decision = push(merger, replica, "c", value)
        assert result is None and decision.flagged
        assert "others change theirs" in decision.reason
    result, decision = merger.merge(ReplicaPart(), replica.state, circumstances(), "c")
    assert result is None and decision.flagged, "nor is a push without any replica"


def test_an_unmoved_push_is_accepted_if_others_are_unmoved_at_times(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Word, COUNT), workers=3)
    settle(merger, replica, "a", "b", "c")
    assert push(merger, replica, "a", 0.0)[0] is None
    merged(push(merger, replica, "c", 0.0))  # such as of a perceptron without mistakes
    merged(push(merger, replica, "a", 0.0))


def test_the_wait_of_an_unmoved_push_begins_again_after_a_push_that_moves(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Word, COUNT), workers=3)
    assert push(merger, replica, "b", 0.0)[0] is None
    merged(push(merger, replica, "a", 1.0, now=10.0))
    merger.forget("b")
    for at_s in (1_000.0, 1_000.0 + MAX_WAIT_S - 1.0):
        assert push(merger, replica, "c", 0.0, now=at_s)[0] is None, "an unmoved push long ago does not count"
    merged(push(merger, replica, "c", 0.0, now=1_000.0 + MAX_WAIT_S))


def test_statistics_and_sums_may_move_far_at_first(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Normed, 1), workers=3)
    before = state(replica, "Normed/")
    statistics = {n: t * 5000 if n.endswith("var") else t for n, t in before.items()}
    assert merger.merge(part(statistics), replica.state, circumstances(), "a")[1].scale == 1.0
    weights = {n: t * 5 if n.endswith("weight") else t for n, t in before.items()}
    scale = merger.merge(part(weights), replica.state, circumstances(), "a")[1].scale
    assert scale is not None and scale < 0.3


def test_a_workers_habits_are_forgotten_with_it(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Word, COUNT), workers=3)
    settle(merger, replica, "a", "b")
    merger.step_history.forget("a")
    merger.step_history.forget("a")
    assert not push(merger, replica, "c", 100.0)[1].flagged, "one other is no majority"
    for k in range(100):
        merger.step_history.add(f"w{k}", {"Word/vector (StaleMean)": 1.0}, 10)
    assert len(merger.step_history.others("", "Word/vector (StaleMean)")) == 16


# --- the user's own g


class Clock(gridml.Vertex):
    """Keeps the later of two times, and the mean of two readings."""

    time = gridml.array("int64")
    reading = gridml.array("float32", (2,))

    def aggregate(self, replica: Clock, merge: gridml.Merge) -> None:  # type: ignore[override]
        self.time = max(self.time, replica.time)
        self.reading = self.reading + merge.weight * (replica.reading - self.reading)


def clocks(at: list[int], time: int, reading: float) -> dict[str, Array]:
    return rows("Clock", at, time=np.full(len(at), time, np.int64), reading=np.full((len(at), 2), reading, np.float32))


def test_the_users_own_rule_is_called_for_each_vertex(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Clock, COUNT))
    base = copy(replica.state)
    replica.put({}, part(rows("Clock", [1], time=np.array([9]))).rows, 1)
    replica.commit_version(1)
    result = merged(merger.merge(part(clocks([1, 2], 5, 1.0)), base, circumstances(others=50)))
    np.testing.assert_array_equal(tensors_of(result)["Clock/time"], [9, 5])
    np.testing.assert_allclose(tensors_of(result)["Clock/reading"], [[0.5, 0.5], [1.0, 1.0]])  # stale, and fresh
    np.testing.assert_array_equal(replica.state.arrays["Clock"]["reading"], np.zeros((COUNT, 2)))


def test_the_users_own_rule_sees_a_shortened_step(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Clock, COUNT), workers=3)
    for worker in ("a", "b"):
        merged(merger.merge(part(clocks([0], 1, 1.0)), replica.state, circumstances(others=1), worker))
    usual = merged(merger.merge(part(clocks([0], 1, 1.0)), replica.state, circumstances(others=1), "c"))
    outlier = merged(merger.merge(part(clocks([0], 7, 500.0)), replica.state, circumstances(others=1), "c"))
    np.testing.assert_allclose(tensors_of(outlier)["Clock/reading"], tensors_of(usual)["Clock/reading"], rtol=1e-5)
    np.testing.assert_array_equal(tensors_of(outlier)["Clock/time"], [7])


class Stubborn(gridml.Vertex):
    value = gridml.array("float32")

    def aggregate(self, replica: Stubborn, merge: Merge) -> None:
        replica.value = self.value  # as if the worker had never trained


def test_a_rule_that_writes_to_the_replica_changes_no_push_and_fakes_no_fast_forward(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Stubborn, 1))
    pushed = rows("Stubborn", [0], value=np.array([9], np.float32))
    assert not merged(merger.merge(part(pushed), replica.state, circumstances())).fast_forward
    np.testing.assert_array_equal(pushed["Stubborn/value"], [9])


def test_a_rule_that_raises_stops_with_the_users_traceback(tmp_path: Path) -> None:
    class Broken(gridml.Vertex):
        value = gridml.array("float32")

        def aggregate(self, replica: Broken, merge: gridml.Merge) -> None:  # type: ignore[override, name-defined]
            raise ZeroDivisionError("nothing to divide by")

    merger, replica = merger_of(tmp_path, (Broken, 1))
    with pytest.raises(UserCodeError, match=r"Broken.aggregate failed on \('Broken', 0\): ZeroDivisionError") as error:
        merger.merge(part(rows("Broken", [0], value=np.ones(1, np.float32))), replica.state, circumstances())
    assert "nothing to divide by" in error.value.traceback_text
    assert "test_merger.py" in error.value.traceback_text
    assert 'sync/own_rules.py", line' not in error.value.traceback_text


def test_a_rule_that_gives_another_shape_to_a_row_is_an_error(tmp_path: Path) -> None:
    class Bent(gridml.Vertex):
        value = gridml.array("float32", (2,))

        def aggregate(self, replica: Bent, merge: gridml.Merge) -> None:  # type: ignore[override, name-defined]
            self.value = np.zeros(3)

    merger, replica = merger_of(tmp_path, (Bent, 1))
    with pytest.raises(UserCodeError, match=r"Bent.aggregate failed"):
        merger.merge(part(rows("Bent", [0], value=np.ones((1, 2), np.float32))), replica.state, circumstances())


def test_a_rule_that_makes_nan_is_refused_by_the_gate(tmp_path: Path) -> None:
    class Vague(gridml.Vertex):
        value = gridml.array("float32")

        def aggregate(self, replica: Vague, merge: gridml.Merge) -> None:  # type: ignore[override, name-defined]
            self.value = float("nan")

    merger, replica = merger_of(tmp_path, (Vague, 1))
    result, decision = merger.merge(
        part(rows("Vague", [0], value=np.ones(1, np.float32))), replica.state, circumstances()
    )
    assert result is None
    assert "Vague/value is not finite" in decision.reason


# --- modules


def line() -> Any:
    return torch.nn.Linear(2, 1)


def normed() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


class Network(gridml.Vertex):
    model = gridml.module(line)


class Normed(gridml.Vertex):
    model = gridml.module(normed)


def state(replica: Replica, prefix: str) -> dict[str, Array]:
    return {n: t.copy() for n, t in replica.state.tensors() if n.startswith(prefix)}


def test_of_several_vertices_only_the_pushed_one_changes(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Network, 3))
    pushed = {n: t + 1 for n, t in state(replica, "Network/1/").items()}
    result = merged(merger.merge(part(pushed), replica.state, circumstances(others=10)))
    assert tensors_of(result).keys() == pushed.keys()
    replica.put(result.modules, result.rows, 1)
    np.testing.assert_array_equal(replica.state.changed["Network"], [0, 1, 0])


def test_staleness_is_per_vertex(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Network, 2))
    base = copy(replica.state)
    first = {n: t + 1 for n, t in state(replica, "Network/0/").items()}
    replica.put(merged(merger.merge(part(first), base, circumstances())).modules, {}, 1)
    replica.commit_version(1)
    both = {n: t + 3 for n, t in base.tensors()}
    result = tensors_of(merged(merger.merge(part(both), base, circumstances(others=10))))
    np.testing.assert_array_equal(
        result["Network/1/model/bias"], both["Network/1/model/bias"]
    )  # no other worker had it
    assert not np.array_equal(result["Network/0/model/bias"], both["Network/0/model/bias"])


RULES = [gridml.stale_mean(), gridml.mean(), gridml.add(), gridml.easgd(), gridml.fedbuff(), gridml.nesterov(),
         gridml.clipped(), None]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("others_trained_it", [False, True])
def test_what_a_push_leaves_out_is_merged_as_if_it_had_come_unchanged(
    tmp_path: Path, rule: gridml.Aggregate | None, others_trained_it: bool
) -> None:
    def g(self: Any, replica: Any, merge: gridml.Merge) -> None:
        self.model.average_with(replica.model, merge.weight)

    network = type("Half", (gridml.Vertex,), {"model": gridml.module(normed), "aggregate": rule or g})
    results = []
    for name in ("whole", "partly"):
        folder = tmp_path / name
        folder.mkdir()
        merger, replica = merger_of(folder, (network, 1), workers=2)
        replica.begin_version()
        base = replica.base(0, None)
        key, left_out = ("Half", 0), "Half/0/model/0.weight"
        theirs = {n: t + 1 for n, t in base.modules[key].tensors.items() if n != left_out or others_trained_it}
        replica.put({key: VertexState(theirs)}, {}, 1)
        replica.commit_version(1)
        pushed = {n: t + 2 for n, t in base.modules[key].tensors.items() if n != left_out}
        held = base.modules[key].tensors
        whole = held | pushed | ({left_out: held[left_out].copy()} if name == "whole" else {})
        result = merged(merger.merge(ReplicaPart({key: whole}), base, circumstances(others=10)))
        assert (left_out in result.modules[key].tensors) == (name == "whole" or (others_trained_it and moves(rule)))
        replica.put(result.modules, {}, 2)
        results.append((dict(replica.state.tensors()), dict(replica.state.buffers()), result.sumsqs))
    (values, buffers, sumsqs), (others, their_buffers, their_sumsqs) = results
    assert sumsqs == their_sumsqs
    for one, other in ((values, others), (buffers, their_buffers)):
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            np.testing.assert_array_equal(tensor, other[name], err_msg=name)


def moves(rule: gridml.Aggregate | None) -> bool:
    """Return True if a rule moves the master's value by a replica that has not moved from an older one."""
    return type(rule).__name__ not in ("Add", "FedBuff", "Nesterov")


def test_a_module_may_come_in_parts(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Network, 2))
    pushed = state(replica, "Network/1/")
    del pushed["Network/1/model/bias"]
    assert check(merger, pushed) is None
    name, values = pushed.popitem()
    assert check(merger, {name: values[:, :1]}) == f"{name} has float32 (1, 1), expected float32 (1, 2)"
    assert check(merger, {f"{name}s": values}) == f"the replica has no tensor {name}s"


def test_batch_norm_pools_variances_and_keeps_whole_numbers(tmp_path: Path) -> None:
    merger, replica = merger_of(tmp_path, (Normed, 1))
    name = "Normed/0/model/1."
    base = copy(replica.state)
    mine = state(replica, "Normed/0/")
    mine |= {f"{name}running_mean": np.full(3, 2.0, np.float32), f"{name}running_var": np.full(3, 4.0, np.float32),
             f"{name}num_batches_tracked": np.array(7)}  # fmt: skip
    replica.put(merged(merger.merge(part(mine), base, circumstances())).modules, {}, 1)
    replica.commit_version(1)
    theirs = {n: t.copy() for n, t in base.tensors()}
    theirs |= {f"{name}running_mean": np.full(3, 6.0, np.float32), f"{name}running_var": np.full(3, 1.0, np.float32),
               f"{name}num_batches_tracked": np.array(5)}  # fmt: skip
    result = tensors_of(merged(merger.merge(part(theirs), base, circumstances(others=10))))
    alpha = 5 / (5 + 1)
    mean = 2 + alpha * (6 - 2)
    variance = (1 - alpha) * (4 + 2**2) + alpha * (1 + 6**2) - mean**2  # E[σ²+μ²] − μ²
    np.testing.assert_allclose(result[f"{name}running_mean"], np.full(3, mean), rtol=1e-6)
    np.testing.assert_allclose(result[f"{name}running_var"], np.full(3, variance), rtol=1e-5)
    assert result[f"{name}num_batches_tracked"] == 7
    assert result[f"{name}num_batches_tracked"].dtype == np.int64


def test_a_module_by_the_papers_own_rule(tmp_path: Path) -> None:
    class Averaged(gridml.Vertex):
        model = gridml.module(normed)

        def aggregate(self, replica: Averaged, merge: gridml.Merge) -> None:  # type: ignore[override, name-defined]
            self.model.average_with(replica.model, 0.5)

    merger, replica = merger_of(tmp_path, (Averaged, 2))
    before = state(replica, "Averaged/1/")
    pushed = {n: t + np.ones((), t.dtype) * 2 for n, t in before.items()}
    result = tensors_of(merged(merger.merge(part(pushed), replica.state, circumstances(others=10))))
    assert result.keys() == before.keys()
    for name, tensor in before.items():
        step = 1 if tensor.dtype.kind == "f" else 2  # whole numbers: the larger
        np.testing.assert_allclose(result[name], tensor + step, rtol=1e-6)


def test_a_module_of_another_shape_is_an_error(tmp_path: Path) -> None:
    class Grown(gridml.Vertex):
        model = gridml.module(line)

        def aggregate(self, replica: Grown, merge: gridml.Merge) -> None:  # type: ignore[override, name-defined]
            self.model.weight = torch.nn.Parameter(torch.zeros(5, 5))

    merger, replica = merger_of(tmp_path, (Grown, 1))
    for _ in range(2):  # and the next push gets the same error
        with pytest.raises(UserCodeError, match=r"float32 \(5, 5\) of Grown/0/model/weight; expected float32 \(1, 2\)"):
            merger.merge(part(state(replica, "Grown/0/")), replica.state, circumstances())


def test_what_a_rule_held_back_comes_at_the_end_of_the_epoch_even_from_another_master(tmp_path: Path) -> None:
    class Held(gridml.Vertex):
        model = gridml.module(line)
        aggregate = gridml.fedbuff()

    merger, replica = merger_of(tmp_path, (Held, 2))
    before = state(replica, "Held/1/")
    assert merger.flush(2) == {}
    pushed = {n: t + 1 for n, t in before.items()}
    result = merged(merger.merge(part(pushed), replica.state, circumstances(others=10)))
    replica.put(result.modules, result.rows, 1)
    sha256 = replica.commit_version(1)
    now = dict(replica.state.tensors())
    for name, tensor in before.items():
        np.testing.assert_array_equal(now[name], tensor)  # held back

    g = Graph()
    g.add(Held, 2)
    again = Replica(g, Versions(tmp_path / "versions"))
    again.load(1, sha256)
    flushed = Merger(g, again).flush(2)
    for name, tensor in before.items():
        np.testing.assert_allclose(flushed["Held", 1].tensors[name], tensor + 1, rtol=1e-6)
    again.put(flushed, {}, 2)
    assert Merger(g, again).flush(2) == {}
